"""Checks of the arguments of `join`, and the operator that it adds."""

from __future__ import annotations

from collections.abc import Mapping

from ...configs.errors import ExpressionError, InputError
from ...operators.groupings import Key
from ...operators.joins.interval import TimeInterval
from ...operators.joins.join import LATE_LEFT, LATE_RIGHT, OUTPUTS, How, Join
from ...operators.windows.durations import duration_ns
from ...operators.windows.specifications import TimeWindow
from ...plan.columns import known_columns
from ...plan.logical import LEFT, RIGHT, Input, OperatorKind, OperatorNode
from .checks import check_choice, describe_value, mistake
from .known import KnownColumns, check_columns, columns_of
from .locations import caller_location
from .registry import Registry
from .time_columns import event_time_zone

HOWS = ("inner", "left", "right", "outer", "semi", "anti")

_MAKES_NULLS = (("right", "outer"), ("left", "outer"))
"""The joins that make nulls of the left columns, and of the right ones."""

_EXAMPLE = "within=whale.window('12 hours') or within=whale.interval('-10 minutes', '0 s')"


def add_join(
    registry: Registry,
    sides: tuple[Input, Input],
    on: object,
    within: object,
    how: How,
    wanted_id: str | None,
    allowed_lateness: object,
    parallelism: int | None,
) -> str:
    """Add the join of two streams and return its id.

    Args:
        registry: of the topology.
        sides: the left and the right stream, without a grouping.
        on: see `Stream.join`, as the other arguments.

    Raises:
        TopologyError: an argument is not valid; the message says how to correct it.
    """
    operator_id = registry.choose_id("join", wanted_id)
    check_choice(operator_id, "how", how, HOWS)
    keys = _keys(operator_id, on)
    left, right = sides
    schemas = known_columns(registry.plan_so_far)
    join = Join(
        keys=keys,
        within=_within(operator_id, within),
        how=how,
        left=schemas[left.source],
        right=schemas[right.source],
        time_zone=event_time_zone(registry, left.upstream),
        allowed_lateness_ns=_lateness(operator_id, allowed_lateness),
    )
    columns: list[KnownColumns | None] = [
        columns_of(known) or registry.columns(side.source)
        for known, side in zip((join.left, join.right), sides, strict=True)
    ]
    for names, known in zip((join.left_keys, join.right_keys), columns, strict=True):
        check_columns(operator_id, "join", names, known)
    for side, known, nulls in zip(sides, columns, _MAKES_NULLS, strict=True):
        _check_event_time(registry, operator_id, side)
        if how in nulls:
            _check_types_known(operator_id, how, registry.output_name(side.source), known)
    node = OperatorNode(
        id=operator_id,
        kind=OperatorKind.CO_PROCESS,
        payload=join,
        inputs=(_keyed(left, LEFT, join.left_keys), _keyed(right, RIGHT, join.right_keys)),
        verb="join",
        parallelism=parallelism,
        has_event_time=True,
        per_worker=True,
        outputs=OUTPUTS,
        late_outputs=(LATE_LEFT, LATE_RIGHT),
        takes_late_rows=True,
        declared_state=("rows of both sides",),
        keeps_rows=True,
        order_reason="rows join as they come",
        location=caller_location(),
    )
    registry.add(node, _result(operator_id, join, columns), *columns)
    return operator_id


def _keyed(side: Input, port: int, keys: tuple[str, ...]) -> Input:
    return Input(side.upstream, port, Key(keys), "keep", side.transport, side.output)


def _keys(operator_id: str, on: object) -> tuple[tuple[str, str], ...]:
    """Return the pairs of equal columns that a user passed as `on`."""
    pairs: list[tuple[object, object]]
    if isinstance(on, str):
        pairs = [(on, on)]
    elif isinstance(on, Mapping):
        pairs = list(on.items())
    elif isinstance(on, (list, tuple)):
        pairs = [(name, name) for name in on]
    else:
        raise mistake(
            operator_id,
            f"on is {describe_value(on)}: pass a column, a list of columns, or"
            " {'left column': 'right column'}",
        )
    if not pairs:
        raise mistake(operator_id, "a join needs columns that are equal: on='key'")
    for names in pairs:
        for name in names:
            if not isinstance(name, str) or not name:
                raise mistake(
                    operator_id,
                    f"on has {describe_value(name)}: name columns; compute a key with"
                    " with_column('name', …) before",
                )
    checked = tuple((str(left), str(right)) for left, right in pairs)
    for side in zip(*checked, strict=True):
        if repeated := next((name for name in side if side.count(name) > 1), None):
            raise mistake(operator_id, f"on names column {repeated!r} twice: name it once")
    return checked


def _within(operator_id: str, within: object) -> TimeWindow | TimeInterval:
    if isinstance(within, TimeInterval):
        return within
    if not isinstance(within, TimeWindow):
        raise mistake(operator_id, f"within is {describe_value(within)}: pass {_EXAMPLE}")
    if within.column:
        raise mistake(
            operator_id,
            f"the window is over {within.column!r}, but both sides of a join go by their event"
            " times: leave out the column, within=whale.window('12 hours')",
        )
    return within


def _lateness(operator_id: str, given: object) -> int:
    try:
        found = duration_ns(given, "allowed_lateness")
    except InputError as error:
        raise mistake(operator_id, str(error)) from None
    if found < 0:
        raise mistake(operator_id, f"allowed_lateness is {given!r}: it must not be negative")
    return found


def _check_event_time(registry: Registry, operator_id: str, side: Input) -> None:
    if registry.node(side.upstream).has_event_time:
        return
    source = registry.untimed_source(side.upstream)
    raise mistake(
        operator_id,
        f"a join needs event times, which source {source!r} does not give: pass it"
        " event_time='column'",
    )


def _check_types_known(operator_id: str, how: How, stream: str, known: KnownColumns | None) -> None:
    """Refuse a stream whose columns might have to be null before their types are known."""
    if known is None or None in known.values():
        raise mistake(
            operator_id,
            f"a {how} join makes nulls where no row matches, but the types of the columns of"
            f" {stream!r} are not known: declare them where they are made, map(…, schema=…), or"
            " on its source",
        )


def _result(
    operator_id: str, join: Join, columns: list[KnownColumns | None]
) -> KnownColumns | None:
    """Return the columns of the result, as far as they are known."""
    left, right = columns
    if left is None or right is None:
        return None
    try:
        if join.left is not None and join.right is not None:
            return columns_of(join.output_schema(join.left, join.right))
        return dict.fromkeys(join.names(tuple(left), tuple(right)))
    except ExpressionError as error:
        raise mistake(operator_id, str(error)) from None
