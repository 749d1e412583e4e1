"""Kernels on dates and times; `functions` documents what each returns.

Years, hours and so on are those of local time in the timestamp's zone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....configs.errors import ExpressionError
from ..java_patterns import JavaPattern
from . import calendar
from .arrays import Value, from_numpy, to_numpy
from .casts import cast_to
from .time_texts import parsed, written
from .timestamp_casts import (
    INSTANT,
    PER_SECOND,
    SECONDS_PER_DAY,
    clock_ticks,
    days_of,
    days_to_dates,
    from_clock,
    in_unit,
)
from .type_rules import is_date, is_text

#: Units of which every offset from UTC is a multiple, so that zones do not matter; nanoseconds.
_ZONELESS_NS = {"second": 10**9, "millisecond": 10**6, "microsecond": 10**3}
_OF_CLOCK_S = {"minute": 60, "hour": 3600, "day": SECONDS_PER_DAY}


def year(value: Value) -> Value:
    """Return the year."""
    return _part("year", value, calendar.year)


def quarter(value: Value) -> Value:
    """Return the quarter."""
    return _part("quarter", value, calendar.quarter)


def month(value: Value) -> Value:
    """Return the month."""
    return _part("month", value, calendar.month)


def weekofyear(value: Value) -> Value:
    """Return the ISO week."""
    return _part("weekofyear", value, calendar.iso_week)


def dayofyear(value: Value) -> Value:
    """Return the day of the year."""
    return _part("dayofyear", value, calendar.day_of_year)


def dayofmonth(value: Value) -> Value:
    """Return the day of the month."""
    return _part("dayofmonth", value, calendar.day_of_month)


def dayofweek(value: Value) -> Value:
    """Return the day of the week, 1 = Sunday."""
    return _part("dayofweek", value, calendar.day_of_week)


def hour(value: Value) -> Value:
    """Return the hour."""
    return _clock_part("hour", value, pc.hour, 3600)


def minute(value: Value) -> Value:
    """Return the minute."""
    return _clock_part("minute", value, pc.minute, 60)


def second(value: Value) -> Value:
    """Return the second."""
    return _clock_part("second", value, pc.second, 1)


def date_trunc(value: Value, unit: str) -> Value:
    """Return the beginning of a unit."""
    if is_date(value.type) or is_text(value.type):
        value = cast_to(value, INSTANT)
    if not pa.types.is_timestamp(value.type):
        msg = f"date_trunc takes a timestamp, not {value.type}: cast it to 'timestamp'"
        raise ExpressionError(msg)
    per_second = PER_SECOND[value.type.unit]
    if unit in _ZONELESS_NS:
        step = max(_ZONELESS_NS[unit] * per_second // 10**9, 1)
        ticks, valid = to_numpy(pc.cast(value, pa.int64()), len(value))
        start = ticks - ticks % step
        return pc.cast(from_numpy(start, _where_fitting(start, ticks, valid)), value.type)
    ticks, valid = clock_ticks(value)
    if unit in _OF_CLOCK_S:
        start = ticks - ticks % (_OF_CLOCK_S[unit] * per_second)
        return from_clock(start, _where_fitting(start, ticks, valid), value.type, like=value)
    start = calendar.first_day(days_of(value)[0], unit) * (SECONDS_PER_DAY * per_second)
    return from_clock(start, _where_fitting(start, ticks, valid), value.type, midnight=True)


def _where_fitting(
    start: npt.NDArray[np.int64], ticks: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.bool_] | None:
    """Return where a truncated time fits into 64 bits; if it does not, it wraps to a later one."""
    fits = start <= ticks
    if fits.all():
        return valid
    return fits if valid is None else fits & valid


def trunc(value: Value, unit: str) -> Value:
    """Return the first day of a unit."""
    days, valid = days_of(_days("trunc", value))
    return days_to_dates(calendar.first_day(days, unit), valid)


def last_day(value: Value) -> Value:
    """Return the last day of the month."""
    days, valid = days_of(_days("last_day", value))
    return days_to_dates(calendar.last_of_month(days), valid)


def date_add(value: Value, days: Value) -> Value:
    """Return a later day."""
    return _shifted(_days("date_add", value), _whole("date_add", days))


def date_sub(value: Value, days: Value) -> Value:
    """Return an earlier day."""
    return _shifted(_days("date_sub", value), pc.negate(_whole("date_sub", days)))


def datediff(end: Value, start: Value) -> Value:
    """Return the number of days from start to end."""
    last = pc.cast(_days("datediff", end), pa.int32())
    return pc.subtract(last, pc.cast(_days("datediff", start), pa.int32()))


def to_timestamp(value: Value, pattern: JavaPattern) -> Value:
    """Parse timestamps by a pattern."""
    return cast_to(parsed(value, pattern) if is_text(value.type) else value, INSTANT)


def to_date(value: Value, pattern: JavaPattern) -> Value:
    """Parse dates by a pattern."""
    return cast_to(parsed(value, pattern) if is_text(value.type) else value, pa.date32())


def date_format(value: Value, pattern: JavaPattern) -> Value:
    """Format by a pattern."""
    if is_text(value.type) or is_date(value.type):
        value = cast_to(value, INSTANT)
    if not pa.types.is_timestamp(value.type):
        msg = f"date_format takes a date or timestamp, not {value.type}: cast it to 'timestamp'"
        raise ExpressionError(msg)
    return written(value, pattern)


def from_unixtime(value: Value, pattern: JavaPattern) -> Value:
    """Format seconds since 1970 by a pattern; beyond 64 bits of microseconds they wrap."""
    seconds = cast_to(value, pa.int64())
    return written(pc.cast(pc.multiply(seconds, 1_000_000), INSTANT), pattern)


def unix_timestamp(value: Value, pattern: JavaPattern) -> Value:
    """Return seconds since 1970."""
    if is_text(value.type):
        value = parsed(value, pattern)
    elif is_date(value.type):
        value = cast_to(value, INSTANT)
    # Rounded towards zero, as Spark does here but nowhere else.
    return pc.divide(_since_1970("unix_timestamp", value, "us"), 1_000_000)


def unix_seconds(value: Value) -> Value:
    """Return seconds since 1970."""
    return _since_1970("unix_seconds", value, "s")


def unix_millis(value: Value) -> Value:
    """Return milliseconds since 1970."""
    return _since_1970("unix_millis", value, "ms")


def unix_micros(value: Value) -> Value:
    """Return microseconds since 1970."""
    return _since_1970("unix_micros", value, "us")


def unix_date(value: Value) -> Value:
    """Return days since 1970."""
    return pc.cast(_days("unix_date", value), pa.int32())


def timestamp_seconds(value: Value) -> Value:
    """Read seconds since 1970, with their fraction."""
    return cast_to(value, INSTANT)


def timestamp_millis(value: Value) -> Value:
    """Read milliseconds since 1970."""
    return _instant("timestamp_millis", value, "ms")


def timestamp_micros(value: Value) -> Value:
    """Read microseconds since 1970."""
    return _instant("timestamp_micros", value, "us")


def date_from_unix_date(value: Value) -> Value:
    """Read days since 1970."""
    return pc.cast(_whole("date_from_unix_date", value), pa.date32())


def _part(
    name: str, value: Value, of: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
) -> Value:
    """Return a part of the date as int32; text is parsed first, as in Spark."""
    if is_text(value.type):
        value = cast_to(value, pa.date32())
    if not is_date(value.type) and not pa.types.is_timestamp(value.type):
        msg = f"{name} takes a date or timestamp, not {value.type}: cast it to 'timestamp'"
        raise ExpressionError(msg)
    days, valid = days_of(value)
    return from_numpy(of(days).astype(np.int32), valid)


def _clock_part(name: str, value: Value, of: Callable[[Value], Value], unit_s: int) -> Value:
    """Return a part of the time of day as int32."""
    if pa.types.is_time(value.type):
        return pc.cast(of(value), pa.int32())
    if is_text(value.type) or is_date(value.type):
        value = cast_to(value, INSTANT)
    if not pa.types.is_timestamp(value.type):
        msg = f"{name} takes a timestamp, not {value.type}: cast it to 'timestamp'"
        raise ExpressionError(msg)
    ticks, valid = clock_ticks(value)
    counted = ticks // (PER_SECOND[value.type.unit] * unit_s)
    return from_numpy((counted % (24 if unit_s == 3600 else 60)).astype(np.int32), valid)


def _days(name: str, value: Value) -> Value:
    """Return values as dates."""
    if isinstance(value, pa.Scalar):
        return _days(name, pa.repeat(value, 1))[0]
    if not (is_date(value.type) or pa.types.is_timestamp(value.type) or is_text(value.type)):
        msg = f"{name} takes a date, not {value.type}: cast it to 'date'"
        raise ExpressionError(msg)
    return cast_to(value, pa.date32())


def _whole(name: str, value: Value) -> Value:
    if not pa.types.is_integer(value.type):
        msg = f"{name} takes whole days, not {value.type}: cast it to 'int'"
        raise ExpressionError(msg)
    return pc.cast(value, pa.int32(), safe=False)  # as in Java, an overflow keeps the low bits


def _shifted(days: Value, by: Value) -> Value:
    return pc.cast(pc.add(pc.cast(days, pa.int32()), by), pa.date32())


def _since_1970(name: str, value: Value, unit: str) -> Value:
    if not pa.types.is_timestamp(value.type):
        msg = f"{name} takes a timestamp, not {value.type}: cast it to 'timestamp'"
        raise ExpressionError(msg)
    return pc.cast(in_unit(value, unit), pa.int64())


def _instant(name: str, value: Value, unit: str) -> Value:
    if not pa.types.is_integer(value.type):
        msg = f"{name} takes an integer, not {value.type}: cast it to 'long'"
        raise ExpressionError(msg)
    numbers = pc.cast(value, pa.int64(), safe=False)
    if pa.types.is_uint64(value.type):  # half of them are no ticks
        numbers = pc.if_else(pc.less(numbers, 0), pa.scalar(None, pa.int64()), numbers)
    return in_unit(pc.cast(numbers, pa.timestamp(unit, "UTC")), "us")
