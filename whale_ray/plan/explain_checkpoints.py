"""What `explain` says of checkpoints: where they are, and what a failure costs."""

from __future__ import annotations

from typing import cast

from ..configs.settings import Settings
from ..configs.units import describe_duration
from ..operators.sinks.base import Sink
from ..operators.sources.base import Source
from .explanation import Table
from .logical import LogicalPlan, OperatorKind
from .preflight import unbounded_sources


def checkpoint_tables(logical: LogicalPlan, settings: Settings) -> tuple[Table, ...]:
    """Return a table of what takes part in checkpoints; () for a bounded job without them."""
    checkpoints = settings.checkpoints
    unbounded = unbounded_sources(logical)
    if not checkpoints.url:
        return (_without(settings),) if unbounded else ()
    sources = (
        (node.id, cast("Source", node.payload).resumption() or "CANNOT: it has no positions")
        for node in logical.of_kind(OperatorKind.SOURCE)
    )
    sinks = (
        (node.id, cast("Sink", node.payload).delivery or "CANNOT: it has no epochs")
        for node in logical.of_kind(OperatorKind.SINK)
    )
    every = describe_duration(checkpoints.interval_ms)
    visible = "at each" if unbounded else "at the end"
    title = (
        f"Checkpoints in {checkpoints.url} every {every}, {checkpoints.keep} are kept; output is"
        f" visible {visible}"
    )
    return (Table(title, ("operator", "after a failure"), (*sources, *sinks)),)


def _without(settings: Settings) -> Table:
    runtime = settings.runtime
    if runtime.on_loss == "fail":
        then = "the job fails"
        cost = f"what was read since the last part, up to {runtime.commit_interval_ms:,} ms"
    else:
        then, cost = "sources are read again from their start", "rows come twice"
    title = "No checkpoints: checkpoints= names a folder for them"
    return Table(title, ("if a worker dies", "it costs"), ((then, cost),))
