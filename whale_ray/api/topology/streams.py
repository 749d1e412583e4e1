"""`Stream`: the output of an operator, and the groupings that can be applied to it.

::

    Topology.source ──▶ Stream ──key_by, shuffle, broadcast …──▶ GroupedStream
                          ▲  ▲                                      │   │
                          │  └── map, filter, select, process … ────┘   │ connect
                          └───────────── process ── ConnectedStream ◀───┘

Any number of operators may read a stream, so plans branch and merge again. Each method adds an
operator or a grouping and returns a new stream; it does not change the stream that it is called on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...configs.errors import TopologyError
from ...operators.groupings import (
    All,
    Custom,
    Direct,
    Forward,
    Global,
    Grouping,
    Key,
    LocalOrShuffle,
    Shuffle,
)
from ...plan.logical import MAIN, Input, OnBadRows
from . import misuse
from .aggregations import GroupedRows
from .asof_joins import add_join_asof
from .checks import check_choice, check_function, mistake, written_as
from .deduplications import add_drop_duplicates
from .grouped import GroupedStream
from .joins import add_join
from .known import check_columns, kind_of_key
from .readable import ReadableStream
from .registry import Registry
from .table_joins import add_table_join
from .unions import add_union, no_stream

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...operators.expressions.expression import Expression
    from ...operators.joins.asof_join import Strategy
    from ...operators.joins.equi_join import How
    from ...operators.joins.interval import TimeInterval
    from ...operators.sources.base import Source
    from ...operators.windows.durations import Duration
    from ...operators.windows.specifications import (
        SessionWindow,
        TimeWindow,
        WindowSpecification,
    )
    from ...transport.wire.batch import Batch


class Stream(ReadableStream):
    """The output of an operator. A grouping sends its rows to instances of the next operator."""

    def __init__(self, registry: Registry, operator_id: str, output: int = MAIN) -> None:
        super().__init__(registry, (operator_id, output), Forward())

    def __repr__(self) -> str:
        name = self._registry.output_name(self._source)
        return f"Stream({name!r} of topology {self._registry.name!r})"

    def side_output(self, name: str) -> Stream:
        """Return another output of the operator whose main output this stream is.

        An operator names its outputs in its class, `Process.outputs`, and emits rows on this one
        by `out.emit_to(name, …)`. Its watermark is the operator's.

        Raises:
            TopologyError: the operator has no other output of that name.
        """
        outputs = self._registry.node(self.id).outputs
        if self._output != MAIN or name not in outputs[1:]:
            raise mistake(self.id, misuse.no_side_output(name, self._output == MAIN, outputs[1:]))
        return Stream(self._registry, self.id, outputs.index(name))

    @property
    def late(self) -> Stream:
        """The rows that came too late for all of their windows: the output "late" of `agg`.

        Raises:
            TopologyError: the operator has no such output.
        """
        return self.side_output("late")

    def union(self, *others: Stream, id: str | None = None) -> Stream:
        """Return a stream with all rows of this stream and of others with equal columns.

        A union has no cost at runtime: an operator that reads it reads each of its streams. The
        rows of one stream keep their order. Rows of different streams are ordered only by event
        time; for equal times the order of the streams here decides. The watermark is the minimum of
        the streams' watermarks.

        Args:
            others: streams of the same topology; their columns have the same names and types, in
                the same order.
            id: the id of the union; by default "union-1" and so on.

        Raises:
            TopologyError: an argument is not such a stream, or the columns differ, as far as they
                are known. Columns that are not known yet are compared while the job runs.
        """
        union_id = self._registry.choose_id("union", id)
        inputs = tuple(self._side_of(union_id, "union", stream) for stream in (self, *others))
        add_union(self._registry, union_id, inputs)
        return Stream(self._registry, union_id)

    def key_by(self, *columns: str, on_null: OnBadRows = "fail") -> GroupedStream:
        """Send all rows of one key to one instance, in order.

        Args:
            columns: the columns of the key.
            on_null: "fail": a row whose key is null fails the job; "drop": such rows are dropped
                and counted.

        Raises:
            TopologyError: a column is missing, as far as the columns are known.
        """
        check_choice(self.id, "on_null", on_null, ("fail", "drop"))
        return self._grouped(lambda: Key(columns), "key_by", columns, on_null)

    def group_by(self, *columns: str | Expression | WindowSpecification) -> GroupedRows:
        """Group rows by columns and a window, to aggregate each group with `agg`.

        ::

            from whale_ray import functions as F

            counts = bids.group_by(whale.window("date_time", "10 seconds"), "auction").agg(
                F.count().alias("bids"), F.max("price").alias("highest")
            )

        Args:
            columns: names of columns, and at most one of `whale.window`, `whale.session_window` and
                `whale.count_window`. Null is a value like any other.

        Raises:
            TopologyError: a column is missing, as far as the columns are known, or the window is
                not over the event time.
        """
        return GroupedRows(self, columns)

    @written_as("left.join(right, on='key', within=whale.window('10 minutes'))")
    def join(
        self,
        other: Stream,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        within: TimeWindow | SessionWindow | TimeInterval,
        how: How = "inner",
        id: str | None = None,
        allowed_lateness: Duration = 0,
        parallelism: int | None = None,
    ) -> Stream:
        """Join the rows of two streams that have equal keys and are near in event time.

        ::

            sold = bids.join(auctions, on={"auction": "id"}, within=whale.window("12 hours"))
            shown = clicks.join(views, on="ad", within=whale.interval("-10 minutes", "0 s"))

        The result has `window_start` and `window_end` (if rows join within windows), the columns of
        this stream, then those of the other one; a key that is named alike on both sides is one
        column. Null equals nothing; NaN equals NaN, -0.0 equals 0.0. A joined row has the later of
        both event times. Rows that come too late are the outputs `late_left` and `late_right`.

        Args:
            other: the right stream, of the same topology.
            on: a column, several, or a mapping of left to right columns.
            within: `whale.window(size)`: rows join if they are in the same window, tumbling or
                hopping; `whale.session_window(gap)`: in the same session, which rows of both
                streams make together; `whale.interval(lower, upper)`: if the right event time less
                the left one lies between these bounds.
            how: "inner"; "left", "right" and "outer" keep rows that join with none as well, with
                nulls; "semi": left rows that join with any, once; "anti": those that join with
                none. A row that joins with none is emitted when nothing can join with it any more:
                at the end of its window, or of the interval and at most half its length after it.
            id: the id of the operator; by default "join-1" and so on.
            allowed_lateness: for how long rows are kept beyond that, for others that come late.
            parallelism: the number of instances; by default one per worker.

        Raises:
            TopologyError: an argument is not valid, columns of the two streams have the same name,
                or the types of keys differ, as far as they are known.
        """
        join_id = self._registry.choose_id("join", id)
        sides = (self._side_of(join_id, "join", self), self._side_of(join_id, "join", other))
        operator_id = add_join(
            self._registry, sides, on, within, how, id, allowed_lateness, parallelism
        )
        return self._output_of(operator_id)

    @written_as("left.join_asof(right, by='key', tolerance='1 second')")
    def join_asof(
        self,
        other: Stream,
        *,
        by: str | Sequence[str] | Mapping[str, str] | None = None,
        strategy: Strategy = "backward",
        tolerance: Duration | None = None,
        how: How = "left",
        allow_exact_matches: bool = True,
        id: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Join each row with the row of another stream that is next to it in event time.

        ::

            priced = trades.join_asof(quotes, by="symbol", tolerance="1 second")

        The event times of both streams decide, whatever columns they come from. Of right rows of
        one time the last counts, with "forward" the first. Null equals nothing; NaN equals NaN,
        -0.0 equals 0.0. The result has the columns of this stream, then those of the other one; a
        key that is named alike on both sides is one column. Rows that come too late are the
        outputs `late_left` and `late_right`.

        Args:
            other: the right stream, of the same topology.
            by: columns that must be equal: one, several, or a mapping of left to right columns;
                None: all rows belong together, and one instance joins them.
            strategy: "backward": the latest right row at the row's time or before; "forward": the
                first one at its time or after; "nearest": the nearer of both, the later one if both
                are as near.
            tolerance: how far apart the two may be, "1 second"; None: any distance.
            how: "left": rows that match none as well, with nulls; "inner": without them.
            allow_exact_matches: whether rows of the same time match; not to be combined with
                "nearest" if False.
            id: the id of the operator; by default "join-asof-1" and so on.
            parallelism: the number of instances; by default one per worker.

        Raises:
            TopologyError: an argument is not valid, columns of the two streams have the same name,
                or the types of keys differ, as far as they are known.
        """
        join_id = self._registry.choose_id("join_asof", id)
        sides = tuple(self._side_of(join_id, "join_asof", stream) for stream in (self, other))
        operator_id = add_join_asof(
            self._registry,
            (sides[0], sides[1]),
            by,
            strategy,
            tolerance,
            how,
            allow_exact_matches,
            id,
            parallelism,
        )
        return self._output_of(operator_id)

    @written_as("stream.join_table(table, on='key')")
    def join_table(
        self,
        table: Source | Stream | object,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        how: How = "inner",
        changes: Stream | None = None,
        delete_when: Expression | None = None,
        id: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Join each row with the rows of a bounded table that have its key.

        ::

            named = bids.join_table(whale.sources.parquet("people/"), on={"bidder": "id"})

        The table is read to its end first, and sent once to every worker, which keeps it whole; the
        stream is not read before. Rows keep their order and their event times, and late rows pass.
        The result has the columns of this stream, then those of the table; a key that is named
        alike on both sides is one column. Null equals nothing; NaN equals NaN, -0.0 equals 0.0.

        Args:
            table: a source, a DataFrame of Spark or pandas or another table that `whale.sources`
                takes, or a stream of this topology that ends. A row of this stream gives as many
                rows as it finds there.
            on: a column, several, or a mapping of this stream's to the table's columns.
            how: "inner"; "left" keeps rows that find none as well, with nulls; "semi": rows that
                find any, once, without columns of the table; "anti": those that find none.
            changes: a stream with the columns of the table and perhaps more. Each of its rows
                replaces all rows of its key in the table, as soon as it arrives: rows of this
                stream that are joined later find the new one. Changes of one key must come from one
                instance, `key_by` brings them there, to keep their order.
            delete_when: a condition on the columns of `changes`: rows for which it is true delete
                the rows of their key instead.
            id: the id of the operator; by default "join-table-1" and so on. The source of a table
                that is no stream gets it with "-table" after it.
            parallelism: the number of instances; by default as many as upstream.

        Raises:
            TopologyError: an argument is not valid, columns of both have the same name, the types
                of keys differ, as far as they are known, or the table never ends or needs a source
                of this stream.
        """
        join_id = self._registry.choose_id("join_table", id)

        def side(stream: object) -> Input:
            return self._side_of(join_id, "join_table", stream)

        add_table_join(
            self._registry,
            side(self),
            side(table) if isinstance(table, ReadableStream) else table,
            on,
            how,
            None if changes is None else side(changes),
            delete_when,
            join_id,
            parallelism,
        )
        return self._output_of(join_id)

    @written_as("stream.drop_duplicates('key', within='10 minutes')")
    def drop_duplicates(
        self,
        *columns: str,
        within: Duration,
        id: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Pass on the first row of each key: `drop_duplicates("auction", within="10 minutes")`.

        A row is dropped if a row of its key that was passed on lies less than `within` before or
        after it in event time. Nulls are equal, NaN equals NaN, and -0.0 equals 0.0. Rows behind
        the watermark are the output `.late`.

        Args:
            columns: those in which duplicates are equal; by default all.
            within: "10 minutes", a `timedelta`, or milliseconds; keys are kept for so long.
            id: the id of the operator; by default "drop-duplicates-1" and so on.
            parallelism: the number of instances; by default one per worker.

        Raises:
            TopologyError: an argument is not valid; the message says how to correct it.
        """
        operator_id = add_drop_duplicates(
            self._registry, self._input(), columns, within, id, parallelism
        )
        return self._output_of(operator_id)

    def shuffle(self) -> GroupedStream:
        """Send every row to one instance, and about equally many rows to each."""
        return self._grouped(Shuffle)

    def broadcast(self) -> GroupedStream:
        """Send every row to **all** instances. It is serialized once, and read in place."""
        return self._grouped(All)

    def global_(self) -> GroupedStream:
        """Send every row to one instance: the next operator has only one."""
        return self._grouped(Global)

    def local_or_shuffle(self) -> GroupedStream:
        """Send rows to instances in the same worker if there are any, else shuffle them."""
        return self._grouped(LocalOrShuffle)

    def direct(self, column: str, *, on_null: OnBadRows = "fail") -> GroupedStream:
        """Send every row to the instance whose number (from 0) is in an integer column.

        Args:
            column: the column's name.
            on_null: "fail": a row with a null there fails the job; "drop": such rows are dropped
                and counted.

        Raises:
            TopologyError: the column is missing or does not hold integers, as far as is known.
        """
        check_choice(self.id, "on_null", on_null, ("fail", "drop"))
        grouped = self._grouped(lambda: Direct(column), "direct", (column,), on_null)
        kind = (self._columns() or {}).get(column)
        if kind is not None and kind_of_key(kind) != "integer":
            raise mistake(self.id, f"direct needs a column of integers, {column!r} is {kind.name}")
        return grouped

    def partition_by(self, function: Callable[[Batch, int], npt.ArrayLike]) -> GroupedStream:
        """Send every row to the instance that a function of yours chooses.

        Args:
            function: (batch, parallelism) → instance numbers from 0, shape (num_rows,).

        Raises:
            TopologyError: the function cannot be called with two arguments.
        """
        takes = ("batch", "parallelism")
        check_function(self.id, "partition_by", function, takes, "instance numbers")
        return self._grouped(lambda: Custom(function))

    def _side_of(self, operator_id: str, verb: str, stream: object) -> Input:
        """Return a stream as an input of an operator with several, without a grouping.

        Raises:
            TopologyError: it is not an ungrouped stream of this topology.
        """
        if not isinstance(stream, ReadableStream):
            raise no_stream(operator_id, verb, stream)
        if not isinstance(stream, Stream):
            grouping = stream._grouping.describe()
            raise mistake(operator_id, misuse.grouped_before(verb, repr(stream.id), grouping))
        if stream._registry is not self._registry:
            raise mistake(
                operator_id,
                f"{verb} takes streams of one topology, but {stream.id!r} belongs to another one"
                f" named {stream._registry.name!r}: make all with the same Topology",
            )
        own = None if stream._transport is self._registry.transport else stream._transport
        return replace(stream._input(), transport=own)

    def _grouped(
        self,
        make: Callable[[], Grouping],
        verb: str = "",
        columns: tuple[str, ...] = (),
        on_null: OnBadRows = "fail",
    ) -> GroupedStream:
        try:
            grouping = make()
        except TopologyError as error:
            raise mistake(self.id, str(error)) from None
        check_columns(self.id, verb, columns, self._columns())
        return GroupedStream(self, grouping, on_null)

    def _output_of(self, operator_id: str) -> Stream:
        return Stream(self._registry, operator_id)

    if not TYPE_CHECKING:  # hidden from type checkers, which then report a missing attribute

        def __getattr__(self, name: str) -> Any:
            text = misuse.on_ungrouped(name)
            if text:
                raise mistake(self.id, text)
            columns = () if name.startswith("_") else self._columns() or ()
            raise AttributeError(misuse.other_name("Stream", name, columns))
