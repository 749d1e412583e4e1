"""The taxi query against SQL, over generated trips and over real ones of San Francisco."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from whale_ray.applications.taxi_regions.generator import generate, tables
from whale_ray.applications.taxi_regions.regions import NEW_YORK, CityBox
from whale_ray.applications.taxi_regions.settings import TaxiSettings
from whale_ray.applications.taxi_regions.topology import build
from whale_ray.cli.main import main
from whale_ray.configs.errors import InputError

SETTINGS = TaxiSettings(trips=40_000, trips_per_s=2_000)
SAN_FRANCISCO = CityBox(-122.52, 37.6, -122.35, 37.83)
COLUMNS = ["window_start", "window_end", "region", "trips", "mean_distance"]


@cache
def trips() -> pa.Table:
    return pa.concat_tables(tables(SETTINGS))


def counted(rows: pa.Table, box: CityBox, seconds: int) -> list[tuple]:
    """Return the application's answer, by DuckDB."""
    width = f"({box.east} - {box.west}::DOUBLE) / 40"
    height = f"({box.north} - {box.south}::DOUBLE) / 25"
    with duckdb.connect() as connection:
        connection.register("trips", rows)
        return connection.sql(f"""
            SELECT start, start + INTERVAL '{seconds} seconds', region, count(*), avg(miles) FROM (
                SELECT time_bucket(INTERVAL '{seconds} seconds', pickup_time) AS start,
                    trip_distance AS miles,
                    CAST(floor((pickup_latitude - {box.south}) / ({height})) AS BIGINT) * 40
                    + CAST(floor((pickup_longitude - ({box.west})) / ({width})) AS BIGINT) AS region
                FROM trips WHERE vendor_id = 'VTS' AND trip_distance > 5
                    AND pickup_longitude >= {box.west} AND pickup_longitude < {box.east}
                    AND pickup_latitude >= {box.south} AND pickup_latitude < {box.north})
            GROUP BY ALL ORDER BY ALL""").fetchall()


def check(found: pa.Table, expected: list[tuple]) -> None:
    assert found.column_names == COLUMNS
    rows = sorted(tuple(row.values()) for row in found.to_pylist())
    assert [row[:4] for row in rows] == [row[:4] for row in expected]
    assert [row[4] for row in rows] == pytest.approx([row[4] for row in expected], rel=1e-12)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(("window", "seconds"), [("2 seconds", 2), ("1 minute", 60)])
def test_long_trips_are_those_of_sql(parallelism: int, window: str, seconds: int) -> None:
    topology = build(
        whale.sources.arrow(trips()),
        whale.sinks.collect(),
        window=window,
        parallelism=parallelism,
    )
    expected = counted(trips(), NEW_YORK, seconds)
    check(whale.run(topology).results("out").to_arrow(), expected)
    assert 100 < sum(row[3] for row in expected) < 0.1 * trips().num_rows


def real_trips(data_dir: Path) -> pa.Table:
    """Return the taxi trips of San Francisco, in a straight line; every third cab is VTS'."""
    rows = pq.read_table(data_dir / "sf_taxi_requests.parquet").drop_null().sort_by("request_time")
    ends = [
        np.radians(rows[f"{end}_{axis}"].to_numpy().astype(np.float64))
        for end in ("pickup", "dropoff")
        for axis in ("lat", "lon")
    ]
    across = np.cos((ends[0] + ends[2]) / 2) * (ends[3] - ends[1])
    miles = 3_958.8 * np.hypot(ends[2] - ends[0], across)
    cabs = rows["served_by_vehicle"].cast(pa.string()).to_pylist()
    return pa.table(
        {
            "vendor_id": ["VTS" if sum(map(ord, cab)) % 3 == 0 else "CMT" for cab in cabs],
            "pickup_time": rows["request_time"].cast(pa.timestamp("us")),
            "trip_distance": miles,
            "pickup_longitude": rows["pickup_lon"].cast(pa.float64()),
            "pickup_latitude": rows["pickup_lat"].cast(pa.float64()),
        }
    )


def test_long_trips_of_a_real_city_are_those_of_sql(data_dir: Path) -> None:
    rows = real_trips(data_dir)
    topology = build(
        whale.sources.arrow(rows), whale.sinks.collect(), window="1 hour", box=SAN_FRANCISCO
    )
    expected = counted(rows, SAN_FRANCISCO, 3_600)
    check(whale.run(topology).results("out").to_arrow(), expected)
    assert len(expected) > 1_000


def test_trips_have_the_distributions_that_are_told() -> None:
    rows = pa.concat_tables(tables(TaxiSettings(trips=100_000)))
    miles = rows["trip_distance"].to_numpy()
    assert np.median(miles) == pytest.approx(1.8, rel=0.03)
    assert np.mean(miles > 5) == pytest.approx(0.13, abs=0.01)
    assert np.mean(rows["vendor_id"].to_numpy() == "VTS") == pytest.approx(0.5, abs=0.01)
    times = rows["pickup_time"].cast(pa.int64()).to_numpy()
    assert set(np.diff(times)) == {200}


@pytest.mark.parametrize(
    "bounds", [(1, 2, 1, 3), (-181, 0, 1, 1), (0, 5, 1, 4), (0, float("nan"), 1, 1)]
)
def test_a_box_without_area_or_off_the_globe_is_refused(bounds: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="give west, south, east, north"):
        CityBox(*bounds)


def test_the_command_takes_generated_trips_and_a_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = pq.read_table(generate("given", SETTINGS))
    expected = counted(rows, NEW_YORK, 60)
    box = "--box -74.3 40.48 -73.66 40.93"
    for source in ("--trips 40000 --trips-per-s 2000", "--data given", f"--data given {box}"):
        words = ["run", "taxi-regions", "--on", "inline", "--json", "--window", "1 minute"]
        assert main([*words, *source.split()]) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (told["rows_in"], told["rows_out"]) == ({"trips": 40_000}, len(expected))
        check(pq.read_table("out/taxi-regions"), expected)
