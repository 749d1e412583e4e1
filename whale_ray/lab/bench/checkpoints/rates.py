"""The rate of a job with a checkpoint each second, against the same job without.

Each workload is run once before it is measured, so that its file is in the page cache and its loops
are compiled. Then come pairs of runs, every second one in the other order. The ratio is the median
of those of the pairs, beside the least and the greatest: what else runs on the machine hits both
runs of a pair, but not alike. Processor time depends less on that. What a checkpoint takes of it is
the difference between the runs of a pair over the number of checkpoints.

Results go to Parquet files. A sink in memory would have to write them only where there are
checkpoints, and the ratio would be that of writing the output to not writing it.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....configs.errors import JobError
from ....metrics.checkpoint_metrics import CheckpointMetrics
from ..report import Aim, BenchRow, median
from ..streaming.answers import Answer
from ..streaming.inputs import InputFiles, write_inputs
from ..streaming.jobs import answer_of_job, build
from ..streaming.workload import Workload
from ..streaming.workloads import workload_named

__all__ = ["rate_rows"]

QUICK_EVENTS = 6_000_000
PAIRS = 5
WORKERS = 2
INTERVAL_MS = 1_000
QUICK_INTERVAL_MS = 250
RATE_AIM = 0.95
ALIGNED_MS_MAX = 50.0
WORKLOADS = {
    "Yahoo, views per campaign": 150_000_000,
    "NEXMark 5, hot items": 60_000_000,
    "NEXMark 8, new users": 60_000_000,
}
"""How many events each reads: so many that a run makes several checkpoints."""


@dataclass(frozen=True)
class _Measured:
    """A run: seconds without the start of the workers, and of processors, those of the start too.

    `checkpoints` is None without any.
    """

    seconds: float
    cpu_s: float
    answer: Answer
    checkpoints: CheckpointMetrics | None


@dataclass(frozen=True)
class _RatePair:
    """A run without and one with checkpoints, one behind the other."""

    without: _Measured
    behind: _Measured

    @property
    def rate_ratio(self) -> float:
        return self.without.seconds / self.behind.seconds

    @property
    def cpu_ratio(self) -> float:
        return self.without.cpu_s / self.behind.cpu_s

    @property
    def cpu_ms_per_checkpoint(self) -> float:
        made = 0 if self.behind.checkpoints is None else self.behind.checkpoints.count
        return (self.behind.cpu_s - self.without.cpu_s) * 1e3 / max(made, 1)


def rate_rows(folder: Path, quick: bool) -> list[BenchRow]:
    """Measure each workload: its rate, and how long markers take until they are everywhere."""
    interval_ms = QUICK_INTERVAL_MS if quick else INTERVAL_MS
    rows: list[BenchRow] = []
    for number, (name, events) in enumerate(WORKLOADS.items()):
        workload, of_workload = workload_named(name), folder / str(number)
        inputs = write_inputs(of_workload, QUICK_EVENTS if quick else events, workload.reads)
        pairs = _pairs(workload, inputs, interval_ms, 1 if quick else PAIRS)
        rows += _rows_of(workload, inputs, interval_ms, pairs)
        shutil.rmtree(of_workload)
    return rows


def _pairs(workload: Workload, inputs: InputFiles, interval_ms: int, count: int) -> list[_RatePair]:
    _run(workload, inputs, interval_ms)
    pairs = []
    for number in range(count):
        order = (None, interval_ms) if number % 2 == 0 else (interval_ms, None)
        runs = {each: _run(workload, inputs, each) for each in order}
        pair = _RatePair(runs[None], runs[interval_ms])
        if pair.without.answer != pair.behind.answer:
            msg = (
                f"{workload.name}: another answer with checkpoints: {pair.behind.answer}, without"
                f" {pair.without.answer}"
            )
            raise JobError(msg)
        pairs.append(pair)
    return pairs


def _rows_of(
    workload: Workload, inputs: InputFiles, interval_ms: int, pairs: list[_RatePair]
) -> list[BenchRow]:
    count = sum(inputs.rows[stream] for stream in workload.reads)
    made = [pair.behind.checkpoints for pair in pairs if pair.behind.checkpoints is not None]
    seconds = median([pair.behind.seconds for pair in pairs])
    name = f"{workload.name}, a checkpoint every {interval_ms:,} ms"
    parameters = {"rows": count, "workers": WORKERS}
    ratios = [pair.rate_ratio for pair in pairs]
    rate = BenchRow(
        name,
        parameters,
        count / seconds / 1e3,
        "k rows/s",
        ratio=median(ratios),
        against="without checkpoints",
        aim=Aim("ratio", "at least", RATE_AIM),
        cores=median([pair.behind.cpu_s / pair.behind.seconds for pair in pairs]),
        also={
            "ratio, least": min(ratios),
            "greatest": max(ratios),
            "x CPU without": median([pair.cpu_ratio for pair in pairs]),
            "CPU s a million rows": median([pair.behind.cpu_s for pair in pairs]) * 1e6 / count,
            "without": median([pair.without.cpu_s for pair in pairs]) * 1e6 / count,
            "CPU ms a checkpoint": median([pair.cpu_ms_per_checkpoint for pair in pairs]),
            "checkpoints, at least": min(one.count for one in made),
            "failed": sum(one.failures for one in made),
        },
    )
    aligned = BenchRow(
        f"{name}: from its beginning to the marker everywhere, p99",
        parameters,
        max(one.aligned_p99_ms or 0.0 for one in made),
        "ms",
        aim=Aim("value", "at most", ALIGNED_MS_MAX),
        also={"ms in the median run": median([one.aligned_p99_ms or 0.0 for one in made])},
    )
    return [rate, aligned]


def _run(workload: Workload, inputs: InputFiles, interval_ms: int | None) -> _Measured:
    """Run a workload with a checkpoint so often; None: without any."""
    from .... import sinks
    from ....api.submission import submit

    kept, results = inputs.folder / "checkpoints", inputs.folder / "results"
    settings: dict[str, Any] = {}
    if interval_ms is not None:
        settings = {"checkpoints.url": str(kept), "checkpoints.interval_ms": interval_ms}
    sink = sinks.parquet(str(results))
    topology = build(workload, inputs.folder, instances=WORKERS, sink=sink)
    before_s = time.process_time()
    job = submit(topology, on="processes", workers=WORKERS, settings=settings)
    outcome = job.outcome()
    cpu_s = outcome.metrics.cpu_s + time.process_time() - before_s  # this process leads the job
    answer = answer_of_job(workload, job)
    for written in (kept, results):
        shutil.rmtree(written, ignore_errors=True)
    return _Measured(outcome.seconds, cpu_s, answer, outcome.metrics.checkpoints)
