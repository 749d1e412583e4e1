"""The last look before a job starts: mistakes that only evaluating an expression can show.

Building stays light and computes nothing, so it knows the names of columns but not the type of
`col("name") + 1`. Here every transform whose input is known makes the columns of no rows at all:
what does not fit is told in the driver, by operator id, not by a worker.
Sinks look at their outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from ..configs.errors import ExpressionError, TopologyError
from .logical import LogicalPlan, OperatorKind, OperatorNode
from .unions import columns_of_schema, difference

if TYPE_CHECKING:
    from ..operators.sinks.base import Sink
    from ..operators.sources.base import Source
    from ..operators.transforms import Transform
    from ..transport.wire.types import Schema


def preflight(logical: LogicalPlan) -> None:
    """Check expressions against their columns, and the outputs; changes nothing.

    Raises:
        TopologyError: an expression does not fit the columns that its operator reads, or streams
            of a union differ in theirs.
        OutputError: an output exists already or cannot be written.
    """
    schemas: dict[str, Schema | None] = {}
    for node in logical.nodes:
        if node.kind is OperatorKind.SOURCE:
            schemas[node.id] = cast("Source", node.payload).schema()
        elif node.kind is OperatorKind.TRANSFORM:
            schema = schemas[node.inputs[0].upstream]
            transform = cast("Transform", node.payload)
            schemas[node.id] = _made(node.id, transform, schema)
        elif node.kind is OperatorKind.UNION:
            schemas[node.id] = _united(node, schemas)
        else:
            schemas[node.id] = None
            if node.kind is OperatorKind.SINK:
                cast("Sink", node.payload).check()


def _made(operator_id: str, transform: Transform, schema: Schema | None) -> Schema | None:
    if schema is None:
        return None
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
