"""DuckDB and Polars: the same results as one query over the whole file, a bound for any stream.

DuckDB materializes its result. Neither has to emit anything before the end of the input.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ....transport.clock import SystemClock
from .answers import answer_of
from .application_workloads import (
    CLUSTER,
    LONG_TRIPS,
    READ_ONLY,
    READ_ONLY_ZIPF,
    REGION,
    TAXI,
)
from .inputs import ADS, stream_path
from .timing import Ran, Runner
from .workloads import workload_named

__all__ = ["POLARS", "POLARS_ENVIRONMENT", "duckdb_runner", "polars_runner", "query_duckdb"]

POLARS_ENVIRONMENT = "polars"


def duckdb_runner(workload: str, folder: Path, *, threads: int) -> Runner:
    """Return what runs a workload's SQL once in a new connection."""
    import duckdb

    def query() -> Any:
        with duckdb.connect(config={"threads": threads}) as connection:
            return query_duckdb(connection, workload, folder)

    return _timed(query, workload_named(workload).total)


def query_duckdb(connection: Any, workload: str, folder: Path) -> Any:
    """Return the results of a workload as an Arrow table."""
    one = workload_named(workload)
    numbered = ", file_row_number = true" if "file_row_number" in one.sql else ""
    tables = ", ".join(
        f"{name} AS (FROM read_parquet('{stream_path(folder, name)}'{numbered}))"
        for name in (*one.reads, ADS)
        if stream_path(folder, name).exists()
    )
    return connection.sql(f"WITH {tables} {one.sql}").to_arrow_table()


def polars_runner(workload: str, folder: Path) -> Runner:
    """Return what collects a workload's lazy frame once."""
    return _timed(lambda: query_polars(workload, folder).to_arrow(), workload_named(workload).total)


def query_polars(workload: str, folder: Path) -> Any:
    """Return the results of a workload as a data frame."""
    pl: Any = import_module("polars")  # not installed where types are checked
    streams = [
        pl.scan_parquet(stream_path(folder, name))
        for name in (*workload_named(workload).reads, *_MORE_TABLES.get(workload, ()))
    ]
    return POLARS[workload](*streams).collect()


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


def _hot_items(bids: Any) -> Any:
    pl = import_module("polars")
    counts = _hopping(bids).rename({"bids": "num"})
    return counts.filter(pl.col("num") == pl.col("num").max().over("window_start"))


def _highest(bids: Any) -> Any:
    pl = import_module("polars")
    start = pl.col("date_time").dt.truncate("10s")
    highest = bids.filter(pl.col("price") == pl.col("price").max().over(start))
    return highest.select("auction", "price", "bidder", "date_time", "extra")


def _new_users(persons: Any, auctions: Any) -> Any:
    pl = import_module("polars")
    start = pl.col("date_time").dt.truncate("10s").alias("window_start")
    sellers = auctions.select(start, id="seller")
    return persons.select("id", "name", start).join(sellers, on=["id", "window_start"], how="semi")


def _views(events: Any, ads: Any) -> Any:
    pl = import_module("polars")
    start = pl.col("event_time").dt.truncate("10s").alias("window_start")
    views = events.filter(pl.col("event_type") == "view").select("ad_id", start)
    joined = views.join(ads, on="ad_id")
    return joined.group_by("campaign_id", "window_start").agg(views=pl.len())


def _sessions(bids: Any) -> Any:
    pl = import_module("polars")
    pause = pl.col("date_time").diff() > pl.duration(seconds=10)
    session = pause.fill_null(value=False).cum_sum().over("bidder")
    return (
        bids.sort("date_time")
        .with_columns(session=session)
        .group_by("bidder", "session")
        .agg(bid_count=pl.len())
    )


def _highest_of_each(bids: Any) -> Any:
    pl = import_module("polars")
    start = pl.col("date_time").dt.truncate("60s").alias("window_start")
    return bids.group_by("auction", start).agg(highest=pl.col("price").max())


def _auctions_of_new_sellers(auctions: Any, sellers: Any) -> Any:
    pl = import_module("polars")
    start = pl.col("date_time").dt.truncate("12h").alias("window_start")
    people = sellers.select(start, seller="id", about="extra")
    placed = auctions.select("seller", "extra", start, auction="id")
    return placed.join(people, on=["seller", "window_start"])


def _mean_cpu(samples: Any) -> Any:
    pl = import_module("polars")
    start = pl.col("event_time").dt.truncate("2s").alias("window_start")
    return samples.group_by("job_id", start).agg(mean_cpu_pct=pl.col("cpu_pct").mean())


def _long_trips(trips: Any) -> Any:
    pl = import_module("polars")
    start = pl.col("pickup_time").dt.truncate("2s").alias("window_start")
    region = pl.sql_expr(REGION).alias("region")
    long_ones = trips.filter(pl.sql_expr(LONG_TRIPS)).select(start, region, "trip_distance")
    return long_ones.group_by("region", "window_start").agg(
        trips=pl.len(), mean_distance=pl.col("trip_distance").mean()
    )


def _occurrences(records: Any) -> Any:
    pl = import_module("polars")
    return records.group_by("key").agg(occurrences=pl.len())


_MORE_TABLES = {"Yahoo, views per campaign": (ADS,)}

POLARS: dict[str, Callable[..., Any]] = {
    "keyed row process, two handles": _spent,
    "keyed compiled process, two handles": _spent,
    "keyed column process, two handles": _spent,
    "tumbling window, count per auction": _tumbling,
    "hopping window, count per auction": _hopping,
    "NEXMark 5, hot items": _hot_items,
    "NEXMark 7, highest bid": _highest,
    "NEXMark 8, new users": _new_users,
    "NEXMark 11, sessions per bidder": _sessions,
    "NB7, highest price per auction": _highest_of_each,
    "NB8, auctions of new sellers": _auctions_of_new_sellers,
    "Yahoo, views per campaign": _views,
    CLUSTER: _mean_cpu,
    READ_ONLY: _occurrences,
    READ_ONLY_ZIPF: _occurrences,
    TAXI: _long_trips,
}
"""Workload → a lazy frame of its results, of those of its streams."""


def _timed(query: Callable[[], Any], column: str) -> Runner:
    def runner() -> Ran:
        clock = SystemClock()
        begin_ns, before_ns = clock.monotonic_ns(), time.process_time_ns()
        results = query()
        cpu_s = (time.process_time_ns() - before_ns) / 1e9
        return Ran((clock.monotonic_ns() - begin_ns) / 1e9, cpu_s, answer_of(results, column))

    return runner
