"""The latency of rows through a keyed process, with a checkpoint each second.

Rows come in an open loop: each is due at a time that the loop does not choose, and its latency
counts from there, so a job that stands still for a while is not measured too well (Tene,
"coordinated omission"). Those that fill the state beforehand are not counted.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....transport.clock import SystemClock
from ..report import Aim, BenchRow
from .keyed_jobs import counted_rows, rows_counted, settings_of, submitted, wait_for
from .numbered_rows import NumberedRows, noted_ns

if TYPE_CHECKING:
    import numpy.typing as npt

    from ....api.job import Job
    from ....transport.wire.batch import Batch

__all__ = ["latency_rows"]

KEYS = 100_000
ROWS_PER_S = 1_000.0
SECONDS = 20.0
QUICK_SECONDS = 6.0
INTERVAL_MS = 1_000
P99_MS_MAX = 50.0
COMMITTED_P99_MS_MAX = 1_000.0 + P99_MS_MAX
"""A row waits for the next marker at most an interval; then the epoch has to be written."""
_NUMBER_AND_TIME = np.dtype([("number", np.int64), ("ns", np.int64)])
_CLOCK = SystemClock()


def latency_rows(folder: Path, quick: bool) -> list[BenchRow]:
    """Measure rows that are passed on without a commit, and when the same rows are committed."""
    source = NumberedRows(KEYS, ROWS_PER_S, folder)
    job = _start(source, folder)
    try:
        wait_for(job, "all keys", lambda: rows_counted(job) >= KEYS)
        _CLOCK.sleep_ns(int((QUICK_SECONDS if quick else SECONDS) * 1e9))
    finally:
        job.stop(drain=False)
    return [
        _row("latency until a sink has the row, p99", _passed_on_ms(source), P99_MS_MAX),
        _row(
            "latency until the row is committed to a file, p99",
            _committed_ms(source),
            COMMITTED_P99_MS_MAX,
        ),
    ]


def _start(source: NumberedRows, folder: Path) -> Job:
    from .... import columns, sinks

    topology, counted = counted_rows(source)
    counted.sink(sinks.each(columns(partial(_note_rows, folder))), id="each", parallelism=1)
    counted.sink(sinks.parquet(folder / "committed"), id="files", parallelism=1)
    return submitted(topology, settings_of(folder, INTERVAL_MS))


def _note_rows(folder: Path, batch: Batch) -> None:
    """Note when rows have come; called by the sink."""
    noted = np.empty(batch.num_rows, _NUMBER_AND_TIME)
    noted["number"], noted["ns"] = batch["number"], _CLOCK.monotonic_ns()
    with (folder / "passed-on").open("ab") as file:
        file.write(noted.tobytes())


def _passed_on_ms(source: NumberedRows) -> npt.NDArray[np.float64]:
    noted = np.fromfile(source.folder / "passed-on", _NUMBER_AND_TIME)
    return _latencies_ms(source, noted["number"], noted["ns"])


def _committed_ms(source: NumberedRows) -> npt.NDArray[np.float64]:
    """Return the latencies of rows in committed files, whose renaming notes a time."""
    import pyarrow.parquet as pq

    offset_ns = _CLOCK.wall_ns() - _CLOCK.monotonic_ns()
    found = [np.empty(0)]
    for path in (source.folder / "committed").glob("part-*"):
        numbers = pq.read_table(path, columns=["number"])["number"].to_numpy()
        found.append(_latencies_ms(source, numbers, path.stat().st_ctime_ns - offset_ns))
    return np.concatenate(found)


def _latencies_ms(
    source: NumberedRows, numbers: npt.NDArray[np.int64], came_ns: Any
) -> npt.NDArray[np.float64]:
    """Return the time from when each of the paced rows was due until it came."""
    due_ns = noted_ns(source.folder / "paced") + (numbers - source.fill) / source.rate_per_s * 1e9
    return ((came_ns - due_ns) / 1e6)[numbers >= source.fill]


def _row(what: str, latencies_ms: npt.NDArray[np.float64], aim_ms: float) -> BenchRow:
    p50_ms, p99_ms = np.percentile(latencies_ms, (50, 99))
    return BenchRow(
        what,
        {"rows/s": ROWS_PER_S, "keys": KEYS, "checkpoints": f"every {INTERVAL_MS:,} ms"},
        float(p99_ms),
        "ms",
        aim=Aim("value", "at most", aim_ms),
        also={"p50 ms": float(p50_ms), "rows": len(latencies_ms)},
    )
