"""`Row` is a mapping over one row of a batch, and converts only what is asked for."""

from __future__ import annotations

import copy
import datetime
import pickle

import numpy as np
import pytest

from whale_ray.operators.rows import Row, RowColumns
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

_BATCH = Batch.from_pydict(
    {
        "id": ["a", None, "c"],
        "speed": np.array([1.5, 2.5, 3.5], np.float32),
        "day": [datetime.date(2008, 5, 17)] * 3,
        "items": [7, 8, 9],
    },
    Schema.of(id="string", speed="float32", day="date32", items="int16"),
)


def _row(index: int) -> Row:
    return Row(RowColumns(_BATCH), index)


def test_values_by_name_and_by_attribute() -> None:
    row = _row(1)
    assert row["speed"] == row.speed == 2.5
    assert type(row["speed"]) is float
    assert row.id is None
    assert row.day == datetime.date(2008, 5, 17)
    assert row["items"] == 8  # the attribute is the mapping's own method
    assert row.get("id", "x") is None


def test_it_is_a_mapping() -> None:
    row = _row(0)
    assert dict(row) == _BATCH.to_pylist()[0]
    assert {**row, "speed": 0} == {**_BATCH.to_pylist()[0], "speed": 0}
    assert list(row) == ["id", "speed", "day", "items"]
    assert len(row) == 4
    assert "id" in row
    assert "nothing" not in row
    assert row == dict(row)


def test_unknown_names_have_the_nearest_in_their_message() -> None:
    with pytest.raises(KeyError, match=r"no column 'sped'; did you mean 'speed'\?"):
        _row(0)["sped"]
    with pytest.raises(AttributeError, match="no column 'zzz'; it has id, speed, day, items"):
        _ = _row(0).zzz


def test_only_columns_that_are_used_are_converted() -> None:
    columns = RowColumns(_BATCH)
    assert Row(columns, 2).speed == 3.5
    assert set(columns) == {"speed"}


def test_shown_and_copied() -> None:
    row = _row(0)
    assert repr(row) == "Row(id='a', speed=1.5, day=datetime.date(2008, 5, 17), items=7)"
    assert pickle.loads(pickle.dumps(row)) == dict(row)
    assert copy.deepcopy(row) == dict(row)
