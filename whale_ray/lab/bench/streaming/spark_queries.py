"""Spark 3.5: the windows as batch queries and as Structured Streaming, in one Java process.

A stream reads the file as one micro-batch and ends (`availableNow`); its state is in memory. Keyed
state from Python is `applyInPandasWithState` there, on groups in pandas: it is not compared.
"""

from __future__ import annotations

import atexit
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from .bids import MAX_OUT_OF_ORDER_MS
from .timing import Ran, Runner

__all__ = ["GROUPS", "batch_runner", "missing", "query", "session", "streaming_runner"]

PARTITIONS = 2
"""Of shuffles."""

GROUPS = {
    "tumbling window, count per auction": "window(date_time, '10 seconds'), auction",
    "hopping window, count per auction": "window(date_time, '10 seconds', '2 seconds'), auction",
    "NEXMark 11, sessions per bidder": "session_window(date_time, '10 seconds'), bidder",
}
"""Workload → by what its rows are grouped and counted."""


def missing() -> str | None:
    """Return how to install Spark, None if it is here."""
    from importlib.util import find_spec

    here = find_spec("pyspark") is not None
    return None if here else 'not installed (pip install "whale-ray[spark]")'


def batch_runner(workload: str, path: Path) -> Runner:
    """Return what runs a workload over the whole file once."""
    spark = session()
    java = _java()

    def run() -> Ran:
        before_s = _cpu_s(java)
        results = query(spark.read.parquet(str(path)), workload)
        results.write.format("noop").mode("overwrite").save()
        return Ran(cpu_s=_cpu_s(java) - before_s)

    return run


def streaming_runner(workload: str, path: Path) -> Runner:
    """Return what runs a workload over the file as a stream once."""
    spark = session()
    java = _java()
    schema = spark.read.parquet(str(path)).schema

    def run() -> Ran:
        before_s = _cpu_s(java)
        stream = spark.readStream.schema(schema).option("pathGlobFilter", path.name)
        bids = stream.parquet(str(path.parent))
        bids = bids.withWatermark("date_time", f"{MAX_OUT_OF_ORDER_MS} milliseconds")
        with tempfile.TemporaryDirectory(prefix="whale-ray-") as checkpoint:
            writer = query(bids, workload).writeStream.format("noop").outputMode("append")
            writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            writer.start().awaitTermination()
        return Ran(cpu_s=_cpu_s(java) - before_s)

    return run


def query(bids: Any, workload: str) -> Any:
    """Return the counts of a workload's groups, as a data frame of Spark."""
    bids.createOrReplaceTempView("bids")
    groups = GROUPS[workload]
    return bids.sparkSession.sql(f"SELECT {groups}, count(*) AS bids FROM bids GROUP BY {groups}")


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
