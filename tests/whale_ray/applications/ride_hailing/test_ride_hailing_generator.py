"""The generator: the same seed, the same rows; and the statistics of the real week.

`REAL` holds the published figures. They are checked twice: the real data has them, where it is
there, and what is generated comes close.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from whale_ray.applications.ride_hailing.generator import (
    POSITIONS_SCHEMA,
    REQUESTS_SCHEMA,
    CabGeneratorSettings,
    Generated,
    generate,
)
from whale_ray.configs.errors import SettingsError

#: figure → (the real week's, relative tolerance of what is generated)
REAL: dict[str, tuple[float, float]] = {
    "positions per second": (5.58, 0.05),
    "positions per second at 3 h": (2.6, 0.15),
    "positions per second at 19 h": (6.8, 0.05),
    "share occupied": (0.448, 0.05),
    "gap p10 s": (30, 0.1),
    "gap p50 s": (60, 0.02),
    "gap p90 s": (72, 0.05),
    "gap p99 s": (292, 0.15),
    "rows per vehicle p50": (7_000, 0.1),
    "cells of positions": (1_807, 0.15),
    "positions in the top cell": (0.085, 0.1),
    "positions in the top ten cells": (0.451, 0.05),
    "positions in the top 1 % of cells": (0.633, 0.05),
    "positions per request": (24.3, 0.1),
    "requests per second at 4 h": (0.065, 0.15),
    "requests per second at 22 h": (0.362, 0.15),
    "requests in the top cell": (0.122, 0.1),
    "requests in the top ten cells": (0.530, 0.05),
    "trip p10 s": (206, 0.1),
    "trip p50 s": (522, 0.05),
    "trip p90 s": (1_189, 0.05),
    "trip p99 s": (2_417, 0.1),
}
REAL_TOLERANCE = 0.01
"""The published figures are rounded."""


def figures(positions: Path, requests: Path) -> dict[str, float]:
    """Return the figures of `REAL` for a week."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'; SET threads = 2")
        database.read_parquet(str(positions)).create_view("p")
        database.read_parquet(str(requests)).create_view("every_r")
        database.execute("""
            CREATE VIEW r AS SELECT * FROM every_r WHERE request_time BETWEEN
              (SELECT MIN(event_time) FROM p) AND (SELECT MAX(event_time) FROM p)""")

        def one(query: str) -> tuple[float, ...]:
            return database.execute(query).fetchone()

        def at_hour(table: str, time: str, hour: int) -> float:
            local = f"(EXTRACT(hour FROM {time}) + 17) % 24"
            return one(f"SELECT COUNT(*) / 7 / 3600 FROM {table} WHERE {local} = {hour}")[0]

        def cells(table: str, lat: str, lon: str) -> tuple[float, ...]:
            return one(f"""
                WITH cells AS (
                  SELECT COUNT(*) AS n FROM {table} GROUP BY FLOOR({lat}), FLOOR({lon})),
                ranked AS (SELECT n, ROW_NUMBER() OVER (ORDER BY n DESC) AS rank FROM cells)
                SELECT COUNT(*), MAX(n) / SUM(n), SUM(n) FILTER (rank <= 10) / SUM(n),
                  SUM(n) FILTER (rank <= CEIL((SELECT COUNT(*) FROM cells) / 100)) / SUM(n)
                FROM ranked""")

        rows, share = one("SELECT COUNT(*), AVG(occupied::INT) FROM p")
        asked = one("SELECT COUNT(*) FROM r")[0]
        gaps = one("""
            SELECT QUANTILE_CONT(gap, [0.1, 0.5, 0.9, 0.99]) FROM (
              SELECT EPOCH(event_time) - EPOCH(LAG(event_time) OVER (
                PARTITION BY vehicle_id ORDER BY event_time)) AS gap FROM p)""")[0]
        trips = one("SELECT QUANTILE_CONT(trip_seconds, [0.1, 0.5, 0.9, 0.99]) FROM r")[0]
        per_vehicle = one(
            "SELECT MEDIAN(n) FROM (SELECT COUNT(*) AS n FROM p GROUP BY vehicle_id)"
        )[0]
        of_positions = cells("p", "lat_e5 / 1000", "lon_e5 / 1000")
        of_requests = cells("r", "pickup_lat * 100", "pickup_lon * 100")
        return {
            "positions per second": rows / (7 * 86_400),
            "positions per second at 3 h": at_hour("p", "event_time", 3),
            "positions per second at 19 h": at_hour("p", "event_time", 19),
            "share occupied": share,
            **dict(zip(("gap p10 s", "gap p50 s", "gap p90 s", "gap p99 s"), gaps, strict=True)),
            "rows per vehicle p50": per_vehicle,
            "cells of positions": of_positions[0],
            "positions in the top cell": of_positions[1],
            "positions in the top ten cells": of_positions[2],
            "positions in the top 1 % of cells": of_positions[3],
            "positions per request": rows / asked,
            "requests per second at 4 h": at_hour("r", "request_time", 4),
            "requests per second at 22 h": at_hour("r", "request_time", 22),
            "requests in the top cell": of_requests[1],
            "requests in the top ten cells": of_requests[2],
            **dict(
                zip(("trip p10 s", "trip p50 s", "trip p90 s", "trip p99 s"), trips, strict=True)
            ),
        }


@pytest.fixture(scope="module")
def hour(tmp_path_factory) -> Generated:
    settings = CabGeneratorSettings(vehicles=50, hours=1, seed=2)
    return generate(tmp_path_factory.mktemp("hour"), settings)


@pytest.mark.long
def test_the_real_week_has_the_figures(data_dir):
    found = figures(data_dir / "sf_taxi_gps.parquet", data_dir / "sf_taxi_requests.parquet")
    assert found == {
        name: pytest.approx(real, rel=REAL_TOLERANCE) for name, (real, _) in REAL.items()
    }


@pytest.mark.long
def test_a_generated_week_comes_close(tmp_path):
    made = generate(tmp_path, CabGeneratorSettings(hours=168))
    found = figures(made.positions_path, made.requests_path)
    assert found == {name: pytest.approx(real, rel=within) for name, (real, within) in REAL.items()}


@pytest.mark.long
def test_columns_and_types_are_those_of_the_real_files(data_dir, hour):
    for name, path, schema in (
        ("sf_taxi_gps.parquet", hour.positions_path, POSITIONS_SCHEMA),
        ("sf_taxi_requests.parquet", hour.requests_path, REQUESTS_SCHEMA),
    ):
        assert pq.read_schema(path).equals(schema)
        assert pq.read_schema(data_dir / name).equals(schema)


def test_the_same_seed_gives_the_same_bytes(hour, tmp_path):
    again = generate(tmp_path / "again", CabGeneratorSettings(vehicles=50, hours=1, seed=2))
    assert again.positions_path.read_bytes() == hour.positions_path.read_bytes()
    assert again.requests_path.read_bytes() == hour.requests_path.read_bytes()
    other = generate(tmp_path / "other", CabGeneratorSettings(vehicles=50, hours=1, seed=3))
    assert not pq.read_table(other.positions_path).equals(pq.read_table(hour.positions_path))


def test_a_cab_does_the_same_whatever_the_size_of_the_fleet_and_the_length(hour, tmp_path):
    made = generate(tmp_path, CabGeneratorSettings(vehicles=80, hours=1.5, seed=2))
    larger = pq.read_table(made.positions_path)
    keep = pc.and_(
        pc.less(larger["vehicle_id"].cast(pa.string()), "cab000050"),
        pc.less(
            larger["event_time"],
            pa.scalar(1_212_217_200_000 + 3_600_000, pa.timestamp("ms", "UTC")),
        ),
    )
    smaller = pq.read_table(hour.positions_path)
    assert smaller.num_rows == hour.positions
    assert larger.filter(keep).to_pylist() == smaller.to_pylist()


def test_rows_are_in_the_order_of_time_and_then_of_vehicles(hour):
    for path, keys in (
        (hour.positions_path, ("event_time", "vehicle_id")),
        (hour.requests_path, ("request_time", "served_by_vehicle", "request_id")),
    ):
        rows = pq.read_table(path, columns=list(keys)).to_pylist()
        assert rows == sorted(rows, key=lambda row: tuple(row.values()))


def test_a_request_is_a_vehicle_that_turns_occupied(hour):
    """Time, place and drop-off are those of the fixes where `occupied` changes."""
    with duckdb.connect() as database:
        database.read_parquet(str(hour.positions_path)).create_view("p")
        database.read_parquet(str(hour.requests_path)).create_view("r")
        derived = database.execute("""
            WITH steps AS (
              SELECT *, LAG(occupied) OVER w AS before,
                     EPOCH(event_time - LAG(event_time) OVER w) AS gap
              FROM p WINDOW w AS (PARTITION BY vehicle_id ORDER BY event_time)),
            turns AS (
              SELECT *, LEAD(event_time) OVER w AS next_time, LEAD(lat_e5) OVER w AS next_lat
              FROM steps WHERE occupied <> before
              WINDOW w AS (PARTITION BY vehicle_id ORDER BY event_time))
            SELECT vehicle_id::VARCHAR, EPOCH_MS(event_time), (lat_e5 / 1e5)::FLOAT,
                   (next_lat / 1e5)::FLOAT, EPOCH(next_time - event_time)::INT
            FROM turns WHERE occupied AND gap <= 1800 ORDER BY 1, 2""").fetchall()
        written = database.execute("""
            SELECT served_by_vehicle::VARCHAR, EPOCH_MS(request_time), pickup_lat, dropoff_lat,
                   trip_seconds
            FROM r ORDER BY 1, 2""").fetchall()
    assert len(written) == hour.requests > 20
    assert written == derived


def test_larger_fleets_stand_in_other_cities(tmp_path):
    settings = CabGeneratorSettings(vehicles=4_000, hours=0.1, vehicles_per_city=40)
    made = generate(tmp_path, settings)
    rows = pq.read_table(made.positions_path)
    lat, lon = rows["lat_e5"].to_numpy() / 1e5, rows["lon_e5"].to_numpy() / 1e5
    assert -90 < lat.min() < lat.max() < 90
    assert -180 <= lon.min() < -170 < 170 < lon.max() <= 180
    cities = {(round(a / 3.5), round(o / 5)) for a, o in zip(lat, lon, strict=True)}
    assert len(cities) >= 100


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vehicles": 0}, "vehicles is 0: give 1 to 1,000,000"),
        ({"hours": 0}, "hours is 0: give 0.0002777777777777778 to 8,784.0"),
        ({"seed": -1}, "seed is -1: give 0 to 9,223,372,036,854,775,807"),
        (
            {"vehicles": 100_000, "vehicles_per_city": 9},
            "vehicles_per_city is 9: give 56 to 1,000,000",
        ),
    ],
)
def test_sizes_out_of_range_are_refused(values, message):
    with pytest.raises(SettingsError) as refused:
        CabGeneratorSettings(**values)
    assert str(refused.value) == message
