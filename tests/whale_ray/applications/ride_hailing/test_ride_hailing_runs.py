"""The whole topology against one batch query in DuckDB: same rows in, same answers out.

Ids must be equal and distances within 1 mm, request by request. Real input: the week at 16 matching
instances and a day at 1 and 4 here, the week at 1 and 4 among the long tests. Without it, and
always, two hours of generated input.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.applications.ride_hailing.oracle import duckdb_oracle
from whale_ray.api.job import Job
from whale_ray.api.submission import run, submit
from whale_ray.applications.ride_hailing.generator import CabGeneratorSettings, generate
from whale_ray.applications.ride_hailing.settings import RideHailingSettings
from whale_ray.applications.ride_hailing.topology import build

DAY_MS = 86_400_000


def inline(topology: whale.Topology) -> Job:
    return run(topology)


def processes(topology: whale.Topology) -> Job:
    return submit(topology, on="processes", workers=2).wait(280)


class RideFiles:
    """Two files, only requests within the positions' time span, and what the query answers."""

    def __init__(self, positions: Path, requests: pa.Table, folder: Path) -> None:
        self.positions = positions
        self.requests = folder / "requests-within.parquet"
        times = pq.read_table(positions, columns=["event_time"])["event_time"]
        asked = requests["request_time"].cast(times.type)
        span = pc.min_max(times)
        within = pc.and_(pc.greater_equal(asked, span["min"]), pc.less_equal(asked, span["max"]))
        pq.write_table(requests.filter(within), self.requests)
        self.expected = duckdb_oracle(self.positions, self.requests)

    def check(self, matching_instances: int, runner: Callable[[whale.Topology], Job]) -> None:
        topology = build(
            whale.sources.parquet(self.positions),
            whale.sources.parquet(self.requests),
            whale.sinks.collect(),
            RideHailingSettings(matching_instances=matching_instances),
        )
        assert_equal_answers(runner(topology).results("out").to_arrow(), self.expected)


def assert_equal_answers(found: pa.Table, expected: pa.Table) -> None:
    keys = [("request_id", "ascending"), ("request_time", "ascending")]
    found, expected = found.sort_by(keys), expected.sort_by(keys)
    assert found.num_rows == expected.num_rows > 0
    assert found["request_id"].to_pylist() == expected["request_id"].to_pylist()
    assert found["vehicle_id"].to_pylist() == expected["vehicle_id"].to_pylist()
    assert found["distance_m"].null_count == expected["distance_m"].null_count
    apart = pc.abs(pc.subtract(found["distance_m"], expected["distance_m"]))
    assert (pc.max(apart).as_py() or 0.0) <= 0.001
    assert pc.count(found["vehicle_id"]).as_py() > found.num_rows // 10


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> RideFiles:
    folder = tmp_path_factory.mktemp("generated")
    made = generate(folder, CabGeneratorSettings(hours=2.0))
    return RideFiles(made.positions_path, pq.read_table(made.requests_path), folder)


@pytest.fixture(scope="module")
def real_day(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> RideFiles:
    folder = tmp_path_factory.mktemp("day")
    table = pq.read_table(data_dir / "sf_taxi_gps.parquet")
    times = table["event_time"].cast(pa.int64())
    day = table.filter(pc.less(times, pc.add(pc.min(times), DAY_MS)))
    pq.write_table(day, folder / "positions.parquet")
    requests = pq.read_table(data_dir / "sf_taxi_requests.parquet")
    return RideFiles(folder / "positions.parquet", requests, folder)


@pytest.fixture(scope="module")
def real_week(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> RideFiles:
    requests = pq.read_table(data_dir / "sf_taxi_requests.parquet")
    return RideFiles(data_dir / "sf_taxi_gps.parquet", requests, tmp_path_factory.mktemp("week"))


@pytest.mark.long
@pytest.mark.parametrize("matching_instances", [1, 4, 16])
def test_generated_input_in_this_process(generated: RideFiles, matching_instances: int) -> None:
    generated.check(matching_instances, inline)


def test_generated_input_in_processes(generated: RideFiles, no_leaks: None) -> None:
    generated.check(16, processes)


@pytest.mark.long
@pytest.mark.parametrize("matching_instances", [1, 4])
def test_a_real_day(real_day: RideFiles, matching_instances: int) -> None:
    real_day.check(matching_instances, inline)


@pytest.mark.long
def test_the_real_week_at_16_instances(real_week: RideFiles, no_leaks: None) -> None:
    real_week.check(16, processes)


@pytest.mark.long
@pytest.mark.parametrize("matching_instances", [1, 4])
@pytest.mark.parametrize("runner", [inline, processes])
def test_the_real_week(
    real_week: RideFiles, matching_instances: int, runner: Callable[[whale.Topology], Job]
) -> None:
    real_week.check(matching_instances, runner)


@pytest.mark.parametrize("identity", [pa.int32(), pa.int64(), pa.string()])
def test_without_requests_the_answers_have_their_columns(
    identity: pa.DataType, generated: RideFiles, tmp_path: Path
) -> None:
    schema = pq.read_schema(generated.requests)
    place = schema.get_field_index("request_id")
    none = whale.sources.arrow(schema.set(place, pa.field("request_id", identity)).empty_table())
    sink = whale.sinks.parquet(str(tmp_path / "out"))
    job = inline(build(whale.sources.parquet(generated.positions), none, sink))
    (part,) = job.results("out").parts
    answers = pq.read_table(part)
    assert answers.num_rows == 0
    assert [(field.name, field.type) for field in answers.schema] == [
        ("request_id", identity),
        ("request_time", schema.field("request_time").type),
        ("vehicle_id", pa.string()),
        ("distance_m", pa.float64()),
    ]
