"""Trials: a topology runs on real input for a second or two, and is measured meanwhile.

A trial is an ordinary job on processes of this machine. It is cancelled at its end, so it publishes
nothing. Costs are processor time of the workers' loops, hence hardly depend on what else the
machine does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from ..configs.errors import UsageError
from ..configs.units import NS_PER_S
from ..metrics.loads import WorkerLoad, load_between
from ..plan.assignment import Assignment
from ..plan.logical import LogicalPlan, OperatorKind
from ..plan.planner import plan
from ..transport.clock import SystemClock
from .trial_sources import EMPTY, trial_sink, trial_source

if TYPE_CHECKING:
    from ..api.job import Job
    from ..configs.settings import Settings
    from ..metrics.job_metrics import JobMetrics
    from ..operators.sinks.base import Sink
    from ..operators.sources.base import Source
    from ..plan.logical import OperatorNode
    from ..plan.physical import PhysicalPlan
    from ..transport.clock import Clock

__all__ = ["Trial", "TrialLength", "run_trial", "together"]

_STEP_NS = 50_000_000
_QUIET_NS = 2_000_000_000
_IDLE_NS = 100_000_000
"""A worker that has nothing to do takes less than this in `_QUIET_NS`: it looks for rows, and is
asked for its counters. One that computes takes several times as much, even beside others."""
_SMALL_ROWS = 256
_SETTINGS = {
    "runtime.meter_stages": True,
    "runtime.poll_interval_ms": 50,
    "transport.ring_bytes": 1 << 20,  # in steady state soon: sources are not far ahead
    "runtime.hosts": 1,
    "runtime.start_timeout_ms": 600_000,
    "checkpoints.url": "",
    "records.interval_ms": 0,  # the page shows the user's runs, and keeps only so many
}


@dataclass(frozen=True)
class TrialLength:
    """How long a trial takes, in processor time of all its workers, so that load hardly matters.

    Args:
        warm_up_s: before it is measured: functions are compiled, and rings fill.
        measured_s: while it is measured.
        wall_s: how long either may take at most, by the wall's clock.
        start_s: until the first rows must have been read, by the wall's clock.
    """

    warm_up_s: float = 2.5
    measured_s: float = 1.5
    wall_s: float = 15.0
    start_s: float = 600.0


@dataclass(frozen=True)
class Trial:
    """What happened while a trial was measured.

    Attributes:
        plan: what ran.
        rows: of each operator, received or read.
        loads: of each worker.
        read_s: for how long rows were read; less than was measured if the input ended.
        latency_ms: the median from the source to the slowest sink; None if none got a row.
        share: of the processor time that was to be measured, or to pass before; less than 1 if the
            wall's clock, or the end of the input, cut either short.
    """

    plan: PhysicalPlan
    rows: Mapping[str, int]
    loads: tuple[WorkerLoad, ...]
    read_s: float
    latency_ms: float | None
    share: float = 1.0

    @property
    def rows_read(self) -> int:
        """Rows that all sources have read."""
        return sum(self.rows.get(one, 0) for one in _sources(self.plan.logical))

    @property
    def rows_per_s(self) -> float:
        """Rows that all sources read in a second, by the wall's clock."""
        return self.rows_read / self.read_s if self.read_s else 0.0


def together(trials: Sequence[Trial]) -> Trial:
    """Return trials of one plan as if they had been one, but for the latency, which is none."""
    rows: Counter[str] = Counter()
    loads: dict[int, WorkerLoad] = {}
    for trial in trials:
        rows.update(trial.rows)
        for load in trial.loads:
            loads[load.worker] = loads.get(load.worker, WorkerLoad(load.worker)).plus(load)
    share = sum(trial.share for trial in trials) / len(trials)
    read_s = sum(trial.read_s for trial in trials)
    return Trial(trials[0].plan, rows, tuple(loads.values()), read_s, None, share)


def run_trial(
    logical: LogicalPlan,
    settings: Settings,
    workers: int | None = None,
    *,
    rate_per_s: float | None = None,
    length: TrialLength | None = None,
) -> Trial:
    """Run a topology, cancel it, and return what was measured.

    Args:
        logical: the topology, its sources made readable for workers (`Source.materialize`).
        settings: of the job; some are overridden, since it runs on one host without checkpoints.
        workers: how many processes; as for `submit`.
        rate_per_s: the rows that all sources read in a second; None: as many as are processed.
        length: how long it takes.

    Raises:
        UsageError: no row has been read in time.
        WhaleError: what the topology itself raises.
    """
    from ..api.new_jobs import new_job_id
    from ..api.submission import start_on_processes

    length, clock = length or TrialLength(), SystemClock()
    settings = settings.with_overrides({**_SETTINGS, **reads_for_trial(logical)})
    physical: PhysicalPlan = plan(for_trial(logical, rate_per_s), settings, workers)
    job = start_on_processes(Assignment(new_job_id(logical.name), physical, settings))
    try:
        _await_rows(job, physical, clock, length.start_s)
        logical = physical.logical
        read_s, is_over = _watch(job, logical, clock, length.warm_up_s, length.wall_s)
        before = after = job.metrics()
        warm = min(1.0, _cpu_ns(before) / NS_PER_S / length.warm_up_s) if length.warm_up_s else 1.0
        if not is_over:
            read_s, _ = _watch(job, logical, clock, length.measured_s, length.wall_s)
            after = job.metrics()
    finally:
        job.abandon()
    trial = _difference(physical, before, after, read_s, length.measured_s)
    return replace(trial, share=min(warm, trial.share))


def reads_for_trial(logical: LogicalPlan) -> dict[str, object]:
    """Return settings with how many rows sources read together, where all batches are small.

    A read of thousands of rows that are sent one by one may last as long as the trial, which then
    says nothing about the rate at which rows are read.
    """
    batches = [feed.batch_rows for node in logical.nodes for feed in node.inputs]
    small = all(rows is not None and rows <= _SMALL_ROWS for rows in batches)
    return {"runtime.source_batch_rows": _SMALL_ROWS} if small else {}


def for_trial(logical: LogicalPlan, rate_per_s: float | None) -> LogicalPlan:
    """Return a topology with sources and sinks for a trial.

    The rate is shared out evenly among the sources.
    """
    count = len(_sources(logical))
    rate = None if rate_per_s is None else rate_per_s / count
    nodes = tuple(_node_for_trial(node, rate) for node in logical.nodes)
    return replace(logical, nodes=nodes)


def _node_for_trial(node: OperatorNode, rate_per_s: float | None) -> OperatorNode:
    if node.kind is OperatorKind.SOURCE:
        return replace(node, payload=trial_source(cast("Source", node.payload), rate_per_s))
    if node.kind is OperatorKind.SINK:
        return replace(node, payload=trial_sink(cast("Sink", node.payload)))
    return node


def _sources(logical: LogicalPlan) -> tuple[str, ...]:
    return tuple(node.id for node in logical.of_kind(OperatorKind.SOURCE))


def _read(metrics: JobMetrics, logical: LogicalPlan) -> int:
    sources = _sources(logical)
    return sum(one.rows_in for one in metrics.operators if one.operator_id in sources)


def _taken(metrics: JobMetrics) -> int:
    return sum(one.rows_in for one in metrics.operators)


def _await_rows(job: Job, physical: PhysicalPlan, clock: Clock, timeout_s: float) -> None:
    logical = physical.logical
    until_ns = clock.monotonic_ns() + round(timeout_s * NS_PER_S)
    while not _read(metrics := job.metrics(), logical):
        _check_running(job)
        is_empty = _are_empty(metrics, physical)
        if is_empty or clock.monotonic_ns() > until_ns:
            had = "have no rows" if is_empty else f"had no row within {timeout_s:g} s"
            msg = (
                f"topology {logical.name!r}: its sources {had}, so"
                " that nothing can be measured; let them read an input that has rows"
            )
            raise UsageError(msg)
        clock.sleep_ns(_STEP_NS)


def _are_empty(metrics: JobMetrics, physical: PhysicalPlan) -> bool:
    """Whether the inputs of all sources have ended without a row."""
    empty = {one.operator_id: len(one.gauges.get(EMPTY, ())) for one in metrics.operators}
    sources = _sources(physical.logical)
    return all(empty.get(one) == physical.stage_of(one).parallelism for one in sources)


def _watch(
    job: Job, logical: LogicalPlan, clock: Clock, cpu_s: float, wall_s: float
) -> tuple[float, bool]:
    """Wait until a job has taken so much processor time, or has nothing to do any more.

    Returns:
        How long it took until the last row was read, in seconds, and whether nothing is left to do.
    """
    start_ns = moved_ns = worked_ns = clock.monotonic_ns()
    first = job.metrics()
    read, began = _read(first, logical), _cpu_ns(first)
    spent = _spent_ns(first)
    while (now_ns := clock.monotonic_ns()) < start_ns + wall_s * NS_PER_S:
        _check_running(job)
        now = job.metrics()
        if _read(now, logical) != read:
            read, moved_ns = _read(now, logical), now_ns
        # Of the whole process: a function that is being compiled is not charged to the loop yet.
        if any(ns > spent.get(worker, 0) + _IDLE_NS for worker, ns in _spent_ns(now).items()):
            spent, worked_ns = _spent_ns(now), now_ns
        if _cpu_ns(now) - began >= cpu_s * NS_PER_S:
            break
        if now_ns - max(moved_ns, worked_ns) > _QUIET_NS:
            return (moved_ns - start_ns) / NS_PER_S, True
        clock.sleep_ns(_STEP_NS)
    return (moved_ns - start_ns) / NS_PER_S, False


def _spent_ns(metrics: JobMetrics) -> dict[int, int]:
    """Return the processor time of each worker's process."""
    return {one.worker: one.cpu_ns for one in metrics.members}


def _cpu_ns(metrics: JobMetrics) -> int:
    return sum(load.cpu_ns for load in metrics.loads)


def _check_running(job: Job) -> None:
    """Raise the error of a job that has failed."""
    if job.state not in ("starting", "running", "restarting"):
        job.wait(timeout_s=10)


def _difference(
    physical: PhysicalPlan, before: JobMetrics, after: JobMetrics, read_s: float, wanted_s: float
) -> Trial:
    if _taken(after) == _taken(before):
        # The whole input was processed while it warmed up.
        rows = {one.operator_id: one.rows_in for one in after.operators}
        loads = after.loads
    else:
        earlier = {one.operator_id: one.rows_in for one in before.operators}
        rows = {
            one.operator_id: one.rows_in - earlier.get(one.operator_id, 0)
            for one in after.operators
        }
        loads_before = {one.worker: one for one in before.loads}
        loads = tuple(
            load_between(loads_before.get(one.worker, WorkerLoad(one.worker)), one)
            for one in after.loads
        )
    found = [one.latency_p50_ms for one in after.operators if one.latency_p50_ms is not None]
    spent_s = sum(load.cpu_ns for load in loads) / NS_PER_S
    share = min(1.0, spent_s / wanted_s) if wanted_s else 1.0
    return Trial(physical, rows, loads, read_s, max(found, default=None), share)
