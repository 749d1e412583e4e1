"""The columns of every operator's output, as far as they are known.

Before a job starts they follow from what the sources tell, through transforms that compute them. At
its end the operators have made rows and know more: an output without rows then has columns all the
same.
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

_NOTHING: Mapping[str, Schema] = MappingProxyType({})


def known_columns(
    logical: LogicalPlan, learnt: Mapping[str, Schema] = _NOTHING
) -> dict[str, Schema | None]:
    """Return the columns that leave each operator, by id; a sink's are those that it is given.

    Args:
        logical: the topology.
        learnt: what operators made while running, by id.

    Raises:
        TopologyError: an expression does not fit the columns that its operator reads, or streams
            of a union differ in theirs.
        InputError: a source cannot tell its columns.
    """
    known: dict[str, Schema | None] = {}
    for node in logical.nodes:
        known[node.id] = learnt[node.id] if node.id in learnt else _columns(node, known)
    return known


def _columns(node: OperatorNode, known: Mapping[str, Schema | None]) -> Schema | None:
    if node.kind is OperatorKind.SOURCE:
        return cast("Source", node.payload).schema()
    if node.kind is OperatorKind.UNION:
        return _united(node, known)
    given = known[node.inputs[0].upstream]
    if node.kind is OperatorKind.SINK:
        return given
    if node.kind is not OperatorKind.TRANSFORM:
        return None  # what a process declares is known once it is made
    transform = cast("Transform", node.payload)
    return transform.declared if given is None else _made(node.id, transform, given)


def _made(operator_id: str, transform: Transform, schema: Schema) -> Schema | None:
    try:
        return transform.output_schema(schema)
    except ExpressionError as error:
        msg = f"operator {operator_id!r}: {error}"
        raise TopologyError(msg) from error


def _united(union: OperatorNode, schemas: Mapping[str, Schema | None]) -> Schema | None:
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
