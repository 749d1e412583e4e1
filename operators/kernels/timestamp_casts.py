"""Casts of dates and times; see `casts`."""

from __future__ import annotations

import datetime
import re
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .coercion import Value, from_numpy, to_numpy

__all__ = [
    "PER_SECOND",
    "date_to_timestamp",
    "in_unit",
    "text_to_date",
    "text_to_timestamp",
    "timestamp_to_date",
    "timestamp_to_text",
    "timestamp_to_timestamp",
]

ArrowType: TypeAlias = Any

#: Ticks of a unit in one second.
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DATE_TIME = re.compile(
    r"(?P<year>[+-]?\d{4,6})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})"
    r"(?P<rest>[ T](?P<time>.*))?)?)?",
    re.ASCII,
)
_TIME = re.compile(
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<part>\d{1,9}))?)?)?"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)?",
    re.ASCII,
)


def text_to_date(value: Value, to: ArrowType) -> Value:
    """Read days; a time of day after them is ignored."""
    days = _text_to_time(value, pa.timestamp("s"), with_time=False)
    return pc.cast(days, to)


def text_to_timestamp(value: Value, to: ArrowType) -> Value:
    """Read dates and times; without a zone in that of the target type."""
    return _text_to_time(value, to, with_time=True)


def _text_to_time(value: Value, to: ArrowType, with_time: bool) -> Value:
    """Read date and time; a day given alone starts at midnight."""
    trimmed = pc.utf8_trim_whitespace(value)
    if with_time:
        try:
            local = pc.cast(trimmed, pa.timestamp(to.unit))
            return local if to.tz is None else _in_zone(local, to)
        except pa.ArrowInvalid:
            pass  # a zone, or a value that is no time: below, each for itself
    zone = None if to.tz is None else pc.assume_timezone
    parts = [None if text is None else _read_time(text, with_time) for text in trimmed.to_pylist()]
    local = pa.array([None if part is None else part[0] for part in parts], pa.timestamp("us"))
    result = in_unit(local, to.unit)
    if zone is None:
        return result
    offsets = [None if part is None else part[1] for part in parts]
    shift = pa.array([None if o is None else -o for o in offsets], pa.duration("s"))
    absolute = pc.cast(pc.add(result, pc.cast(shift, pa.duration(to.unit))), to)
    return pc.if_else(pc.is_valid(shift), absolute, _in_zone(result, to))


def _read_time(
    text: str, with_time: bool
) -> tuple[datetime.datetime, datetime.timedelta | None] | None:
    """Return local time and its distance from UTC, None if that is not given; None if no time."""
    day = _DATE_TIME.fullmatch(text)
    if day is None:
        return None
    try:
        date = datetime.datetime(  # noqa: DTZ001 - local time, its zone comes apart
            int(day["year"]), int(day["month"] or 1), int(day["day"] or 1)
        )
        if not with_time or not day["time"]:
            return date, None
        time = _TIME.fullmatch(day["time"].strip())
        if time is None:
            return None
        clock = date.replace(
            hour=int(time["hour"]),
            minute=int(time["minute"] or 0),
            second=int(time["second"] or 0),
            microsecond=int((time["part"] or "0")[:6].ljust(6, "0")),
        )
    except ValueError:
        return None
    return clock, _read_offset(time["zone"])


def _read_offset(zone: str | None) -> datetime.timedelta | None:
    if zone is None:
        return None
    if zone in {"Z", "UTC", "GMT"}:
        return datetime.timedelta(0)
    hours, _, minutes = zone[1:].partition(":")
    hours, minutes = (hours[:-2], hours[-2:]) if len(hours) > 2 else (hours, minutes)
    offset = datetime.timedelta(hours=int(hours), minutes=int(minutes or 0))
    return -offset if zone[0] == "-" else offset


def in_unit(value: Value, unit: str) -> Value:
    """Return a timestamp or duration in another unit: rounded down, null beyond 64 bits."""
    kind = value.type
    timestamp = pa.types.is_timestamp(kind)
    to = pa.timestamp(unit, kind.tz) if timestamp else pa.duration(unit)
    if to == kind:
        return value
    ticks, valid = to_numpy(pc.cast(value, pa.int64()), len(value))
    have, want = PER_SECOND[kind.unit], PER_SECOND[unit]
    if want < have:
        return pc.cast(from_numpy(np.floor_divide(ticks, have // want), valid), to)
    factor = want // have
    fits = np.abs(ticks) <= (2**63 - 1) // factor
    fits = fits if valid is None else fits & valid
    return pc.cast(from_numpy(ticks * factor, None if fits.all() else fits), to)


def timestamp_to_timestamp(value: Value, to: ArrowType) -> Value:
    """Change unit or zone; between with and without zone by the zone's own clock."""
    zone, unit = value.type.tz, to.unit
    if zone is None and to.tz is not None:
        return _in_zone(in_unit(value, unit), to)
    if zone is not None and to.tz is None:
        return in_unit(pc.local_timestamp(value), unit)
    return pc.cast(in_unit(value, unit), to)


def _in_zone(local: Value, to: ArrowType) -> Value:
    return pc.assume_timezone(local, to.tz, ambiguous="earliest", nonexistent="latest")


def date_to_timestamp(value: Value, to: ArrowType) -> Value:
    """Return the midnight that begins each day."""
    local = in_unit(pc.cast(value, pa.timestamp("s")), to.unit)
    return local if to.tz is None else _in_zone(local, to)


def timestamp_to_date(value: Value, to: ArrowType) -> Value:
    """Return the day of each instant, in its zone."""
    return pc.cast(pc.cast(value, pa.date32()), to)


def timestamp_to_text(value: Value, to: ArrowType) -> Value:
    """Write as Spark does, in the zone of the type."""
    written = pc.strftime(value, format="%Y-%m-%d %H:%M:%S")
    if value.type.unit != "s":  # Arrow writes all digits of the fraction, Spark those that count
        written = pc.replace_substring_regex(
            written, pattern=r"(\.\d*[1-9])0+$|\.0+$", replacement=r"\1"
        )
    return pc.cast(written, to)
