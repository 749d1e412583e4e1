"""From kill -9 of a worker to the first new row at the sink, with little and with much state.

The killed worker has nothing but the source: the survivor holds the state, and rolls it back. It is
killed once a checkpoint counts that has all keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..report import Aim, BenchRow
from .keyed_jobs import rows_counted, settings_of, start, wait_for
from .numbered_rows import NumberedRows, note, noted_ns

if TYPE_CHECKING:
    from ....transport.wire.batch import Batch

__all__ = ["recovery_rows"]

KEYS = (200_000, 2_000_000, 20_000_000, 80_000_000)
"""About 10 MB, 100 MB, 1 GB and 4 GB of state."""
QUICK_KEYS = (200_000, 2_000_000)
ROWS_PER_S = 1_000.0
INTERVAL_MS = 1_000
SECONDS_MAX = 1.0


def recovery_rows(folder: Path, quick: bool) -> list[BenchRow]:
    """Measure each size of state."""
    rows: list[BenchRow] = []
    for keys in QUICK_KEYS if quick else KEYS:
        part = folder / str(keys)
        part.mkdir()
        seconds, state_bytes = _recover(part, keys)
        first = rows[0].value if rows else None
        rows.append(
            BenchRow(
                "kill -9 of a worker to the first new row",
                {"keys": keys, "checkpoint MiB": round(state_bytes / (1 << 20), 1)},
                seconds,
                "s",
                ratio=None if first is None else seconds / first,
                against="" if first is None else f"{rows[0].parameters['keys']:,} keys",
                aim=Aim("value", "at most", SECONDS_MAX),
            )
        )
    return rows


def _recover(folder: Path, keys: int) -> tuple[float, int]:
    """Return the seconds, and the bytes of a checkpoint."""
    killed, first = folder / "killed", folder / "first"

    def passed(batch: Batch) -> None:
        if killed.exists() and int(batch["number"][-1]) >= int((folder / "unread").read_text()):
            note(first)

    def counted() -> int:
        made = job.metrics().checkpoints
        return made.epoch if made else 0

    source = NumberedRows(keys, ROWS_PER_S, folder, kills=True)
    job = start(source, passed, settings_of(folder, INTERVAL_MS), source_alone=True)
    try:
        wait_for(job, "all keys", lambda: rows_counted(job) >= keys)
        before = counted()  # another one may be under way that lacks some keys
        wait_for(job, "a checkpoint with all keys", lambda: counted() >= before + 2)
        made = job.metrics().checkpoints
        (folder / "kill").touch()
        wait_for(job, "a row after the failure", first.exists)
        return (noted_ns(first) - noted_ns(killed)) / 1e9, made.nbytes if made else 0
    finally:
        job.stop(drain=False)
