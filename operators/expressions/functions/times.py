"""Functions on dates and times."""

from __future__ import annotations

from ....configs.errors import ExpressionError
from ..expression import Expression, FunctionCall, escape, function
from ..java_patterns import JavaPattern
from .arguments import ColumnOrName, as_column, as_number

_DATE_TIME = "yyyy-MM-dd HH:mm:ss"
_TRUNCATIONS = {
    "year": "year",
    "yyyy": "year",
    "yy": "year",
    "quarter": "quarter",
    "month": "month",
    "mon": "month",
    "mm": "month",
    "week": "week",
    "day": "day",
    "dd": "day",
    "hour": "hour",
    "minute": "minute",
    "second": "second",
    "millisecond": "millisecond",
    "microsecond": "microsecond",
}
_DATE_TRUNCATIONS = ("year", "quarter", "month", "week")


def year(column: ColumnOrName) -> Expression:
    """Return the year."""
    return function("times.year", as_column(column))


def quarter(column: ColumnOrName) -> Expression:
    """Return the quarter, 1 to 4."""
    return function("times.quarter", as_column(column))


def month(column: ColumnOrName) -> Expression:
    """Return the month, 1 to 12."""
    return function("times.month", as_column(column))


def weekofyear(column: ColumnOrName) -> Expression:
    """Return the ISO week, 1 to 53."""
    return function("times.weekofyear", as_column(column))


def dayofyear(column: ColumnOrName) -> Expression:
    """Return the day of the year, 1 to 366."""
    return function("times.dayofyear", as_column(column))


def dayofmonth(column: ColumnOrName) -> Expression:
    """Return the day of the month, 1 to 31."""
    return function("times.dayofmonth", as_column(column))


def dayofweek(column: ColumnOrName) -> Expression:
    """Return the day of the week, 1 = Sunday to 7 = Saturday."""
    return function("times.dayofweek", as_column(column))


def hour(column: ColumnOrName) -> Expression:
    """Return the hour, 0 to 23."""
    return function("times.hour", as_column(column))


def minute(column: ColumnOrName) -> Expression:
    """Return the minute, 0 to 59."""
    return function("times.minute", as_column(column))


def second(column: ColumnOrName) -> Expression:
    """Return the whole second, 0 to 59."""
    return function("times.second", as_column(column))


def date_trunc(unit: str, timestamp: ColumnOrName) -> Expression:
    """Truncate a time to the beginning of its year, quarter, month, week, day, hour and so on."""
    template = f"date_trunc({escape(repr(unit))}, {{0}})"
    arguments = (as_column(timestamp),)
    return FunctionCall("times.date_trunc", arguments, (_unit(unit, _TRUNCATIONS),), template)


def trunc(date: ColumnOrName, unit: str) -> Expression:
    """Return the first day of the year, quarter, month or week of a day."""
    units = {name: long for name, long in _TRUNCATIONS.items() if long in _DATE_TRUNCATIONS}
    return function("times.trunc", as_column(date), options=(_unit(unit, units),))


def last_day(date: ColumnOrName) -> Expression:
    """Return the last day of the month."""
    return function("times.last_day", as_column(date))


def date_add(start: ColumnOrName, days: Expression | str | int) -> Expression:
    """Return the date `days` days later."""
    return function("times.date_add", as_column(start), as_number(days))


def date_sub(start: ColumnOrName, days: Expression | str | int) -> Expression:
    """Return the date `days` days earlier."""
    return function("times.date_sub", as_column(start), as_number(days))


def datediff(end: ColumnOrName, start: ColumnOrName) -> Expression:
    """Return the number of days from `start` to `end`."""
    return function("times.datediff", as_column(end), as_column(start))


def to_timestamp(column: ColumnOrName, format: str | None = None) -> Expression:
    """Parse text as timestamp[us, tz=UTC]; null where it cannot be parsed.

    Args:
        column: the text.
        format: Spark's pattern, such as "dd/MM/yyyy HH:mm"; if left out, as `cast("timestamp")`.
    """
    if format is None:
        return as_column(column).cast("timestamp")
    return _formatted("times.to_timestamp", column, format, reading=True)


def to_date(column: ColumnOrName, format: str | None = None) -> Expression:
    """Parse text as a date, or return the date of a timestamp; `format` as in `to_timestamp`."""
    if format is None:
        return as_column(column).cast("date")
    return _formatted("times.to_date", column, format, reading=True)


def date_format(column: ColumnOrName, format: str) -> Expression:
    """Format a date or timestamp by one of Spark's patterns."""
    return _formatted("times.date_format", column, format)


def from_unixtime(column: ColumnOrName, format: str = _DATE_TIME) -> Expression:
    """Format seconds since 1970 as date and time in UTC, by one of Spark's patterns."""
    return _formatted("times.from_unixtime", column, format)


def unix_timestamp(column: ColumnOrName, format: str = _DATE_TIME) -> Expression:
    """Return whole seconds since 1970 of a timestamp, date, or text in the given pattern."""
    return _formatted("times.unix_timestamp", column, format, reading=True)


def unix_seconds(column: ColumnOrName) -> Expression:
    """Return whole seconds since 1970, rounded down."""
    return function("times.unix_seconds", as_column(column))


def unix_millis(column: ColumnOrName) -> Expression:
    """Return whole milliseconds since 1970, rounded down."""
    return function("times.unix_millis", as_column(column))


def unix_micros(column: ColumnOrName) -> Expression:
    """Return whole microseconds since 1970, rounded down."""
    return function("times.unix_micros", as_column(column))


def unix_date(column: ColumnOrName) -> Expression:
    """Return days since 1970."""
    return function("times.unix_date", as_column(column))


def timestamp_seconds(column: ColumnOrName) -> Expression:
    """Convert seconds since 1970 to a timestamp[us, tz=UTC]."""
    return function("times.timestamp_seconds", as_column(column))


def timestamp_millis(column: ColumnOrName) -> Expression:
    """Convert milliseconds since 1970 to a timestamp[us, tz=UTC]."""
    return function("times.timestamp_millis", as_column(column))


def timestamp_micros(column: ColumnOrName) -> Expression:
    """Convert microseconds since 1970 to a timestamp[us, tz=UTC]."""
    return function("times.timestamp_micros", as_column(column))


def date_from_unix_date(column: ColumnOrName) -> Expression:
    """Convert days since 1970 to a date."""
    return function("times.date_from_unix_date", as_column(column))


def _unit(unit: str, units: dict[str, str]) -> str:
    long = units.get(str(unit).lower())
    if long is None:
        known = ", ".join(dict.fromkeys(units.values()))
        msg = f"cannot truncate times to {unit!r}: use one of {known}"
        raise ExpressionError(msg)
    return long


def _formatted(kernel: str, column: ColumnOrName, format: str, reading: bool = False) -> Expression:
    """Build a call whose option is the parsed pattern; its text shows the pattern as written."""
    name = kernel.rpartition(".")[2]
    shown = f"{name}({{0}}, {escape(repr(format))})"
    return FunctionCall(kernel, (as_column(column),), (JavaPattern.parse(format, reading),), shown)
