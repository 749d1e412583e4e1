"""The columns of every operator's output, as far as they are known.

Before a job starts they are derived from the schemas of the sources, through the transforms. At the
end of the job the schemas of the rows that operators produced are known too, so that an output
without rows still gets its columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from ..configs.errors import ExpressionError, TopologyError, WhaleError
from .logical import MAIN, TABLE, LogicalPlan, OperatorKind, OperatorNode, OutputKey
from .unions import columns_of_schema, difference

if TYPE_CHECKING:
    from ..operators.joins.table_join import TableJoin
    from ..operators.sources.base import Source
    from ..operators.transforms import Transform
    from ..transport.wire.types import Schema

_NO_SCHEMAS: Mapping[OutputKey, Schema] = MappingProxyType({})


def known_columns(
    logical: LogicalPlan, learnt: Mapping[OutputKey, Schema] = _NO_SCHEMAS
) -> dict[OutputKey, Schema | None]:
    """Return the schema of each output of each operator; of a sink's, that of its input.

    None stands for a schema that is not known.

    Args:
        logical: the topology.
        learnt: the schemas of the rows that operators produced while running.

    Raises:
        TopologyError: an expression does not fit the columns that its operator reads, or streams
            of a union have different columns.
        InputError: a source cannot determine its columns.
    """
    known: dict[OutputKey, Schema | None] = {}
    for node in logical.nodes:
        if node.kind.is_stateful:
            known.update(_process_columns(node, known))
        elif (node.id, MAIN) not in learnt:
            known[node.id, MAIN] = _columns(node, known)
        known.update({key: learnt[key] for key in node.output_keys if key in learnt})
    return known


def columns_if_known(logical: LogicalPlan) -> Mapping[OutputKey, Schema | None]:
    """Return the columns that are known; none, if they cannot be told before the job runs."""
    try:
        return known_columns(logical)
    except WhaleError:
        return {key: None for node in logical.nodes for key in node.output_keys}


def _process_columns(
    node: OperatorNode, known: Mapping[OutputKey, Schema | None]
) -> dict[OutputKey, Schema | None]:
    """Return the columns of a process' outputs, if it can tell them from those of its inputs."""
    inputs = tuple(known[feed.source] for feed in node.inputs)
    try:
        schemas = schemas_of_process(node.payload, inputs)
    except ExpressionError as error:
        msg = f"operator {node.id!r}: {error}"
        raise TopologyError(msg) from error
    return {
        key: schemas.get(name) for key, name in zip(node.output_keys, node.outputs, strict=True)
    }


def schemas_of_process(
    payload: object, inputs: tuple[Schema | None, ...]
) -> Mapping[str, Schema | None]:
    """Return the columns of each output of a process by its name, as far as they are known.

    What makes the instances can tell them if it is an object with a method `output_schemas`, which
    takes the columns of the inputs. A user's class declares them when an instance of it is made.
    """
    tell = None if isinstance(payload, type) else getattr(payload, "output_schemas", None)
    return {} if tell is None else tell(inputs)


def _columns(node: OperatorNode, known: Mapping[OutputKey, Schema | None]) -> Schema | None:
    if node.kind is OperatorKind.SOURCE:
        return cast("Source", node.payload).schema()
    if node.kind is OperatorKind.UNION:
        return _union_columns(node, known)
    input_schema = known[node.inputs[0].source]
    if node.kind in (OperatorKind.SINK, OperatorKind.PARTIAL):
        return input_schema
    if node.kind is OperatorKind.TABLE_JOIN:
        return _table_join_columns(node, input_schema, known[node.inputs[TABLE].source])
    transform = cast("Transform", node.payload)
    if input_schema is None:
        return transform.declared
    return _transform_columns(node.id, transform, input_schema)


def _transform_columns(operator_id: str, transform: Transform, schema: Schema) -> Schema | None:
    try:
        return transform.output_schema(schema)
    except ExpressionError as error:
        msg = f"operator {operator_id!r}: {error}"
        raise TopologyError(msg) from error


def _table_join_columns(
    node: OperatorNode, stream: Schema | None, table: Schema | None
) -> Schema | None:
    if stream is None or table is None:
        return None
    try:
        return cast("TableJoin", node.payload).output_schema(stream, table)
    except ExpressionError as error:
        msg = f"operator {node.id!r}: {error}"
        raise TopologyError(msg) from error


def _union_columns(
    union: OperatorNode, schemas: Mapping[OutputKey, Schema | None]
) -> Schema | None:
    first: tuple[str, Schema] | None = None
    for feed in union.inputs:
        schema = schemas[feed.source]
        if schema is None:
            continue
        first = first or (feed.upstream, schema)
        differs = difference(
            first[0], columns_of_schema(first[1]), feed.upstream, columns_of_schema(schema)
        )
        if differs:
            msg = f"operator {union.id!r}: {differs}"
            raise TopologyError(msg)
    return None if first is None else first[1]
