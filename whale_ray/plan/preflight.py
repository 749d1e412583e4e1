"""Checks in the driver just before a job starts.

Building a topology evaluates no expression, so it knows the names of columns but not the type of
`col("name") + 1`. Here every transform whose input schema is known is applied to a batch without
rows: an expression that does not fit is reported by the driver with the operator's id, before any
worker starts. Sinks check their outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from ..configs.errors import OutputError, UsageError
from ..operators.sinks.base import Sink
from ..operators.sources.base import Source
from .columns import columns_if_known, known_columns
from .logical import MAIN, LogicalPlan, OperatorKind, OutputKey

if TYPE_CHECKING:
    from ..transport.wire.types import Schema


def unbounded_sources(logical: LogicalPlan) -> list[str]:
    """Return the ids of the sources that do not end by themselves."""
    return [
        node.id
        for node in logical.of_kind(OperatorKind.SOURCE)
        if not getattr(node.payload, "bounded", True)
    ]


def preflight(logical: LogicalPlan, *, checkpoints: bool = False, restores: bool = False) -> None:
    """Check expressions against their columns, and the outputs; changes nothing.

    Args:
        logical: the topology.
        checkpoints: whether its job takes checkpoints.
        restores: whether its job continues with an output that may be there already.

    Raises:
        UsageError: a source or a sink cannot take part in checkpoints.
        TopologyError: an expression does not fit the columns that its operator reads, or streams
            of a union have different columns.
        OutputError: an output exists already or cannot be written, or has other columns, or a sink
            that publishes only at the end reads from an unbounded source.
    """
    columns = known_columns(logical)
    unbounded = unbounded_sources(logical)
    if checkpoints:
        _check_checkpoints(logical)
    for node in logical.of_kind(OperatorKind.SINK):
        sink = cast("Sink", node.payload)
        commits = type(sink).commit is not Sink.commit
        if unbounded and not (commits if checkpoints else sink.publishes_parts):
            remedy = (
                "give a sink of your own commit()"
                if checkpoints
                else ("set publishes_parts = True on a sink of your own that publishes in parts")
            )
            msg = (
                f"sink {node.id!r} ({sink.describe()}) publishes once, at the end, but source "
                f"{unbounded[0]!r} is unbounded: write to files (parquet, csv, json_lines), or "
                f"{remedy}"
            )
            raise OutputError(msg)
        if not restores:
            sink.check()
    _check_columns(logical, columns)


def check_outputs(logical: LogicalPlan) -> None:
    """Check the columns of a job that goes on: its outputs may have changed since.

    Raises:
        OutputError: the rows do not fit into an output.
    """
    _check_columns(logical, columns_if_known(logical))


def _check_columns(logical: LogicalPlan, columns: Mapping[OutputKey, Schema | None]) -> None:
    for node in logical.of_kind(OperatorKind.SINK):
        known, sink = columns[node.id, MAIN], cast("Sink", node.payload)
        if known is None:
            sink.check_reachable()
        else:
            sink.check_columns(known.to_arrow())


def _check_checkpoints(logical: LogicalPlan) -> None:
    """Refuse sources without positions, and sinks without epochs."""
    for node in logical.of_kind(OperatorKind.SOURCE):
        source = cast("Source", node.payload)
        if source.resumption() is None:
            msg = (
                f"source {node.id!r} ({source.describe()}) has no positions, so its job can take no"
                f" checkpoints: {source.resumption_remedy()}, or run the job without checkpoints"
            )
            raise UsageError(msg)
    for node in logical.of_kind(OperatorKind.SINK):
        sink = cast("Sink", node.payload)
        if sink.delivery is None:
            msg = (
                f"sink {node.id!r} ({sink.describe()}) has no epochs, so its job can take no"
                f" checkpoints: give {type(sink).__name__} recover(), commit() and delivery, and"
                " its writer stage_epoch(), or run the job without checkpoints"
            )
            raise UsageError(msg)
