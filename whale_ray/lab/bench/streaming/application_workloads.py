"""The workloads that are whole applications of their own: one query over one stream each."""

from __future__ import annotations

from ....applications.cluster_monitoring.topology import mean_cpu
from ....applications.linear_road.schemas import REPORTS
from ....applications.linear_road.topology import notifications
from ....applications.read_only_count.topology import count_keys
from ....applications.taxi_regions import regions
from ....applications.taxi_regions.topology import LONG_MILES, READS, VENDOR, count_trips
from .application_streams import ZIPF
from .workload import Workload

__all__ = [
    "APPLICATIONS",
    "CLUSTER",
    "LINEAR_ROAD",
    "LONG_TRIPS",
    "NOTIFICATIONS",
    "READ_ONLY",
    "READ_ONLY_ZIPF",
    "REGION",
    "TAXI",
]

CLUSTER = "Cluster monitoring, mean CPU per job"
READ_ONLY = "Read-only count, uniform keys"
READ_ONLY_ZIPF = f"Read-only count, keys by Zipf's distribution, exponent {ZIPF:g}"
TAXI = "New York taxi, long trips per region"
LINEAR_ROAD = "Linear Road, tolls and accidents"

_BOX = regions.NEW_YORK
_ACROSS = (_BOX.east - _BOX.west) / regions.COLUMNS
_UP = (_BOX.north - _BOX.south) / regions.ROWS

# An exponent makes a number one of 64 bits in every dialect, where others are decimals.
REGION = (
    f"CAST(least(floor((pickup_latitude - {_BOX.south!r}E0) / {_UP!r}E0), {regions.ROWS - 1}E0)"
    f" AS BIGINT) * {regions.COLUMNS} + CAST(least(floor("
    f"(pickup_longitude - ({_BOX.west!r}E0)) / {_ACROSS!r}E0), {regions.COLUMNS - 1}E0) AS BIGINT)"
)
"""The region of a trip, for any of the systems that have SQL."""

LONG_TRIPS = (
    f"vendor_id = '{VENDOR}' AND trip_distance > {LONG_MILES}E0"
    f" AND pickup_longitude >= {_BOX.west!r}E0 AND pickup_longitude < {_BOX.east!r}E0"
    f" AND pickup_latitude >= {_BOX.south!r}E0 AND pickup_latitude < {_BOX.north!r}E0"
)
"""Which trips count, for any of them."""

_PLACE = "xway, dir, seg"
_STAND = "xway, dir, lane, pos_ft"
NOTIFICATIONS = f"""WITH positions AS (
    SELECT CAST(time_s AS BIGINT) AS time_s, vid, speed_mph, xway, lane, dir, seg, pos_ft,
        CAST(floor(time_s / 60) AS BIGINT) AS minute FROM reports WHERE type = 0),
before AS (
    SELECT *, lag(xway) OVER way AS xway_0, lag(dir) OVER way AS dir_0, lag(seg) OVER way AS seg_0,
        lag(lane) OVER way AS lane_0, lag(pos_ft) OVER way AS pos_ft_0
    FROM positions WINDOW way AS (PARTITION BY vid ORDER BY time_s)),
stands AS (
    SELECT *, sum(CASE WHEN xway = xway_0 AND dir = dir_0 AND lane = lane_0 AND pos_ft = pos_ft_0
        THEN 0 ELSE 1 END) OVER (PARTITION BY vid ORDER BY time_s) AS stand FROM before),
stops AS (
    SELECT {_STAND}, min(seg) AS seg, min(time_s) + 90 AS stopped_s, max(time_s) + 30 AS gone_on_s,
        vid FROM stands GROUP BY vid, stand, {_STAND} HAVING count(*) >= 4),
changes AS (
    SELECT {_STAND}, seg, stopped_s AS time_s, 1 AS change FROM stops UNION ALL
    SELECT {_STAND}, seg, gone_on_s, -1 FROM stops JOIN (
        SELECT vid, max(time_s) AS last_s FROM positions GROUP BY vid) AS ends USING (vid)
    WHERE gone_on_s <= last_s),
standing AS (
    SELECT {_PLACE}, CAST(floor(time_s / 60) AS BIGINT) + 1 AS first,
        sum(change) OVER place AS vehicles,
        coalesce(CAST(floor(lead(time_s) OVER place / 60) AS BIGINT), 179) AS last
    FROM changes WINDOW place AS (PARTITION BY {_STAND} ORDER BY time_s)),
nearest AS (
    SELECT xway, dir, CASE dir WHEN 0 THEN seg - distance ELSE seg + distance END AS seg, minute,
        min(distance) AS distance
    FROM standing JOIN range(0, 180) AS minutes(minute) ON minute BETWEEN first AND last
        CROSS JOIN range(0, 5) AS reach(distance)
    WHERE vehicles >= 2 GROUP BY 1, 2, 3, 4),
speeds AS (
    SELECT {_PLACE}, minute, avg(speed_mph) AS speed_mph FROM positions
    GROUP BY {_PLACE}, minute, vid),
minutes AS (
    SELECT {_PLACE}, minute, avg(speed_mph) AS speed_mph, count(*) AS cars FROM speeds
    GROUP BY {_PLACE}, minute),
segments AS (
    SELECT {_PLACE}, minute + ago AS minute, avg(speed_mph) AS lav_mph,
        sum(CASE ago WHEN 1 THEN cars ELSE 0 END) AS cars
    FROM minutes CROSS JOIN range(1, 6) AS before(ago) GROUP BY {_PLACE}, minute + ago)
SELECT time_s, vid, {_PLACE}, lav_mph, CAST(coalesce(cars, 0) AS BIGINT) AS cars,
    CAST(CASE WHEN lav_mph < 40 AND cars > 50 AND distance IS NULL
        THEN 2 * (cars - 50) * (cars - 50) ELSE 0 END AS BIGINT) AS toll,
    CASE dir WHEN 0 THEN seg + distance ELSE seg - distance END AS accident_seg
FROM before LEFT JOIN segments USING ({_PLACE}, minute) LEFT JOIN nearest USING ({_PLACE}, minute)
WHERE lane <> 4 AND (xway_0 IS NULL OR xway <> xway_0 OR dir <> dir_0 OR seg <> seg_0)"""
"""Linear Road for DuckDB and Spark; vehicles report each 30 s, as in the generator's rows.

A vehicle is stopped from the fourth report from one place on, and an accident counts in a minute at
whose beginning two vehicles or more are stopped in the same place.
"""


def _read_only(name: str, stream: str) -> Workload:
    return Workload(
        name,
        "applications",
        {stream: ("key",)},
        lambda streams: count_keys(streams.read(stream)),
        f"SELECT key, count(*) AS occurrences FROM {stream} GROUP BY key",
        total="occurrences",
        key="key",
        timed=False,
        window_s=None,
    )


APPLICATIONS = (
    Workload(
        CLUSTER,
        "applications",
        {"samples": ("job_id", "event_time", "cpu_pct")},
        lambda streams: mean_cpu(streams.read("samples")),
        "SELECT job_id, time_bucket(INTERVAL 2 SECONDS, event_time) AS window_start,"
        " avg(cpu_pct) AS mean_cpu_pct FROM samples GROUP BY ALL",
        total="mean_cpu_pct",
        key="job_id",
        window_s=2,
    ),
    _read_only(READ_ONLY, "records"),
    _read_only(READ_ONLY_ZIPF, "zipf_records"),
    Workload(
        TAXI,
        "applications",
        {"trips": READS},
        lambda streams: count_trips(streams.read("trips")),
        f"SELECT {REGION} AS region, time_bucket(INTERVAL 2 SECONDS, pickup_time) AS window_start,"
        " count(*) AS trips, avg(trip_distance) AS mean_distance"
        f" FROM trips WHERE {LONG_TRIPS} GROUP BY ALL",
        total="trips",
        key=None,
        window_s=2,
    ),
    Workload(
        LINEAR_ROAD,
        "applications",
        {"reports": tuple(REPORTS.names)},
        lambda streams: notifications(streams.read("reports")),
        f"FROM ({NOTIFICATIONS})",
        total="toll",
        key="vid",
        window_s=None,
        drops=True,
        joins=True,
    ),
)
"""Those of Del Monte's thesis (3.4.1.4, 4.7.1.2), beside Yahoo's and NEXMark's."""
