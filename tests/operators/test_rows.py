"""`Row` is a mapping of one row of a batch, and converts only the columns that are read."""

from __future__ import annotations

import copy
import datetime
import functools
import gc
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.operators.rows import Row, RowColumns, rows_for
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


# ---- rows as functions get them ------------------------------------------------------------------


def _each(function: Callable[[Any], Any], batch: Batch) -> list[Any]:
    return [function(row) for row in rows_for(function, batch)]


@given(batches(max_rows=40), st.data())
def test_rows_have_the_values_of_the_columns(batch: Batch, data: st.DataObject) -> None:
    """A function may read columns by attribute or name, for the first time or again."""
    names = st.sampled_from(batch.schema.names)
    reads = iter(data.draw(st.lists(st.lists(names), min_size=2 * len(batch))))

    def read(row: Row) -> tuple[list[Any], list[Any], dict[str, Any]]:
        chosen = next(reads)
        attributes = [getattr(row, name) for name in chosen if not hasattr(Row, name)]
        return attributes, [row[name] for name in chosen], dict(row)

    expected = batch.to_pylist()
    for _ in range(2):
        for row, (attributes, items, whole) in zip(expected, _each(read, batch), strict=True):
            assert repr(whole) == repr(row)
            assert all(any(repr(v) == repr(w) for w in row.values()) for v in attributes + items)


def test_columns_read_as_attributes_are_remembered_per_function() -> None:
    batch = Batch.from_pydict({"n": np.arange(3000), "m": np.arange(3000) * 2})

    def read(row: Any) -> int:
        return row.n + (row.m if row.n % 700 == 699 else row["m"])

    assert _each(read, batch) == [3 * n for n in range(3000)]
    assert _each(read, batch.slice(10, 2990)) == [3 * n for n in range(10, 2990)]


def test_columns_that_are_not_read_are_never_converted(monkeypatch: Any) -> None:
    converted = []
    to_pylist = Column.to_pylist
    monkeypatch.setattr(
        Column, "to_pylist", lambda self: converted.append(self.type.name) or to_pylist(self)
    )
    assert _each(lambda row: row.speed, _BATCH) == [1.5, 2.5, 3.5]
    assert converted == ["float32"]


USES: dict[str, Callable[[Any], Any]] = {
    "none": lambda row: None,
    "attribute": lambda row: row.speed,
    "item": lambda row: row["speed"],
    "items": lambda row: [row[name] for name in ("two words", "_low", "items", "pop", "speed")],
    "copy": lambda row: {**row},
    "dict": dict,
    "copy of some": lambda row: row["pop"] if row["pop"] % 4 else dict(row),
    "attribute and copy": lambda row: {**row, "speed": 2 * row.speed},
    "loop": lambda row: [row[name] for name in row],
}


@pytest.mark.parametrize("use", USES)
def test_rows_behave_alike_for_every_use(use: str) -> None:
    """From the 33rd row on, rows are adapted to what the function did with earlier ones."""
    names = ("speed", "_low", "items", "pop", "two words")
    columns = {name: np.arange(1100) + place for place, name in enumerate(names)}
    batch = Batch.from_pydict(columns)
    function = USES[use]
    for row, expected in zip(_used(function, batch), batch.to_pylist(), strict=True):
        assert function(row) == _of_dict(use, expected)
        assert isinstance(row, Row)
        assert isinstance(row, Mapping)
        assert (row.speed, row._low, row.pop) == (row["speed"], row["_low"], row["pop"])
        assert row == expected
        assert {**row} == dict(row.items()) == expected
        assert list(row) == list(row.keys()) == list(names)
        assert list(row.values()) == [row.get(name) for name in names] == list(expected.values())
        assert (len(row), "pop" in row, "clear" in row, row.get("clear", 7)) == (5, True, False, 7)
        assert repr(row).startswith(f"Row(speed={row.speed}, _low=")
        for name in ("clear", "update", "setdefault", "spede"):
            with pytest.raises(AttributeError, match=f"no column '{name}'"):
                getattr(row, name)
        with pytest.raises(KeyError, match="no column 'spede'; did you mean 'speed'"):
            row["spede"]
        for change in ("row['speed'] = 1", "del row['pop']", "row.speed = 1", "row |= {'a': 1}"):
            with pytest.raises((TypeError, AttributeError)):
                exec(change, {"row": row})  # noqa: S102  # statements that a user may write
        for wrong in ("{row}", "row | {}", "{} | row", "reversed(row)", "row[[]]"):
            with pytest.raises(TypeError):
                eval(wrong, {"row": row})  # noqa: S307  # expressions that a user may write
        for missing in (None, 0, ("speed",)):
            assert missing not in row
            with pytest.raises(KeyError, match="no column"):
                row[missing]  # type: ignore[index]  # the mistake tested
        assert row == expected
        pickled = pickle.loads(pickle.dumps(row))
        assert (type(pickled), pickled, copy.deepcopy(row)) == (dict, expected, expected)


def _of_dict(use: str, row: dict[str, Any]) -> Any:
    """Return the result of a function of `USES` for a dict, which has no attributes."""
    if use == "attribute":
        return row["speed"]
    if use == "attribute and copy":
        return {**row, "speed": 2 * row["speed"]}
    return USES[use](row)


def _used(function: Callable[[Any], Any], batch: Batch) -> Iterator[Row]:
    """Yield rows after the function has had each, and before anybody else looks at the batch's.

    Whoever looks does what the function may not do; so what is looked at are rows made alike.
    """
    rows = [row for row in rows_for(function, batch) if function(row) or True]
    assert len(rows) == len(batch)
    yield from rows


def test_copies_of_rows_are_not_tracked_by_the_garbage_collector() -> None:
    batch = Batch.from_pydict({"n": np.arange(100), "text": ["a"] * 100})
    for _ in range(2):
        copies = _each(lambda row: {**row}, batch)
        assert copies == batch.to_pylist()
        assert not any(map(gc.is_tracked, copies))


def test_a_batch_without_copied_rows_is_not_converted(monkeypatch: Any) -> None:
    """Copied rows of one batch do not affect the next batch."""
    batch = Batch.from_pydict({"n": np.arange(3000), "text": ["a"] * 3000})
    converted = []
    to_pylist = Column.to_pylist
    monkeypatch.setattr(
        Column, "to_pylist", lambda self: converted.append(self.type.name) or to_pylist(self)
    )

    def keep_early(row: Any) -> Any:
        return dict(row) if row["n"] < 500 else None

    kept = _each(keep_early, batch.slice(0, 1000))
    assert kept == [*({"n": n, "text": "a"} for n in range(500)), *[None] * 500]
    assert converted == ["int64", "string"]
    assert _each(keep_early, batch.slice(1000, 3000)) == [None] * 2000
    assert converted == ["int64", "string", "int64"]


def test_rows_without_columns() -> None:
    batch = Batch(Schema(()), [], 50)
    assert _each(dict, batch) == [{}] * 50


def test_a_row_is_read_only() -> None:
    def write(row: Any) -> None:
        assert row.speed
        for name in ("speed", "day", "unknown"):
            with pytest.raises(AttributeError):
                setattr(row, name, 1)
            with pytest.raises(AttributeError):
                delattr(row, name)
        with pytest.raises(TypeError):
            row["speed"] = 1

    for _ in range(2):
        _each(write, _BATCH)


def test_kept_rows_do_not_change() -> None:
    keep: Callable[[Any], Any] = lambda row: (row.id, row)[1]  # noqa: E731 - a lambda is meant
    for _ in range(2):
        kept = _each(keep, _BATCH)
        assert kept == _BATCH.to_pylist()
        assert [row.id for row in kept] == ["a", None, "c"]
        assert pickle.loads(pickle.dumps(kept)) == _BATCH.to_pylist()
        assert repr(kept[0]) == repr(_row(0))
        assert isinstance(kept[0], Row)


def test_column_names_that_are_not_identifiers() -> None:
    names = ("keys", "items", "class", "_row", "_0", "__class__", "two words", "ﬁ", "")
    batch = Batch.from_pydict({name: [position] * 2 for position, name in enumerate(names)})

    def read(row: Any) -> list[Any]:
        return [row[name] for name in names] + [getattr(row, "class"), getattr(row, "two words")]

    for _ in range(2):
        assert _each(read, batch) == [[*range(9), 2, 6]] * 2


class Unhashable:
    """A function that is not hashable, as users may write one."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # that is the case tested

    def __call__(self, row: Any) -> Any:
        return row.items


@pytest.mark.parametrize("function", [Unhashable(), functools.partial(getattr, name="x"), len])
def test_any_callable_gets_rows(function: Any) -> None:
    assert [row.id for row in rows_for(function, _BATCH)] == ["a", None, "c"]


def test_text_that_is_not_utf8_is_reported() -> None:
    batch = Batch.from_pydict({"text": [b"\xff"]})
    (column,) = batch.columns
    schema = Schema.of(text="string")
    wrong = Batch(schema, [Column(schema.fields[0].type, column.data, column.offsets)])
    with pytest.raises(Exception, match="row 0 of a string column is not UTF-8"):
        _each(lambda row: row["text"], wrong)
