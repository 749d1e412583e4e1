"""Kernels on dates and times; `functions` documents what each returns.

Years, hours and so on are those on the clock of the timestamp's own zone.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from ...configs.errors import ExpressionError
from ..java_patterns import FRACTION
from .casts import cast_to
from .coercion import Value, each, is_date, is_text
from .timestamp_casts import in_unit

_INSTANT = pa.timestamp("us", "UTC")


def year(value: Value) -> Value:
    """Return the year."""
    return _part("year", value, pc.year)


def quarter(value: Value) -> Value:
    """Return the quarter."""
    return _part("quarter", value, pc.quarter)


def month(value: Value) -> Value:
    """Return the month."""
    return _part("month", value, pc.month)


def weekofyear(value: Value) -> Value:
    """Return the ISO week."""
    return _part("weekofyear", value, pc.iso_week)


def dayofyear(value: Value) -> Value:
    """Return the day of the year."""
    return _part("dayofyear", value, pc.day_of_year)


def dayofmonth(value: Value) -> Value:
    """Return the day of the month."""
    return _part("dayofmonth", value, pc.day)


def dayofweek(value: Value) -> Value:
    """Return the day of the week, 1 = Sunday."""
    return _part(
        "dayofweek", value, lambda days: pc.day_of_week(days, count_from_zero=False, week_start=7)
    )


def hour(value: Value) -> Value:
    """Return the hour."""
    return _clock_part("hour", value, pc.hour)


def minute(value: Value) -> Value:
    """Return the minute."""
    return _clock_part("minute", value, pc.minute)


def second(value: Value) -> Value:
    """Return the second."""
    return _clock_part("second", value, pc.second)


def date_trunc(value: Value, unit: str) -> Value:
    """Return the beginning of a unit."""
    if is_date(value.type):
        value = cast_to(value, _INSTANT)
    if not pa.types.is_timestamp(value.type):
        msg = f"date_trunc takes a timestamp, not {value.type}: cast it to 'timestamp'"
        raise ExpressionError(msg)
    return pc.floor_temporal(value, unit=unit)


def trunc(value: Value, unit: str) -> Value:
    """Return the first day of a unit."""
    return pc.floor_temporal(_days("trunc", value), unit=unit)


def last_day(value: Value) -> Value:
    """Return the last day of the month."""
    days = _days("last_day", value)
    following = pc.ceil_temporal(days, unit="month", ceil_is_strictly_greater=True)
    return _shifted(following, pa.scalar(-1, pa.int32()))


def date_add(value: Value, days: Value) -> Value:
    """Return a later day."""
    return _shifted(_days("date_add", value), _whole("date_add", days))


def date_sub(value: Value, days: Value) -> Value:
    """Return an earlier day."""
    return _shifted(_days("date_sub", value), pc.negate(_whole("date_sub", days)))


def datediff(end: Value, start: Value) -> Value:
    """Return the days between."""
    last = pc.cast(_days("datediff", end), pa.int32())
    return pc.subtract(last, pc.cast(_days("datediff", start), pa.int32()))


def to_timestamp(value: Value, pattern: str) -> Value:
    """Read timestamps by a pattern."""
    if not is_text(value.type):
        return cast_to(value, _INSTANT)
    return cast_to(_parsed(value, pattern), _INSTANT)


def to_date(value: Value, pattern: str) -> Value:
    """Read days by a pattern."""
    if not is_text(value.type):
        return cast_to(value, pa.date32())
    return cast_to(_parsed(value, pattern), pa.date32())


def date_format(value: Value, pattern: str) -> Value:
    """Write by a pattern."""
    if is_text(value.type) or is_date(value.type):
        value = cast_to(value, _INSTANT)
    if not pa.types.is_timestamp(value.type):
        msg = f"date_format takes a date or timestamp, not {value.type}: cast it to 'timestamp'"
        raise ExpressionError(msg)
    if FRACTION in pattern:
        return each(in_unit(value, "us"), lambda time: time.strftime(pattern), pa.string())
    # Arrow's %S would show the fraction too.
    return pc.strftime(in_unit(value, "s"), format=pattern)


def from_unixtime(value: Value, pattern: str) -> Value:
    """Write seconds since 1970 by a pattern."""
    return date_format(cast_to(cast_to(value, pa.int64()), pa.timestamp("s", "UTC")), pattern)


def unix_timestamp(value: Value, pattern: str) -> Value:
    """Return seconds since 1970."""
    if is_text(value.type):
        value = _parsed(value, pattern)
    elif is_date(value.type):
        value = cast_to(value, _INSTANT)
    # Rounded towards 1970, as Spark does here but nowhere else.
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
    return cast_to(value, _INSTANT)


def timestamp_millis(value: Value) -> Value:
    """Read milliseconds since 1970."""
    return _instant("timestamp_millis", value, "ms")


def timestamp_micros(value: Value) -> Value:
    """Read microseconds since 1970."""
    return _instant("timestamp_micros", value, "us")


def date_from_unix_date(value: Value) -> Value:
    """Read days since 1970."""
    return pc.cast(_whole("date_from_unix_date", value), pa.date32())


def _part(name: str, value: Value, kernel: Callable[[Value], Value]) -> Value:
    """Return a part of the calendar as int32; text is read first, as Spark does."""
    if is_text(value.type):
        value = cast_to(value, pa.date32())
    if not is_date(value.type) and not pa.types.is_timestamp(value.type):
        msg = f"{name} takes a date or timestamp, not {value.type}: cast it to 'timestamp'"
        raise ExpressionError(msg)
    return pc.cast(kernel(value), pa.int32())


def _clock_part(name: str, value: Value, kernel: Callable[[Value], Value]) -> Value:
    """Return a part of the time of day as int32."""
    if is_text(value.type) or is_date(value.type):
        value = cast_to(value, _INSTANT)
    if not pa.types.is_timestamp(value.type) and not pa.types.is_time(value.type):
        msg = f"{name} takes a timestamp, not {value.type}: cast it to 'timestamp'"
        raise ExpressionError(msg)
    return pc.cast(kernel(value), pa.int32())


def _days(name: str, value: Value) -> Value:
    """Return values as days."""
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
    return pc.cast(value, pa.int32())


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
    ticks = pc.cast(pc.cast(value, pa.int64()), pa.timestamp(unit, "UTC"))
    return in_unit(ticks, "us")


def _parsed(value: Value, pattern: str) -> Value:
    """Read local times by a pattern; null where the text does not fit it."""
    if FRACTION not in pattern:
        return pc.strptime(value, format=pattern, unit="us", error_is_null=True)

    def read(text: str) -> datetime.datetime | None:
        try:
            return datetime.datetime.strptime(text, pattern)  # noqa: DTZ007 - local, as said
        except ValueError:
            return None

    return each(value, read, pa.timestamp("us"))
