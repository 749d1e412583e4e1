"""Expressions at the ends of ranges, at transitions of time zones, and on texts without a value.

Spark's own answers on many more are in `tests/whale_ray/spark/test_expressions_against_spark.py`.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
import pickle
import warnings
import zoneinfo
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import ExpressionError, InputError
from whale_ray.operators.compiled.compiled_chain import CompiledChain
from whale_ray.operators.expressions import functions as F  # noqa: N812 - as in PySpark
from whale_ray.operators.expressions.civil_days import civil_day, day_number
from whale_ray.operators.expressions.expression import Expression, col, lit, when
from whale_ray.operators.expressions.java_patterns import JavaPattern
from whale_ray.operators.expressions.kernels import time_texts
from whale_ray.operators.expressions.kernels.zones import (
    clock_seconds,
    instant_seconds,
    midnight_seconds,
)
from whale_ray.operators.transforms import MapExpressions
from whale_ray.transport.wire.arrow import column_to_arrow
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column

ZONES = ("Europe/Berlin", "America/Havana", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kolkata")
UTC = datetime.UTC
_ONE = Batch.from_pydict({"one": [1]})


def _value(expression: Expression, batch: Batch = _ONE) -> Any:
    """Return the value of the first row; times as numbers, since Python's years end at 9999."""
    array = column_to_arrow(expression.evaluate(batch))
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    return array.to_pylist()[0]


def _zoned(text: str, zone: str, unit: str = "us") -> Batch:
    """Return a row `t` with an instant, given in UTC."""
    instant = pa.scalar(datetime.datetime.fromisoformat(text).replace(tzinfo=UTC))
    times = pa.array([instant.as_py()], pa.timestamp(unit, zone))
    return Batch.from_arrow(pa.table({"t": times}))


# ---- time zones ------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize(
    ("zone", "instant", "cut", "start"),
    [
        ("Europe/Berlin", "2020-10-25T00:30", "hour", "2020-10-25T00:00"),
        ("Europe/Berlin", "2020-10-25T01:30", "hour", "2020-10-25T01:00"),  # 02:30 again
        ("Europe/Berlin", "2020-10-25T12:00", "day", "2020-10-24T22:00"),
        ("America/New_York", "2023-11-05T06:15", "hour", "2023-11-05T06:00"),
        ("America/Sao_Paulo", "2017-10-15T18:00", "day", "2017-10-15T03:00"),  # begins at 01:00
        ("America/Havana", "2024-11-03T04:30", "day", "2024-11-03T04:00"),  # midnight is twice
        ("Europe/Berlin", "2040-07-01T12:00", "month", "2040-06-30T22:00"),
        ("Europe/Berlin", "1890-06-01T12:00", "day", "1890-05-31T23:06:32"),
    ],
)
def test_times_are_truncated_in_local_time(
    zone: str, instant: str, cut: str, start: str, unit: str
) -> None:
    found = F.date_trunc(cut, "t").evaluate(_zoned(instant, zone, unit)).to_pylist()
    wanted = datetime.datetime.fromisoformat(start).replace(tzinfo=UTC)
    assert [time.astimezone(UTC) for time in found] == [wanted]


_CLOCKS = st.integers(-62_135_424_000, 253_402_041_600).map(
    lambda seconds: datetime.datetime.fromtimestamp(seconds, UTC)
)


@given(st.sampled_from(ZONES), st.lists(_CLOCKS))
def test_local_times_agree_with_zoneinfo(zone: str, clocks: list[datetime.datetime]) -> None:
    known = zoneinfo.ZoneInfo(zone)
    seconds = [math.floor(clock.timestamp()) for clock in clocks]
    shown = clock_seconds(np.array(seconds, np.int64), zone)
    for instant, own in zip(seconds, shown.tolist(), strict=True):
        there = datetime.datetime.fromtimestamp(instant, known).replace(tzinfo=UTC)
        assert own == there.timestamp()
    # Python's fold=0 is the first of a repeated time, and reads a skipped one by the old offset.
    back = instant_seconds(np.array(seconds, np.int64), zone)
    for clock, own in zip(clocks, back.tolist(), strict=True):
        assert own == math.floor(clock.replace(tzinfo=known).timestamp())


def test_a_day_without_midnight_begins_with_the_transition() -> None:
    midnight = np.array([datetime.datetime(2017, 10, 15, tzinfo=UTC).timestamp()], np.int64)
    (start,) = midnight_seconds(midnight, "America/Sao_Paulo").tolist()
    assert datetime.datetime.fromtimestamp(start, UTC).hour == 3
    (start,) = midnight_seconds(midnight, "+05:30").tolist()
    assert start == midnight[0] - 19_800


_OFFSETS = {
    text: datetime.timezone(datetime.timedelta(minutes=minutes))
    for text, minutes in {"Z": 0, "+02:00": 120, "-17:59": -1079, "+18:00": 1080}.items()
} | {" Europe/Berlin": zoneinfo.ZoneInfo("Europe/Berlin"), "": UTC}
_MOMENTS = st.tuples(
    st.datetimes(*(datetime.datetime(year, 1, 1) for year in (2, 9998))),  # noqa: DTZ001 - clocks
    st.sampled_from(["", ".5", ".123456", ".1234567"]),
)


@pytest.mark.long
@given(
    st.lists(st.tuples(_MOMENTS, st.sampled_from(sorted(_OFFSETS)))),
    st.lists(st.tuples(_MOMENTS, st.just("Z"))),
    st.sampled_from([None, "2020-02-30 00:00:00Z", "2020-01-01 00:00Z", "none"]),
)
def test_times_with_offsets_are_instants(
    mixed: list[Any], alike: list[Any], other: str | None
) -> None:
    for chosen, odd in ((mixed, other), (alike, other), (alike, None)):
        texts: list[str | None] = [odd]
        wanted: list[datetime.datetime | None] = [None]
        for (clock, fraction), offset in chosen:
            whole = clock.replace(microsecond=0)
            texts.append(f"{whole}{fraction}{offset}")
            micros = int(fraction[1:7].ljust(6, "0"))
            wanted.append(whole.replace(microsecond=micros, tzinfo=_OFFSETS[offset]))
        batch = Batch.from_arrow(pa.table({"s": pa.array(texts, pa.string())}))
        found = col("s").cast("timestamp").evaluate(batch).to_pylist()
        assert found == [None if one is None else one.astimezone(UTC) for one in wanted]


def test_zones_are_looked_up_once_per_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(clocks: Any, zone: str) -> Any:
        asked.append((len(clocks), zone))
        return instant_seconds(clocks, zone)

    monkeypatch.setattr(time_texts, "instant_seconds", noted)
    texts = ["2020-07-01 12:00:00 Europe/Berlin", "2020-07-01 10:00:00Z"] * 50
    batch = Batch.from_pydict({"s": texts})
    found = col("s").cast("timestamp").evaluate(batch).to_pylist()
    assert set(found) == {datetime.datetime(2020, 7, 1, 10, tzinfo=UTC)}
    assert sorted(asked) == [(50, "Europe/Berlin"), (50, "UTC")]


def test_an_unknown_zone_is_named() -> None:
    with pytest.raises(ExpressionError, match="there is no time zone 'Europe/Atlantis'"):
        clock_seconds(np.array([0]), "Europe/Atlantis")


@pytest.mark.parametrize(
    ("step", "later"),
    [
        (datetime.timedelta(days=1), "2020-10-25T12:00"),  # the same local time
        (datetime.timedelta(hours=24), "2020-10-25T12:00"),
        (datetime.timedelta(hours=23), "2020-10-25T10:00"),
    ],
)
def test_a_day_later_is_the_same_local_time(step: datetime.timedelta, later: str) -> None:
    batch = _zoned("2020-10-24T11:00", "Europe/Berlin")
    (found,) = (col("t") + step).evaluate(batch).to_pylist()
    assert found == datetime.datetime.fromisoformat(later).replace(tzinfo=UTC)
    assert (col("t") + step - step == col("t")).evaluate(batch).to_pylist() == [True]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+05:30"])
def test_times_and_differences_beyond_64_bits_are_null(zone: str | None) -> None:
    ends = [2**63 - 10**18, 10**18 - 2**63]  # of the years 2230 and 1709
    table = {
        "t": pa.array(ends).cast(pa.timestamp("ns", zone)),
        "n": pa.array([2, 2**64 - 1], "u8"),
    }
    table["u"] = pa.array(ends[::-1]).cast(pa.timestamp("ns", zone))
    table["d"] = pa.array([7, 7], pa.duration("ns"))
    batch = Batch.from_arrow(pa.table(table))
    century = datetime.timedelta(days=36_500)

    def nulls(expression: Expression) -> list[bool]:
        return column_to_arrow(expression.evaluate(batch)).is_null().to_pylist()

    assert nulls(col("t") + century) == [True, False]
    assert nulls(col("t") - century) == [False, True]
    assert nulls(col("t") - col("u")) == [True, True]
    assert (col("t") - col("t") == datetime.timedelta()).evaluate(batch).to_pylist() == [True, True]
    times_seven = column_to_arrow((col("d") * col("n")).evaluate(batch)).cast(pa.int64())
    assert times_seven.to_pylist() == [14, -7]  # which wraps, as whole numbers do


# ---- literals that Spark reads, or does not --------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (F.to_date(lit("2020-02-30"), "yyyy-MM-dd"), None),
        (F.to_date(lit("2020-02-29"), "yyyy-MM-dd"), datetime.date(2020, 2, 29)),
        (F.to_date(lit("2020-2-9"), "yyyy-MM-dd"), None),
        (F.to_timestamp(lit("2020-01-01 23:59:60"), "yyyy-MM-dd HH:mm:ss"), None),
        (F.unix_timestamp(lit("2020-02-30 00:00:00")), None),
        (F.unix_timestamp(lit("10:30"), "HH:mm"), 37_800),
        (F.to_date(lit("2019-366"), "yyyy-DDD"), None),
        (F.to_date(lit("75-01-01"), "yy-MM-dd"), datetime.date(2075, 1, 1)),
        (F.date_format(lit(datetime.date(2020, 1, 5)), "D/DDD"), "5/005"),
        (F.date_format(lit(datetime.date(987, 1, 5)), "y yyyy yy"), "987 0987 87"),
        (lit("١٢").cast("int"), None),
        (lit("٢٠٢٠-01-01").cast("date"), None),
        (lit(1e300).cast("decimal(10, 2)"), None),
        (lit("1e400").cast("decimal(10, 2)"), None),
        (lit("1e9999999999").cast("decimal(10, 2)"), None),
        (lit("-1e-400").cast("decimal(3, 2)"), decimal.Decimal("0.00")),
        (lit(-(2**63)).cast("timestamp"), -(2**63)),
        (lit(1e300).cast("timestamp"), 2**63 - 1),
        (lit(math.nan).cast("timestamp"), None),
        (F.from_unixtime(lit(2**53)), "+166375-10-30 00:45:30"),
        (lit("10000-01-01").cast("timestamp"), 253_402_300_800_000_000),
        (lit("10000-01-01").cast("timestamp").cast("string"), "+10000-01-01 00:00:00"),
        (F.year(lit("10000-01-01").cast("date")), 10_000),
        (lit("10000-01-01").cast("date").cast("string"), "+10000-01-01"),
        (lit("10:00").cast("timestamp"), None),
        (lit("2020-01-01 10:00:00 America/New_York").cast("timestamp"), 1_577_890_800_000_000),
        (lit(5e-324).cast("string"), "4.9E-324"),
        (lit(np.float32(1e-45)).cast("string"), "1.4E-45"),
        (lit(-0.0).isin(0), True),
        (lit(-0.0).isin(0, None), True),
        (lit(2).isin(decimal.Decimal("2.00")), True),
        (F.round(lit(2**63 - 1), -1), -(2**63) + 2),
        (F.round(lit(-(2**63)), -30), 0),
        (lit(decimal.Decimal("127.99")).cast("double"), 127.99),
        (lit(decimal.Decimal("1")) / lit(decimal.Decimal("3")), decimal.Decimal("0.333333")),
        (F.isnan(lit(1.0) ** lit(math.nan)), True),
        (lit(datetime.date(2020, 1, 1)) + datetime.timedelta(hours=1), 1_577_840_400_000_000),
        (lit(datetime.date(2020, 1, 2)) - datetime.date(2020, 1, 1), datetime.timedelta(days=1)),
        (F.date_from_unix_date(lit(2**31 - 1)) - datetime.date(1970, 1, 1), None),
        (lit("294247-01-10").cast("timestamp") + datetime.timedelta(days=1), None),
        (F.date_trunc("week", lit(-(2**63)).cast("timestamp")), None),
        (F.timestamp_micros(lit(2**63 - 1).cast("uint64")), 2**63 - 1),
        (F.timestamp_micros(lit(-1).cast("uint64")), None),
        (F.split_part(lit("a,b"), lit(","), lit(2)), "b"),
        (F.lpad(lit("a"), lit(3), lit("-")), "--a"),
        (F.substring(lit("whale"), lit(2), lit(3)), "hal"),
        (lit("whale").substr(lit(-3), lit(2)), "al"),
        (lit("whale").like(lit("w%")), True),
    ],
    ids=str,
)
def test_values_at_the_ends_of_ranges(expression: Expression, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy would print them
        assert _value(expression) == value


_SOON = datetime.datetime(2020, 1, 1)  # noqa: DTZ001 - a clock's
_LAST = datetime.datetime(9999, 12, 31)  # noqa: DTZ001 - as above
_TIMES = Batch.from_arrow(
    pa.table(
        {
            "fine": pa.array([_SOON, _SOON, None], "timestamp[ns]"),
            "coarse": pa.array([_SOON, _LAST, _LAST], "timestamp[us]"),
            "first": pa.array([_SOON, datetime.date(1, 1, 1), _LAST], "date32"),
            "zoned": pa.array([_SOON, _SOON, None], pa.timestamp("ns", "Asia/Kolkata")),
            "short": pa.array([1, 1, None], "duration[ns]"),
            "long": pa.array([0, 2**62, -(2**62)], "duration[s]"),
        }
    )
)


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        (col("coarse") > col("fine"), [False, True, None]),
        (col("coarse") == col("fine"), [True, False, None]),
        (col("coarse").eq_null_safe(col("fine")), [True, False, False]),
        (col("first") < col("fine"), [False, True, None]),
        (col("first") < col("zoned"), [True, True, None]),
        (col("long") >= col("short"), [False, True, None]),
        (col("fine") < _LAST, [True, True, None]),
        (col("fine") < _LAST.date(), [True, True, None]),
        (col("fine") < "9999-12-31", [True, True, None]),
        (col("zoned") <= "9999-12-31", [True, True, None]),
        (col("fine").isin(_SOON, _LAST), [True, True, None]),
    ],
    ids=str,
)
def test_times_are_compared_with_those_that_nanoseconds_cannot_hold(
    condition: Expression, values: list[bool | None]
) -> None:
    assert condition.evaluate(_TIMES).to_pylist() == values
    loop = CompiledChain([MapExpressions({"x": condition}, keep=False)], "compiled")
    passed = loop.pass_through(_TIMES)
    assert passed is None or (passed.rows and passed.rows.column("x").to_pylist() == values)


_LATE, _EARLY = datetime.time(23), datetime.time(1)
_DAYTIMES = Batch.from_arrow(
    pa.table(
        {
            "us": pa.array([_LATE, _EARLY, None], "time64[us]"),
            "s": pa.array([_LATE, _EARLY, _EARLY], "time32[s]"),
            "by": pa.array([3600, 2, None], "duration[s]"),
            "far": pa.array([2**62, -(2**63), 2**63 - 1], "duration[s]"),
            "fine": pa.array([-(2**63), 1000, 5], "duration[ns]"),
        }
    )
)


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        (col("us") + datetime.timedelta(hours=2), [None, datetime.time(3), None]),
        (datetime.timedelta(hours=2) + col("us"), [None, datetime.time(3), None]),
        (col("us") - datetime.timedelta(hours=2), [datetime.time(21), None, None]),
        (col("by") + col("s"), [None, datetime.time(1, 0, 2), None]),
        (col("s") - col("by"), [datetime.time(22), datetime.time(0, 59, 58), None]),
        (col("s") + col("far"), [None, None, None]),
        (col("us") - col("far"), [None, None, None]),
        (col("s") + col("fine"), [None, 3_600 * 10**9 + 1_000, 3_600 * 10**9 + 5]),
        (col("us") + lit(None), [None, None, None]),
        (lit(_LATE) + datetime.timedelta(minutes=59), [datetime.time(23, 59)] * 3),
        (lit(_LATE) + datetime.timedelta(hours=1), [None] * 3),
    ],
    ids=str,
)
def test_a_time_of_day_stays_in_its_day(expression: Expression, values: list[Any]) -> None:
    found = expression.evaluate(_DAYTIMES)
    if pa.types.is_time64(column_to_arrow(found).type) and isinstance(values[-1], int):
        assert pc.cast(column_to_arrow(found), pa.int64()).to_pylist() == values
    else:
        assert found.to_pylist() == values


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        (F.coalesce("coarse", "fine"), [_SOON, _SOON, None]),
        (when(col("fine").is_null(), col("coarse")).otherwise(lit(None)), [None, None, _LAST]),
        (F.coalesce(lit(None), "long").is_null(), [False] * 3),
        ((col("long") + col("short")).is_null(), [False, True, True]),
        (col("long") - datetime.timedelta(1), [datetime.timedelta(-1), None, None]),
        (col("fine") == lit(None), [None] * 3),
        (col("first").cast("date64") == col("first"), [True] * 3),
        (col("coarse") - col("fine"), [datetime.timedelta(0), None, None]),
        (lit(datetime.time(1, 2, 3, 4)).cast("time32[s]"), [datetime.time(1, 2, 3)] * 3),
        (
            F.coalesce(col("d"), lit(decimal.Decimal("0.5"))),
            [decimal.Decimal(1), decimal.Decimal("0.5"), decimal.Decimal("0.5")],
        ),
        (col("d") > lit(decimal.Decimal("0.5")), [True, None, None]),
    ],
    ids=str,
)
def test_what_does_not_fit_into_the_common_type_is_null(
    expression: Expression, values: list[Any]
) -> None:
    numbers = [decimal.Decimal(1), decimal.Decimal("9" * 38), None]
    batch = _TIMES.with_column("d", numbers, "decimal128(38, 0)")
    assert expression.evaluate(batch).to_pylist() == values


def test_numpy_warns_for_no_number() -> None:
    numbers = [math.inf, -math.inf, math.nan, 1e308, -1e308, 5e-324, -0.0, 2.0**63]
    half = np.array([math.inf, -math.inf, math.nan, 6e4, -6e4, 6e-8, -0.0, 1.0], np.float16)
    batch = Batch.from_pydict({"d": numbers, "f": half})
    expressions = [col("d") % 3, col("d") * 1e300, F.round("d", 300), F.exp("d"), F.sqrt("d")]
    expressions += [col("d").cast(kind) for kind in ("int", "byte", "timestamp", "float")]
    expressions += [F.timestamp_seconds("f"), F.round("f", -3), col("f") / 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for expression in expressions:
            expression.evaluate(batch)


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamp_ntz"])
@pytest.mark.parametrize("text", ["10000-01-01", "0000-12-30"])
def test_years_beyond_pythons_range_are_read_and_written(kind: str, text: str) -> None:
    column = lit(text).cast(kind).evaluate(_ONE)
    with pytest.raises(InputError, match=r"whose years are 1 to 9999: cast it to 'string'"):
        column.to_pylist()
    (shown,) = lit(text).cast(kind).cast("string").evaluate(_ONE).to_pylist()
    assert shown.startswith(text if text.startswith("0") else f"+{text}")


def test_times_of_day_with_nanoseconds_are_no_values_of_python() -> None:
    column = Column.of(pa.array([None, 61_000_001_000, 61_000_001_001], "time64[ns]"))
    assert column.slice(0, 2).to_pylist() == [None, datetime.time(0, 1, 1, 1)]
    with pytest.raises(InputError, match=r"time64\[ns\] 00:01:01.000001001 is no value of Python"):
        column.to_pylist()


def test_parameters_of_functions_must_be_constants() -> None:
    with pytest.raises(ExpressionError, match="plain text or a literal, not the column b"):
        F.split_part("a", col("b"), 1)
    with pytest.raises(ExpressionError, match="expected a plain integer, not 'x'"):
        F.split_part("a", ",", lit("x"))


_DECIMALS = st.tuples(st.integers(10, 18), st.integers(0, 10))


@given(_DECIMALS, _DECIMALS, st.data())
def test_quotients_and_remainders_of_decimals_are_exact(
    left: tuple[int, int], right: tuple[int, int], data: st.DataObject
) -> None:
    """Compare with fractions, rounded half up to the scale of the result."""

    def some(kind: tuple[int, int]) -> list[fractions.Fraction]:
        digits = st.integers(-(10 ** kind[0]) + 1, 10 ** kind[0] - 1)
        drawn = data.draw(st.lists(digits, min_size=4, max_size=4))
        return [fractions.Fraction(number, 10 ** kind[1]) for number in drawn]

    columns = {"a": (some(left), left), "b": (some(right), right)}
    arrays = {
        name: pa.array(
            [decimal.Decimal(int(number * 10**scale)).scaleb(-scale) for number in numbers],
            pa.decimal128(digits, scale),
        )
        for name, (numbers, (digits, scale)) in columns.items()
    }
    batch = Batch.from_arrow(pa.table(arrays))
    quotients = column_to_arrow((col("a") / col("b")).evaluate(batch))
    rests = (col("a") % col("b")).evaluate(batch).to_pylist()
    unit = 10**quotients.type.scale
    for a, b, quotient, rest in zip(
        columns["a"][0], columns["b"][0], quotients.to_pylist(), rests, strict=True
    ):
        if b == 0:
            assert quotient is None
            assert rest is None
            continue
        size = math.floor(abs(a / b) * unit + fractions.Fraction(1, 2))
        wanted = fractions.Fraction(size if a / b > 0 else -size, unit)
        assert quotient is None or fractions.Fraction(quotient) == wanted
        assert (quotient is None) == (size >= 10**quotients.type.precision)
        assert fractions.Fraction(rest) == a - b * math.trunc(a / b)


def test_durations_cannot_be_added_to_text() -> None:
    with pytest.raises(ExpressionError, match="cannot add string and duration.us.: cast the text"):
        (lit("2020-01-01") + datetime.timedelta(days=1)).evaluate(_ONE)


# ---- patterns and days -----------------------------------------------------------------------


@given(st.datetimes(datetime.datetime(1000, 1, 1)))  # noqa: DTZ001 - a clock's
def test_a_pattern_reads_what_it_writes(clock: datetime.datetime) -> None:
    day = clock.toordinal() - datetime.date(1970, 1, 1).toordinal()
    midnight = clock.replace(hour=0, minute=0, second=0, microsecond=0)
    nanos = (clock - midnight) // datetime.timedelta(microseconds=1) * 1000
    assert civil_day(day) == (clock.year, clock.month, clock.day)
    assert day_number(clock.year, clock.month, clock.day) == day
    for text, format in (
        ("yyyy-MM-dd'T'HH:mm:ss.SSSSSS", "%Y-%m-%dT%H:%M:%S.%f"),
        ("MMM dd yyyy, hh:mm:ss.SSSSSS a", "%b %d %Y, %I:%M:%S.%f %p"),
        ("yyyyDDDHHmmssSSSSSS", "%Y%j%H%M%S%f"),
    ):
        pattern = pickle.loads(pickle.dumps(JavaPattern.parse(text, reading=True)))
        assert pattern.write(day, nanos) == clock.strftime(format)
        assert pattern.read(clock.strftime(format)) == (day, nanos)


@given(
    st.lists(st.none() | st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9-]{10}", fullmatch=True))
)
def test_parsing_at_once_equals_parsing_one_by_one(texts: list[str | None]) -> None:
    batch = Batch.from_arrow(pa.table({"s": pa.array(texts, pa.string())}))
    pattern = JavaPattern.parse("yyyy-MM-dd", reading=True)
    one_by_one = [None if text is None else pattern.read(text) for text in texts]
    found = F.unix_timestamp("s", "yyyy-MM-dd").evaluate(batch).to_pylist()
    assert found == [None if read is None else read[0] * 86_400 for read in one_by_one]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("yyyy 'o", "the date pattern \"yyyy 'o\" has a quote without an end: write '' for one"),
        ("E yyyy", "the date pattern 'E yyyy' holds 'E', which is only for writing"),
    ],
)
def test_patterns_that_cannot_parse_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        F.to_date("a", pattern)
    assert str(caught.value) == message
