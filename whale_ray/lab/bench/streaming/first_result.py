"""How long a fresh process takes to the first result of `whale.run`, by what is compiled already.

The process loads whale-ray, builds a topology over a file (filter, projection, a count and a sum
per key and window), and runs it. The clock starts before the process does. Once the folder of
compiled functions is empty, then it is what that run has left there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ....configs.errors import ResourceError
from ....transport.clock import SystemClock
from ..report import Aim, BenchRow, median

__all__ = ["first_result_rows"]

ROWS = 1_000_000
REPETITIONS = 5
QUICK_REPETITIONS = 2
EMPTY_S_MAX = 3.0
FILLED_S_MAX = 1.0

_PROGRAM = """
import sys, time
import whale_ray as whale
from whale_ray import col, functions

shown = []

def show(row):
    if not shown:
        shown.append(row)
        print(time.time(), time.process_time(), flush=True)

topology = whale.Topology("first-result")
events = topology.source(whale.sources.parquet(sys.argv[1]), id="events", event_time="at")
kept = events.filter((col("kind") == "view") & (col("value") > 0.1))
counts = kept.with_column("twice", col("value") * 2).group_by(
    whale.window("at", "10 seconds"), "key"
).agg(functions.count().alias("rows"), functions.sum("twice").alias("total"))
counts.sink(whale.sinks.each(show), id="out")
whale.run(topology)
"""
_VARIABLE = "NUMBA_CACHE_DIR"


def first_result_rows(quick: bool) -> list[BenchRow]:
    """Measure with an empty folder of compiled functions, then with the one that was filled."""
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "events.parquet")
        _write(file)
        empty = [_first_result_s(file, Path(folder, f"empty{n}")) for n in range(repetitions)]
        filled = [_first_result_s(file, Path(folder, "empty0")) for _ in range(repetitions)]
    return [
        _row("an empty folder of compiled functions", empty, EMPTY_S_MAX),
        _row("a filled folder of compiled functions", filled, FILLED_S_MAX),
    ]


def _row(name: str, taken: list[tuple[float, float]], most_s: float) -> BenchRow:
    return BenchRow(
        f"first result: {name}",
        {"rows": ROWS},
        median([seconds for seconds, _ in taken]),
        "s",
        aim=Aim("value", "at most", most_s),
        also={"CPU s": median([cpu_s for _, cpu_s in taken])},
    )


def _write(file: Path) -> None:
    drawn = np.random.default_rng(0)
    columns = {
        "at": pa.array(np.arange(ROWS) * 1000, pa.timestamp("us")),
        "key": drawn.integers(0, 100, ROWS),
        "value": drawn.random(ROWS),
        "kind": np.array(["view", "click", "purchase"])[drawn.integers(0, 3, ROWS)],
    }
    pq.write_table(pa.table(columns), file)


def _first_result_s(file: Path, folder: Path) -> tuple[float, float]:
    """Return seconds, and those of the processor, from the start of a process to its first row."""
    begin_ns = SystemClock().wall_ns()
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(file)],
        env={**os.environ, _VARIABLE: str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        msg = f"the process that is measured failed: {ran.stderr.strip()[-500:]}"
        raise ResourceError(msg)
    at_s, cpu_s = map(float, ran.stdout.split()[:2])
    return at_s - begin_ns / 1e9, cpu_s
