"""The rules for rows that cannot be used, run by DuckDB, and the messages of the preparation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.whale_ray.applications.ride_hailing.worlds import POSITIONS, REQUESTS
from whale_ray.applications.ride_hailing.cleaning import (
    judged_positions_sql,
    judged_requests_sql,
)
from whale_ray.applications.ride_hailing.prepare import RideInputPaths, input_paths, prepare
from whale_ray.configs.errors import InputError

START = datetime(2008, 5, 31, 7, tzinfo=UTC)
NAN = float("nan")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


BAD_POSITIONS: list[tuple[tuple[Any, ...], str | None]] = [
    (("a", at(0), 3_700_000, -12_200_000, False), None),
    ((None, at(0), 0, 0, False), "null vehicle_id"),
    ((None, None, None, 0, None), "null vehicle_id"),
    (("a", None, 0, 0, False), "null event_time"),
    (("a", at(1), None, 0, False), "null coordinates"),
    (("a", at(1), 0, None, False), "null coordinates"),
    (("a", at(1), 0, 0, None), "null occupied"),
    (("a", at(2), 9_000_000, 18_000_000, True), None),
    (("a", at(2), 9_000_001, 0, True), "coordinates out of range"),
    (("a", at(2), 0, -18_000_001, True), "coordinates out of range"),
    (("", at(100), -9_000_000, -18_000_000, True), None),
]
BAD_REQUESTS: list[tuple[tuple[Any, ...], str | None]] = [
    ((1, at(0), 37.0, -122.0), None),
    ((2, at(100), 37.0, -122.0), None),
    ((None, at(3), 37.0, -122.0), "null request_id"),
    ((3, None, 37.0, -122.0), "null request_time"),
    ((4, at(3), None, -122.0), "null coordinates"),
    ((5, at(3), NAN, -122.0), "NaN coordinates"),
    ((6, at(3), 37.0, NAN), "NaN coordinates"),
    ((7, at(3), 90.5, 0.0), "coordinates out of range"),
    ((8, at(3), 0.0, float("-inf")), "coordinates out of range"),
    ((1, at(3), 37.0, -122.0), "repeated request_id"),
    ((5, at(4), 37.0, -122.0), None),  # the other 5 cannot be used
    ((9, at(-0.001), 37.0, -122.0), "outside the time span of the positions"),
    ((10, at(100.001), 37.0, -122.0), "outside the time span of the positions"),
]


def table(rows: list[tuple[tuple[Any, ...], str | None]], schema: pa.Schema) -> pa.Table:
    columns = zip(*(row for row, _ in rows), strict=True)
    arrays = [
        pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def judged(query: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        for name, rows in tables.items():
            database.register(name, rows)
        return [tuple(map(str, row)) for row in database.execute(query).fetchall()]


def expected(rows: list[tuple[tuple[Any, ...], str | None]]) -> list[tuple[str, ...]]:
    return sorted((*map(str, row), str(reason)) for row, reason in rows)


def test_each_position_has_its_reason():
    found = judged(judged_positions_sql("p"), p=table(BAD_POSITIONS, POSITIONS))
    assert sorted(found) == expected(BAD_POSITIONS)


def test_each_request_has_its_reason():
    query = judged_requests_sql(
        "r", "TIMESTAMPTZ '2008-05-31 07:00:00Z'", "TIMESTAMPTZ '2008-05-31 07:01:40Z'"
    )
    found = judged(query, r=table(BAD_REQUESTS, REQUESTS))
    assert sorted(found) == expected(BAD_REQUESTS)


def test_a_limit_takes_the_earliest_positions():
    query = judged_positions_sql("p", 3)
    found = judged(query, p=table(BAD_POSITIONS[::-1], POSITIONS))
    assert [row[1][:19] for row in sorted(found, key=lambda row: row[1])] == [
        "2008-05-31 07:00:00",
        "2008-05-31 07:00:00",
        "2008-05-31 07:00:01",
    ]


def test_a_folder_holds_either_pair_of_files(tmp_path):
    for name in ("positions.parquet", "requests.parquet"):
        pq.write_table(pa.table({}), tmp_path / name)
    found = input_paths(tmp_path)
    assert found.positions == str(tmp_path / "positions.parquet")
    assert found.requests == str(tmp_path / "requests.parquet")
    for name in ("sf_taxi_gps.parquet", "sf_taxi_requests.parquet"):
        pq.write_table(pa.table({}), tmp_path / name)
    assert input_paths(str(tmp_path)).positions == str(tmp_path / "sf_taxi_gps.parquet")


def test_a_folder_without_input_is_named(tmp_path):
    pairs = (
        "sf_taxi_gps.parquet and sf_taxi_requests.parquet or positions.parquet and requests.parquet"
    )
    for path, message in (
        (tmp_path / "none", f"no folder '{tmp_path}/none': give one with {pairs}"),
        (tmp_path, f"'{tmp_path}' has no input: put {pairs} there"),
    ):
        with pytest.raises(InputError) as refused:
            input_paths(path)
        assert str(refused.value) == message
    (tmp_path / "requests.parquet").touch()
    with pytest.raises(InputError) as refused:
        input_paths(tmp_path)
    assert str(refused.value) == (
        f"'{tmp_path}' has requests.parquet but no positions.parquet: put it there"
    )


class SqlTable:
    """As much of a DataFrame and its session as the check of columns looks at."""

    def __init__(self, **types: str) -> None:
        self.dtypes = list(types.items())
        self.columns = list(types)
        self.read = self

    def parquet(self, path: str) -> SqlTable:
        return self

    def selectExpr(self, *terms: str) -> SqlTable:  # noqa: N802  # Spark's name
        assert terms == tuple(f"`{name}`" for name in self.columns)
        return self


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (
            {"vehicle_id": "string", "event_tim": "timestamp"},
            "positions: {path!r} has no column 'event_time'; is 'event_tim' it? Rename the column",
        ),
        (
            {"car": "string"},
            "positions: {path!r} has no column 'vehicle_id'; it has car. Rename the column",
        ),
        (
            {"vehicle_id": "bigint", "event_time": "timestamp"},
            "positions: column 'vehicle_id' of {path!r} is bigint where string is needed: cast it",
        ),
        (
            {"vehicle_id": "string", "event_time": "bigint"},
            "positions: column 'event_time' of {path!r} is bigint where timestamp or timestamp_ntz"
            " is needed: cast it",
        ),
    ],
)
def test_a_wrong_column_is_named(tmp_path, types, message):
    path = str(tmp_path / "rows.parquet")
    pq.write_table(pa.table({}), path)
    with pytest.raises(InputError) as refused:
        prepare(SqlTable(**types), RideInputPaths(path, path))
    assert str(refused.value) == message.format(path=path)


def test_a_missing_file_is_named():
    with pytest.raises(InputError) as refused:
        prepare(SqlTable(), RideInputPaths("/nowhere/p.parquet", "/nowhere/r.parquet"))
    assert str(refused.value) == (
        "positions: no file '/nowhere/p.parquet': give the path of a Parquet file or folder"
    )
