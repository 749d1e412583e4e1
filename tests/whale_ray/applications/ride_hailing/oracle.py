"""The application's question asked in one batch query, to check the stream's answer against.

It shares no code with the matcher: each free fix holds from its time until the vehicle's next fix,
or until it is too old; requests and fixes meet where these spans cover the request. So that this is
an equi-join, time is cut into buckets and a span stands in each bucket that it touches.

The whole real week (3.4 M positions, 139 k requests) takes a few seconds and 0.5 GB in DuckDB on
two cores. A fleet of N vehicles costs N times the requests, wherever they are: no index is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whale_ray.applications.ride_hailing.settings import RideHailingSettings

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["duckdb_oracle", "duckdb_oracle_sql", "spark_oracle_sql"]

_EARTH_RADIUS_M = "6371008.8"
#: Fewer than on the sphere used (111,195), so that no vehicle within the radius is left out.
_METRES_PER_DEGREE_LEAST = 111_000.0
_BUCKET_US_LEAST = 60_000_000
_BUCKETS_PER_AGE = 10

_SQL = """
WITH fixes AS (
  SELECT vehicle_id, {micros_of_event_time} AS first_us, lat_e5 / 1e5 AS lat, lon_e5 / 1e5 AS lon,
         occupied,
         LEAD({micros_of_event_time}) OVER (
           PARTITION BY vehicle_id ORDER BY event_time, lat_e5, lon_e5, occupied) AS next_us
  FROM positions
), spans AS (
  SELECT vehicle_id, first_us, lat, lon,
         LEAST(COALESCE(next_us - 1, first_us + {age_us}), first_us + {age_us}) AS last_us
  FROM fixes WHERE NOT occupied
), bucketed AS (
  SELECT spans.*, CAST(FLOOR(first_us / {bucket_us}.0) AS BIGINT) + step AS bucket
  FROM spans CROSS JOIN (VALUES {steps}) AS steps(step)
  WHERE first_us <= last_us
    AND CAST(FLOOR(first_us / {bucket_us}.0) AS BIGINT) + step <= FLOOR(last_us / {bucket_us}.0)
), asked AS (
  SELECT request_id, request_time, {micros_of_request_time} AS asked_us,
         CAST(FLOOR({micros_of_request_time} / {bucket_us}.0) AS BIGINT) AS bucket,
         CAST(pickup_lat AS DOUBLE) AS pickup_lat, CAST(pickup_lon AS DOUBLE) AS pickup_lon
  FROM requests
  WHERE request_time BETWEEN (SELECT MIN(event_time) FROM positions)
                         AND (SELECT MAX(event_time) FROM positions)
), measured AS (
  SELECT request_id, request_time, vehicle_id,
         2 * {earth_radius_m} * ASIN(LEAST(1e0, SQRT(
           POWER(SIN(RADIANS(lat - pickup_lat) / 2), 2)
           + COS(RADIANS(pickup_lat)) * COS(RADIANS(lat))
             * POWER(SIN(RADIANS(lon - pickup_lon) / 2), 2)))) AS distance_m
  FROM asked JOIN bucketed
    ON asked.bucket = bucketed.bucket AND asked_us BETWEEN first_us AND last_us
  WHERE ABS(lat - pickup_lat) <= {degrees}
), ranked AS (
  SELECT request_id, request_time, vehicle_id, distance_m,
         ROW_NUMBER() OVER (PARTITION BY request_id, request_time
                            ORDER BY FLOOR(distance_m * 1000 + 0.5), vehicle_id) AS rank
  FROM measured WHERE distance_m <= {radius_m}
)
SELECT asked.request_id, asked.request_time, vehicle_id, distance_m
FROM asked LEFT JOIN (SELECT * FROM ranked WHERE rank = 1) AS best
  ON asked.request_id = best.request_id AND asked.request_time = best.request_time
ORDER BY asked.request_time, asked.request_id
"""


def duckdb_oracle_sql(settings: RideHailingSettings | None = None) -> str:
    """Return the query for DuckDB over the tables `positions` and `requests`."""
    return _sql(settings, "EPOCH_US({})")


def spark_oracle_sql(settings: RideHailingSettings | None = None) -> str:
    """Return the query for Spark SQL over the views `positions` and `requests`."""
    return _sql(settings, "UNIX_MICROS({})")


def duckdb_oracle(
    positions: pa.Table | str | Path,
    requests: pa.Table | str | Path,
    settings: RideHailingSettings | None = None,
    *,
    threads: int = 2,
    memory_bytes: int = 3 << 30,
) -> pa.Table:
    """Return request_id, request_time, vehicle_id and distance_m, ordered by time and id.

    Args:
        positions: a table, or the path of Parquet files.
        requests: likewise; those outside the positions' time span are left out.
        settings: radius and age.
        threads: DuckDB's threads.
        memory_bytes: DuckDB's limit; beyond it spills to disk.
    """
    import duckdb

    with duckdb.connect(
        config={"threads": threads, "memory_limit": f"{memory_bytes}B"}
    ) as database:
        database.execute("SET TimeZone = 'UTC'")
        for name, rows in (("positions", positions), ("requests", requests)):
            if isinstance(rows, str | Path):
                database.read_parquet(str(rows)).create_view(name)
            else:
                database.register(name, rows)
        return database.sql(duckdb_oracle_sql(settings)).to_arrow_table()


def _sql(settings: RideHailingSettings | None, micros_of: str) -> str:
    settings = settings or RideHailingSettings()
    age_us = round(settings.max_age_s * 1e6)
    bucket_us = max(_BUCKET_US_LEAST, age_us // _BUCKETS_PER_AGE)
    return _SQL.format(
        micros_of_event_time=micros_of.format("event_time"),
        micros_of_request_time=micros_of.format("request_time"),
        age_us=age_us,
        bucket_us=bucket_us,
        steps=", ".join(f"({step})" for step in range(age_us // bucket_us + 2)),
        degrees=repr(settings.radius_m / _METRES_PER_DEGREE_LEAST),
        radius_m=repr(float(settings.radius_m)),
        earth_radius_m=_EARTH_RADIUS_M,
    )
