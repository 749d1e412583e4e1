"""Runs the application once and measures it: message counts, and the latency of each stage.

::

    due ── wait ── in ── handler ── out ── to engine ── in ── engine ── out ── to collector ── in
                   └───────────────────────── end to end ────────────────────────────────────┘

As in Vega, latency is measured from the time a message enters its handler, and only for the middle
two thirds of the decisions. The time that a message waits on its line is reported separately.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from ....applications.options_market.contracts import ContractBook
from ....applications.options_market.placements import PLACEMENTS, job_settings, workers_of
from ....applications.options_market.schemas import DECISION, MOMENTS
from ....applications.options_market.settings import OptionsMarketSettings
from ....applications.options_market.topology import build
from ....configs.errors import JobError
from ....configs.units import NS_PER_US

if TYPE_CHECKING:
    import pyarrow as pa

    from ....api.job import Job
    from ....configs.settings import Settings
    from ....metrics.job_metrics import JobMetrics
    from ....operators.sinks.base import Sink

__all__ = [
    "STAGES",
    "Ingest",
    "MarketRun",
    "StageLatency",
    "latencies_of",
    "measure",
]

#: Stage → the fields with its begin and end, in the order of the data path.
STAGES: Final[Mapping[str, tuple[str, str]]] = {
    "feed_handler": ("handler_in_ns", "handler_out_ns"),
    "to_decision_engine": ("handler_out_ns", "engine_in_ns"),
    "decision_engine": ("engine_in_ns", "engine_out_ns"),
    "to_collector": ("engine_out_ns", "collector_in_ns"),
}
_TRANSPORT: Final = ("to_decision_engine", "to_collector")
_OTHERS: Final[Mapping[str, tuple[str, str]]] = {
    "end_to_end": ("handler_in_ns", "collector_in_ns"),
    "wait_on_line": ("due_ns", "handler_in_ns"),
    "from_due": ("due_ns", "collector_in_ns"),
}


@dataclass(frozen=True)
class StageLatency:
    """Latency of one stage over many decisions, in µs."""

    mean_us: float
    p50_us: float
    p99_us: float


@dataclass(frozen=True)
class Ingest:
    """Numbers of messages on all lines.

    Attributes:
        offered: messages that were due.
        taken: messages that the handlers read.
        missed: all others; a line's buffer overflows while its handler is late.
        gaps: runs of consecutive missed messages.
        damaged: messages received that could not be parsed; they count as missed as well.
        missed_by_lines: messages lost according to the lines' own counters.
    """

    offered: int
    taken: int
    missed: int
    gaps: int
    damaged: int
    missed_by_lines: int

    @property
    def missed_share(self) -> float:
        """Missed messages per offered one."""
        return self.missed / self.offered if self.offered else 0.0


@dataclass(frozen=True)
class MarketRun:
    """The measurements of one run.

    Attributes:
        state: how the job ended; if not "finished", gaps are not counted.
        ingest: message counts.
        trades: number of trades that the engines read.
        decisions: number of decisions that reached the collector.
        samples: number of decisions whose latency is measured.
        stages: latency of the stages, in the order of `STAGES`; empty without samples.
        end_to_end: latency from handler to collector; None without samples, as the next two.
        wait_on_line: latency from the time a message is due until its handler begins.
        from_due: latency from the time a message is due to the collector.
        seconds: from the start of the job to its end.
        cpu_s: processor time of the job's members.
        workers, hosts: numbers of workers and hosts.
        job: the job, which has the outputs.
    """

    state: str
    ingest: Ingest
    trades: int
    decisions: int
    samples: int
    stages: Mapping[str, StageLatency]
    end_to_end: StageLatency | None
    wait_on_line: StageLatency | None
    from_due: StageLatency | None
    seconds: float
    cpu_s: float
    workers: int
    hosts: int
    job: Job = field(repr=False)

    @property
    def transport_share(self) -> float | None:
        """Share of transport in the mean latency from handler to collector; None if unknown."""
        if self.end_to_end is None or not self.end_to_end.mean_us:
            return None
        transport = sum(self.stages[name].mean_us for name in _TRANSPORT)
        return transport / self.end_to_end.mean_us


def measure(
    book: ContractBook,
    settings: OptionsMarketSettings | None = None,
    placement: str = "shared-memory",
    *,
    workers: int | None = None,
    more_settings: Settings | Mapping[str, object] | None = None,
    on: Literal["ray", "processes"] = "processes",
    address: str | None = None,
    decisions: Sink | None = None,
    wait: Callable[[Job], object] | None = None,
) -> MarketRun:
    """Run the application once.

    Args:
        book: the contracts that are traded.
        settings: message rate, duration, numbers of instances.
        placement: a name in `placements.PLACEMENTS`.
        workers: number of workers; None takes the placement's default.
        more_settings: settings of the job; where they have the default, the placement's apply.
        on, address: as for `whale_ray.submit`.
        decisions: receives rows of `schemas.DECISIONS`; None only counts and timestamps them.
        wait: called to wait for the running job, for example with a progress line.

    Raises:
        SettingsError: the number of workers or a setting contradicts the placement.
        WhaleError: the job failed.
        JobError: messages or trades are unaccounted for.
    """
    from ....api.submission import submit
    from ....configs.loading import load_settings
    from ....configs.settings import Settings
    from ....operators.sinks.collect import collect

    settings = settings or OptionsMarketSettings()
    count = workers_of(placement, workers, settings.feeds)
    if not isinstance(more_settings, Settings):
        more_settings = load_settings(overrides=more_settings)
    chosen = job_settings(placement, count, settings.feeds, more_settings)
    topology = build(
        book,
        decisions or collect(),
        collect(),
        settings,
        fused=PLACEMENTS[placement].fused,
        unpacked=decisions is not None,
    )
    job = submit(topology, on=on, address=address, workers=count, settings=chosen)
    if wait is not None:
        wait(job)
    job.wait()
    return _measured(job, chosen.runtime.hosts or 1)


def _measured(job: Job, hosts: int) -> MarketRun:
    outcome = job.outcome()
    metrics = outcome.metrics
    ingest = _ingest_of(job) if outcome.state == "finished" else _cut_short(metrics)
    trades = metrics.operator("engines").rows_in
    decided = job.results("decisions").to_arrow()
    moments = _moments_of(decided)
    if outcome.state == "finished":
        _check(ingest, trades, metrics.operator("engines").rows_out, decided.num_rows)
    samples, latencies = latencies_of(moments)
    return MarketRun(
        state=outcome.state,
        ingest=ingest,
        trades=trades,
        decisions=decided.num_rows,
        samples=samples,
        stages={name: latencies[name] for name in STAGES if name in latencies},
        end_to_end=latencies.get("end_to_end"),
        wait_on_line=latencies.get("wait_on_line"),
        from_due=latencies.get("from_due"),
        seconds=outcome.seconds,
        cpu_s=metrics.cpu_s,
        workers=outcome.workers,
        hosts=hosts,
        job=job,
    )


def _ingest_of(job: Job) -> Ingest:
    """Return the counts of a finished job, from sequence numbers and from the lines' counters."""
    rows = job.results("ingest-metrics").to_arrow()
    return Ingest(
        **{name: _total(rows, name) for name in ("offered", "taken", "missed", "gaps", "damaged")},
        missed_by_lines=_lost(job.outcome().metrics),
    )


def _cut_short(metrics: JobMetrics) -> Ingest:
    """Return the counts of a stopped job, from the metrics of its operators."""
    came, taken = metrics.operator("lines").rows_out, metrics.operator("handlers").rows_out
    lost, damaged = _lost(metrics), came - taken
    return Ingest(taken + damaged + lost, taken, damaged + lost, 0, damaged, lost)


def _lost(metrics: JobMetrics) -> int:
    return metrics.operator("lines").rows_dropped.get("missed", 0)


def _moments_of(decided: pa.Table) -> dict[str, npt.NDArray[np.int64]]:
    """Return the timestamps of decisions, from rows of `DECIDED` or of `DECISIONS`."""
    if "decision" not in decided.schema.names:
        return {name: decided[name].to_numpy() for name in MOMENTS if decided.num_rows}
    chunks = decided["decision"].chunks
    width = DECISION.itemsize
    records = [
        np.frombuffer(one.buffers()[1], DECISION, len(one), one.offset * width) for one in chunks
    ]
    together = np.concatenate(records) if records else np.empty(0, DECISION)
    return {name: together[name] for name in MOMENTS}


def _total(rows: pa.Table, name: str) -> int:
    return sum(rows[name].to_pylist()) if rows.num_rows else 0


def _check(ingest: Ingest, trades: int, decided: int, collected: int) -> None:
    """Check that counts of adjacent stages agree, so that no loss is unnoticed; raises JobError."""
    wrong = ""
    if ingest.offered != ingest.taken + ingest.missed:
        wrong = f"{ingest.offered:,} messages, but {ingest.taken:,} taken, {ingest.missed:,} missed"
    elif ingest.missed != ingest.missed_by_lines + ingest.damaged:
        wrong = (
            f"handlers miss {ingest.missed:,} messages, lines lost {ingest.missed_by_lines:,}, "
            f"and {ingest.damaged:,} were damaged"
        )
    elif trades != ingest.taken:
        wrong = f"handlers took {ingest.taken:,} trades, decision engines {trades:,}"
    elif decided != collected:
        wrong = f"engines made {decided:,} decisions, the collector has {collected:,}"
    if wrong:
        msg = f"the figures of the run do not add up: {wrong}"
        raise JobError(msg)


def latencies_of(
    moments: Mapping[str, npt.NDArray[np.int64]],
) -> tuple[int, dict[str, StageLatency]]:
    """Return the number of decisions measured, and the latencies by name.

    Args:
        moments: name in `schemas.MOMENTS` → timestamps of all decisions, ns.

    Raises:
        JobError: a stage ends before it begins, because hosts have clocks of their own.
    """
    if not moments or not len(moments["due_ns"]):
        return 0, {}
    count = len(moments["due_ns"])
    middle = np.argsort(moments["due_ns"], kind="stable")[count // 6 : count - count // 6]
    latencies = {}
    for name, (begin, end) in {**STAGES, **_OTHERS}.items():
        taken = (moments[end] - moments[begin])[middle]
        if taken.min() < 0:
            msg = (
                f"{name} ends {-int(taken.min()) / NS_PER_US:,.0f} µs before it begins: the job's "
                "hosts have clocks of their own; use workers of one machine"
            )
            raise JobError(msg)
        p50, p99 = np.quantile(taken, (0.5, 0.99)) / NS_PER_US
        latencies[name] = StageLatency(float(taken.mean()) / NS_PER_US, float(p50), float(p99))
    return len(middle), latencies
