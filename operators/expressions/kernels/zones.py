"""What clocks show in a zone: offsets from UTC at instants, and instants from what clocks show.

The changes of a zone's clock are found year by year through `zoneinfo` and kept. Before 1800 clocks
show the zone's first offset. From 2100 on only rules without an end are left: their changes depend
on the weekday that a year begins with and on its length, and repeat every 400 years.
"""

from __future__ import annotations

import datetime
import functools
import re
import zoneinfo
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ....configs.errors import ExpressionError

__all__ = ["clock_seconds", "instant_seconds", "midnight_seconds", "offset_seconds"]

Seconds: TypeAlias = npt.NDArray[np.int64]

_CYCLE_S = 146_097 * 86_400
_FIRST_YEAR, _RULES_YEAR, _LAST_YEAR = 1800, 2100, 2500
_FIRST_S, _LAST_S = -5_364_662_400, 16_725_225_600  # when these years begin
_FIXED = re.compile(r"([+-])(\d\d):?(\d\d)(?::(\d\d))?")


def offset_seconds(instants: Seconds, zone: str) -> Seconds:
    """Return by how many seconds the zone's clock is ahead of UTC at each instant."""
    changes, offsets = _changes_around(instants, zone)
    return offsets[np.searchsorted(changes, _folded(instants), side="right")]


def clock_seconds(instants: Seconds, zone: str) -> Seconds:
    """Return what the zone's clock shows at each instant, as seconds since it showed 1970."""
    return instants + offset_seconds(instants, zone)


def instant_seconds(clocks: Seconds, zone: str, like: Seconds | None = None) -> Seconds:
    """Return the instants at which the zone's clock shows this.

    A repeated time is the first of the two; a skipped one is as far behind the change as it is
    behind the clock's last time before.

    Args:
        clocks: seconds since the clock showed 1970.
        zone: the zone's name.
        like: offsets to prefer where a clock shows the time twice, shape as `clocks`.
    """
    changes, offsets = _changes_around(clocks, zone)
    settled = changes + np.maximum(offsets[:-1], offsets[1:])
    chosen = offsets[np.searchsorted(settled, _folded(clocks), side="right")]
    if like is not None:
        chosen = np.where(offset_seconds(clocks - like, zone) == like, like, chosen)
    return clocks - chosen


def midnight_seconds(clocks: Seconds, zone: str) -> Seconds:
    """Return the first instants of days, given by midnight on the zone's clock.

    Where midnight is skipped, the day begins with the change.
    """
    instants = instant_seconds(clocks, zone)
    changes, offsets = _changes_around(clocks, zone)
    folded = _folded(clocks)
    at = np.searchsorted(changes + offsets[1:], folded, side="right")
    if not len(changes):
        return instants
    at = np.minimum(at, len(changes) - 1)
    skipped = (folded >= changes[at] + offsets[at]) & (folded < changes[at] + offsets[at + 1])
    return np.where(skipped, changes[at] + (clocks - folded), instants)


def _folded(seconds: Seconds) -> Seconds:
    """Move seconds after 2500 by whole cycles of the calendar to before, and others not."""
    beyond = np.maximum(seconds - _LAST_S, -1) // _CYCLE_S + 1
    return seconds - beyond * _CYCLE_S if beyond.any() else seconds


def _changes_around(seconds: Seconds, zone: str) -> tuple[Seconds, Seconds]:
    """Return the instants of change around some, and the offsets before, between and after."""
    folded = _folded(seconds)
    low, high = (folded.min(), folded.max()) if len(folded) else (0, 0)
    years = np.clip([low - 86_400, high + 86_400], _FIRST_S, _LAST_S - 1)
    first, last = np.array(years, "M8[s]").astype("M8[Y]").astype(np.int64) + 1970
    return _changes_between(zone, int(first), int(last))


@functools.lru_cache(maxsize=64)
def _changes_between(zone: str, first: int, last: int) -> tuple[Seconds, Seconds]:
    offset = _offset_at(zone)
    found = [change for year in range(first, last + 1) for change in _changes_in(zone, year)]
    offsets = [_whole_seconds(offset(_start_of(first) - 1)), *(after for _, after in found)]
    return np.array([at for at, _ in found], np.int64), np.array(offsets, np.int64)


def _changes_in(zone: str, year: int) -> list[tuple[int, int]]:
    """Return the changes of the zone's clock in a year: instant, offset from then on."""
    start = _start_of(year)
    if year > _RULES_YEAR:
        weekday, is_leap = _days_since_1970(year) % 7, _days_since_1970(year + 1) % 7
        year = next(
            like
            for like in range(_RULES_YEAR, _LAST_YEAR)
            if (_days_since_1970(like) % 7, _days_since_1970(like + 1) % 7) == (weekday, is_leap)
        )
    return [(start + since, after) for since, after in _changes_since_start(zone, year)]


@functools.lru_cache(maxsize=8192)
def _changes_since_start(zone: str, year: int) -> tuple[tuple[int, int], ...]:
    """Return the changes in a year: seconds since its start, offset from then on."""
    offset = _offset_at(zone)
    start, end = _start_of(year), _start_of(year + 1)
    found = []
    before = offset(start - 1)
    for day_start in range(start - 1, end - 1, 86_400):
        low, high = day_start, min(day_start + 86_400, end - 1)
        after = offset(high)
        if after == before:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset(middle) == before else (low, middle)
        found.append((high - start, _whole_seconds(after)))
        before = after
    return tuple(found)


def _start_of(year: int) -> int:
    return _days_since_1970(year) * 86_400


def _days_since_1970(year: int) -> int:
    """Return the days from 1970 to the first of a year."""
    return datetime.date(year, 1, 1).toordinal() - datetime.date(1970, 1, 1).toordinal()


def _whole_seconds(offset: datetime.timedelta) -> int:
    return offset // datetime.timedelta(seconds=1)


@functools.lru_cache(maxsize=64)
def _offset_at(zone: str) -> Callable[[int], datetime.timedelta]:
    """Return the function from instants, in seconds, to the zone's offsets."""
    known: datetime.tzinfo
    if fixed := _FIXED.fullmatch(zone):
        hours, minutes, seconds = (int(part or 0) for part in fixed.groups()[1:])
        size = datetime.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        known = datetime.timezone(-size if fixed[1] == "-" else size)
    else:
        try:
            known = zoneinfo.ZoneInfo(zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError):
            msg = f"no time zone {zone!r} is known here: use such as 'Europe/Berlin' or '+02:00'"
            raise ExpressionError(msg) from None

    def offset(instant: int) -> datetime.timedelta:
        shown = datetime.datetime.fromtimestamp(instant, known).utcoffset()
        return shown or datetime.timedelta(0)

    return offset
