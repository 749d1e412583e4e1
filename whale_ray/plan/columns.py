"""The columns of every operator's output, as far as they are known.

Before a job starts they are derived from the schemas of the sources, through the transforms. At the
end of the job the schemas of the rows that operators produced are known too, so that an output
without rows still gets its columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from ..configs.errors import ExpressionError, TopologyError
from .logical import LogicalPlan, OperatorKind, OperatorNode
from .unions import columns_of_schema, difference

if TYPE_CHECKING:
    from ..operators.sources.base import Source
    from ..operators.transforms import Transform
    from ..transport.wire.types import Schema

_NO_SCHEMAS: Mapping[str, Schema] = MappingProxyType({})


def known_columns(
    logical: LogicalPlan, learnt: Mapping[str, Schema] = _NO_SCHEMAS
) -> dict[str, Schema | None]:
    """Return the schema of each operator's output, by id; for a sink, that of its input.

    None stands for a schema that is not known.

    Args:
        logical: the topology.
        learnt: the schemas of the rows that operators produced while running, by id.

    Raises:
        TopologyError: an expression does not fit the columns that its operator reads, or streams
            of a union have different columns.
        InputError: a source cannot determine its columns.
    """
    known: dict[str, Schema | None] = {}
    for node in logical.nodes:
        known[node.id] = learnt[node.id] if node.id in learnt else _columns(node, known)
    return known


def _columns(node: OperatorNode, known: Mapping[str, Schema | None]) -> Schema | None:
    if node.kind is OperatorKind.SOURCE:
        return cast("Source", node.payload).schema()
    if node.kind is OperatorKind.UNION:
        return _union_columns(node, known)
    input_schema = known[node.inputs[0].upstream]
    if node.kind is OperatorKind.SINK:
        return input_schema
    if node.kind is not OperatorKind.TRANSFORM:
        return None  # a process declares its columns when an instance of it is created
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


def _union_columns(union: OperatorNode, schemas: Mapping[str, Schema | None]) -> Schema | None:
    first: tuple[str, Schema] | None = None
    for feed in union.inputs:
        schema = schemas[feed.upstream]
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
