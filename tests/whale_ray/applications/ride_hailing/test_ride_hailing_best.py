"""The choice of the best vehicle: ties, requests without one, and keys of any type."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.whale_ray.applications.emitted import Emitted, context
from whale_ray.applications.ride_hailing.best import BestVehicle
from whale_ray.transport.wire.batch import Batch

COLUMNS = ("request_id", "request_time", "vehicle_id", "distance_m")


def choose(rows: list[tuple], id_type: str = "int32") -> list[dict]:
    """Return the best rows among (request id, event time, vehicle, distance)."""
    ids, times, vehicles, distances = zip(*rows, strict=True)
    batch = Batch.from_pydict({"request_id": list(ids), "request_time": list(times)})
    batch = batch.with_column("request_id", list(ids), id_type)
    batch = batch.with_column("vehicle_id", list(vehicles), "string")
    batch = batch.with_column("distance_m", list(distances), "float64")
    chooser, out = BestVehicle(), Emitted()
    chooser.open(context([0], 1))
    chooser.on_batch(batch.with_times(np.array(times, np.int64)), out)
    (emitted,) = out.batches
    assert emitted.schema.names == COLUMNS
    assert emitted.times.tolist() == [row["request_time"] for row in emitted.rows()]
    return emitted.to_pylist()


@pytest.mark.parametrize(
    ("candidates", "vehicle"),
    [
        ([(None, None)], None),
        ([(None, None), ("b", 7.0)], "b"),
        ([("b", 7.0), (None, None)], "b"),
        ([("b", 7.0), ("a", 7.0004)], "a"),  # both 7,000 mm
        ([("b", 7.0), ("a", 7.0005)], "b"),  # half a millimetre rounds up
        ([("b", 7.0004), ("a", 7.0006)], "b"),
        ([("ab", 1.0), ("a", 1.0), ("b", 1.0)], "a"),
        ([("é", 1.0), ("z", 1.0)], "z"),
        ([("z", 1.0), ("", 1.0)], ""),
        ([(None, None), ("far", 1e7), ("farther", 2e7)], "far"),
    ],
)
def test_the_nearest_in_whole_millimetres_then_the_smallest_id(candidates, vehicle):
    (row,) = choose([(1, 5, *candidate) for candidate in candidates])
    assert row["vehicle_id"] == vehicle
    assert row["distance_m"] == dict(candidates)[vehicle]


def test_the_same_id_at_another_time_is_another_request():
    rows = [(1, 5, None, None), (1, 6, None, None), (1, 6, "a", 2.0)]
    assert [row["vehicle_id"] for row in choose(rows)] == [None, "a"]


def test_no_row_makes_no_row():
    chooser, out = BestVehicle(), Emitted()
    chooser.open(context([0], 1))
    empty = Batch.from_pydict(
        {name: np.empty(0) for name in COLUMNS} | {"vehicle_id": np.empty(0, "U1")}
    )
    chooser.on_batch(empty.with_times(np.empty(0, np.int64)), out)
    assert out.rows() == []


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from([None, "a", "b", "ab", "c"]),
            st.integers(0, 3).map(lambda millimetres: millimetres / 1000),
        ),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from(["int8", "int32", "int64", "string", "binary"]),
)
def test_chooses_what_sorting_chooses(drawn, id_type):
    def typed(number: int) -> object:
        text = "request-" * (number % 2) + str(number)
        return {"string": text, "binary": text.encode()}.get(id_type, number)

    rows = [(typed(n), 9, v, None if v is None else distance) for n, v, distance in drawn]
    expected = {}
    for request_id, _, vehicle, distance in rows:
        rank = (vehicle is None, distance or 0.0, vehicle or "")
        expected[request_id] = min(expected.get(request_id, rank), rank)
    chosen = choose(rows, id_type)
    assert [row["request_id"] for row in chosen] == list(expected)  # in the order of appearance
    assert [row["vehicle_id"] or "" for row in chosen] == [rank[2] for rank in expected.values()]
