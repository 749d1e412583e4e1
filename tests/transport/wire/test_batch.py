"""Batches against Arrow's own slice, take, filter and concat, and against plain Python."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import InputError
from whale_ray.testing.strategies import batches, columns, schemas
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import BytesView, Column
from whale_ray.transport.wire.types import DataType, Schema


def trips() -> Batch:
    return Batch.from_pydict(
        {
            "cab": ["abboip", None, "", "éà€", "enyenewl"],
            "fare": np.array([1, 2, 3, 4, 5], np.int32),
            "free": [True, False, None, True, False],
        }
    ).with_times(np.array([10, 20, 30, 40, 50]))


def same_rows(batch: Batch, expected: list[int], of: Batch) -> None:
    """Compare with rows picked one by one in Python, nulls and times included."""
    rows = [of.slice(row, row + 1) for row in expected]
    for name in of.schema.names:
        column = batch.column(name)
        assert len(column) == len(rows)
        for row, one in enumerate(rows):
            assert column.slice(row, row + 1).equals(one.column(name)), (name, row)
    if of.times is not None:
        assert batch.times is not None
        assert batch.times.tolist() == [of.times[row] for row in expected]
    else:
        assert batch.times is None
    assert batch.origin_ns == of.origin_ns


@given(st.data())
def test_take_picks_rows(data):
    batch = data.draw(batches())
    places = st.integers(0, max(0, batch.num_rows - 1))
    indices = data.draw(st.lists(places, max_size=20 if batch.num_rows else 0))
    taken = batch.take(indices)
    assert taken.owned
    same_rows(taken, indices, batch)
    same_rows(batch.copy().take(np.array(indices, np.int64)), indices, batch)


def test_rows_without_columns_are_taken_too():
    rows = Batch(Schema(()), [], 5, origin_ns=7)
    assert [rows.take(chosen).num_rows for chosen in ([0, 4, 4], [])] == [3, 0]
    assert rows.take([1]).origin_ns == 7
    assert rows.filter(np.array([True, False, True, False, False])).num_rows == 2
    with pytest.raises(InputError, match="an index is outside the batch's rows"):
        rows.take([5])


@given(st.data())
def test_filter_keeps_rows(data):
    batch = data.draw(batches())
    mask = data.draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch)))
    kept = batch.filter(np.array(mask, np.bool_))
    same_rows(kept, [row for row, keep in enumerate(mask) if keep], batch)


@given(st.data())
def test_slice_is_a_window(data):
    batch = data.draw(batches())
    bound = st.integers(-15, 15) | st.none()
    start, stop = data.draw(bound), data.draw(bound)
    expected = list(range(batch.num_rows))[start or 0 : stop]
    for whole in (batch, batch.copy()):
        window = whole.slice(start or 0, stop)
        same_rows(window, expected, batch)
        same_rows(window.slice(1), expected[1:], batch)
        same_rows(window.copy(), expected, batch)


@given(st.data())
def test_concat_puts_rows_one_behind_another(data):
    schema = data.draw(schemas())
    with_times = data.draw(st.booleans())
    pieces = data.draw(st.lists(batches(schema, with_times=with_times), min_size=1, max_size=4))
    whole = Batch.concat(pieces)
    assert whole.owned
    assert whole.num_rows == sum(map(len, pieces))
    begin = 0
    for piece in pieces:
        window = whole.slice(begin, begin + len(piece))
        assert window.equals(piece)
        begin += len(piece)
    origins = [piece.origin_ns for piece in pieces if piece.origin_ns]
    assert whole.origin_ns == min(origins, default=0)


@given(batches())
def test_copies_and_pickles_are_equal(batch):
    for other in (
        batch.copy(),
        pickle.loads(pickle.dumps(batch)),
        pickle.loads(pickle.dumps(batch.copy())),
        pickle.loads(pickle.dumps(Batch.concat([batch, batch]).slice(len(batch)))),
    ):
        assert other.equals(batch)
        assert other.owned
        assert other.nbytes == batch.nbytes


@given(st.data())
def test_rows_survive_python(data):
    simple = Schema.of(a="int64", b="string", c="float64", d="bool", e="binary", f="date32")
    batch = data.draw(batches(simple, with_times=False))
    rows = batch.to_pylist()
    assert rows == batch.to_arrow().to_pylist() or _has_nan(rows)
    assert Batch.from_rows(rows, simple).to_arrow().equals(batch.to_arrow()) or _has_nan(rows)
    tuples = [tuple(row.values()) for row in rows]
    assert Batch.from_rows(tuples, simple).num_rows == len(rows)
    assert list(batch.rows()) == rows or _has_nan(rows)


def _has_nan(rows: list[dict[str, object]]) -> bool:
    return any(row["c"] != row["c"] for row in rows)


@given(st.data())
def test_python_values_are_arrows(data):
    kinds = ["timestamp[us]", "timestamp[ms, tz=UTC]", "timestamp[s, tz=Asia/Tokyo]"]
    kinds += ["duration[ms]", "date64", "time32[ms]", "decimal128(38, 9)", "string"]
    kind = DataType.parse(data.draw(st.sampled_from(kinds)))
    column = data.draw(columns(kind, data.draw(st.integers(0, 5))))
    batch = Batch(Schema.of(x=kind), [column])
    assert column.to_pylist() == batch.to_arrow().column(0).to_pylist()


def test_columns_as_functions_meet_them():
    batch = trips()
    assert batch["fare"].tolist() == [1, 2, 3, 4, 5]
    assert not batch["fare"].flags.writeable
    assert isinstance(batch["free"], np.ma.MaskedArray)
    assert batch["free"].tolist() == [True, False, None, True, False]
    cabs = batch["cab"]
    assert isinstance(cabs, BytesView)
    assert (len(cabs), cabs[0], cabs[1], cabs[-1]) == (5, "abboip", None, "enyenewl")
    assert cabs.to_pylist() == ["abboip", None, "", "éà€", "enyenewl"]
    assert cabs[2:4].to_pylist() == ["", "éà€"]
    assert cabs.lengths.tolist() == [6, 0, 0, 7, 8]
    assert cabs.is_null.tolist() == [False, True, False, False, False]
    assert (cabs == "éà€").tolist() == [False, False, False, True, False]
    assert (cabs == "").tolist() == [False, False, True, False, False]
    assert (cabs != "abboip").tolist() == [False, False, True, True, True]
    assert np.array(cabs).tolist() == cabs.to_pylist()
    with pytest.raises(InputError, match="compare with one str or bytes, not BytesView"):
        cabs == batch["cab"]  # noqa: B015  # the comparison itself is refused


def test_times_and_decimals_as_functions_meet_them():
    batch = Batch.from_arrow(
        pa.record_batch(
            {
                "at": pa.array([0, 86_400_000], pa.timestamp("ms", "Asia/Tokyo")),
                "day": pa.array([1, 2], pa.date32()),
                "took": pa.array([5, 6], pa.duration("us")),
                "price": pa.array(["1.50", "-2.25"]).cast(pa.decimal128(5, 2)),
            }
        )
    )
    assert batch["at"].tolist() == np.array([0, 86_400_000], "M8[ms]").tolist()
    assert batch["day"].tolist() == np.array([1, 2], "M8[D]").tolist()
    assert batch["took"].dtype == np.dtype("m8[us]")
    assert [str(value) for value in batch["price"]] == ["1.50", "-2.25"]


def test_other_columns_keep_rows_and_times():
    batch = trips()
    for source in (batch, batch.copy()):
        assert source.select(["free", "cab"]).schema.names == ("free", "cab")
        assert source.drop(["free", "cab"])["fare"].tolist() == [1, 2, 3, 4, 5]
        renamed = source.rename({"fare": "cents"})
        assert renamed["cents"].tolist() == [1, 2, 3, 4, 5]
        more = source.with_column("double", source["fare"] * 2).with_column("fare", [0] * 5)
        assert more.schema.names == ("cab", "fare", "free", "double")
        assert more["double"].tolist() == [2, 4, 6, 8, 10]
        assert more["fare"].tolist() == [0] * 5
        for one in (source.select(["cab"]), source.drop(["cab"]), renamed, more):
            assert one.times.tolist() == [10, 20, 30, 40, 50]
            assert one.take([4]).times.tolist() == [50]
        assert source.with_times(None).times is None
        assert source.with_times(None).copy().times is None
        assert source.with_times(np.arange(5)).copy().times.tolist() == [0, 1, 2, 3, 4]
        assert source.with_origin(7).slice(1).copy().origin_ns == 7
    assert "cab" in batch
    assert "taxi" not in batch


def test_wider_columns_concatenate():
    small = Batch.from_pydict({"x": np.array([1, 2], np.int32), "s": ["a", None]})
    large = Batch.from_arrow(
        pa.record_batch(
            {"x": pa.array([None, 2**40]), "s": pa.array(["b", "c"], pa.large_string())}
        )
    )
    whole = Batch.concat([small, large])
    assert whole.schema == Schema.of(x="int64", s="large_string")
    assert whole.to_pydict() == {"x": [1, 2, None, 2**40], "s": ["a", None, "b", "c"]}


def test_repr_and_preview_are_short():
    batch = trips()
    assert repr(batch.slice(0, 2)) == (
        "Batch(2 rows; cab: string, fare: int32, free: bool)\n"
        "  {cab='abboip', fare=1, free=True}\n"
        "  {cab=None, fare=2, free=False}"
    )
    long = Batch.from_pydict({"text": ["x" * 1000] * 9})
    assert long.preview(0) == f"{{text='{'x' * 40}'…}}"
    assert repr(long).count("\n") == 6
    assert long.preview(99) == "{}"
    broken = Column(
        DataType.parse("string"), np.array([0xFF], np.uint8), np.array([0, 1], np.int32)
    )
    assert Batch(Schema.of(s="string"), [broken]).preview(0) == "{s=b'\\xff'}"
    times = pa.table({"at": pa.array([1], "time64[ns]"), "day": pa.array([4_000_000], "date32")})
    shown = "{at='00:00:00.000000001', day='12921-08-18'}"
    assert Batch.from_arrow(times).preview(0) == shown


def test_text_that_is_not_utf8_is_named_when_it_is_read():
    pool, offsets = np.array([65, 0xFF], np.uint8), np.array([0, 1, 2], np.int32)
    column = Column(DataType.parse("string"), pool, offsets)
    view = BytesView(column)
    assert view[0] == "A"
    for read in (view.to_pylist, lambda: view[1]):
        with pytest.raises(InputError) as error:
            read()
        expected = "row 1 of a string column is not UTF-8: b'\\xff'; declare it as binary"
        assert str(error.value) == expected


def test_values_that_may_change_are_copied_and_arrays_handed_over_freeze():
    scratch = np.array([1, 2, 3])
    batch = Batch.from_pydict({"x": scratch, "y": scratch[:3], "t": scratch.view("M8[us]")})
    scratch[:] = 9
    assert batch["x"].tolist() == [1, 2, 3]
    assert batch["y"].tolist() == [1, 2, 3]
    assert batch.column("t").data.tolist() == [1, 2, 3]
    given_over = np.array([1, 2, 3])
    column = Column(DataType.parse("int64"), given_over)
    with pytest.raises(ValueError, match="read-only"):
        given_over[0] = 9
    assert column.data.tolist() == [1, 2, 3]
    frozen = Batch.from_pydict({"x": given_over})
    assert np.shares_memory(frozen.column("x").data, given_over)
