"""A workload as a job of whale-ray, inside this process or on processes of this machine."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from unittest import mock

from ....configs.errors import JobError
from ....state.budget import StateBudget
from .answers import Answer, Tally, answer_of
from .inputs import MAX_OUT_OF_ORDER_MS
from .mapped_files import Files
from .timing import Ran
from .ways import Way
from .workload import FileStreams, Workload

if TYPE_CHECKING:
    from ....api.job import Job
    from ....api.topology import Topology
    from ....operators.sinks.base import Sink

__all__ = [
    "PeakBudget",
    "answer_of_job",
    "build",
    "run_in",
    "state_peak_bytes",
]

_SINK = "out"


class PeakBudget(StateBudget):
    """A budget that knows the most that was taken of it."""

    peak_bytes = 0

    def take(self, operator: str, nbytes: int, entries: int) -> None:
        """See `StateBudget.take`."""
        super().take(operator, nbytes, entries)
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)


def build(
    workload: Workload,
    folder: Path,
    *,
    max_out_of_order_ms: int = MAX_OUT_OF_ORDER_MS,
    on_late: Literal["fail", "drop", "pass"] = "fail",
    instances: int = 1,
    keep: bool = False,
    files: Files = "parquet",
    sink: Sink | None = None,
) -> Topology:
    """Return the topology; with `keep` the sink `out` gets the results even of each row.

    Args:
        workload: what to run.
        folder: the files of its streams.
        max_out_of_order_ms: of the sources.
        on_late: of the sources.
        instances: how many share each file.
        keep: whether results that `Workload.drops` are kept.
        files: the streams' that are read.
        sink: where results go; None: to the driver's memory.
    """
    from .... import Topology, sinks

    topology = Topology("streaming")
    streams = FileStreams(
        topology,
        workload,
        folder,
        max_out_of_order_ms=max_out_of_order_ms,
        on_late=on_late,
        instances=instances,
        files=files,
    )
    made = workload.build(streams)
    if workload.drops and not keep:
        tally = partial(Tally, workload.total)
        made = made.local_or_shuffle().process(tally, id="tally")
    made.sink(sinks.collect() if sink is None else sink, id=_SINK)
    return topology


def run_in(way: Way, workload: Workload, folder: Path) -> Ran:
    """Run a workload in a way."""
    return (_run_inline if way.workers == 1 else _run_on_processes)(way, workload, folder)


def _run_inline(way: Way, workload: Workload, folder: Path) -> Ran:
    """Run a workload in this process; its processor time includes building and starting it."""
    from ....api.submission import run

    before_ns = time.process_time_ns()
    job = run(build(workload, folder, files=way.files), settings=way.settings)
    cpu_s = (time.process_time_ns() - before_ns) / 1e9
    return Ran(job.outcome().seconds, cpu_s, answer_of_job(workload, job))


def _run_on_processes(way: Way, workload: Workload, folder: Path) -> Ran:
    """Run a workload on processes that are started for it; processor time includes that."""
    from ....api.submission import submit

    topology = build(workload, folder, instances=way.workers, files=way.files)
    job = submit(topology, on="processes", workers=way.workers, settings=way.settings)
    outcome = job.outcome()
    return Ran(outcome.seconds, outcome.metrics.cpu_s, answer_of_job(workload, job))


def state_peak_bytes(topology: Topology) -> int:
    """Run a topology in this process; return the most memory that its state took."""
    from ....api.submission import run
    from ....worker import worker

    budget = PeakBudget()
    with mock.patch.object(worker, "StateBudget", return_value=budget):
        run(topology)
    return budget.peak_bytes


def answer_of_job(workload: Workload, job: Job) -> Answer:
    """Return the answer; raise JobError if the job was drained, so that it is none."""
    if job.outcome().state != "finished":
        msg = f"{workload.name}: the job was stopped before its input had ended"
        raise JobError(msg)
    results: Any = job.results(_SINK).to_arrow()
    if not workload.drops:
        return answer_of(results, workload.total)
    return Answer(answer_of(results, "rows").total, answer_of(results, "total").total)
