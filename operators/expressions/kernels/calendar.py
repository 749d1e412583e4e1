"""The Gregorian calendar on arrays of day numbers, for all years that fit into 64 bits.

Day numbers count from 1970-01-01. Arrow's own functions stop at the year 32767.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "day_of_month",
    "day_of_week",
    "day_of_year",
    "first_day",
    "iso_week",
    "last_of_month",
    "month",
    "quarter",
    "year",
]

Days: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[np.int64]

_THURSDAY = 4  # the weekday of 1970-01-01, counted from Sunday = 0


def year(days: Days) -> Numbers:
    """Return the year; year 0 is the one before year 1."""
    return _in_years(days) + 1970


def quarter(days: Days) -> Numbers:
    """Return the quarter, 1 to 4."""
    return _in_months(days) // 3 % 4 + 1


def month(days: Days) -> Numbers:
    """Return the month, 1 to 12."""
    return _in_months(days) % 12 + 1


def day_of_month(days: Days) -> Numbers:
    """Return the day of the month, from 1."""
    return days - _days_from(_in_months(days), "M") + 1


def day_of_year(days: Days) -> Numbers:
    """Return the day of the year, from 1."""
    return days - _days_from(_in_years(days), "Y") + 1


def day_of_week(days: Days) -> Numbers:
    """Return the day of the week, 1 = Sunday."""
    return (days + _THURSDAY) % 7 + 1


def iso_week(days: Days) -> Numbers:
    """Return the ISO week, from 1: a week belongs to the year of its Thursday."""
    return (day_of_year(_monday(days) + 3) - 1) // 7 + 1


def first_day(days: Days, unit: str) -> Days:
    """Return the first day of each day's year, quarter, month or week (which begins on Monday)."""
    if unit == "week":
        return _monday(days)
    if unit == "year":
        return _days_from(_in_years(days), "Y")
    months = _in_months(days)
    return _days_from(months - months % 3 if unit == "quarter" else months, "M")


def last_of_month(days: Days) -> Days:
    """Return the last day of each day's month."""
    return _days_from(_in_months(days) + 1, "M") - 1


def _monday(days: Days) -> Days:
    return days - (days + _THURSDAY - 1) % 7


def _in_years(days: Days) -> Numbers:
    """Return whole years since 1970."""
    return days.astype("M8[D]").astype("M8[Y]").astype(np.int64)


def _in_months(days: Days) -> Numbers:
    """Return whole months since 1970-01."""
    return days.astype("M8[D]").astype("M8[M]").astype(np.int64)


def _days_from(count: Numbers, unit: str) -> Days:
    """Return the first day of months or years, given as counts since 1970."""
    return count.astype(f"M8[{unit}]").astype("M8[D]").astype(np.int64)
