"""`Row` behaves as the dict of its values, and converts only the columns that are read."""

from __future__ import annotations

import copy
import datetime
import gc
import pickle
import re
import traceback
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import InputError
from whale_ray.operators.rows import Row, RowFailure, results_of, rows_of
from whale_ray.testing.strategies import batches
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
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
    return list(rows_of(_BATCH))[index]


def _converted(batch: Batch, function: Callable[[Any], Any]) -> list[str]:
    """Return the types of the columns that are converted while a function gets a batch's rows."""
    converted = []
    to_pylist = Column.to_pylist
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            Column, "to_pylist", lambda self: converted.append(self.type.name) or to_pylist(self)
        )
        results_of(function, batch)
    return converted


def test_values_by_name_and_by_attribute() -> None:
    row = _row(1)
    assert row["speed"] == row.speed == 2.5
    assert type(row["speed"]) is float
    assert row.id is None
    assert row.day == datetime.date(2008, 5, 17)
    assert row["items"] == 8  # the attribute is the mapping's own method
    assert row.get("id", "x") is None


def _with_python_times(batch: Batch) -> Batch:
    """Return a batch whose times of day are whole microseconds, which Python's are."""
    columns = [
        Column(one.type, one.data - one.data % 1000, None, one.validity)
        if one.type.name == "time64[ns]"
        else one
        for one in batch.columns
    ]
    return Batch(batch.schema, columns, batch.num_rows, batch.times)


some_batches = batches(max_rows=20).map(_with_python_times)


@given(some_batches)
def test_a_row_behaves_as_the_dict_of_its_values(batch: Batch) -> None:
    """Values are compared by `repr`, since a NaN does not equal itself."""
    rows, expected = list(rows_of(batch)), batch.to_pylist()
    assert len(rows) == len(expected)
    for row, values in zip(rows, expected, strict=True):
        assert repr(dict(row)) == repr({**row}) == repr(dict(row.items())) == repr(values)
        assert list(row) == list(row.keys()) == list(values)
        assert row.keys() == values.keys()
        assert repr(list(row.values())) == repr(list(values.values()))
        assert (len(row), bool(row)) == (len(values), bool(values))
        assert row == row == dict(row) == row  # noqa: PLR0124  # that is what is tested
        assert row != {**row, "another": 0} != row
        names: tuple[Any, ...] = (*values, "another", None, 0, ("id",))
        for name in names:
            assert (name in row) == (name in values)
            assert repr(row.get(name, "none")) == repr(dict.get(values, name, "none"))
        for copied in (pickle.loads(pickle.dumps(row)), copy.copy(row), copy.deepcopy(row)):
            assert type(copied) is dict
            assert repr(copied) == repr(values)


@given(some_batches, st.data())
def test_columns_may_be_read_in_any_order(batch: Batch, data: st.DataObject) -> None:
    names = st.sampled_from(batch.schema.names)
    for row, expected in zip(rows_of(batch), batch.to_pylist(), strict=True):
        for name in data.draw(st.lists(names, max_size=3)):
            assert repr(row[name]) == repr(expected[name])
            if not hasattr(dict, name):
                assert repr(getattr(row, name)) == repr(expected[name])


def test_rows_of_the_same_columns_are_of_one_type() -> None:
    """Whatever a function does with them, all rows are mappings, and none is a dict."""
    batch = Batch.from_pydict({"n": np.arange(3000), "text": ["a"] * 3000})
    uses = (dict, lambda row: row.n, lambda row: row["n"], lambda row: {**row}, lambda row: None)
    found = {type(row) for use in uses for row in rows_of(batch) if use(row) or True}
    assert len(found) == 1
    (one,) = found
    assert issubclass(one, Row)
    assert issubclass(one, Mapping)
    assert not issubclass(one, dict)


def test_unknown_names_have_the_nearest_in_their_message() -> None:
    with pytest.raises(KeyError, match=r"no column 'sped'; did you mean 'speed'\?"):
        _row(0)["sped"]
    for missing in (None, 0, ("speed",)):
        with pytest.raises(KeyError, match="no column"):
            _row(0)[missing]  # type: ignore[index]  # the mistake tested
    with pytest.raises(TypeError, match="unhashable"):
        _row(0)[[]]  # type: ignore[index]  # the mistake tested


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sped", r"^no column 'sped'; did you mean 'speed'\?$"),
        ("zzz", "^no column 'zzz'; it has id, speed, day, items$"),
        ("pop", "^no column 'pop'; it has id, speed, day, items$"),
    ],
)
def test_an_unknown_attribute_fails_with_the_nearest_in_its_message(
    name: str, message: str
) -> None:
    with pytest.raises(RowFailure) as caught:
        results_of(lambda row: row["day"] and getattr(row, name), _BATCH)
    assert caught.value.row_index == 0
    cause = caught.value.__cause__
    assert type(cause) is AttributeError
    assert re.match(message, str(cause))
    assert "Did you mean" not in "".join(traceback.format_exception(cause))
    assert not hasattr(_row(0), name)


def test_a_date_that_python_does_not_have_names_its_column() -> None:
    batch = Batch.from_arrow(pa.table({"day": pa.array([0, 10_000_000], pa.date32())}))
    with pytest.raises(RowFailure) as caught:
        results_of(lambda row: row.day, batch)
    assert isinstance(caught.value.__cause__, InputError)
    assert str(caught.value.__cause__).startswith("column 'day': a date32 is no value of Python's")


def test_attribute_errors_of_other_objects_keep_their_message() -> None:
    with pytest.raises(RowFailure) as caught:
        results_of(lambda row: row.day.minute, _BATCH)
    assert str(caught.value.__cause__) == "'datetime.date' object has no attribute 'minute'"


def test_shown() -> None:
    row = _row(0)
    assert repr(row) == "Row(id='a', speed=1.5, day=datetime.date(2008, 5, 17), items=7)"


def test_only_columns_that_are_read_are_converted_and_once() -> None:
    assert _converted(_BATCH, lambda row: None) == []
    assert _converted(_BATCH, lambda row: (len(row), "id" in row, list(row), row.keys())) == []
    assert _converted(_BATCH, lambda row: row.speed + row["speed"]) == ["float32"]
    assert _converted(_BATCH, dict) == ["string", "float32", "date32", "int16"]


def test_copies_of_rows_are_not_tracked_by_the_garbage_collector() -> None:
    batch = Batch.from_pydict({"n": np.arange(100), "text": ["a"] * 100})
    copies = results_of(lambda row: {**row}, batch)
    assert copies == batch.to_pylist()
    assert not any(map(gc.is_tracked, copies))


def test_rows_do_not_outlive_their_last_reference() -> None:
    """No cycle holds a batch, which may be a view of a ring, until the garbage collector runs."""
    gc.disable()
    try:
        batch = Batch.from_pydict({"n": np.arange(3)})
        here = weakref.ref(batch)
        results_of(dict, batch)
        kept = [row.n for row in rows_of(batch)]
        del batch
        assert (kept, here()) == ([0, 1, 2], None)
    finally:
        gc.enable()


def test_rows_without_columns() -> None:
    batch = Batch(Schema(()), [], 50)
    assert results_of(dict, batch) == [{}] * 50


def test_a_row_is_read_only() -> None:
    row: Any = _row(0)
    for name in ("speed", "day", "items", "unknown"):
        with pytest.raises(AttributeError):
            setattr(row, name, 1)
        with pytest.raises(AttributeError):
            delattr(row, name)
    for change in ("row['speed'] = 1", "del row['id']", "row |= {'a': 1}", "row | {}", "{} | row"):
        with pytest.raises(TypeError):
            exec(change, {"row": row})  # noqa: S102  # statements that a user may write
    with pytest.raises(TypeError, match="unhashable"):
        hash(row)
    assert row == _BATCH.to_pylist()[0]


def test_kept_rows_do_not_change() -> None:
    kept = results_of(lambda row: (row.id, row)[1], _BATCH)
    assert kept == _BATCH.to_pylist()
    assert [row.id for row in kept] == ["a", None, "c"]
    assert pickle.loads(pickle.dumps(kept)) == _BATCH.to_pylist()


def test_column_names_that_are_not_identifiers() -> None:
    names = (
        *("keys", "items", "class", "_batch", "_row", "_converted", "__class__", "__bool__"),
        *("__doc__", "__slots__", "_names", "two words", "ﬁ", ""),
    )
    batch = Batch.from_pydict({name: [position] * 2 for position, name in enumerate(names)})

    def read(row: Any) -> list[Any]:
        attributes = [getattr(row, name) for name in ("class", "_row", "two words", "ﬁ", "")]
        return [row[name] for name in names] + attributes

    assert results_of(read, batch) == [[*range(14), 2, 4, 11, 12, 13]] * 2
    assert [bool(row) for row in rows_of(batch)] == [True, True]


def test_text_that_is_not_utf8_is_reported() -> None:
    batch = Batch.from_pydict({"text": [b"\xff"]})
    (column,) = batch.columns
    schema = Schema.of(text="string")
    wrong = Batch(schema, [Column(schema.fields[0].type, column.data, column.offsets)])
    for read in (lambda row: row["text"], lambda row: row.text):
        with pytest.raises(RowFailure) as caught:
            results_of(read, wrong)
        shown = "".join(traceback.format_exception(caught.value.__cause__))
        assert "row 0 of a string column is not UTF-8" in shown
        assert "KeyError" not in shown
