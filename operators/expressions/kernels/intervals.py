"""Times plus and minus durations; a day later is the same local time, whatever the offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....configs.errors import ExpressionError
from .arrays import Value, from_numpy, to_numpy
from .coercion import unified
from .timestamp_casts import (
    INSTANT,
    PER_SECOND,
    SECONDS_PER_DAY,
    clock_ticks,
    date_to_timestamp,
    from_clock,
    in_unit,
)
from .type_rules import finer_unit, is_date

__all__ = ["added_durations", "difference", "shifted", "shifted_in_day", "subtracted_durations"]

Kernel: TypeAlias = Callable[[Value, Value], Value]


def shifted(time: Value, by: Value, backwards: bool = False) -> Value:
    """Return times a duration later, or earlier.

    Whole days of the duration are added to the local time of the zone, the rest to the instant. A
    date counts as its midnight in UTC.
    """
    time, by = _columns(time, by)
    rows = len(time)
    if is_date(time.type):
        time = date_to_timestamp(time, INSTANT)
    unit = finer_unit(time.type, by.type)
    time, by = in_unit(time, unit), in_unit(by, unit)
    if backwards:
        by = pc.negate(by)
    zone = time.type.tz
    if zone in (None, "UTC"):
        return _sum(time, by)
    per_day = PER_SECOND[unit] * SECONDS_PER_DAY
    ticks, valid = clock_ticks(time)
    step, step_valid = to_numpy(pc.cast(by, pa.int64()), rows)
    rest = np.fmod(step, per_day)
    days = step - rest
    later = ticks + days
    fits = (days < 0) == (later < ticks)  # else the sum exceeds 64 bits, and has wrapped
    if not fits.all():
        valid = fits if valid is None else fits & valid
    days_later = from_clock(later, valid, time.type, like=time)
    return _sum(days_later, pc.cast(from_numpy(rest, step_valid), by.type))


def shifted_in_day(time: Value, by: Value, backwards: bool = False) -> Value:
    """Return times of day a duration later, or earlier; null where that is another day."""
    time, by = _columns(time, by)
    unit = finer_unit(time.type, by.type)
    kind = pa.time32(unit) if unit in {"s", "ms"} else pa.time64(unit)
    width = pa.int32() if pa.types.is_time32(kind) else pa.int64()
    per_day = PER_SECOND[unit] * SECONDS_PER_DAY
    ticks, valid = to_numpy(pc.cast(pc.cast(time, kind), width), len(time))
    steps, steps_valid = to_numpy(pc.cast(in_unit(by, unit), pa.int64()), len(time))
    steps = np.clip(steps, -per_day, per_day)  # so that no sum exceeds 64 bits
    ticks = ticks - steps if backwards else ticks + steps
    fits = (ticks >= 0) & (ticks < per_day)
    for known in (valid, steps_valid):
        if known is not None:
            fits &= known
    return pc.cast(from_numpy(np.where(fits, ticks, 0), fits, width), kind)


def _columns(time: Value, by: Value) -> tuple[Value, Value]:
    """Return times and durations as arrays; raise ExpressionError if the latter are none."""
    if pa.types.is_null(by.type):
        by = pc.cast(by, pa.duration("us"))
    if not pa.types.is_duration(by.type):
        msg = f"cannot add {by.type} to {time.type}: use a datetime.timedelta"
        raise ExpressionError(msg)
    rows = len(by) if isinstance(time, pa.Scalar) else len(time)
    time, by = (pa.repeat(v, rows) if isinstance(v, pa.Scalar) else v for v in (time, by))
    return time, by


def _sum(time: Value, by: Value) -> Value:
    """Add times or durations, and durations, of one unit; null if the sum exceeds 64 bits."""
    return _fitting(pc.add_checked, pc.add, pc.less, time, by)


def _fitting(
    checked: Kernel, wrapping: Kernel, steps_back: Kernel, time: Value, by: Value
) -> Value:
    """Add or subtract, in one unit; null where the result exceeds 64 bits.

    Args:
        checked, wrapping: the kernel, which raises for such a result, or wraps.
        steps_back: compares a right result with `time` where `by` is negative.
        time: times or durations.
        by: durations.
    """
    try:
        return checked(time, by)
    except pa.ArrowInvalid:
        found = wrapping(time, by)
        ticks, steps, ends = (pc.cast(value, pa.int64()) for value in (time, by, found))
        fits = pc.equal(pc.less(steps, 0), steps_back(ends, ticks))
        return pc.if_else(fits, found, pa.scalar(None, found.type))


def added_durations(left: Value, right: Value) -> Value:
    """Add two durations; null where the sum exceeds 64 bits."""
    return _sum(*unified([left, right]))


def subtracted_durations(left: Value, right: Value) -> Value:
    """Subtract a duration from another; null where the difference exceeds 64 bits."""
    left, right = unified([left, right])
    return _fitting(pc.subtract_checked, pc.subtract, pc.greater, left, right)


def difference(left: Value, right: Value) -> Value:
    """Return the difference of two dates, or of the local times of two timestamps.

    If the zones of the timestamps differ, UTC's local time is used. Null where the difference
    exceeds 64 bits.
    """
    left, right = unified([left, right])
    if is_date(left.type):
        return in_unit(pc.subtract(left, right), "us")
    rows = len(right) if isinstance(left, pa.Scalar) else len(left)
    clocks = [pa.repeat(v, rows) if isinstance(v, pa.Scalar) else v for v in (left, right)]
    (a, a_valid), (b, b_valid) = map(clock_ticks, clocks)
    elapsed = a - b
    fits = (b < 0) == (elapsed > a)  # else the difference exceeds 64 bits, and has wrapped
    masks = [valid for valid in (a_valid, b_valid) if valid is not None]
    if not fits.all():
        masks.append(fits)
    found = from_numpy(elapsed, np.logical_and.reduce(masks) if masks else None)
    return pc.cast(found, pa.duration(left.type.unit))
