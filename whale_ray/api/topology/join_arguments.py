"""Checks of what all joins take: the columns that are equal, the streams, what comes of them."""

from __future__ import annotations

from collections.abc import Mapping

from ...configs.errors import ExpressionError
from ...operators.joins.asof_join import AsOfJoin
from ...operators.joins.equi_join import EquiJoin, How
from ...operators.joins.join import LATE_LEFT, LATE_RIGHT, OUTPUTS, Join
from ...plan.logical import Input, OperatorKind, OperatorNode
from .checks import describe_value, mistake
from .known import KnownColumns, check_columns, columns_of
from .locations import caller_location
from .registry import Registry

_MAKES_NULLS = (("right", "outer"), ("left", "outer"))
"""The joins that make nulls of the left columns, and of the right ones."""


def join_keys(operator_id: str, parameter: str, given: object) -> tuple[tuple[str, str], ...]:
    """Return the pairs of equal columns that a user passed, perhaps none."""
    pairs: list[tuple[object, object]]
    if isinstance(given, str):
        pairs = [(given, given)]
    elif isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, (list, tuple)):
        pairs = [(name, name) for name in given]
    else:
        raise mistake(
            operator_id,
            f"{parameter} is {describe_value(given)}: pass a column, a list of columns, or"
            " {'left column': 'right column'}",
        )
    for names in pairs:
        for name in names:
            if not isinstance(name, str):
                raise mistake(
                    operator_id,
                    f"{parameter} has {describe_value(name)}: name columns; compute a key with"
                    " with_column('name', …) before",
                )
    checked = tuple((str(left), str(right)) for left, right in pairs)
    for side in zip(*checked, strict=True):
        if repeated := next((name for name in side if side.count(name) > 1), None):
            raise mistake(operator_id, f"{parameter} names column {repeated!r} twice: name it once")
    return checked


def check_sides(
    registry: Registry, operator_id: str, join: EquiJoin, sides: tuple[Input, Input]
) -> list[KnownColumns | None]:
    """Return the columns of both streams that are joined, as far as they are known.

    Raises:
        TopologyError: a stream lacks event times or a column of the key, or its columns may have
            to be null and their types are not known.
    """
    columns: list[KnownColumns | None] = [
        columns_of(known) or registry.columns(side.source)
        for known, side in zip((join.left, join.right), sides, strict=True)
    ]
    for names, known in zip((join.left_keys, join.right_keys), columns, strict=True):
        check_columns(operator_id, "join", names, known)
    for side, known, nulls in zip(sides, columns, _MAKES_NULLS, strict=True):
        _check_event_time(registry, operator_id, side)
        if join.how in nulls:
            check_types_known(operator_id, join.how, registry.output_name(side.source), known)
    return columns


def _check_event_time(registry: Registry, operator_id: str, side: Input) -> None:
    if registry.node(side.upstream).has_event_time:
        return
    source = registry.untimed_source(side.upstream)
    raise mistake(
        operator_id,
        f"a join needs event times, which source {source!r} does not give: pass it"
        " event_time='column'",
    )


def check_types_known(operator_id: str, how: How, stream: str, known: KnownColumns | None) -> None:
    """Refuse a stream whose columns might have to be null before their types are known."""
    if known is None or None in known.values():
        raise mistake(
            operator_id,
            f"how={how!r} makes nulls where no row matches, but the types of the columns of"
            f" {stream!r} are not known: declare them where they are made: map(…, schema=…), the"
            " schema of a process' class, or that of the source",
        )


def add_stream_join(
    registry: Registry,
    operator_id: str,
    verb: str,
    join: AsOfJoin | Join,
    sides: tuple[Input, Input],
    inputs: tuple[Input, Input],
    parallelism: int | None,
    *,
    declared_state: tuple[str, ...],
    event_time_order: bool,
    order_reason: str,
) -> None:
    """Add the operator that joins two streams; see `check_sides` for what it refuses."""
    columns = check_sides(registry, operator_id, join, sides)
    node = OperatorNode(
        id=operator_id,
        kind=OperatorKind.CO_PROCESS,
        payload=join,
        inputs=inputs,
        verb=verb,
        parallelism=parallelism,
        has_event_time=True,
        event_time_order=event_time_order,
        per_worker=True,
        outputs=OUTPUTS,
        late_outputs=(LATE_LEFT, LATE_RIGHT),
        takes_late_rows=True,
        declared_state=declared_state,
        keeps_rows=True,
        order_reason=order_reason,
        location=caller_location(),
    )
    registry.add(node, join_result(operator_id, join, columns), *columns)


def join_result(
    operator_id: str, join: EquiJoin, columns: list[KnownColumns | None]
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
