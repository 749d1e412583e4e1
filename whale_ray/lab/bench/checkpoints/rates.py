"""The rate of a job with a checkpoint each second, against the same job without."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....metrics.checkpoint_metrics import CheckpointMetrics
from ..report import Aim, BenchRow, median
from ..streaming.inputs import write_inputs
from ..streaming.jobs import answer_of_job, build
from ..streaming.workloads import workload_named

__all__ = ["rate_rows"]

EVENTS = 30_000_000
QUICK_EVENTS = 6_000_000
REPETITIONS = 3
WORKERS = 2
INTERVAL_MS = 1_000
QUICK_INTERVAL_MS = 250
RATE_AIM = 0.95
WORKLOADS = ("Yahoo, views per campaign", "NEXMark 5, hot items", "NEXMark 8, new users")


def rate_rows(folder: Path, quick: bool) -> list[BenchRow]:
    """Measure each workload, with and without, in turns."""
    inputs = write_inputs(folder, QUICK_EVENTS if quick else EVENTS)
    interval_ms = QUICK_INTERVAL_MS if quick else INTERVAL_MS
    rows = []
    for name in WORKLOADS:
        workload = workload_named(name)
        count = sum(inputs.rows[stream] for stream in workload.reads)
        seconds: dict[bool, list[float]] = {False: [], True: []}
        counted: list[float] = []
        aligned_ms: list[float] = []
        for repetition in range(1 if quick else REPETITIONS):
            for has_checkpoints in (False, True):
                settings: dict[str, Any] = {}
                if has_checkpoints:
                    url = str(folder / f"{name}-{repetition}")
                    settings = {"checkpoints.url": url, "checkpoints.interval_ms": interval_ms}
                taken_s, made = _run(name, folder, settings)
                seconds[has_checkpoints].append(taken_s)
                if made is not None:
                    counted.append(made.count)
                    aligned_ms.append(made.aligned_p99_ms or 0.0)
        without_s, with_s = median(seconds[False]), median(seconds[True])
        rows.append(
            BenchRow(
                f"{name}, a checkpoint every {interval_ms:,} ms",
                {"rows": count, "workers": WORKERS},
                count / with_s / 1e3,
                "k rows/s",
                ratio=without_s / with_s,
                against="without checkpoints",
                aim=Aim("ratio", "at least", RATE_AIM),
                also={"checkpoints": median(counted), "aligned p99 ms": max(aligned_ms)},
            )
        )
    return rows


def _run(
    name: str, folder: Path, settings: Mapping[str, Any]
) -> tuple[float, CheckpointMetrics | None]:
    """Return the seconds of a job, and what its checkpoints were like."""
    from ....api.submission import submit

    workload = workload_named(name)
    topology = build(workload, folder, instances=WORKERS)
    job = submit(topology, on="processes", workers=WORKERS, settings=settings)
    outcome = job.outcome()
    answer_of_job(workload, job)
    return outcome.seconds, outcome.metrics.checkpoints
