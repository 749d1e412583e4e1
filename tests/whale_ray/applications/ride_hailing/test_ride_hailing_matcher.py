"""The matcher against brute force: small random worlds, and the corners of the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.whale_ray.applications.emitted import Emitted, context
from tests.whale_ray.applications.ride_hailing.worlds import (
    RideWorld,
    best,
    candidates,
    merged_steps,
)
from whale_ray.applications.ride_hailing.matcher import VehicleMatcher
from whale_ray.applications.ride_hailing.settings import RideHailingSettings
from whale_ray.configs.errors import BadRowError, InputError, SettingsError
from whale_ray.transport.wire.batch import Batch

DEFAULTS = RideHailingSettings()
CENTRES = [
    (0.0, 0.0),
    (37.785, -122.41),
    (60.0, 180.0),
    (-12.0, -180.0),
    (90.0, 17.0),
    (-90.0, 0.0),
]
IDS = ["a", "b", "aa", "ab", "é", "ejtobu", "", "a-vehicle-with-quite-a-long-name"]


@st.composite
def worlds(draw) -> tuple[RideWorld, RideHailingSettings]:
    """Draw vehicles and requests around one place, at distances like the radius."""
    centre = draw(st.sampled_from(CENTRES))
    radius_m = draw(st.sampled_from([1.0, 7.5, 40.0, 2_000.0, 50_000.0, 9_000_000.0]))
    settings = RideHailingSettings(radius_m, draw(st.sampled_from([0.0, 5.0, 600.0])))
    reach_deg = min(3.0 * radius_m / 111_000.0, 180.0)

    def place() -> tuple[int, int]:
        north, east = (draw(st.integers(-12, 12)) / 12 * reach_deg for _ in range(2))
        shrink = max(math.cos(math.radians(centre[0])), 0.02)
        lat = max(-90.0, min(90.0, centre[0] + north))
        lon = (centre[1] + east / shrink + 180.0) % 360.0 - 180.0
        return round(lat * 1e5), round(lon * 1e5)

    seconds = st.integers(0, 12).map(lambda second: second * 1_000)
    positions = [
        (vehicle, time_ms, *place(), draw(st.integers(0, 3)) == 0)
        for vehicle, time_ms in draw(
            st.lists(st.tuples(st.sampled_from(IDS), seconds), max_size=12)
        )
    ]
    requests = [
        (number, time_ms, *(value / 1e5 for value in place()))
        for number, time_ms in enumerate(sorted(draw(st.lists(seconds, min_size=1, max_size=5))))
    ]
    return RideWorld(sorted(positions, key=lambda fix: fix[1]), requests), settings


def found_by(batches: list[Batch]) -> dict[int, dict[str, float]]:
    """Return request id → vehicle → distance, checking the rows without a vehicle."""
    answers: dict[int, dict[str, float]] = {}
    for row in (row for batch in batches for row in batch.rows()):
        if row["vehicle_id"] is None:
            assert row["distance_m"] is None
            assert answers.get(row["request_id"], {}).get("") is None
            answers.setdefault(row["request_id"], {})[None] = 0.0
        else:
            vehicles = answers.setdefault(row["request_id"], {})
            assert row["vehicle_id"] not in vehicles, "found twice"
            vehicles[row["vehicle_id"]] = row["distance_m"]
    return answers


@pytest.mark.long
@given(worlds(), st.sampled_from([(1, 1), (4, 2), (16, 1), (16, 3)]), st.sampled_from([1, 3, 8192]))
def test_finds_what_brute_force_finds(drawn, spread, rows):
    world, settings = drawn
    instances, workers = spread
    batches = candidates(
        *world.batches(), settings, instances=instances, workers=workers, rows=rows
    )
    found = found_by(batches)
    expected = world.found(settings)
    for request_id, vehicles in expected.items():
        assert None in found[request_id]  # one row to say that the request was seen
        assert set(found[request_id]) == {None, *vehicles}
        for vehicle, distance_m in vehicles.items():
            assert found[request_id][vehicle] == pytest.approx(distance_m, abs=1e-6)
    assert len(found) == len(expected)


@given(worlds(), st.sampled_from([1, 4, 16]))
def test_chooses_what_brute_force_chooses(drawn, instances):
    world, settings = drawn
    table = best(candidates(*world.batches(), settings, instances=instances, workers=2), rows=3)
    answers = {
        row["request_id"]: (row["vehicle_id"], row["distance_m"]) for row in table.to_pylist()
    }
    expected = world.best(settings)
    assert len(table) == len(expected)
    for request_id, (vehicle, distance_m) in expected.items():
        assert answers[request_id] == (vehicle, pytest.approx(distance_m, abs=1e-6))


@given(worlds(), st.integers(1, 6))
def test_one_merged_call_equals_calls_by_side(drawn, rows):
    world, settings = drawn
    positions, requests = world.batches()
    merged, by_side = Emitted(), Emitted()
    one, two = VehicleMatcher(settings), VehicleMatcher(settings)
    one.open(context([0], 1))
    two.open(context([0], 1))
    for left, right, order in merged_steps(positions, requests, rows):
        one.on_merged(left, right, order, merged)
        super(VehicleMatcher, two).on_merged(left, right, order, by_side)
    assert merged.rows() == by_side.rows()


@pytest.mark.parametrize("centre", CENTRES)
@pytest.mark.parametrize("radius_m", [3.0, 900.0])
def test_a_crowd_that_moves_is_always_found(centre, radius_m):
    """Cells fill, empty and share chains: whoever is lost from a chain is missed here."""
    random = np.random.default_rng(5)
    settings = RideHailingSettings(radius_m)
    reach_e5 = 2.5 * radius_m / 1.112

    def places(count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return places around the centre, in a plane if it is a pole."""
        north, east = random.uniform(-reach_e5, reach_e5, (2, count))
        if abs(centre[0]) == 90.0:
            lat = (9_000_000 - np.hypot(north, east)) * np.sign(centre[0])
            lon = np.degrees(np.arctan2(east, north)) * 1e5
        else:
            lat = centre[0] * 1e5 + north
            lon = centre[1] * 1e5 + east / math.cos(math.radians(centre[0]))
        lon = (lon + 18_000_000) % 36_000_000 - 18_000_000
        return np.rint(lat).astype(int), np.rint(lon).astype(int)

    fixes, vehicles = 600, 40
    lat, lon = places(fixes)
    whose, occupied = random.integers(0, vehicles, fixes), random.random(fixes) < 0.3
    world = RideWorld(
        [(f"v{whose[n]}", n, lat[n], lon[n], occupied[n]) for n in range(fixes)],
        [
            (n, n * fixes // 60, *place)
            for n, place in enumerate(zip(*(part / 1e5 for part in places(60)), strict=True))
        ],
    )
    found = found_by(candidates(*world.batches(), settings))
    expected = world.found(settings)
    assert sum(map(len, expected.values())) > 60
    assert {n: set(vehicles) - {None} for n, vehicles in found.items()} == {
        n: set(vehicles) for n, vehicles in expected.items()
    }


def test_a_vehicle_at_exactly_the_radius_is_found():
    far = RideWorld([("a", 0, 0, 0, False)], [(1, 0, 0.0, 0.5)])
    ((_, distance_m),) = far.found(RideHailingSettings(60_000.0))[1].items()
    assert answer(far, RideHailingSettings(distance_m)) == {1: "a"}
    assert answer(far, RideHailingSettings(math.nextafter(distance_m, 0.0))) == {1: None}


def answer(world: RideWorld, settings: RideHailingSettings = DEFAULTS) -> dict[int, str | None]:
    table = best(candidates(*world.batches(), settings))
    return dict(zip(table["request_id"].to_pylist(), table["vehicle_id"].to_pylist(), strict=True))


def test_a_position_at_the_time_of_the_request_is_seen_and_a_later_one_is_not():
    here = (3_778_500, -12_241_000)
    world = RideWorld(
        [("a", 1_000, *here, False), ("b", 1_001, *here, False)],
        [(1, 999, 37.785, -122.41), (2, 1_000, 37.785, -122.41), (3, 1_001, 37.785, -122.41)],
    )
    world.positions[0] = ("a", 1_000, 3_778_600, -12_241_000, False)
    assert answer(world) == {1: None, 2: "a", 3: "b"}


def test_the_last_fix_decides_place_and_occupancy():
    near, far = (3_778_500, -12_241_000), (3_878_500, -12_241_000)
    asked = (37.785, -122.41)
    world = RideWorld(
        [
            ("a", 0, *near, False),
            ("a", 1_000, *near, True),
            ("a", 2_000, *far, False),
            ("a", 3_000, *near, False),
            ("a", 3_000, *near, True),  # at the same time, the later row is the last fix
            ("a", 4_000, *near, False),
        ],
        [(n, n * 1_000, *asked) for n in range(5)],
    )
    assert answer(world) == {0: "a", 1: None, 2: None, 3: None, 4: "a"}


def test_a_fix_of_exactly_the_greatest_age_counts():
    world = RideWorld([("a", 0, 0, 0, False)], [(1, 600_000, 0.0, 0.0), (2, 600_001, 0.0, 0.0)])
    assert answer(world) == {1: "a", 2: None}


def test_equal_whole_millimetres_go_to_the_smallest_id():
    world = RideWorld(
        [("b", 0, 10, 0, False), ("a", 0, 0, 10, False), ("é", 0, -10, 0, False)],
        [(1, 1, 0.0, 0.0)],
    )
    assert answer(world) == {1: "a"}


def test_many_vehicles_and_many_finds_grow_the_memory():
    count = 30_000
    world = RideWorld(
        [(f"vehicle-{n}", 0, n % 100, n // 100, False) for n in range(count)],
        [(1, 1, 0.0, 0.0), (2, 1, 0.0, 0.0), (3, 1, 50.0, 0.0)],
    )
    (found,) = candidates(*world.batches(), DEFAULTS)
    asked = np.asarray(found["request_id"])
    assert [(asked == n).sum() for n in (1, 2, 3)] == [count + 1, count + 1, 1]
    assert sorted(v for v in found["vehicle_id"] if v)[::2] == sorted(f[0] for f in world.positions)


def test_a_request_nowhere_finds_nothing():
    world = RideWorld([("a", 0, 0, 0, False)], [(1, 1, float("nan"), 0.0), (2, 1, 0.0, math.inf)])
    assert answer(world) == {1: None, 2: None}


def test_only_the_object_with_instance_0_says_that_a_request_was_seen():
    world = RideWorld([], [(1, 0, 0.0, 0.0)])
    positions, requests = world.batches()
    for instances, rows in (([0, 1], 1), ([2, 3], 0)):
        matcher, out = VehicleMatcher(), Emitted()
        matcher.open(context(instances, 4))
        matcher.on_merged(positions, requests, np.ones(1, np.bool_), out)
        assert len(out.rows()) == rows


def test_text_request_ids_and_microseconds_pass_through():
    times = np.array([5], np.int64)
    requests = Batch.from_pydict(
        {
            "request_id": ["r-1"],
            "request_time": times.astype("M8[us]"),
            "pickup_lat": np.zeros(1),
            "pickup_lon": np.zeros(1),
        }
    ).with_times(times * 1_000)
    matcher, out = VehicleMatcher(), Emitted()
    matcher.open(context([0], 1))
    matcher.on_right(requests, out)
    (row,) = out.batches
    assert row.schema.names == ("request_id", "request_time", "vehicle_id", "distance_m")
    assert [field.type.name for field in row.schema] == [
        "string",
        "timestamp[us]",
        "string",
        "float64",
    ]
    assert row.times.tolist() == [5_000]


def test_columns_that_do_not_fit_are_named():
    world = RideWorld([("a", 0, 0, 0, False)], [(1, 0, 0.0, 0.0)])
    positions, requests = world.batches()
    matcher, out = VehicleMatcher(), Emitted()
    matcher.open(context([0], 1))
    wide = positions.with_column("lat_e5", np.zeros(1, np.int64))
    for call, batch, message in (
        (
            matcher.on_left,
            wide,
            "positions: column 'lat_e5' is int64 where int32 is needed:"
            " cast it with with_column('lat_e5', col('lat_e5').cast('int32'))",
        ),
        (
            matcher.on_right,
            requests.drop(["pickup_lon"]),
            "requests have no column 'pickup_lon': they have request_id, request_time, pickup_lat;"
            " rename one with select(col('…').alias(…))",
        ),
        (
            matcher.on_left,
            positions.with_times(None),
            "positions have no event times: give their source event_time='column'",
        ),
    ):
        with pytest.raises(InputError) as refused:
            call(batch, out)
        assert str(refused.value) == message
    with pytest.raises(BadRowError) as refused:
        matcher.on_left(positions.with_column("occupied", [None], "bool"), out)
    assert "positions: column 'occupied' is null in {vehicle_id='a'" in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"radius_m": -1.0}, "radius_m is -1.0: give 0 to 20,100,000 metres"),
        ({"radius_m": float("nan")}, "radius_m is nan: give a number of metres"),
        ({"max_age_s": "old"}, "max_age_s is 'old': give a number of seconds"),
        ({"matching_instances": 0}, "matching_instances is 0: give 1 to 4,096 instances"),
        ({"best_instances": 1.5}, "best_instances is 1.5: give a whole number"),
    ],
)
def test_settings_out_of_range_are_refused(values, message):
    with pytest.raises(SettingsError) as refused:
        RideHailingSettings(**values)
    assert str(refused.value) == message
