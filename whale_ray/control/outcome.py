"""How a job ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..configs.errors import WhaleError
from ..metrics.job_metrics import JobMetrics
from ..operators.sinks.base import SinkResult

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended.

    Attributes:
        state: finished, drained, stopped, cancelled or failed.
        results: what each sink published, by operator id.
        metrics: the last counters.
        seconds: time from the first row to the last, without start-up.
        restarts: how often the job was restarted.
        workers: how many workers ran it.
        error: why it failed, or None.
        bounded: whether all its sources end by themselves; otherwise it published parts as it ran.
        checkpoint: the newest checkpoint, which a job can be restored from; "" if there is none.
    """

    state: str
    results: Mapping[str, SinkResult]
    metrics: JobMetrics = field(repr=False)
    seconds: float
    restarts: int
    workers: int
    error: WhaleError | None = None
    bounded: bool = True
    checkpoint: str = ""


def warn_if_incomplete(name: str, outcome: JobOutcome) -> None:
    """Log that a job ended before it had all its output, with what there is and how to go on.

    A program that gets a signal goes on after its job, and cannot tell the rows from complete ones;
    if the job was starting or cancelled, there are none.
    """
    if outcome.state == "drained" and outcome.bounded:
        rows = ", ".join(f"{sink!r}: {one.rows:,} rows" for sink, one in outcome.results.items())
        _log.warning(
            "job %r was stopped before the end of its input (Ctrl-C, SIGTERM, SIGHUP or whale-ray"
            " stop): its output is partial (%s); run it again for all rows",
            name,
            rows,
        )
    elif outcome.state == "cancelled":
        _log.warning(
            "job %r was cancelled (Ctrl-C, SIGTERM, SIGHUP or whale-ray stop): %s; %s",
            name,
            output_of_cancelled(outcome),
            f"restore={outcome.checkpoint!r} goes on from its newest checkpoint"
            if outcome.checkpoint
            else "run it again for all rows",
        )


def output_of_cancelled(outcome: JobOutcome) -> str:
    """Return what there is of the output of a job that was cancelled."""
    if outcome.bounded:  # each, print and Kafka without transactions have passed rows on
        return "sinks that publish at its end published nothing"
    return "its output is what it had published"
