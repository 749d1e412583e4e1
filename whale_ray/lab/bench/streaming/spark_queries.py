"""Spark 3.5: windows as batch queries and as Structured Streaming, in one Java process.

A stream reads the file as one micro-batch and ends (`availableNow`); its state is in memory.
Windows that the watermark has not passed at the end are never emitted. Keyed state from Python is
`applyInPandasWithState` there, on groups in pandas: it is not compared.
"""

from __future__ import annotations

import atexit
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from ....transport.clock import SystemClock
from .answers import Answer
from .application_workloads import (
    CLUSTER,
    LINEAR_ROAD,
    LONG_TRIPS,
    NOTIFICATIONS,
    READ_ONLY,
    READ_ONLY_ZIPF,
    REGION,
    TAXI,
)
from .inputs import ADS, AT_SAME_RATE, bound_ms, event_time_of, stream_path
from .timing import Ran, Runner
from .workloads import workload_named

__all__ = [
    "BATCH_QUERIES",
    "QUERIES",
    "batch_runner",
    "missing",
    "query",
    "session",
    "streaming_runner",
]

PARTITIONS = 2
"""Of shuffles."""


def _grouped(groups: str, rows: str, count: str) -> str:
    return f"SELECT {groups}, count(*) AS {count} FROM {rows} GROUP BY {groups}"


QUERIES = {
    "tumbling window, count per auction": _grouped(
        "window(date_time, '10 seconds'), auction", "bids", "bids"
    ),
    "hopping window, count per auction": _grouped(
        "window(date_time, '10 seconds', '2 seconds'), auction", "bids", "bids"
    ),
    "NEXMark 0, all bids": "SELECT auction, bidder, price, date_time, extra FROM bids",
    "NEXMark 1, prices in euros": (
        "SELECT auction, bidder, price * 0.908D AS price, date_time, extra FROM bids"
    ),
    "NEXMark 2, bids on some auctions": "SELECT auction, price FROM bids WHERE auction % 123 = 0",
    "NEXMark 8, new users": (
        "SELECT DISTINCT id, name, person.window FROM"
        " (SELECT id, name, window(date_time, '10 seconds') AS window FROM persons) AS person JOIN"
        " (SELECT seller, window(date_time, '10 seconds') AS window FROM auctions) AS auction"
        " ON id = seller AND person.window = auction.window"
    ),
    "NEXMark 11, sessions per bidder": _grouped(
        "session_window(date_time, '10 seconds'), bidder", "bids", "bid_count"
    ),
    "NB7, highest price per auction": (
        "SELECT auction, window(date_time, '60 seconds').start AS window_start,"
        " max(price) AS highest FROM nb_bids GROUP BY window(date_time, '60 seconds'), auction"
    ),
    "NB8, auctions of new sellers": (
        "SELECT auction.seller, auction.id AS auction, auction.extra, person.extra AS about,"
        " person.window.start AS window_start FROM"
        " (SELECT *, window(date_time, '12 hours') AS window FROM nb_auctions) AS auction JOIN"
        " (SELECT *, window(date_time, '12 hours') AS window FROM nb_sellers) AS person"
        " ON auction.seller = person.id AND auction.window = person.window"
    ),
    "Yahoo, views per campaign": _grouped(
        "window(event_time, '10 seconds'), campaign_id",
        "events JOIN ads USING (ad_id) WHERE event_type = 'view'",
        "views",
    ),
    CLUSTER: (
        "SELECT job_id, window(event_time, '2 seconds').start AS window_start,"
        " avg(cpu_pct) AS mean_cpu_pct FROM samples"
        " GROUP BY window(event_time, '2 seconds'), job_id"
    ),
    TAXI: (
        "SELECT region, window(pickup_time, '2 seconds').start AS window_start,"
        " count(*) AS trips, avg(trip_distance) AS mean_distance"
        f" FROM (SELECT *, {REGION} AS region FROM trips WHERE {LONG_TRIPS})"
        " GROUP BY window(pickup_time, '2 seconds'), region"
    ),
}
"""Workload → its query, over the streams' names and `ads`."""

BATCH_QUERIES = {
    **QUERIES,
    "NEXMark 4, average of the highest bids": (
        "SELECT category, CAST(sum(final) AS DOUBLE) / count(*) AS avg_final FROM"
        " (SELECT /*+ BROADCAST(auction) */ id, category, max(price) AS final"
        f" FROM bids JOIN auctions_{AT_SAME_RATE} AS auction ON auction = id"
        " WHERE bids.date_time BETWEEN auction.date_time AND expires GROUP BY id, category)"
        " GROUP BY category"
    ),
    "NEXMark 5, hot items": (
        "SELECT auction, window_start, num FROM"
        " (SELECT *, max(num) OVER (PARTITION BY window_start) AS most FROM"
        " (SELECT auction, first - INTERVAL '2' SECOND * hop AS window_start, sum(bids) AS num"
        " FROM (SELECT auction, window(date_time, '2 seconds').start AS first, count(*) AS bids"
        " FROM bids GROUP BY auction, window(date_time, '2 seconds'))"
        " LATERAL VIEW explode(sequence(0, 4)) AS hop GROUP BY auction, window_start))"
        " WHERE num = most"
    ),
    "NEXMark 7, highest bid": (
        "SELECT /*+ BROADCAST(top) */ auction, price, bidder, date_time, extra FROM"
        " (SELECT *, window(date_time, '10 seconds').start AS start FROM bids) AS bid JOIN"
        " (SELECT window(date_time, '10 seconds').start AS start, max(price) AS price"
        " FROM bids GROUP BY window(date_time, '10 seconds')) AS top USING (start, price)"
    ),
    READ_ONLY: workload_named(READ_ONLY).sql,
    READ_ONLY_ZIPF: workload_named(READ_ONLY_ZIPF).sql,
    LINEAR_ROAD: NOTIFICATIONS,
}
"""As `QUERIES`, with those that Structured Streaming 3.5 cannot run on streams."""


def missing() -> str | None:
    """Return how to install Spark, None if it is here."""
    from importlib.util import find_spec

    here = find_spec("pyspark") is not None
    return None if here else 'not installed (pip install "whale-ray[spark]")'


def batch_runner(workload: str, folder: Path) -> Runner:
    """Return what runs a workload over the whole files once."""
    spark = session()

    def run() -> Ran:
        for stream in workload_named(workload).reads:
            spark.read.parquet(str(stream_path(folder, stream))).createOrReplaceTempView(stream)
        found: list[Answer] = []

        def compute() -> None:
            results = query(workload, folder)
            found.append(_counted(results, workload))

        return _timed(compute, found)

    return run


def streaming_runner(workload: str, folder: Path) -> Runner:
    """Return what runs a workload over the files as streams once."""
    spark = session()

    def run() -> Ran:
        for stream in workload_named(workload).reads:
            path = stream_path(folder, stream)
            schema = spark.read.parquet(str(path)).schema
            rows = spark.readStream.schema(schema).option("pathGlobFilter", path.name)
            (
                rows.parquet(str(path.parent))
                .withWatermark(event_time_of(stream), f"{bound_ms(stream)} milliseconds")
                .createOrReplaceTempView(stream)
            )
        found: list[Answer] = []

        def compute() -> None:
            with tempfile.TemporaryDirectory(prefix="whale-ray-") as checkpoint:
                writer = query(workload, folder).writeStream.outputMode("append")
                writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
                writer = writer.foreachBatch(
                    lambda results, _: found.append(_counted(results, workload))
                )
                writer.start().awaitTermination()

        return _timed(compute, found)

    return run


def query(workload: str, folder: Path) -> Any:
    """Return the results of a workload over the views of its streams, as a data frame of Spark."""
    spark = session()
    if stream_path(folder, ADS).exists():
        spark.read.parquet(str(stream_path(folder, ADS))).createOrReplaceTempView(ADS)
    return spark.sql(BATCH_QUERIES[workload])


def _counted(results: Any, workload: str) -> Answer:
    """Have Spark make results with all columns, which it counts and adds up on the way."""
    from ....spark.local import drop_and_observe

    metrics = {"rows": "count(*)", "total": f"coalesce(sum({workload_named(workload).total}), 0)"}
    found = drop_and_observe(results, metrics)
    return Answer(**{name: int(value) for name, value in found.items()})


def _timed(compute: Any, found: list[Answer]) -> Ran:
    clock, java = SystemClock(), _java()
    begin_ns, before_s = clock.monotonic_ns(), _cpu_s(java)
    compute()
    seconds, cpu_s = (clock.monotonic_ns() - begin_ns) / 1e9, _cpu_s(java) - before_s
    answer = Answer(sum(one.rows for one in found), sum(one.total for one in found))
    return Ran(seconds, cpu_s, answer)


@cache
def session() -> Any:
    """Return the session of this process, which ends with it."""
    from ....configs.settings import SparkSettings
    from ....spark.local import spark_locally

    settings = SparkSettings(quick_start=False, shuffle_partitions=PARTITIONS)
    running = ExitStack()
    atexit.register(running.close)
    found = running.enter_context(spark_locally("streaming", settings))
    # Watermarks want instants, and the files have timestamps without a zone.
    found.conf.set("spark.sql.parquet.inferTimestampNTZ.enabled", "false")
    return found


@cache
def _java() -> Any:
    import psutil

    (java,) = (
        child for child in psutil.Process().children(recursive=True) if "java" in child.name()
    )
    return java


def _cpu_s(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
