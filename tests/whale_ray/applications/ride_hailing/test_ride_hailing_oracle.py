"""The batch query: against brute force, and against the stream with other settings than usual."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.applications.ride_hailing.oracle import duckdb_oracle
from tests.whale_ray.applications.ride_hailing.worlds import (
    RideWorld,
    best,
    candidates,
    plain,
    timed,
)
from whale_ray.applications.ride_hailing.generator import CabGeneratorSettings, generate
from whale_ray.applications.ride_hailing.settings import RideHailingSettings
from whale_ray.applications.ride_hailing.topology import build

Inputs = tuple[pa.Table, pa.Table]


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> Inputs:
    """Return two hours of 300 vehicles in three cities."""
    settings = CabGeneratorSettings(vehicles=300, hours=2, seed=3, vehicles_per_city=100)
    made = generate(tmp_path_factory.mktemp("generated"), settings)
    return pq.read_table(made.positions_path), pq.read_table(made.requests_path)


def streamed(inputs: Inputs, settings: RideHailingSettings) -> pa.Table:
    """Return what the topology answers, ordered by time and id."""
    positions, requests = (whale.sources.arrow(table) for table in inputs)
    topology = build(positions, requests, whale.sinks.collect(), settings)
    answers = whale.run(topology).results("out").to_arrow()
    return answers.sort_by([("request_time", "ascending"), ("request_id", "ascending")])


def assert_same(answers: pa.Table, expected: pa.Table) -> None:
    """Assert that ids are equal, and distances within 1 mm."""
    assert answers.column_names == ["request_id", "request_time", "vehicle_id", "distance_m"]
    for name in ("request_id", "vehicle_id"):
        assert answers[name].combine_chunks().equals(expected[name].combine_chunks())
    one, two = (table["distance_m"].to_numpy() for table in (answers, expected))
    np.testing.assert_allclose(one, two, rtol=0, atol=0.001)
    assert pc.all(pc.equal(answers["request_time"], expected["request_time"])).as_py() is not False


@pytest.mark.parametrize(("radius_m", "max_age_s"), [(1.0, 600), (300.0, 45), (50_000.0, 3_600)])
def test_other_settings_equal_the_query(generated, radius_m, max_age_s):
    settings = RideHailingSettings(radius_m, max_age_s, matching_instances=4, best_instances=2)
    assert_same(streamed(generated, settings), duckdb_oracle(*generated, settings))


@pytest.mark.parametrize(("instances", "workers"), [(1, 1), (4, 3), (16, 4)])
def test_objects_that_share_the_vehicles_equal_the_query(generated, instances, workers):
    positions, requests = (plain(table) for table in generated)
    found = candidates(
        timed(positions, "event_time"),
        timed(requests, "request_time"),
        RideHailingSettings(),
        instances=instances,
        workers=workers,
    )
    assert_same(best(found), duckdb_oracle(*generated))


def test_the_query_answers_what_brute_force_answers():
    random = np.random.default_rng(11)
    fixes = [
        (
            f"v{n % 7}",
            int(ms),
            *(int(e5) for e5 in random.integers(-2_000, 2_000, 2)),
            bool(n % 3 == 0),
        )
        for n, ms in enumerate(np.sort(random.integers(0, 1_500_000, 150)))
    ]
    asked = [
        (n, int(ms), *random.uniform(-0.02, 0.02, 2))
        for n, ms in enumerate(np.sort(random.integers(fixes[0][1], fixes[-1][1], 80)))
    ]
    world, settings = RideWorld(fixes, asked), RideHailingSettings(900.0, 200.0)
    answers = {
        row["request_id"]: (row["vehicle_id"], row["distance_m"])
        for row in duckdb_oracle(*world.tables(), settings).to_pylist()
    }
    expected = world.best(settings)
    assert {vehicle for vehicle, _ in expected.values()} > {None, "v1"}
    assert set(answers) == set(expected)
    for request_id, (vehicle, distance_m) in expected.items():
        assert answers[request_id] == (vehicle, pytest.approx(distance_m, abs=1e-6))
