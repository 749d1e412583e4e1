"""The jobs of the measurements: numbered rows, counted by key, passed to a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....configs.errors import JobError
from ....operators.keyed.keyed_process import KeyedProcess
from ....state import declarations as state
from ....transport.clock import SystemClock
from .numbered_rows import NumberedRows

if TYPE_CHECKING:
    from ....api.job import Job
    from ....api.topology import Stream, Topology
    from ....operators.process import Output
    from ....transport.wire.batch import Batch

__all__ = ["counted_rows", "rows_counted", "settings_of", "start", "submitted", "wait_for"]

WAIT_S_MAX = 300.0
_CLOCK = SystemClock()
_POLL_NS = 20_000_000


class Counted(KeyedProcess):
    """Emits how often the key of each row has come."""

    rows = state.count()
    numbers = state.sum("int64")

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Count a batch."""
        slots = self.slots(batch)
        rows: Any = self.rows
        numbers: Any = self.numbers
        rows[slots] += 1
        numbers[slots] += batch["number"]
        out.emit({"number": batch["number"], "times": rows[slots]})


def start(
    source: NumberedRows,
    passed: Callable[[Batch], object],
    settings: Mapping[str, Any],
    *,
    source_alone: bool = False,
) -> Job:
    """Start the job on two processes; with `source_alone`, one has nothing but the source."""
    from .... import columns, sinks

    topology, counted = counted_rows(source, 1 if source_alone else 2)
    counted.sink(sinks.each(columns(passed)), id="out", parallelism=1)
    alone = {"runtime.source_workers": 1} if source_alone else {}
    return submitted(topology, {**settings, **alone})


def counted_rows(source: NumberedRows, parallelism: int = 2) -> tuple[Topology, Stream]:
    """Return a topology, and in it the stream of what `Counted` makes of the source's rows."""
    from .... import Topology

    topology = Topology("counted")
    rows = topology.source(source, id="rows")
    return topology, rows.key_by("key").process(Counted, id="counted", parallelism=parallelism)


def submitted(topology: Topology, settings: Mapping[str, Any]) -> Job:
    """Start a job on two processes."""
    from ....api.submission import submit

    return submit(topology, on="processes", workers=2, settings=settings)


def wait_for(job: Job, what: str, is_so: Callable[[], bool]) -> None:
    """Wait until something is so; raise JobError if it takes too long, or the job has ended."""
    from ....control.job_states import ALIVE  # workers load this module, too

    until_s = _CLOCK.monotonic_ns() / 1e9 + WAIT_S_MAX
    while not is_so():
        if _CLOCK.monotonic_ns() / 1e9 > until_s or job.state not in ALIVE:
            job.stop(drain=False)
            msg = f"{what} has not come; the job: {job.status()}"
            raise JobError(msg)
        _CLOCK.sleep_ns(_POLL_NS)


def rows_counted(job: Job) -> int:
    """Return how many rows the keyed process has had in the present attempt."""
    return next((one.rows_in for one in job.metrics().operators if one.operator_id == "counted"), 0)


def settings_of(folder: Path, interval_ms: int) -> dict[str, Any]:
    """Return the settings of a job with checkpoints in a folder."""
    return {
        "checkpoints.url": str(folder / "checkpoints"),
        "checkpoints.interval_ms": interval_ms,
        "runtime.state_bytes": 16 << 30,
    }
