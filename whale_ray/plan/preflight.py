"""Checks in the driver just before a job starts.

Building a topology evaluates no expression, so it knows the names of columns but not the type of
`col("name") + 1`. Here every transform whose input schema is known is applied to a batch without
rows: an expression that does not fit is reported by the driver with the operator's id, before any
worker starts. Sinks check their outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..configs.errors import OutputError
from .columns import known_columns
from .logical import LogicalPlan, OperatorKind

if TYPE_CHECKING:
    from ..operators.sinks.base import Sink


def preflight(logical: LogicalPlan) -> None:
    """Check expressions against their columns, and the outputs; changes nothing.

    Raises:
        TopologyError: an expression does not fit the columns that its operator reads, or streams
            of a union have different columns.
        OutputError: an output exists already or cannot be written, or a sink that publishes only
            at the end reads from an unbounded source.
    """
    known_columns(logical)
    unbounded = [
        node.id
        for node in logical.of_kind(OperatorKind.SOURCE)
        if not getattr(node.payload, "bounded", True)
    ]
    for node in logical.of_kind(OperatorKind.SINK):
        sink = cast("Sink", node.payload)
        if unbounded and not sink.publishes_parts:
            msg = (
                f"sink {node.id!r} ({sink.describe()}) publishes once, at the end, but source "
                f"{unbounded[0]!r} is unbounded: write to files (parquet, csv, json_lines), or set "
                "publishes_parts = True on a sink of your own that publishes in parts"
            )
            raise OutputError(msg)
        sink.check()
