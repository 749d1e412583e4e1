"""Flink: the workloads as SQL and as DataStream programs, in one JVM (FlinkQueries.java).

The queries of NEXMark are those of its repository. Flink's packages lack a reader of Parquet: the
source reads columns by the one that Spark brings (FlinkSources.java), or files of columns that are
mapped into memory. Yahoo's advertisements are looked up in a map.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ....configs.errors import ResourceError
from ..peers.base import NOT_INSTALLED
from ..peers.flink import is_installed, java_command, spark_jars
from .answers import Answer
from .application_workloads import (
    CLUSTER,
    LONG_TRIPS,
    READ_ONLY,
    READ_ONLY_ZIPF,
    REGION,
    TAXI,
)
from .inputs import AT_SAME_RATE, bound_ms, campaigns_by_ad, event_time_of
from .mapped_files import Files
from .timing import Ran, Runner
from .workloads import workload_named

__all__ = ["PROGRAMS", "missing", "sql_runner", "stream_runner"]

SOURCE = Path(__file__).with_name("FlinkQueries.java")

_HEAP_MB = 4096
_PARQUET = ("aircompressor-", "commons-logging-", "hadoop-client-", "parquet-", "snappy-java-")


@dataclass(frozen=True)
class Program:
    """A workload on Flink.

    Attributes:
        name: of the DataStream program; empty where there is none.
        place: the place of `Workload.total` in the tuples that it makes.
        sql: the query, or None where SQL has nothing like it.
    """

    name: str
    place: int
    sql: str | None = None


def _windows(function: str, rows: str = "bids") -> str:
    return f"TABLE({function}(TABLE {rows}, DESCRIPTOR(date_time), {{}}INTERVAL '10' SECOND))"


_TUMBLING = _windows("TUMBLE").format("")
_HOPPING = _windows("HOP").format("INTERVAL '2' SECOND, ")
_HOPPING_COUNTS = (
    "SELECT auction, count(*) AS num, window_start, window_end"
    f" FROM {_HOPPING} GROUP BY auction, window_start, window_end"
)


def _read_only(stream: str) -> Program:
    return Program("", 0, f"SELECT `key`, count(*) AS occurrences FROM {stream} GROUP BY `key`")


PROGRAMS = {
    "keyed row process, two handles": Program("spent", 1),
    "tumbling window, count per auction": Program(
        "tumbling",
        2,
        "SELECT auction, window_start, count(*) AS bids"
        f" FROM {_TUMBLING} GROUP BY auction, window_start, window_end",
    ),
    "hopping window, count per auction": Program(
        "hopping",
        2,
        "SELECT auction, window_start, count(*) AS bids"
        f" FROM {_HOPPING} GROUP BY auction, window_start, window_end",
    ),
    "NEXMark 0, all bids": Program(
        "bids", 2, "SELECT auction, bidder, price, date_time, extra FROM bids"
    ),
    "NEXMark 1, prices in euros": Program(
        "euros",
        1,
        "SELECT auction, bidder, price * CAST(0.908 AS DOUBLE) AS price, date_time, extra"
        " FROM bids",
    ),
    "NEXMark 2, bids on some auctions": Program(
        "some", 1, "SELECT auction, price FROM bids WHERE MOD(auction, 123) = 0"
    ),
    "NEXMark 4, average of the highest bids": Program(
        "averages",
        1,
        "SELECT category, CAST(sum(final) AS DOUBLE) / count(*) AS avg_final FROM"
        " (SELECT auction.id, auction.category, max(bid.price) AS final"
        f" FROM auctions_{AT_SAME_RATE} AS auction JOIN bids AS bid ON auction.id = bid.auction"
        " AND CAST(bid.date_time AS TIMESTAMP(3)) BETWEEN"
        " CAST(auction.date_time AS TIMESTAMP(3)) AND auction.expires"
        " GROUP BY auction.id, auction.category) GROUP BY category",
    ),
    "NEXMark 5, hot items": Program(
        "hot items",
        2,
        f"SELECT counts.auction, counts.num FROM ({_HOPPING_COUNTS}) AS counts JOIN"
        " (SELECT max(num) AS most, window_start, window_end"
        f" FROM ({_HOPPING_COUNTS}) GROUP BY window_start, window_end) AS tops"
        " ON counts.window_start = tops.window_start AND counts.window_end = tops.window_end"
        " AND counts.num >= tops.most",
    ),
    "NEXMark 7, highest bid": Program(
        "highest bid",
        1,
        "SELECT bid.auction, bid.price, bid.bidder, bid.date_time, bid.extra FROM bids AS bid JOIN"
        " (SELECT max(price) AS highest, window_end"
        f" FROM {_TUMBLING} GROUP BY window_start, window_end) AS top"
        " ON bid.price = top.highest"
        " WHERE bid.date_time BETWEEN top.window_end - INTERVAL '10' SECOND AND top.window_end",
    ),
    "NEXMark 8, new users": Program(
        "new sellers",
        0,
        "SELECT person.id, person.name, person.window_start FROM"
        " (SELECT id, name, window_start, window_end"
        f" FROM {_windows('TUMBLE', 'persons').format('')}"
        " GROUP BY id, name, window_start, window_end) AS person JOIN"
        " (SELECT seller, window_start, window_end"
        f" FROM {_windows('TUMBLE', 'auctions').format('')}"
        " GROUP BY seller, window_start, window_end) AS auction"
        " ON person.id = auction.seller AND person.window_start = auction.window_start"
        " AND person.window_end = auction.window_end",
    ),
    "NEXMark 11, sessions per bidder": Program(
        "sessions",
        2,
        "SELECT bidder, count(*) AS bid_count, window_start, window_end FROM TABLE("
        "SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '10' SECOND))"
        " GROUP BY bidder, window_start, window_end",
    ),
    "NB7, highest price per auction": Program(
        "",
        0,
        "SELECT auction, window_start, max(price) AS highest FROM TABLE(TUMBLE(TABLE nb_bids,"
        " DESCRIPTOR(date_time), INTERVAL '60' SECOND)) GROUP BY auction, window_start, window_end",
    ),
    "NB8, auctions of new sellers": Program(
        "",
        0,
        "SELECT auction.seller, auction.id AS auction, auction.extra, person.extra AS about,"
        " auction.window_start FROM TABLE(TUMBLE(TABLE nb_auctions, DESCRIPTOR(date_time),"
        " INTERVAL '12' HOUR)) AS auction JOIN TABLE(TUMBLE(TABLE nb_sellers,"
        " DESCRIPTOR(date_time), INTERVAL '12' HOUR)) AS person ON auction.seller = person.id"
        " AND auction.window_start = person.window_start"
        " AND auction.window_end = person.window_end",
    ),
    "Yahoo, views per campaign": Program(
        "yahoo",
        2,
        "SELECT campaign_id, window_start, count(*) AS `views` FROM TABLE(TUMBLE(TABLE ad_views,"
        " DESCRIPTOR(event_time), INTERVAL '10' SECOND))"
        " GROUP BY campaign_id, window_start, window_end",
    ),
    CLUSTER: Program(
        "",
        0,
        "SELECT job_id, window_start, avg(cpu_pct) AS mean_cpu_pct FROM TABLE(TUMBLE(TABLE samples,"
        " DESCRIPTOR(event_time), INTERVAL '2' SECOND)) GROUP BY job_id, window_start, window_end",
    ),
    READ_ONLY: _read_only("records"),
    READ_ONLY_ZIPF: _read_only("zipf_records"),
    TAXI: Program(
        "",
        0,
        f"SELECT {REGION} AS region, window_start, count(*) AS trips,"
        " avg(trip_distance) AS mean_distance FROM TABLE(TUMBLE(TABLE trips,"
        f" DESCRIPTOR(pickup_time), INTERVAL '2' SECOND)) WHERE {LONG_TRIPS}"
        f" GROUP BY {REGION}, window_start, window_end",
    ),
}
"""Workload → its program; `ad_views` is made of `events` by FlinkQueries."""

_TYPES = {
    **dict.fromkeys(("date_time", "event_time", "expires", "pickup_time"), "TIMESTAMP(3)"),
    **dict.fromkeys(("ad_id", "event_type", "extra", "name", "vendor_id"), "STRING"),
    **dict.fromkeys(("cpu_pct", "trip_distance"), "DOUBLE"),
    **dict.fromkeys(("pickup_longitude", "pickup_latitude"), "DOUBLE"),
}
"""Column → its type, where it is not BIGINT."""


def missing() -> str | None:
    """Return how to install Flink, None if it is here."""
    return None if is_installed() else NOT_INSTALLED


def stream_runner(workload: str, folder: Path, *, workers: int, files: Files = "parquet") -> Runner:
    """Return what runs a workload's DataStream program once, over such files."""
    return _runner(workload, folder, workers, None, files=files)


def sql_runner(workload: str, folder: Path, *, workers: int) -> Runner:
    """Return what runs a workload's query once."""
    return _runner(workload, folder, workers, PROGRAMS[workload].sql)


def _runner(
    workload: str, folder: Path, workers: int, sql: str | None, *, files: Files = "parquet"
) -> Runner:
    one, program = workload_named(workload), PROGRAMS[workload]
    job: dict[str, Any] = {
        "program": program.name,
        "sql": sql,
        "place": program.place,
        "total": one.total,
        "folder": str(folder),
        "files": files,
        "workers": workers,
        "streams": {
            stream: {column: _TYPES.get(column, "BIGINT") for column in columns}
            for stream, columns in one.reads.items()
        },
        "times": {stream: event_time_of(stream) for stream in one.reads} if one.timed else {},
        "max_out_of_order_ms": max(map(bound_ms, one.reads)),
        "campaigns": campaigns_by_ad(folder) if "events" in one.reads else None,
    }

    def run() -> Ran:
        found = _ask(json.dumps(job))
        answer = Answer(int(found["rows"]), int(found["total"]))
        return Ran(found["seconds"], found["cpu_s"], answer)

    return run


def _ask(job: str) -> dict[str, Any]:
    """Have Java run a job; return its answer."""
    java = _java()
    assert java.stdin is not None
    assert java.stdout is not None
    java.stdin.write(job + "\n")
    java.stdin.flush()
    line = java.stdout.readline()
    if not line.startswith("{"):
        msg = f"Flink failed at {job[:200]}: {line}{java.stdout.read()}"
        raise ResourceError(msg)
    found: dict[str, Any] = json.loads(line)
    return found


@cache
def _java() -> subprocess.Popen[str]:
    """Return the JVM of this process, which ends with it."""
    command = java_command(
        SOURCE,
        "-Dlog4j2.level=ERROR",
        "-XX:-UsePerfData",
        more_jars=spark_jars(*_PARQUET),
        heap_mb=_HEAP_MB,
    )
    java = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    )
    atexit.register(java.kill)
    return java
