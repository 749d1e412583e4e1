"""The latency of rows through a keyed process, with a checkpoint each second."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ....transport.clock import SystemClock
from ..report import Aim, BenchRow
from .keyed_jobs import rows_counted, settings_of, start, wait_for
from .numbered_rows import NumberedRows

if TYPE_CHECKING:
    from ....transport.wire.batch import Batch

__all__ = ["latency_rows"]

KEYS = 100_000
ROWS_PER_S = 1_000.0
SECONDS = 20.0
QUICK_SECONDS = 6.0
INTERVAL_MS = 1_000
P99_MS_MAX = 50.0
_CLOCK = SystemClock()


def latency_rows(folder: Path, quick: bool) -> list[BenchRow]:
    """Measure rows that are passed on without a commit."""
    source = NumberedRows(KEYS, ROWS_PER_S, folder)
    job = start(source, _ignore, settings_of(folder, INTERVAL_MS))
    try:
        wait_for(job, "all keys", lambda: rows_counted(job) >= KEYS)
        _CLOCK.sleep_ns(int((QUICK_SECONDS if quick else SECONDS) * 1e9))
        metrics = job.metrics()
    finally:
        job.stop(drain=False)
    out = metrics.operator("out")
    p50_ms, p99_ms = out.latency_p50_ms or 0.0, out.latency_p99_ms or 0.0
    return [
        BenchRow(
            "latency from the source's read to the sink, p99",
            {"rows/s": ROWS_PER_S, "keys": KEYS, "checkpoints": f"every {INTERVAL_MS:,} ms"},
            p99_ms,
            "ms",
            aim=Aim("value", "at most", P99_MS_MAX),
            also={"p50 ms": p50_ms},
        )
    ]


def _ignore(batch: Batch) -> None:
    """Take the rows."""
