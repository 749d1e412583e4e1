"""Checks of the arguments of `join_table`, and the operators that it adds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...configs.errors import ExpressionError
from ...operators.expressions.expression import Expression
from ...operators.groupings import All
from ...operators.joins.equi_join import How
from ...operators.joins.table_join import TableJoin
from ...operators.sources.base import Source
from ...plan.columns import known_columns
from ...plan.logical import CHANGES, TABLE, Input, LogicalPlan, OperatorKind, OperatorNode
from ...plan.side_inputs import upstream_sources, waiting_for_itself
from .checks import check_choice, describe_value, mistake
from .endpoints import as_source, check_source
from .join_arguments import check_types_known, join_keys, join_result
from .known import KnownColumns, check_columns, columns_of
from .locations import caller_location
from .registry import Registry

if TYPE_CHECKING:
    from ...transport.wire.types import Schema

HOWS = ("inner", "left", "semi", "anti")


def add_table_join(
    registry: Registry,
    stream: Input,
    table: Input | object,
    on: object,
    how: How,
    changes: Input | None,
    delete_when: object,
    operator_id: str,
    parallelism: int | None,
) -> None:
    """Add the join of a stream with a table.

    Args:
        registry: of the topology.
        stream: whose rows are joined, without a grouping.
        table: another stream of the topology, without a grouping; else a source or a DataFrame, for
            which a source is added as well.
        changes: a stream without a grouping, or None.
        operator_id: the id of the join, which is free.
        on: see `Stream.join_table`, as the other arguments.

    Raises:
        TopologyError: an argument is not valid; the message says how to correct it.
    """
    _check_how(operator_id, how)
    keys = join_keys(operator_id, "on", on)
    if not keys:
        raise mistake(operator_id, "join_table needs columns that are equal: on='key'")
    condition = _condition(operator_id, changes, delete_when)
    if not isinstance(table, Input):
        table = _add_source(registry, operator_id, table)
    _check_bounded(registry, operator_id, table)
    sides = (stream, table)
    schemas = known_columns(registry.plan_so_far)
    join = TableJoin(
        keys,
        how=how,
        left=schemas[stream.source],
        right=schemas[table.source],
        has_changes=changes is not None,
        delete_when=condition,
    )
    columns: list[KnownColumns | None] = [
        columns_of(schemas[side.source]) or registry.columns(side.source) for side in sides
    ]
    for names, known in zip((join.left_keys, join.right_keys), columns, strict=True):
        check_columns(operator_id, "join_table", names, known)
    if how == "left":
        check_types_known(operator_id, how, registry.output_name(table.source), columns[1])
    if changes is not None:
        _check_changes(operator_id, join, schemas[changes.source])
    beside = [_broadcast(table, TABLE)] + ([_broadcast(changes, CHANGES)] if changes else [])
    node = OperatorNode(
        id=operator_id,
        kind=OperatorKind.TABLE_JOIN,
        payload=join,
        inputs=(stream, *beside),
        verb="join_table",
        parallelism=parallelism,
        has_event_time=registry.node(stream.upstream).has_event_time,
        declared_state=("the table",),
        keeps_rows=True,
        state_reason="not at all: each worker has all of it",
        location=caller_location(),
    )
    _check_order(registry, node)
    registry.add(node, join_result(operator_id, join, columns))


def _check_how(operator_id: str, how: object) -> None:
    if how in ("right", "outer"):
        raise mistake(
            operator_id,
            f"how is {how!r}, but that a row of the table has no match is known only when the"
            " stream has ended: pass how='inner' or how='left', or join two streams within a window"
            " with join",
        )
    check_choice(operator_id, "how", how, HOWS)


def _condition(operator_id: str, changes: Input | None, delete_when: object) -> Expression | None:
    if delete_when is None:
        return None
    if changes is None:
        raise mistake(operator_id, "delete_when says which changes delete: pass changes=, too")
    if not isinstance(delete_when, Expression):
        raise mistake(
            operator_id,
            f"delete_when is {describe_value(delete_when)}: pass a condition on the columns of the"
            " changes, delete_when=whale.col('op') == 'delete'",
        )
    return delete_when


def _broadcast(stream: Input, port: int) -> Input:
    return replace(stream, port=port, grouping=All())


def _add_source(registry: Registry, operator_id: str, table: object) -> Input:
    """Add the source of a table; its id is that of the join and "-table"."""
    source_id = registry.choose_id("source", f"{operator_id}-table")
    source = as_source(table)
    check_source(source_id, source)
    assert isinstance(source, Source)  # just checked
    source = source.with_bad_rows("fail")
    source.check()
    node = OperatorNode(
        id=source_id,
        kind=OperatorKind.SOURCE,
        payload=source,
        verb="source",
        location=caller_location(),
    )
    registry.add(node, columns_of(source.schema()))
    return Input(source_id, TABLE, All())


def _check_bounded(registry: Registry, operator_id: str, table: Input) -> None:
    for source in sorted(upstream_sources(registry.plan_so_far, [table.upstream])):
        if not getattr(registry.node(source).payload, "bounded", True):
            raise mistake(
                operator_id,
                f"the table must end before the stream's first row is joined, but source {source!r}"
                " never ends: join two streams within a window with join, or pass it as changes="
                " of a table",
            )


def _check_changes(operator_id: str, join: TableJoin, changes: Schema | None) -> None:
    """Refuse changes that lack columns of the table, as far as both are known."""
    if join.right is None or changes is None:
        return
    for field in join.right:
        if field.name not in changes:
            raise mistake(
                operator_id,
                f"a change replaces whole rows, but the changes lack column {field.name!r} of the"
                f" table (columns: {', '.join(changes.names)}): add it, or leave it out of the"
                " table",
            )
        kind = changes.field(field.name).type
        if kind != field.type:
            raise mistake(
                operator_id,
                f"column {field.name!r} is {kind.name} in the changes and {field.type.name} in the"
                " table: cast it with with_column",
            )
    if join.delete_when is None:
        return
    try:
        kind = join.delete_when.output_type(changes)
    except ExpressionError as error:
        raise mistake(operator_id, f"delete_when: {error}") from None
    if kind.name != "bool":
        raise mistake(
            operator_id, f"delete_when is {kind.name}: pass a condition, which is true or false"
        )


def _check_order(registry: Registry, node: OperatorNode) -> None:
    """Refuse a join that would have to wait for itself, see `side_inputs`."""
    plan = LogicalPlan(registry.name, (*registry.nodes, node))
    source = waiting_for_itself(plan)
    if source is not None:
        raise mistake(
            node.id,
            f"the table is read to its end before the stream, and both need source {source!r}: read"
            " the same input by a second source, and make the table of that one",
        )
