"""Preparation of the input with Spark: read, reject what cannot be used, order by time.

pyspark is not imported: everything goes through the session and the DataFrames that are passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from ...configs.errors import BadRowError, InputError
from .cleaning import (
    OUTSIDE_SPAN,
    POSITION_ORDER,
    REQUEST_ORDER,
    judged_positions_sql,
    judged_requests_sql,
)
from .settings import OnBadRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["InputPaths", "Prepared", "input_paths", "prepare"]

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
class InputPaths:
    """Where the two inputs lie: Parquet files or folders."""

    positions: str
    requests: str


@dataclass(frozen=True)
class Prepared:
    """The two inputs as the topology takes them, and what became of the rows."""

    positions: DataFrame
    """vehicle_id, event_time, lat_e5, lon_e5, occupied; ordered by time, then vehicle."""
    requests: DataFrame
    """request_id, request_time, pickup_lat, pickup_lon; ordered by time, then id."""
    rows_in: Mapping[str, int]
    """Input → rows read."""
    rejected: Mapping[str, int]
    """"input: reason" → rows left out; only reasons that occurred."""


def input_paths(directory: str | Path) -> InputPaths:
    """Return the two inputs in a folder.

    Raises:
        InputError: there is no such folder, or no pair of inputs in it.
    """
    folder = Path(directory)
    if not folder.is_dir():
        msg = f"no folder {str(folder)!r}: give one with {_pairs_in_words()}"
        raise InputError(msg)
    for positions, requests in _FILE_PAIRS:
        if (folder / positions).exists() and (folder / requests).exists():
            return InputPaths(str(folder / positions), str(folder / requests))
    for positions, requests in _FILE_PAIRS:
        for present, absent in ((positions, requests), (requests, positions)):
            if (folder / present).exists():
                msg = f"{str(folder)!r} has {present} but no {absent}: put it there"
                raise InputError(msg)
    msg = f"{str(folder)!r} has no input: put {_pairs_in_words()} there"
    raise InputError(msg)


def prepare(
    spark: SparkSession,
    paths: InputPaths,
    *,
    limit: int | None = None,
    on_bad_rows: OnBadRows = "drop",
) -> Prepared:
    """Read both inputs, reject rows that cannot be used, and order the rest by time.

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
    positions = _read(spark, "positions", paths.positions, _POSITION_TYPES)
    requests = _read(spark, "requests", paths.requests, _REQUEST_TYPES)
    vehicles = spark.sql(judged_positions_sql("{positions}", limit), positions=positions)
    vehicle_counts = _count(spark, vehicles, "event_time")
    if None not in vehicle_counts:
        reasons = _in_words({reason or "": count.rows for reason, count in vehicle_counts.items()})
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
    rejected = {
        f"{side}: {reason}": count.rows
        for side, of_side in counts.items()
        for reason, count in sorted(of_side.items(), key=lambda item: str(item[0]))
        if reason is not None
    }
    if on_bad_rows == "fail":
        _refuse(rejected)
    return Prepared(
        positions=_passing(vehicles, POSITION_ORDER),
        requests=_passing(passengers, REQUEST_ORDER),
        rows_in={
            side: sum(count.rows for count in of_side.values()) for side, of_side in counts.items()
        },
        rejected=rejected,
    )


@dataclass(frozen=True)
class _Count:
    rows: int
    first_us: int | None
    last_us: int | None


def _read(
    spark: SparkSession, side: str, path: str, expected: Mapping[str, tuple[str, ...]]
) -> DataFrame:
    """Open one input and check that its columns are there and of a type that can be used."""
    if "://" not in path and not Path(path).exists():
        msg = f"{side}: no file {path!r}: give the path of a Parquet file or folder"
        raise InputError(msg)
    rows = spark.read.parquet(path)
    types = dict(rows.dtypes)
    for name, accepted in expected.items():
        if name not in types:
            near = get_close_matches(name, types, n=1)
            hint = f"is {near[0]!r} it?" if near else f"it has {', '.join(types)}."
            msg = f"{side}: {path!r} has no column {name!r}; {hint} Rename the column"
            raise InputError(msg)
        if types[name] not in accepted:
            msg = (
                f"{side}: column {name!r} of {path!r} is {types[name]}"
                f" where {' or '.join(accepted)} is needed: cast it"
            )
            raise InputError(msg)
    return rows


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


def _refuse(rejected: Mapping[str, int]) -> None:
    bad = {reason: rows for reason, rows in rejected.items() if not reason.endswith(OUTSIDE_SPAN)}
    if bad:
        msg = (
            f"{sum(bad.values()):,} rows cannot be used{_in_words(bad)}."
            " Mend the input, or leave such rows out and count them with on_bad_rows='drop'"
        )
        raise BadRowError(msg)


def _in_words(counts: Mapping[str, int]) -> str:
    words = "; ".join(f"{reason}: {rows:,}" for reason, rows in counts.items())
    return f" ({words})" if words else ""


def _pairs_in_words() -> str:
    return " or ".join(f"{positions} and {requests}" for positions, requests in _FILE_PAIRS)
