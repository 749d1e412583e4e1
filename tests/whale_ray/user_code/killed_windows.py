"""A job of two sinks that tests kill, and what its output must be."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import whale_ray as whale
from tests.whale_ray.applications.paced_table import PacedTable
from whale_ray import functions

ROWS = pa.table(
    {
        "at": pa.array([row * 10_000 for row in range(60_000)], pa.timestamp("us")),
        "key": [row * 7 % 113 for row in range(60_000)],
        "n": list(range(60_000)),
    }
)
EXACTLY_ONCE = {"checkpoints.interval_ms": 100, "transport.wtl_ms": 1}


def topology(folder: Path) -> whale.Topology:
    """Return a job of windows and a filter, which has no end to whoever plans it; it takes 9 s."""
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


def check_output(folder: Path) -> None:
    """Assert that both sinks have what DuckDB computes of the rows, each row once."""
    third = sorted(pq.read_table(folder / "third")["n"].to_pylist())
    assert third == list(range(0, ROWS.num_rows, 3))
    found = pq.read_table(folder / "counts")
    expected = duckdb.sql(
        """SELECT key, time_bucket(INTERVAL 5 SECONDS, "at") - INTERVAL 5 SECONDS * hop AS start,
                  sum(n)::BIGINT AS total, count(*) AS rows
             FROM ROWS, (SELECT unnest(range(4)) AS hop) GROUP BY ALL ORDER BY ALL"""
    ).fetchall()
    columns = ("key", "window_start", "total", "rows")
    assert sorted(zip(*(found[name].to_pylist() for name in columns), strict=True)) == expected
