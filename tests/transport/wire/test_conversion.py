"""Values of many kinds into columns: type by type, null by null."""

from __future__ import annotations

import datetime
import decimal
import zoneinfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from whale_ray.configs.errors import InputError
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.conversion import batch_of_rows
from whale_ray.transport.wire.types import Schema

DAY = datetime.date(2020, 1, 2)
NOON = datetime.datetime(2020, 1, 2, 12, tzinfo=datetime.UTC)
MASKED = np.ma.MaskedArray([1, 2, 3], mask=[False, True, False])

GUESSED = {
    "integers": ([1, None], "int64", [1, None]),
    "floats": ([1.5, None], "float64", [1.5, None]),
    "text": (("a", None), "string", ["a", None]),
    "bytes": ([b"a"], "binary", [b"a"]),
    "days": ([DAY, None], "date32", [DAY, None]),
    "instants": ([NOON, None], "timestamp[us, tz=UTC]", [NOON, None]),
    "int32 array": (np.array([1, 2], np.int32), "int32", [1, 2]),
    "big-endian array": (np.array([1, 2], ">i4"), "int32", [1, 2]),
    "every other value": (np.arange(6)[::2], "int64", [0, 2, 4]),
    "masked array": (MASKED, "int64", [1, None, 3]),
    "bool array": (np.array([True, False]), "bool", [True, False]),
    "text array": (np.array(["a", "bc"]), "string", ["a", "bc"]),
    "object array": (np.array(["a", None], object), "string", ["a", None]),
    "datetime array": (np.array([0, "NaT"], "M8[ms]"), "timestamp[ms]", None),
    "day array": (np.array(["2020-01-02", "NaT"], "M8[D]"), "date32", [DAY, None]),
    "pandas": (pd.Series([1, 2], dtype="int16"), "int16", [1, 2]),
    "pandas with nulls": (pd.Series([1, None], dtype="Int64"), "int64", [1, None]),
    "Arrow": (pa.array([1, None], pa.int8()), "int8", [1, None]),
    "Arrow in chunks": (pa.chunked_array([["a"], [None]]), "string", ["a", None]),
    "column": (Column.of([1, 2]), "int64", [1, 2]),
    "view": (Batch.from_pydict({"s": ["a", None]})["s"], "string", ["a", None]),
}


@pytest.mark.parametrize("what", GUESSED)
def test_values_decide_their_type(what):
    values, kind, expected = GUESSED[what]
    column = Column.of(values)
    assert column.type.name == kind
    if expected is None:
        expected = [datetime.datetime(1970, 1, 1), None]  # noqa: DTZ001  # it has no zone
    assert column.to_pylist() == expected
    assert all(
        not array.flags.writeable
        for array in (column.data, column.offsets, column.validity)
        if array is not None
    )


DECLARED = {
    "narrower": ([1, None], "int8", [1, None]),
    "array narrower": (np.array([1, 2]), "int8", [1, 2]),
    "array wider": (np.array([1, 2], np.int8), "float64", [1.0, 2.0]),
    "masked array wider": (MASKED, "float32", [1.0, None, 3.0]),
    "no zone is UTC": (np.array([0], "M8[s]"), "timestamp[s, tz=UTC]", None),
    "text": (np.array(["a"]), "large_string", ["a"]),
    "column": (Column.of([1, None]), "float64", [1.0, None]),
    "Arrow": (pa.array(["7"]), "int64", [7]),
    "whole floats": ([1.0, None], "int8", [1, None]),
    "nothing": ([], "decimal128(5, 2)", []),
    "nulls": ([None], "binary", [None]),
    "bytes": ([b"ab", None, b"", b"c"], "binary", [b"ab", None, b"", b"c"]),
    "bytes of two classes": ([b"ab", bytearray(b"c")], "binary", [b"ab", b"c"]),
    "no bytes": ([], "binary", []),
}


@pytest.mark.parametrize("what", DECLARED)
def test_values_become_the_declared_type(what):
    values, kind, expected = DECLARED[what]
    column = Column.of(values, kind)
    assert column.type.name == kind
    if expected is None:
        expected = [datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)]
    assert column.to_pylist() == expected


WRONG = {
    "too large": (np.array([300]), "int8", "Integer value 300 not in range: -128 to 127"),
    "a fraction": (
        [1, 1.5],
        "int64",
        "Float value 1.500000 was truncated converting to int64",
    ),
    "a fraction in an array": (
        np.array([1.5]),
        "int64",
        "Float value 1.500000 was truncated converting to int64",
    ),
    "a decimal fraction": (
        [decimal.Decimal("1.5")],
        "int16",
        "Rescaling Decimal value would cause data loss",
    ),
    "a fraction of a millisecond": (
        [NOON.replace(microsecond=5)],
        "timestamp[ms, tz=UTC]",
        "Casting from timestamp[us, tz=UTC] to timestamp[ms, tz=UTC] would lose data: "
        "1577966400000005",
    ),
    "a moment as a day": (
        [DAY, NOON],
        "date32",
        "datetime.datetime(2020, 1, 2, 12, 0, tzinfo=datetime.timezone.utc) would lose its time",
    ),
    "a zone": (
        (None, NOON),
        "timestamp[us]",
        "datetime.datetime(2020, 1, 2, 12, 0, tzinfo=datetime.timezone.utc) would lose its zone",
    ),
    "text": (
        ["x"],
        "int64",
        "Could not convert 'x' with type str: tried to convert to int64",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_values_that_would_change_are_refused(what):
    values, kind, reason = WRONG[what]
    with pytest.raises(InputError) as error:
        Column.of(values, kind)
    expected = f"a column, {kind}: {reason}; declare the type that its values have"
    assert str(error.value) == expected


def _zone(hours: int) -> datetime.timezone:
    return datetime.timezone(datetime.timedelta(hours=hours))


class NoZone(datetime.tzinfo):
    """A zone that tells no offset, so that its datetimes are as those without a zone."""

    def utcoffset(self, when):
        return None


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NAIVE = datetime.datetime(2020, 10, 25, 2, 30, 0, 999_999)  # noqa: DTZ001  # without a zone
TWICE = [NAIVE.replace(tzinfo=BERLIN, fold=fold) for fold in (0, 1)]
FIRST_DAY, LAST_DAY = NAIVE.replace(1, 1, 1, 0, 0), NAIVE.replace(9999, 12, 31, 23, 59)
SAME = {
    "integers": ([0, -(2**63), 2**63 - 1], "int64"),
    "integers, null": ([1, None], "int64"),
    "integers, float": ([1, 2.0], "int64"),
    "integers, numpy": ([1, np.int8(2)], "int64"),
    "floats": ([0.0, -0.0, float("inf"), 5e-324], "float64"),
    "floats, integer": ([0.5, 1, None], "float64"),
    "booleans": ([True, False], "bool"),
    "booleans, null": ([None, True], "bool"),
    "datetimes": ([NAIVE, FIRST_DAY, LAST_DAY], "timestamp[us]"),
    "datetimes, null": ([NAIVE, None], "timestamp[us]"),
    "UTC": ([NOON, NOON.replace(year=1), NOON.replace(year=9999)], "timestamp[us, tz=UTC]"),
    "UTC, null": ([NOON, None], "timestamp[us, tz=UTC]"),
    "UTC by name": ([NOON.replace(tzinfo=zoneinfo.ZoneInfo("UTC"))], "timestamp[us, tz=UTC]"),
    "hours east": ([NOON.astimezone(_zone(14)), NOON], "timestamp[us, tz=Europe/Berlin]"),
    "first and last": (
        [FIRST_DAY.replace(tzinfo=_zone(-14)), LAST_DAY.replace(tzinfo=_zone(14))],
        "timestamp[us, tz=UTC]",
    ),
    "an hour twice": (TWICE, "timestamp[us, tz=Europe/Berlin]"),
    "several zones": ([NOON, *TWICE, NOON.astimezone(_zone(-3))], "timestamp[us, tz=UTC]"),
    "no zone in a zone": ([NAIVE], "timestamp[us, tz=UTC]"),
    "milliseconds": ([NOON], "timestamp[ms, tz=UTC]"),
    "nanoseconds": ([NOON.replace(microsecond=1)], "timestamp[ns, tz=UTC]"),
    "pandas": ([pd.Timestamp(NOON)], "timestamp[us, tz=UTC]"),
}


@pytest.mark.parametrize("what", SAME)
def test_rows_become_what_arrow_makes_of_their_values(what):
    values, kind = SAME[what]
    batch = Batch.from_rows([{"x": value} for value in values], Schema.of(x=kind))
    found = batch.to_arrow().column("x")
    expected = pa.array(values, found.type)
    assert found.equals(expected)
    assert str(found) == str(expected)  # zeros are equal, whatever their sign


REFUSED = {
    "beyond 64 bits": ([1, 2**63], "int64", "9223372036854775808 does not fit"),
    "a boolean among integers": ([1, True], "int64", "Could not convert True with type bool"),
    "a boolean among floats": ([1.5, True], "float64", "Could not convert True with type bool"),
    "an integer among booleans": ([True, 1], "bool", "Could not convert 1 with type int"),
    "a zone": ([NAIVE, NOON], "timestamp[us]", "Could not convert datetime.datetime(2020, 1, 2"),
    "no zone": ([NOON, NAIVE], "timestamp[us, tz=UTC]", "Could not convert datetime.datetime("),
}


@pytest.mark.parametrize("what", REFUSED)
def test_values_of_another_kind_are_refused_in_learnt_columns(what):
    values, kind, reason = REFUSED[what]
    rows = [{"x": value} for value in values]
    with pytest.raises(InputError) as error:
        batch_of_rows(rows, Schema.of(x=kind), learnt=True)
    assert str(error.value).startswith(f"column 'x', {kind}: {reason}")


MAKERS = {
    "a list": list,
    "numpy": np.array,
    "Arrow": pa.array,
    "pandas": lambda values: pd.Series(values, index=["a", "b", "c"]),
}


@pytest.mark.parametrize("kind", ["float16", "float32"])
@pytest.mark.parametrize("by", MAKERS)
def test_a_number_beyond_the_range_of_floats_is_refused_and_an_infinite_one_is_not(by, kind):
    make = MAKERS[by]
    assert Column.of(make([1.5, np.inf, -np.inf]), kind).to_pylist() == [1.5, np.inf, -np.inf]
    with pytest.raises(InputError, match=rf"^a column, {kind}: -1e\+39 does not fit"):
        Column.of(make([1.5, np.inf, -1e39]), kind)


def test_what_is_masked_need_not_fit():
    for hidden, kind in (1e39, "float32"), (300, "int8"):
        values = np.ma.masked_array([hidden, 2], [True, False])
        assert Column.of(values, kind).to_pylist() == [None, 2]


def test_a_zone_that_tells_no_offset_is_none():
    """Python says of such datetimes what it says of those without a zone."""
    value = NOON.replace(tzinfo=NoZone())
    for values in ([value, NOON], [NOON, value], [NAIVE, value]):
        with pytest.raises(InputError, match=r"^column 'x'"):
            batch_of_rows([{"x": one} for one in values], Schema.of(x="timestamp[us]"), learnt=True)


def test_columns_made_of_rows_cannot_be_written_to():
    for values, kind in ([1, 2], "int64"), ([NOON], "timestamp[us, tz=UTC]"):
        (column,) = Batch.from_rows([{"x": one} for one in values], Schema.of(x=kind)).columns
        assert not column.data.flags.writeable


def test_a_pandas_series_may_change_afterwards():
    series = pd.Series([1.0, 2.0])
    column = Column.of(series)
    series.iloc[0] = 9.0
    assert column.to_pylist() == [1.0, 2.0]
