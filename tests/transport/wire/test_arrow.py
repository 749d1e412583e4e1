"""Arrow in and out: exact to the last bit for what is carried, refused by name for the rest."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import InputError
from whale_ray.testing.strategies import batches
from whale_ray.transport.wire.arrow import numbers_from_arrow
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import DataType, Schema

D = decimal.Decimal
NAN_WITH_PAYLOAD = np.array([0x7FF8_0000_DEAD_BEEF, 0xFFF0_0000_0000_0001], np.uint64)

EXTREMES = {
    "int64 beyond 2**53": pa.array([2**53 + 1, -(2**63), 2**63 - 1, None]),
    "uint64": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "bool": pa.array([True, None, False] * 7),
    "float16": pa.array(np.array([1.5, -0.0, np.inf], np.float16)),
    "float64": pa.array([float("inf"), -0.0, 5e-324, None]),
    "string": pa.array(["", None, "a\0b", "éà€😀", "x" * 1000]),
    "large_string": pa.array(["", None, "a\0b", "éà€😀"], pa.large_string()),
    "binary that is no text": pa.array([b"\xff\xfe\x00", None, b""]),
    "large_binary": pa.array([b"\xff\xfe\x00", None, b""], pa.large_binary()),
    "fixed_size_binary": pa.array([b"abc", None, b"\0\0\0"], pa.binary(3)),
    "decimal": pa.array([D("-" + "9" * 36), None, D("-0.01"), D("9" * 30)], pa.decimal128(38, 2)),
    "decimal of negative scale": pa.array([D("-1200"), None], pa.decimal128(5, -2)),
    "date32": pa.array([-(2**31), 0, None, 2**31 - 1], pa.int32()).cast(pa.date32()),
    "date64": pa.array([datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)], pa.date64()),
    "time32": pa.array([0, None, 86_399_999], pa.int32()).cast(pa.time32("ms")),
    "time64": pa.array([0, None, 86_399_999_999_999], pa.int64()).cast(pa.time64("ns")),
    "timestamp": pa.array([-(2**63), 0, None, 2**63 - 1]).cast(pa.timestamp("ns")),
    "timestamp with zone": pa.array([0, None]).cast(pa.timestamp("ms", "America/Los_Angeles")),
    "timestamp with offset": pa.array([0, None]).cast(pa.timestamp("s", "+02:30")),
    "duration": pa.array([-(2**63), None, 2**63 - 1]).cast(pa.duration("us")),
    "only nulls": pa.array([None, None], pa.string()),
    "nothing": pa.array([], pa.string()),
    "no booleans": pa.array([], pa.bool_()),
}


def arrow_batch(array: pa.Array) -> pa.RecordBatch:
    schema = pa.schema([pa.field("x", array.type, nullable=True)])
    return pa.RecordBatch.from_arrays([array], schema=schema)


@pytest.mark.parametrize("what", EXTREMES)
def test_nothing_is_lost(what):
    array = EXTREMES[what]
    for part in (array, array[1:], array[:1], array[1:1], pa.concat_arrays([array] * 3)[2:-1]):
        original = arrow_batch(part)
        batch = Batch.from_arrow(original)
        for one in (batch, batch.copy(), Batch.concat([batch.slice(0, 1), batch.slice(1)])):
            back = one.to_arrow()
            back.validate(full=True)
            assert back.equals(original)
            assert back.schema.equals(original.schema)


def test_the_payload_of_a_nan_survives():
    array = pa.Array.from_buffers(pa.float64(), 2, [None, pa.py_buffer(NAN_WITH_PAYLOAD)])
    batch = Batch.from_arrow(arrow_batch(array)).copy()
    back = np.frombuffer(batch.to_arrow().column(0).buffers()[1], np.uint64, 2)
    assert back.tolist() == NAN_WITH_PAYLOAD.tolist()


@given(batches(with_times=False))
def test_every_batch_survives_arrow(batch):
    arrow = batch.to_arrow()
    arrow.validate(full=True)
    assert arrow.num_rows == batch.num_rows
    assert Batch.from_arrow(arrow).equals(batch)
    assert Batch.from_arrow(arrow.slice(1)).equals(batch.slice(1))


@given(st.data())
def test_tables_in_chunks(data):
    batch = data.draw(batches(with_times=False))
    cut = data.draw(st.integers(0, len(batch)))
    schema = batch.to_arrow().schema
    pieces = [batch.slice(0, cut).to_arrow(), batch.slice(cut).to_arrow()]
    table = pa.Table.from_batches(pieces, schema)
    assert Batch.from_arrow(table).equals(batch)
    assert Batch.from_arrow(pa.Table.from_batches([], schema)).equals(batch.slice(0, 0))


def test_not_null_stays_not_null():
    schema = pa.schema([pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.int8())])
    original = pa.RecordBatch.from_pylist([{"a": 1, "b": None}], schema=schema)
    assert Batch.from_arrow(original).to_arrow().schema.equals(schema)


def test_fixed_columns_and_text_are_shared():
    original = pa.record_batch({"n": pa.array([1, 2, 3]), "s": pa.array(["a", "b", "c"])})
    batch = Batch.from_arrow(original)
    back = batch.to_arrow()
    assert back.column(0).buffers()[1].address == original.column(0).buffers()[1].address
    for place in (1, 2):
        assert back.column(1).buffers()[place].address == (
            original.column(1).buffers()[place].address
        )
    assert not batch.column("n").data.flags.writeable


def test_booleans_and_validity_which_are_bytes_of_their_own_cannot_be_written_to():
    original = pa.record_batch({"b": pa.array([True, None, False]), "n": pa.array([1, None, 3])})
    for batch in (original, original.slice(1)):
        for column in Batch.from_arrow(batch).columns:
            assert not column.data.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                column.validity[0] = False


REFUSED = {
    "list<item: string>": (
        pa.array([["a"]]),
        "make its parts columns of their own, or turn it into a string",
    ),
    "struct<a: int64>": (
        pa.array([{"a": 1}]),
        "make its parts columns of their own, or turn it into a string",
    ),
    "map<string, int64>": (
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "make its parts columns of their own, or turn it into a string",
    ),
    "dictionary<values=string, indices=int32, ordered=0>": (
        pa.array(["a"]).dictionary_encode(),
        "cast it to string",
    ),
    "string_view": (pa.array(["a"], pa.string_view()), "cast it to string"),
    "binary_view": (pa.array([b"a"], pa.binary_view()), "cast it to binary"),
    "decimal256(40, 2)": (
        pa.array([D("1.50")], pa.decimal256(40, 2)),
        "cast it to decimal128(38, 2)",
    ),
    "decimal32(4, 1)": (pa.array([D("1.5")], pa.decimal32(4, 1)), "cast it to decimal128(4, 1)"),
    "null": (
        pa.array([None]),
        "declare the type of its nulls (of pandas' column: astype('string'), for example)",
    ),
    "month_day_nano_interval": (
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        "cast it to one of the supported types",
    ),
    "run_end_encoded<run_ends: int32, values: int64>": (
        pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([7])),
        "cast it to int64",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_types_are_refused_by_name(name):
    array, remedy = REFUSED[name]
    with pytest.raises(InputError) as error:
        Batch.from_arrow(pa.record_batch({"tags": array}))
    expected = f"column 'tags' has type {name}, which whale-ray does not support; {remedy}"
    assert str(error.value) == expected
    with pytest.raises(InputError, match="column 'tags' has type"):
        Schema.from_arrow(pa.schema([("tags", array.type)]))


def test_an_extension_type_is_refused_by_name():
    array = pa.array([b"0123456789abcdef"], pa.binary(16)).cast(pa.uuid())
    with pytest.raises(InputError, match="column 'tags' has type extension<arrow.uuid>, which"):
        Batch.from_arrow(pa.record_batch({"tags": array}))


def test_more_than_two_gib_of_text_is_refused():
    # Untouched zeros take no memory; the sizes are looked at before any byte is.
    buffers = [np.array([0, 3 << 30], np.int64), np.zeros(3 << 30, np.uint8)]
    array = pa.Array.from_buffers(pa.large_string(), 1, [None, *map(pa.py_buffer, buffers)])
    with pytest.raises(InputError) as error:
        Batch.from_arrow(pa.record_batch({"text": array}))
    assert str(error.value) == (
        "column 'text' holds 3.0 GiB of text in one batch, more than 2 GiB; "
        "read it in smaller batches"
    )
    pool = np.zeros(2**31 - 1, np.uint8)
    column = Column(DataType.parse("string"), pool, np.array([0, pool.size], np.int32))
    batch = Batch(Schema.of(text="string"), [column])
    for too_much in (lambda: batch.take([0, 0]), lambda: Batch.concat([batch, batch])):
        with pytest.raises(InputError) as error:
            too_much()
        assert str(error.value) == (
            "column 'text' would hold more than 2 GiB of text in one batch; make smaller batches"
        )


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Sao_Paulo", "+02:00", "-03:30"])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@given(data=st.data())
def test_instants_are_the_datetimes_that_arrow_makes(
    zone: str, unit: str, data: st.DataObject
) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    autumn = 1_603_584_000  # when an hour comes twice in Berlin
    seconds = st.integers(autumn - 7200, autumn + 7200) | st.integers(-(61 * 10**9), 61 * 10**9)
    values = data.draw(st.lists(st.none() | seconds.map(lambda s: s * per_second), max_size=8))
    array = pa.array(values, pa.timestamp(unit, zone))
    ours = Column.of(array).to_pylist()
    theirs = array.to_pylist()
    assert ours == theirs
    assert [v and (v.utcoffset(), v.fold) for v in ours] == [
        v and (v.utcoffset(), v.fold) for v in theirs
    ]


@given(st.lists(st.none() | st.text(max_size=6), max_size=12))
def test_text_is_what_arrow_makes_of_it(values: list[str | None]) -> None:
    column = Column.of(pa.array(["é", *values, "z"], pa.string()))
    assert column.to_pylist() == ["é", *values, "z"]
    assert column.slice(1, len(values) + 1).to_pylist() == values


def test_a_letter_that_is_cut_by_a_value_is_no_text() -> None:
    offsets = np.array([0, 1, 2], np.int32)
    column = Column(DataType.parse("string"), np.frombuffer("é".encode(), np.uint8), offsets)
    with pytest.raises(InputError, match="row 0 of a string column is not UTF-8"):
        column.to_pylist()


@pytest.mark.parametrize("kind", ["int8", "int32", "uint64", "float32", "float64"])
def test_numbers_are_those_of_arrow_also_of_a_part(kind: str) -> None:
    array = pa.array(range(20), kind)
    for part in (array, array.slice(3, 9), array.slice(5, 0)):
        found = numbers_from_arrow(part)
        assert found.dtype == np.dtype(kind)
        assert found.tolist() == part.to_pylist()
