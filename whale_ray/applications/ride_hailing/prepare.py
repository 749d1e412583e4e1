"""Preparation of the input with Spark: read, reject rows by the rules in `cleaning`, sort by time.

This module does not import pyspark: it uses the session and the DataFrames that are passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...configs.errors import InputError
from ..shared.parquet_input import check_files
from ..shared.preparing import (
    OnBadRows,
    in_brackets,
    input_folder,
    open_parquet,
    pairs_of_inputs,
    refuse_rejected,
    rejected_rows,
)
from .cleaning import (
    OUTSIDE_SPAN,
    POSITION_ORDER,
    REQUEST_ORDER,
    judged_positions_sql,
    judged_requests_sql,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PreparedRides", "RideInputPaths", "input_paths", "prepare"]

_FILE_PAIRS = (
    ("sf_taxi_gps.parquet", "sf_taxi_requests.parquet"),
    ("positions.parquet", "requests.parquet"),
)
_TIMES = ("timestamp", "timestamp_ntz")
_POSITION_TYPES = {
    "vehicle_id": ("string",),
    "event_time": _TIMES,
    "lat_e5": ("int",),
    "lon_e5": ("int",),
    "occupied": ("boolean",),
}
_REQUEST_TYPES = {
    "request_id": ("int", "bigint", "string"),
    "request_time": _TIMES,
    "pickup_lat": ("float", "double"),
    "pickup_lon": ("float", "double"),
}


@dataclass(frozen=True)
class RideInputPaths:
    """Paths of the two inputs: Parquet files or folders."""

    positions: str
    requests: str


@dataclass(frozen=True)
class PreparedRides:
    """The two inputs, ready for the topology, and the number of rows read and left out."""

    positions: DataFrame
    """vehicle_id, event_time, lat_e5, lon_e5, occupied; ordered by time, then vehicle."""
    requests: DataFrame
    """request_id, request_time, pickup_lat, pickup_lon; ordered by time, then id."""
    rows_in: Mapping[str, int]
    """Input → rows read."""
    rejected: Mapping[str, int]
    """"input: reason" → rows left out; only reasons that occurred."""


def input_paths(directory: str | Path) -> RideInputPaths:
    """Return the two inputs in a folder.

    Raises:
        InputError: there is no such folder, no pair of inputs in it, or a damaged file.
    """
    wanted = " or ".join(f"{positions} and {requests}" for positions, requests in _FILE_PAIRS)
    positions, requests = pairs_of_inputs(input_folder(directory, wanted), _FILE_PAIRS, wanted)[0]
    paths = RideInputPaths(str(positions), str(requests))
    check_files(asdict(paths))
    return paths


def prepare(
    spark: SparkSession,
    paths: RideInputPaths,
    *,
    limit: int | None = None,
    on_bad_rows: OnBadRows = "drop",
) -> PreparedRides:
    """Read both inputs, reject rows that cannot be used, and sort the rest by time.

    Requests outside the positions' time span are left out, counted, and never an error.

    Args:
        spark: a session whose time zone is UTC.
        paths: the inputs.
        limit: take only so many positions, the earliest ones.
        on_bad_rows: "drop" counts rows that cannot be used, "fail" refuses them.

    Raises:
        InputError: a file or column is missing, a column has another type, or no position is left.
        BadRowError: rows cannot be used and `on_bad_rows` is "fail".
    """
    positions = open_parquet(spark, "positions", paths.positions, _POSITION_TYPES)
    requests = open_parquet(spark, "requests", paths.requests, _REQUEST_TYPES)
    vehicles = spark.sql(judged_positions_sql("{positions}", limit), positions=positions)
    vehicle_counts = _count(spark, vehicles, "event_time")
    if None not in vehicle_counts:
        reasons = in_brackets({reason or "": of.rows for reason, of in vehicle_counts.items()})
        msg = f"{paths.positions!r} has no position that can be used{reasons}"
        raise InputError(msg)
    span = vehicle_counts[None]
    passengers = spark.sql(
        judged_requests_sql(
            "{requests}",
            f"TIMESTAMP_MICROS({span.first_us})",
            f"TIMESTAMP_MICROS({span.last_us})",
        ),
        requests=requests,
    )
    counts = {
        "positions": vehicle_counts,
        "requests": _count(spark, passengers, "request_time"),
    }
    rows = {
        side: {reason: of.rows for reason, of in of_side.items()}
        for side, of_side in counts.items()
    }
    rejected = rejected_rows(rows)
    if on_bad_rows == "fail":
        refuse_rejected(
            {reason: of for reason, of in rejected.items() if not reason.endswith(OUTSIDE_SPAN)}
        )
    return PreparedRides(
        positions=_passing(vehicles, POSITION_ORDER),
        requests=_passing(passengers, REQUEST_ORDER),
        rows_in={side: sum(of_side.values()) for side, of_side in rows.items()},
        rejected=rejected,
    )


@dataclass(frozen=True)
class _Count:
    rows: int
    first_us: int | None
    last_us: int | None


def _count(spark: SparkSession, judged: DataFrame, time: str) -> dict[str | None, _Count]:
    """Return reason → rows and time span, None being the reason of the rows that pass."""
    counted = spark.sql(
        f"""
        SELECT reason, COUNT(*) AS rows,
               MIN(UNIX_MICROS(CAST({time} AS TIMESTAMP))) AS first_us,
               MAX(UNIX_MICROS(CAST({time} AS TIMESTAMP))) AS last_us
        FROM {{judged}} GROUP BY reason
        """,
        judged=judged,
    )
    return {
        row["reason"]: _Count(row["rows"], row["first_us"], row["last_us"])
        for row in counted.collect()
    }


def _passing(judged: DataFrame, order: str) -> DataFrame:
    columns = [name for name in judged.columns if name != "reason"]
    passing = judged.where("reason IS NULL").selectExpr(*columns)
    return passing.orderBy(*(term.split()[0] for term in order.split(", ")))
