"""`GroupedRows`: what `group_by` returns, and the checks of what users pass to `agg`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from ...configs.errors import ExpressionError, InputError
from ...operators.aggregates.aggregate import Aggregate
from ...operators.expressions.expression import Expression
from ...operators.groupings import Global, Key
from ...operators.windows.aggregation import Aggregation, AggregationWay, OutputMode
from ...operators.windows.durations import duration_ns
from ...operators.windows.grouping import LATE, OUTPUTS, WINDOW_END, WINDOW_START
from ...operators.windows.specifications import (
    CountWindow,
    SessionWindow,
    TimeWindow,
    WindowSpecification,
)
from ...operators.windows.top_n import TopN
from ...plan.logical import Input, OperatorKind, OperatorNode
from . import misuse
from .checks import check_bool, check_choice, describe_value, mistake, written_as
from .known import KnownColumns, as_known_schema, check_columns
from .locations import caller_location
from .time_columns import (
    are_of_sessions,
    event_time_columns,
    event_time_zone,
    replaced_columns,
)

if TYPE_CHECKING:
    from ...operators.windows.durations import Duration
    from .streams import Stream

_WINDOWS = (TimeWindow, SessionWindow, CountWindow)


class GroupedRows:
    """The rows of a stream in groups, by columns and a window: aggregate them with `agg`."""

    def __init__(self, stream: Stream, columns: tuple[object, ...]) -> None:
        self._stream = stream
        self._registry = stream._registry
        self._window, self._keys = _grouping(stream.id, columns)
        known = self._registry.columns(stream._source)
        check_columns(stream.id, "group_by", self._keys, known)
        self._times = event_time_columns(self._registry, stream._source)
        self._replaced = replaced_columns(self._registry, stream._source)
        self._within_windows = (
            self._window is None
            and WINDOW_END in self._keys
            and self._times is not None
            and WINDOW_END in self._times
        )
        if self._within_windows and WINDOW_END in self._replaced:
            raise mistake(
                stream.id,
                f"group_by names {WINDOW_END!r}, which {self._replaced[WINDOW_END]!r} computes, so"
                " that it is the end of a window no longer: leave it as it is, or give the"
                " computed column another name to group by it without a window",
            )
        self._by_clock = isinstance(self._window, TimeWindow) and self._window.by_clock
        if isinstance(self._window, (TimeWindow, SessionWindow)) and not self._by_clock:
            self._check_time(self._window.column)

    def __repr__(self) -> str:
        window = "" if self._window is None else f"{self._window.describe()}; "
        return f"GroupedRows({self._stream.id!r}, {window}{', '.join(self._keys)})"

    def agg(
        self,
        *aggregates: Aggregate,
        id: str | None = None,
        output_mode: OutputMode | None = None,
        trigger: Duration | None = None,
        allowed_lateness: Duration = 0,
        parallelism: int | None = None,
        aggregation: AggregationWay | None = None,
    ) -> Stream:
        """Aggregate each group: `agg(F.count().alias("bids"), F.max("price").alias("highest"))`.

        The result has the columns `window_start` and `window_end` (if there is a time or session
        window), the grouping columns, then the aggregates. A row's event time is 1 ns before the
        end of its window. Nulls in grouping columns form a group; NaN equals NaN, -0.0 equals 0.0.

        Args:
            aggregates: of `whale.functions`, or of your own (`whale.AggregateFunction`).
            id: the id of the operator; by default "agg-1" and so on.
            output_mode: "append": a group's row when its window has closed, once; "update": the
                rows of groups that have changed. By default "append" with a window, "update"
                without. "append" without a window emits the rows when the input ends.
            trigger: in update mode, how often changed rows are emitted at most: "1 second"; by
                default after each batch.
            allowed_lateness: for how long a window takes late rows after it has closed; its
                changed rows are then emitted again. The row of a session replaces all earlier ones
                of its key whose windows lie within its own.
            parallelism: the number of instances; by default one per worker. Without grouping
                columns there is one.
            aggregation: "partitioned": rows are sent by key, and aggregated there; "late_merge":
                they are aggregated where they are made, and what is sent by key are the states of
                groups, to be merged; "auto": the latter, as long as that reduces the rows to half
                or less, where no result differs by a bit. By default as the setting
                `runtime.aggregation` says, which is "auto" if it says nothing. Where late merge is
                not possible, as for count windows, rows are sent by key, and `explain` says why.

        Raises:
            TopologyError: an argument is not valid; the message says how to correct it.
        """
        registry = self._registry
        operator_id = registry.choose_id("agg", id)
        checked = _aggregates(operator_id, aggregates)
        mode = self._mode(operator_id, output_mode, trigger)
        asked = Aggregation(
            keys=self._keys,
            window=self._window,
            aggregates=checked,
            **self._windowing(),
            output_mode=mode,
            trigger_ns=None if trigger is None else _duration(operator_id, "trigger", trigger),
            allowed_lateness_ns=self._lateness(operator_id, allowed_lateness),
            way=_aggregation_way(operator_id, aggregation),
        )
        known = registry.columns(self._stream._source)
        for one in checked:
            check_columns(operator_id, str(one), one.columns, known)
        _check_names(operator_id, asked)
        return self._added(operator_id, "agg", asked, parallelism)

    @written_as("stream.group_by('key').top_n(3, 'value')")
    def top_n(
        self,
        n: int,
        by: str,
        *,
        with_ties: bool = False,
        id: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the n rows of each group with the greatest values of a column.

        They come with all of their columns when the window has closed, in descending order; behind
        `window_start` and `window_end` if there is a time window. Without a window they come when
        the input ends. Of equal values the first to arrive counts; null is less than all others.

        Args:
            n: how many rows.
            by: the column.
            with_ties: whether rows that equal the n-th come as well.
            id: the id of the operator; by default "top-n-1" and so on.
            parallelism: the number of instances; by default one per worker.

        Raises:
            TopologyError: an argument is not valid; the message says how to correct it.
        """
        operator_id = self._registry.choose_id("top_n", id)
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise mistake(operator_id, f"n is {describe_value(n)}: pass a whole number from 1 on")
        if not isinstance(by, str):
            raise mistake(operator_id, f"by is {describe_value(by)}: pass the name of a column")
        check_bool(operator_id, "with_ties", with_ties)
        if isinstance(self._window, (SessionWindow, CountWindow)) or self._by_clock:
            assert self._window is not None
            raise mistake(
                operator_id,
                "top_n takes windows of one length in event time, not a"
                f" {self._window.describe()}: aggregate first, and group by the result's"
                " window_start and window_end",
            )
        known = self._registry.columns(self._stream._source)
        check_columns(operator_id, "by", (by,), known)
        asked = TopN(self._keys, self._window, n, by, with_ties, **self._windowing())
        return self._added(operator_id, "top_n", asked, parallelism)

    def _windowing(self) -> dict[str, Any]:
        """Return what an operator must know of the windows that the rows come from."""
        source = self._stream._source
        return {
            "within_windows": self._within_windows,
            "of_sessions": self._within_windows and are_of_sessions(self._registry, source),
            "time_zone": event_time_zone(self._registry, self._stream.id),
        }

    def _added(
        self, operator_id: str, verb: str, asked: Aggregation | TopN, parallelism: int | None
    ) -> Stream:
        """Add the operator to the topology."""
        registry = self._registry
        known = registry.columns(self._stream._source)
        node = OperatorNode(
            id=operator_id,
            kind=OperatorKind.PROCESS,
            payload=asked,
            inputs=(self._input(),),
            verb=verb,
            parallelism=parallelism,
            has_event_time=registry.node(self._stream.id).has_event_time,
            per_worker=True,
            outputs=OUTPUTS,
            late_outputs=(LATE,),
            takes_late_rows=True,
            declared_state=asked.kept,
            keeps_rows=isinstance(asked, TopN),
            order_reason=(
                "rows count when they come" if asked.is_by_clock else "it takes rows in any order"
            ),
            location=caller_location(),
        )
        registry.add(node, _known_result(operator_id, asked, known), known)
        return self._stream._output_of(operator_id)

    def _input(self) -> Input:
        grouping = Key(self._keys) if self._keys else Global()
        return replace(self._stream._input(), grouping=grouping, on_null_key="keep")

    def _check_time(self, column: str) -> None:
        stream = self._stream.id
        if not column:
            is_session = isinstance(self._window, SessionWindow)
            name, length = ("session_window", "gap") if is_session else ("window", "size")
            raise mistake(
                stream,
                f"the window lacks its column: whale.{name}('time', '10 seconds') names the"
                f" event-time column, then the {length}",
            )
        if not self._registry.node(stream).has_event_time:
            source = self._registry.untimed_source(stream)
            raise mistake(
                stream,
                f"a window needs event times, which source {source!r} does not give: pass it"
                f" event_time={column!r}",
            )
        if self._times is not None and column not in self._times:
            names = " or ".join(repr(name) for name in sorted(self._times))
            raise mistake(
                stream,
                f"the window is over {column!r}, but the event time of these rows is {names} (also"
                " where a select has renamed or left out that column): pass that name",
            )
        if column in self._replaced:
            raise mistake(
                stream,
                f"the window is over {column!r}, which {self._replaced[column]!r} computes, but the"
                " event times of these rows stay what the source says: give the computed column"
                " another name",
            )

    def _mode(self, operator_id: str, mode: object, trigger: object) -> OutputMode:
        windowed = self._window is not None or self._within_windows
        if mode is None:
            mode = "append" if windowed else "update"
        check_choice(operator_id, "output_mode", mode, ("append", "update"))
        if mode == "update" and isinstance(self._window, CountWindow):
            raise mistake(
                operator_id,
                f"a {self._window.describe()} has no row before it is full: leave out"
                " output_mode='update'",
            )
        if trigger is not None and mode != "update":
            raise mistake(operator_id, "trigger has no effect without output_mode='update'")
        return "update" if mode == "update" else "append"

    def _lateness(self, operator_id: str, given: object) -> int:
        lateness = _duration(operator_id, "allowed_lateness", given)
        timed = isinstance(self._window, (TimeWindow, SessionWindow)) or self._within_windows
        if lateness and self._by_clock:
            raise mistake(
                operator_id,
                "allowed_lateness has no effect on windows of processing time: no row is late",
            )
        if lateness and not timed:
            raise mistake(operator_id, "allowed_lateness has no effect without a window in time")
        return lateness

    if not TYPE_CHECKING:  # hidden from type checkers, which then report a missing attribute

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(misuse.on_grouped_rows(name))


def _aggregation_way(operator_id: str, given: AggregationWay | None) -> AggregationWay | None:
    if given is not None:
        check_choice(operator_id, "aggregation", given, get_args(AggregationWay))
    return given


def _grouping(
    stream: str, columns: tuple[object, ...]
) -> tuple[WindowSpecification | None, tuple[str, ...]]:
    """Return the window and the names of the columns that a user passed to `group_by`."""
    windows: list[WindowSpecification] = []
    names: list[str] = []
    for column in columns:
        if isinstance(column, _WINDOWS):
            windows.append(column)
        elif isinstance(column, Expression) and column.plain_column == column.output_name:
            names.append(column.output_name)
        elif isinstance(column, str):
            names.append(column)
        elif isinstance(column, Expression):
            raise mistake(
                stream,
                f"group_by takes columns, not {column}: compute it before,"
                " with_column('name', …), and name it",
            )
        else:
            raise mistake(
                stream,
                f"group_by takes column names and a window, not {describe_value(column)}:"
                " group_by(whale.window('time', '10 seconds'), 'key')",
            )
    if len(windows) > 1:
        raise mistake(stream, "group_by takes one window, not several: aggregate one after another")
    if not windows and not names:
        raise mistake(stream, "group_by needs a column or a window: group_by('key')")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise mistake(stream, f"group_by names column {repeated[0]!r} twice: name it once")
    return (windows[0] if windows else None), tuple(names)


def _aggregates(operator_id: str, given: tuple[object, ...]) -> tuple[Aggregate, ...]:
    if not given:
        raise mistake(operator_id, "agg needs an aggregate, such as whale.functions.count()")
    checked = []
    for one in given:
        if not isinstance(one, Aggregate):
            shown = str(one) if isinstance(one, Expression) else describe_value(one)
            raise mistake(
                operator_id,
                f"agg takes aggregates of whale.functions, such as count() or max('price'), not"
                f" {shown}",
            )
        checked.append(one)
    return tuple(checked)


def _check_names(operator_id: str, asked: Aggregation) -> None:
    names = asked.names
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is None:
        return
    fix = "give one another name, .alias('…')"
    if asked.has_window_columns and repeated in (WINDOW_START, WINDOW_END):
        fix = f"the window makes a column {repeated!r}, too; rename or leave out the other one"
    raise mistake(operator_id, f"the result would have column {repeated!r} twice: {fix}")


def _known_result(
    operator_id: str, asked: Aggregation | TopN, known: KnownColumns | None
) -> KnownColumns | None:
    """Return the columns of the result, with their types as far as they are known."""
    schema = as_known_schema(known)
    if schema is None:
        return dict.fromkeys(asked.names) if isinstance(asked, Aggregation) else None
    try:
        result = asked.output_schema(schema)
    except ExpressionError as error:
        raise mistake(operator_id, str(error)) from None
    return {field.name: field.type for field in result}


def _duration(operator_id: str, parameter: str, given: object) -> int:
    try:
        found = duration_ns(given, parameter)
    except InputError as error:
        raise mistake(operator_id, str(error)) from None
    if found < 0:
        raise mistake(operator_id, f"{parameter} is {given!r}: it must not be negative")
    return found
