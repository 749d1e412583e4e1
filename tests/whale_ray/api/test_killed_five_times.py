"""All that a job consists of is killed five times; its output is that of one that was not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.applications.paced_table import PacedTable
from whale_ray import functions
from whale_ray.transport.clock import SystemClock

KILLS = 5
ROWS = pa.table(
    {
        "at": pa.array([row * 10_000 for row in range(60_000)], pa.timestamp("us")),
        "key": [row * 7 % 113 for row in range(60_000)],
        "n": list(range(60_000)),
    }
)


def topology(folder: Path) -> whale.Topology:
    job = whale.Topology("killed")
    source = PacedTable(ROWS, parts=60, pause_ms=150, bounded=False)
    rows = job.source(source, id="rows", event_time="at")
    counts = rows.group_by(whale.window("at", "20 seconds", "5 seconds"), "key").agg(
        functions.sum("n").alias("total"),
        functions.count().alias("rows"),
        id="counts",
        parallelism=2,
    )
    counts.sink(whale.sinks.parquet(folder / "counts"), id="counts-out")
    rows.filter(whale.col("n") % 3 == 0, id="third").sink(
        whale.sinks.parquet(folder / "third"), id="third-out"
    )
    return job


def run(folder: Path, restore: str | None) -> None:
    whale.submit(
        topology(folder),
        on="processes",
        workers=2,
        settings={"checkpoints.interval_ms": 100, "transport.wtl_ms": 1},
        checkpoints=folder / "state",
        restore=restore,
    ).wait()


@pytest.mark.long
def test_a_job_that_is_killed_five_times_has_each_result_once(tmp_path: Path) -> None:
    clock, moments = SystemClock(), random.Random(5)
    state = tmp_path / "state" / "manifests"
    kills = 0
    restore: str | None = None
    while True:
        program = (
            f"from {__name__} import run; from pathlib import Path;"
            f" run(Path({str(tmp_path)!r}), {restore!r})"
        )
        job = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
        if kills == KILLS:
            assert job.wait(120) == 0
            break
        before = set(os.listdir(state)) if state.exists() else set()
        while not state.exists() or set(os.listdir(state)) <= before:  # it has gone on
            assert job.poll() is None
            clock.sleep_ns(20_000_000)
        clock.sleep_ns(int(moments.uniform(0, 1.2) * 1e9))
        for child in whale_processes(job.pid):
            os.kill(child, signal.SIGKILL)
        job.wait()
        kills, restore = kills + 1, "latest"
    third = sorted(pq.read_table(tmp_path / "third")["n"].to_pylist())
    assert third == list(range(0, ROWS.num_rows, 3))
    found = pq.read_table(tmp_path / "counts")
    expected = duckdb.sql(
        """SELECT key, time_bucket(INTERVAL 5 SECONDS, "at") - INTERVAL 5 SECONDS * hop AS start,
                  sum(n)::BIGINT AS total, count(*) AS rows
             FROM ROWS, (SELECT unnest(range(4)) AS hop) GROUP BY ALL ORDER BY ALL"""
    ).fetchall()
    columns = ("key", "window_start", "total", "rows")
    assert sorted(zip(*(found[name].to_pylist() for name in columns), strict=True)) == expected


def whale_processes(driver: int) -> list[int]:
    """Return a driver and all processes that it has started, the driver first."""
    import psutil

    process = psutil.Process(driver)
    return [driver, *(child.pid for child in process.children(recursive=True))]
