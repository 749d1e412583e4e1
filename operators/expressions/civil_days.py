"""Conversion of single Gregorian dates to days since 1970-01-01 and back, in years of any size."""

from __future__ import annotations

__all__ = ["civil_day", "day_number"]

_ERA_DAYS = 146_097  # 400 years
_MARCH_0000 = -719_468
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def day_number(year: int, month: int, day: int) -> int | None:
    """Return the days from 1970-01-01 to a date, or None if the calendar has no such date."""
    if not (1 <= month <= 12 and 1 <= day <= _MONTH_DAYS[month - 1]):
        return None
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if month == 2 and day == 29 and not is_leap:
        return None
    # Counted from March 1, a leap day is the last day of its year, and months have a regular
    # pattern of lengths: (153 * months + 2) // 5 days lie before each.
    era, of_era = divmod(year - (month <= 2), 400)
    of_year = (153 * ((month - 3) % 12) + 2) // 5 + day - 1
    return era * _ERA_DAYS + of_era * 365 + of_era // 4 - of_era // 100 + of_year + _MARCH_0000


def civil_day(number: int) -> tuple[int, int, int]:
    """Return year, month and day of a day number, the inverse of `day_number`."""
    era, of_era = divmod(number - _MARCH_0000, _ERA_DAYS)
    years = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * years + years // 4 - years // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return era * 400 + years + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1
