"""The last look before a job starts: mistakes that only evaluating an expression can show.

Building stays light and computes nothing, so it knows the names of columns but not the type of
`col("name") + 1`. Here every transform whose input is known makes the columns of no rows at all:
what does not fit is told in the driver, by operator id, not by a worker.
Sinks look at their outputs.
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
            of a union differ in theirs.
        OutputError: an output exists already or cannot be written, or a sink that publishes at the
            end is to serve a source without one.
    """
    known_columns(logical)
    endless = [
        node.id
        for node in logical.of_kind(OperatorKind.SOURCE)
        if not getattr(node.payload, "bounded", True)
    ]
    for node in logical.of_kind(OperatorKind.SINK):
        sink = cast("Sink", node.payload)
        if endless and not sink.publishes_parts:
            msg = (
                f"sink {node.id!r} ({sink.describe()}) publishes once, at the end, and source "
                f"{endless[0]!r} has none: write to files (parquet, csv, json_lines); a sink of "
                "your own that can says publishes_parts = True"
            )
            raise OutputError(msg)
        sink.check()
