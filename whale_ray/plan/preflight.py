"""The last look before a job starts: mistakes that only evaluating an expression can show.

Building stays light and computes nothing, so it knows the names of columns but not the type of
`col("name") + 1`. Here every transform whose input is known makes the columns of no rows at all:
what does not fit is told in the driver, by operator id, not by a worker.
Sinks look at their outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..configs.errors import ExpressionError, TopologyError
from .logical import LogicalPlan, OperatorKind

if TYPE_CHECKING:
    from ..operators.sinks.base import Sink
    from ..operators.sources.base import Source
    from ..operators.transforms import Transform
    from ..transport.wire.types import Schema


def preflight(logical: LogicalPlan) -> None:
    """Check expressions against their columns, and the outputs; changes nothing.

    Raises:
        TopologyError: an expression does not fit the columns that its operator reads.
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
