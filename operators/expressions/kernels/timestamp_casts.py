"""Casts between dates and timestamps; `time_texts` has those from and to text.

*Ticks* are integers of a timestamp's unit since 1970. *Clock ticks* stand for local time in the
timestamp's zone: ticks since its clock showed 1970.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .arrays import Value, from_numpy, to_numpy
from .type_rules import ArrowType
from .zones import clock_seconds, instant_seconds, midnight_seconds

__all__ = [
    "INSTANT",
    "PER_SECOND",
    "SECONDS_PER_DAY",
    "clock_ticks",
    "date_to_timestamp",
    "days_of",
    "days_to_dates",
    "from_clock",
    "in_unit",
    "local_time",
    "timestamp_to_date",
    "timestamp_to_timestamp",
]

Ticks: TypeAlias = npt.NDArray[np.int64]
Valid: TypeAlias = npt.NDArray[np.bool_] | None

#: Ticks of a unit in one second.
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
SECONDS_PER_DAY = 86_400
INSTANT = pa.timestamp("us", "UTC")


def clock_ticks(value: Value) -> tuple[Ticks, Valid]:
    """Return the clock ticks of timestamps, and their validity."""
    ticks, valid = to_numpy(pc.cast(value, pa.int64()), len(value))
    zone = value.type.tz
    if zone in (None, "UTC"):
        return ticks, valid
    per_second = PER_SECOND[value.type.unit]
    seconds = ticks // per_second
    return ticks + (clock_seconds(seconds, zone) - seconds) * per_second, valid


def from_clock(
    ticks: Ticks, valid: Valid, to: ArrowType, like: Value | None = None, midnight: bool = False
) -> Value:
    """Return the timestamps with these clock ticks, the inverse of `clock_ticks`.

    Args:
        ticks: clock ticks in the unit of `to`.
        valid: which of them are not null; None if all.
        to: the timestamp type.
        like: timestamps of that type; their offset is preferred for a local time that occurs twice.
        midnight: the times are the beginnings of days; see `zones.midnight_seconds`.
    """
    if to.tz not in (None, "UTC"):
        per_second = PER_SECOND[to.unit]
        seconds = ticks // per_second
        if midnight:
            instants = midnight_seconds(seconds, to.tz)
        else:
            instants = instant_seconds(seconds, to.tz, None if like is None else _offsets(like))
        ticks = ticks + (instants - seconds) * per_second
    return pc.cast(from_numpy(ticks, valid), to)


def _offsets(value: Value) -> Ticks:
    """Return the offset from UTC at each timestamp, in seconds."""
    instants, _ = to_numpy(pc.cast(value, pa.int64()), len(value))
    seconds = instants // PER_SECOND[value.type.unit]
    return clock_seconds(seconds, value.type.tz) - seconds


def days_of(value: Value) -> tuple[Ticks, Valid]:
    """Return dates, or the local dates of timestamps, as days since 1970, and their validity."""
    if pa.types.is_timestamp(value.type):
        ticks, valid = clock_ticks(value)
        return ticks // (PER_SECOND[value.type.unit] * SECONDS_PER_DAY), valid
    days, valid = to_numpy(pc.cast(pc.cast(value, pa.date32()), pa.int32()), len(value))
    return days.astype(np.int64), valid


def days_to_dates(days: Ticks, valid: Valid) -> Value:
    """Return days since 1970 as dates; null if they exceed 32 bits."""
    fits = days == days.astype(np.int32)
    valid = fits if valid is None else valid & fits
    whole = from_numpy(days.astype(np.int32), None if valid.all() else valid)
    return pc.cast(whole, pa.date32())


def in_unit(value: Value, unit: str) -> Value:
    """Return a timestamp or duration in another unit: rounded down; null if it exceeds 64 bits."""
    kind = value.type
    to = pa.timestamp(unit, kind.tz) if pa.types.is_timestamp(kind) else pa.duration(unit)
    if to == kind:
        return value
    ticks, valid = to_numpy(pc.cast(value, pa.int64()), len(value))
    have, want = PER_SECOND[kind.unit], PER_SECOND[unit]
    if want < have:
        return pc.cast(from_numpy(np.floor_divide(ticks, have // want), valid), to)
    factor = want // have
    limit = (2**63 - 1) // factor
    fits = (ticks >= -limit) & (ticks <= limit)
    fits = fits if valid is None else fits & valid
    ticks = np.where(fits, ticks, 0) * factor
    return pc.cast(from_numpy(ticks, None if fits.all() else fits), to)


def timestamp_to_timestamp(value: Value, to: ArrowType) -> Value:
    """Change the unit or the zone; a timestamp without a zone is local time in the other's zone."""
    zone, unit = value.type.tz, to.unit
    if zone is None and to.tz is not None:
        ticks, valid = clock_ticks(in_unit(value, unit))
        return from_clock(ticks, valid, to)
    if zone is not None and to.tz is None:
        return in_unit(local_time(value), unit)
    return pc.cast(in_unit(value, unit), to)


def local_time(value: Value) -> Value:
    """Return timestamps as local time, without a zone."""
    return pc.cast(from_numpy(*clock_ticks(value)), pa.timestamp(value.type.unit))


def date_to_timestamp(value: Value, to: ArrowType) -> Value:
    """Return the instant at which each day begins in the zone of the type."""
    local = in_unit(pc.cast(value, pa.timestamp("s")), to.unit)
    ticks, valid = clock_ticks(local)
    return from_clock(ticks, valid, to, midnight=True)


def timestamp_to_date(value: Value, to: ArrowType) -> Value:
    """Return the local date of each timestamp."""
    return pc.cast(days_to_dates(*days_of(value)), to)
