"""Emitters of `kernels.times`, for dates and for timestamps whose clock is UTC's or without a zone.

The calendar is that of `kernels.calendar`, with the same steps: days to months since 1970, and
back. Ticks near the ends of 64 bits wrap, which is told by comparing: they are added as unsigned.
"""

from __future__ import annotations

import pyarrow as pa

from ..kernels.timestamp_casts import INSTANT, PER_SECOND, SECONDS_PER_DAY
from ..kernels.type_rules import ArrowType, is_date
from .code import Code, LoopWriter, NotCompilable, both

__all__ = [
    "date_add",
    "date_from_unix_date",
    "date_sub",
    "date_trunc",
    "datediff",
    "dayofmonth",
    "dayofweek",
    "dayofyear",
    "hour",
    "last_day",
    "minute",
    "month",
    "quarter",
    "second",
    "timestamp_micros",
    "timestamp_millis",
    "trunc",
    "unix_date",
    "unix_micros",
    "unix_millis",
    "unix_seconds",
    "weekofyear",
    "year",
]

_MONTHS_OF_UNIT = {"year": 12, "quarter": 3, "month": 1}
_PARTS_OF_SECOND = {"second": 1, "millisecond": 10**3, "microsecond": 10**6}
_UNIT_SECONDS = {"minute": 60, "hour": 3600, "day": SECONDS_PER_DAY}


def year(loop: LoopWriter, value: Code) -> Code:
    """Return the year."""
    return _of_months(loop, value, "// 12 + 1970")


def quarter(loop: LoopWriter, value: Code) -> Code:
    """Return the quarter."""
    return _of_months(loop, value, "// 3 % 4 + 1")


def month(loop: LoopWriter, value: Code) -> Code:
    """Return the month."""
    return _of_months(loop, value, "% 12 + 1")


def dayofmonth(loop: LoopWriter, value: Code) -> Code:
    """Return the day of the month."""
    return _day_of(loop, value, "month")


def dayofyear(loop: LoopWriter, value: Code) -> Code:
    """Return the day of the year."""
    return _day_of(loop, value, "year")


def dayofweek(loop: LoopWriter, value: Code) -> Code:
    """Return the day of the week, 1 = Sunday."""
    return _part(loop, value, f"({_days(loop, value)} + 4) % 7 + 1")


def weekofyear(loop: LoopWriter, value: Code) -> Code:
    """Return the ISO week: that of its Thursday."""
    monday = _first_day(loop, _days(loop, value), "week")
    thursday = loop.let(f"{monday} + 3")
    return _part(loop, value, f"({thursday} - {_first_day(loop, thursday, 'year')}) // 7 + 1")


def hour(loop: LoopWriter, value: Code) -> Code:
    """Return the hour."""
    return _clock_part(loop, value, 3600, 24)


def minute(loop: LoopWriter, value: Code) -> Code:
    """Return the minute."""
    return _clock_part(loop, value, 60, 60)


def second(loop: LoopWriter, value: Code) -> Code:
    """Return the second."""
    return _clock_part(loop, value, 1, 60)


def date_trunc(loop: LoopWriter, value: Code, unit: str) -> Code:
    """Return the beginning of a unit; null if it is before the first time there is."""
    if unit in _PARTS_OF_SECOND:  # every offset from UTC is a whole number of them
        _timestamp(value)
        step = max(PER_SECOND[value.kind.unit] // _PARTS_OF_SECOND[unit], 1)
        start = _earlier(loop, value.value, f"{value.value} % {step}")
    elif unit in _UNIT_SECONDS:
        step = _clock(value) * _UNIT_SECONDS[unit]
        start = _earlier(loop, value.value, f"{value.value} % {step}")
    else:
        step = _clock(value) * SECONDS_PER_DAY
        first = _first_day(loop, _days(loop, value), unit)
        start = loop.let(f"np.int64(np.uint64({first}) * np.uint64({step}))")
    fits = loop.let(f"{start} <= {value.value}")
    return loop.typed(value.kind, start, both(value.valid, fits))


def trunc(loop: LoopWriter, value: Code, unit: str) -> Code:
    """Return the first day of a unit."""
    days, valid = _date(loop, value)
    return _as_date(loop, _first_day(loop, days, unit), valid)


def last_day(loop: LoopWriter, value: Code) -> Code:
    """Return the last day of the month."""
    days, valid = _date(loop, value)
    first_of_next = f"{loop.helper('days_of_months')}({_months(loop, days)} + 1)"
    return _as_date(loop, loop.let(f"{first_of_next} - 1"), valid)


def date_add(loop: LoopWriter, value: Code, days: Code) -> Code:
    """Return a later day; beyond 32 bits the low ones stay."""
    return _shifted(loop, value, "+", days)


def date_sub(loop: LoopWriter, value: Code, days: Code) -> Code:
    """Return an earlier day; beyond 32 bits the low ones stay."""
    return _shifted(loop, value, "-", days)


def datediff(loop: LoopWriter, end: Code, start: Code) -> Code:
    """Return the number of days from start to end; beyond 32 bits the low ones stay."""
    (last, last_valid), (first, first_valid) = _date(loop, end), _date(loop, start)
    return loop.typed(pa.int32(), f"{last} - {first}", both(last_valid, first_valid))


def unix_date(loop: LoopWriter, value: Code) -> Code:
    """Return days since 1970."""
    days, valid = _date(loop, value)
    return loop.typed(pa.int32(), days, valid)


def date_from_unix_date(loop: LoopWriter, value: Code) -> Code:
    """Read days since 1970."""
    return loop.typed(pa.date32(), _whole(value).value, value.valid)


def unix_seconds(loop: LoopWriter, value: Code) -> Code:
    """Return seconds since 1970."""
    return _in_unit(loop, _timestamp(value), value.kind.unit, "s", pa.int64())


def unix_millis(loop: LoopWriter, value: Code) -> Code:
    """Return milliseconds since 1970."""
    return _in_unit(loop, _timestamp(value), value.kind.unit, "ms", pa.int64())


def unix_micros(loop: LoopWriter, value: Code) -> Code:
    """Return microseconds since 1970."""
    return _in_unit(loop, _timestamp(value), value.kind.unit, "us", pa.int64())


def timestamp_millis(loop: LoopWriter, value: Code) -> Code:
    """Read milliseconds since 1970."""
    return _in_unit(loop, _signed(value), "ms", "us", INSTANT)


def timestamp_micros(loop: LoopWriter, value: Code) -> Code:
    """Read microseconds since 1970."""
    return _in_unit(loop, _signed(value), "us", "us", INSTANT)


def _timestamp(value: Code) -> Code:
    """Return a timestamp of any zone."""
    if not pa.types.is_timestamp(value.kind):
        msg = f"a part of {value.kind}"
        raise NotCompilable(msg)
    return value


def _clock(value: Code) -> int:
    """Return the ticks of a timestamp's second; raise NotCompilable if its clock is not UTC's."""
    if _timestamp(value).kind.tz not in (None, "UTC"):
        msg = f"the time zone {value.kind.tz}"
        raise NotCompilable(msg)
    return PER_SECOND[value.kind.unit]


def _whole(value: Code) -> Code:
    if not pa.types.is_integer(value.kind):
        msg = f"days of type {value.kind}"
        raise NotCompilable(msg)
    return value


def _signed(value: Code) -> Code:
    if not pa.types.is_integer(value.kind) or pa.types.is_uint64(value.kind):
        msg = f"a time of type {value.kind}"
        raise NotCompilable(msg)
    return value


def _days(loop: LoopWriter, value: Code) -> str:
    """Return the day since 1970 that a clock shows, in 64 bits."""
    if is_date(value.kind) and pa.types.is_date32(value.kind):
        return loop.let(f"np.int64({value.value})")
    return loop.let(f"{value.value} // {_clock(value) * SECONDS_PER_DAY}")


def _date(loop: LoopWriter, value: Code) -> tuple[str, str | None]:
    """Return the date of a value as days in 64 bits, and where it is valid and fits a date."""
    days = _days(loop, value)
    if pa.types.is_date32(value.kind):
        return days, value.valid
    return days, both(value.valid, _fits(loop, days))


def _as_date(loop: LoopWriter, days: str, valid: str | None) -> Code:
    return loop.typed(pa.date32(), days, both(valid, _fits(loop, days)))


def _fits(loop: LoopWriter, days: str) -> str:
    return loop.let(f"{days} == np.int64(np.int32({days}))")


def _months(loop: LoopWriter, days: str) -> str:
    """Return the whole months since 1970-01."""
    return loop.let(f"{loop.helper('months_of_days')}({days})")


def _first_day(loop: LoopWriter, days: str, unit: str) -> str:
    """Return the first day of each day's year, quarter, month or week."""
    if unit == "week":
        return loop.let(f"{days} - ({days} + 3) % 7")
    months, step = _months(loop, days), _MONTHS_OF_UNIT[unit]
    first = months if step == 1 else f"{months} - {months} % {step}"
    return loop.let(f"{loop.helper('days_of_months')}({first})")


def _part(loop: LoopWriter, value: Code, text: str) -> Code:
    return loop.typed(pa.int32(), text, value.valid)


def _of_months(loop: LoopWriter, value: Code, computed: str) -> Code:
    """Return what the text `computed` makes of the whole months since 1970-01."""
    return _part(loop, value, f"{_months(loop, _days(loop, value))} {computed}")


def _day_of(loop: LoopWriter, value: Code, unit: str) -> Code:
    """Return the day of a year or month, 1 = its first."""
    days = _days(loop, value)
    return _part(loop, value, f"{days} - {_first_day(loop, days, unit)} + 1")


def _clock_part(loop: LoopWriter, value: Code, unit_s: int, parts: int) -> Code:
    return _part(loop, value, f"{value.value} // {_clock(value) * unit_s} % {parts}")


def _earlier(loop: LoopWriter, ticks: str, by: str) -> str:
    return loop.let(f"np.int64(np.uint64({ticks}) - np.uint64({by}))")


def _shifted(loop: LoopWriter, value: Code, symbol: str, by: Code) -> Code:
    days, valid = _date(loop, value)
    text = f"np.uint64({days}) {symbol} np.uint64(np.int64({_whole(by).value}))"
    return loop.typed(pa.date32(), text, both(valid, by.valid))


def _in_unit(loop: LoopWriter, value: Code, have: str, want: str, kind: ArrowType) -> Code:
    """Return ticks in another unit: rounded down, null beyond 64 bits; see `in_unit`."""
    factor = PER_SECOND[want] // PER_SECOND[have]
    ticks = loop.let(f"np.int64({value.value})")
    if factor == 0:
        return loop.typed(kind, f"{ticks} // {PER_SECOND[have] // PER_SECOND[want]}", value.valid)
    if factor == 1:
        return loop.typed(kind, ticks, value.valid)
    limit = (2**63 - 1) // factor
    fits = loop.let(f"({ticks} >= -{limit}) & ({ticks} <= {limit})")
    safe = loop.let(f"{ticks} if {fits} else np.int64(0)")
    return loop.typed(kind, f"{safe} * {factor}", both(value.valid, fits))
