"""DuckDB and Polars: the same results as one query over the whole file, a bound for any stream.

DuckDB materializes its result. Neither has to emit anything before the end of the input.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from .timing import Ran, Runner
from .workloads import workload_named

__all__ = ["POLARS", "POLARS_ENVIRONMENT", "duckdb_runner", "polars_runner", "query_duckdb"]

POLARS_ENVIRONMENT = "polars"


def duckdb_runner(workload: str, path: Path, *, threads: int) -> Runner:
    """Return what runs a workload's SQL once in a new connection."""
    import duckdb

    def query() -> None:
        connection = duckdb.connect(config={"threads": threads})
        query_duckdb(connection, workload, path)
        connection.close()

    return _timed(query)


def query_duckdb(connection: Any, workload: str, path: Path) -> Any:
    """Return the results of a workload as an Arrow table."""
    sql = workload_named(workload).sql
    return connection.sql(
        f"WITH bids AS (FROM read_parquet('{path}', file_row_number = true)) {sql}"
    ).to_arrow_table()


def polars_runner(workload: str, path: Path) -> Runner:
    """Return what collects a workload's lazy frame once."""
    return _timed(lambda: query_polars(workload, path))


def query_polars(workload: str, path: Path) -> Any:
    """Return the results of a workload as a data frame."""
    pl: Any = import_module("polars")  # not installed where types are checked
    return POLARS[workload](pl.scan_parquet(path)).collect()


def _spent(bids: Any) -> Any:
    pl = import_module("polars")
    return bids.select(
        "bidder",
        bids=pl.int_range(1, pl.len() + 1).over("bidder"),
        spent=pl.col("price").cum_sum().over("bidder"),
    )


def _tumbling(bids: Any) -> Any:
    pl = import_module("polars")
    start = pl.col("date_time").dt.truncate("10s").alias("window_start")
    return bids.group_by("auction", start).agg(bids=pl.len())


def _hopping(bids: Any) -> Any:
    pl = import_module("polars")
    start = pl.col("date_time").dt.truncate("2s").alias("window_start")
    slices = bids.group_by("auction", start).agg(bids=pl.len())
    starts = [pl.col("window_start") - pl.duration(seconds=2 * hop) for hop in range(5)]
    in_windows = slices.with_columns(window_start=pl.concat_list(starts)).explode("window_start")
    return in_windows.group_by("auction", "window_start").agg(pl.col("bids").sum())


def _sessions(bids: Any) -> Any:
    pl = import_module("polars")
    pause = pl.col("date_time").diff() > pl.duration(seconds=10)
    session = pause.fill_null(value=False).cum_sum().over("bidder")
    return (
        bids.sort("date_time")
        .with_columns(session=session)
        .group_by("bidder", "session")
        .agg(bids=pl.len())
    )


POLARS: dict[str, Callable[[Any], Any]] = {
    "keyed row process, two handles": _spent,
    "keyed column process, two handles": _spent,
    "tumbling window, count per auction": _tumbling,
    "hopping window, count per auction": _hopping,
    "NEXMark 11, sessions per bidder": _sessions,
}
"""Workload → a lazy frame of its results, of the one of the bids."""


def _timed(query: Callable[[], object]) -> Runner:
    def runner() -> Ran:
        before_ns = time.process_time_ns()
        query()
        return Ran(cpu_s=(time.process_time_ns() - before_ns) / 1e9)

    return runner
