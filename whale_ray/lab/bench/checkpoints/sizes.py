"""What a checkpoint writes when few keys have changed since the one before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..report import Aim, BenchRow
from .keyed_jobs import rows_counted, settings_of, start, wait_for
from .numbered_rows import NumberedRows

if TYPE_CHECKING:
    from ....api.job import Job
    from ....transport.wire.batch import Batch

__all__ = ["size_rows"]

KEYS = 10_000_000
QUICK_KEYS = 1_000_000
CHANGED = 0.01
RATIO_MAX = 0.03
INTERVAL_MS = 3_600_000  # only savepoints are made


def size_rows(folder: Path, quick: bool) -> list[BenchRow]:
    """Measure a checkpoint of all keys, and one after a hundredth of them has changed."""
    keys = QUICK_KEYS if quick else KEYS
    changed = int(keys * CHANGED)
    source = NumberedRows(keys, 1e9, folder, more=changed, stride=round(1 / CHANGED), waits=True)
    job = start(source, _ignore, settings_of(folder, INTERVAL_MS))
    try:
        wait_for(job, "all keys", lambda: rows_counted(job) >= keys)
        full_bytes, full_ms = _checkpoint(job)
        (folder / "go").touch()
        wait_for(job, "the keys that change", lambda: rows_counted(job) >= keys + changed)
        changed_bytes, changed_ms = _checkpoint(job)
    finally:
        job.stop(drain=False)
    return [
        BenchRow(
            "bytes written by a checkpoint of all keys",
            {"keys": keys},
            full_bytes / 1e6,
            "MB",
            also={"duration ms": full_ms},
        ),
        BenchRow(
            "bytes written by a checkpoint behind it",
            {"keys": keys, "changed": changed},
            changed_bytes / 1e6,
            "MB",
            ratio=changed_bytes / full_bytes,
            against="all keys",
            aim=Aim("ratio", "at most", RATIO_MAX),
            also={"duration ms": changed_ms},
        ),
    ]


def _checkpoint(job: Job) -> tuple[int, int]:
    """Make a savepoint; return the bytes that were written for it, and its duration in ms."""
    job.savepoint()
    made = job.metrics().checkpoints
    assert made is not None
    return made.new_nbytes, made.duration_ms


def _ignore(batch: Batch) -> None:
    """Take the rows."""
