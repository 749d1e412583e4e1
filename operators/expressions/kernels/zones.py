"""Time zones on arrays: instants to local time (what a clock in the zone shows) and back.

The transitions of a zone (changes of its offset) are found year by year through `zoneinfo` and
cached. Before 1800 the zone's first offset holds. After 2100 only the zone's last rule is left: its
transitions depend on the first weekday of a year and on the year's length, so a year is replaced by
one of 2100 … 2499 that is alike, and the calendar repeats every 400 years.
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
_RULES_YEAR, _LAST_YEAR = 2100, 2500
_FIRST_S, _LAST_S = -5_364_662_400, 16_725_225_600  # the beginnings of 1800 and of the last year
_FIXED = re.compile(r"([+-])(\d\d):?(\d\d)(?::(\d\d))?")


def offset_seconds(instants: Seconds, zone: str) -> Seconds:
    """Return the zone's offset from UTC at each instant, in seconds."""
    transitions, offsets = _transitions_around(instants, zone)
    return offsets[np.searchsorted(transitions, _folded(instants), side="right")]


def clock_seconds(instants: Seconds, zone: str) -> Seconds:
    """Return the local time at each instant, in seconds since local 1970."""
    return instants + offset_seconds(instants, zone)


def instant_seconds(clocks: Seconds, zone: str, like: Seconds | None = None) -> Seconds:
    """Return the instants of local times.

    A local time that occurs twice is the first of the two. One that is skipped is read with the
    offset before the transition, as Java does.

    Args:
        clocks: local times, in seconds since local 1970.
        zone: the zone's name.
        like: offsets to prefer for local times that occur twice, shape as `clocks`.
    """
    transitions, offsets = _transitions_around(clocks, zone)
    # The local time from which on the offset after a transition is used: the first that is no
    # longer skipped where clocks are put forward, or no longer repeated where they are put back.
    first_after = transitions + np.maximum(offsets[:-1], offsets[1:])
    chosen = offsets[np.searchsorted(first_after, _folded(clocks), side="right")]
    if like is not None:
        chosen = np.where(offset_seconds(clocks - like, zone) == like, like, chosen)
    return clocks - chosen


def midnight_seconds(clocks: Seconds, zone: str) -> Seconds:
    """Return the first instants of days, given by the local time of their midnights.

    Where midnight is skipped, the day begins with the transition.
    """
    instants = instant_seconds(clocks, zone)
    transitions, offsets = _transitions_around(clocks, zone)
    folded = _folded(clocks)
    at = np.searchsorted(transitions + offsets[1:], folded, side="right")
    if not len(transitions):
        return instants
    at = np.minimum(at, len(transitions) - 1)
    change = transitions[at]
    is_skipped = (folded >= change + offsets[at]) & (folded < change + offsets[at + 1])
    return np.where(is_skipped, change + (clocks - folded), instants)


def _folded(seconds: Seconds) -> Seconds:
    """Move seconds after 2500 back by whole cycles of 400 years; return others unchanged."""
    beyond = np.maximum(seconds - _LAST_S, -1) // _CYCLE_S + 1
    return seconds - beyond * _CYCLE_S if beyond.any() else seconds


def _transitions_around(seconds: Seconds, zone: str) -> tuple[Seconds, Seconds]:
    """Return the transitions in the years of some instants, and the offsets around them.

    Returns:
        transitions: seconds since 1970, shape (n,).
        offsets: before the first, between, and after the last transition, shape (n + 1,).
    """
    folded = _folded(seconds)
    low, high = (folded.min(), folded.max()) if len(folded) else (0, 0)
    years = np.clip([low - 86_400, high + 86_400], _FIRST_S, _LAST_S - 1)
    first, last = np.array(years, "M8[s]").astype("M8[Y]").astype(np.int64) + 1970
    return _transitions_between(zone, int(first), int(last))


@functools.lru_cache(maxsize=64)
def _transitions_between(zone: str, first: int, last: int) -> tuple[Seconds, Seconds]:
    offset = _offset_at(zone)
    found = [one for year in range(first, last + 1) for one in _transitions_in(zone, year)]
    offsets = [_whole_seconds(offset(_start_of(first) - 1)), *(after for _, after in found)]
    return np.array([at for at, _ in found], np.int64), np.array(offsets, np.int64)


def _transitions_in(zone: str, year: int) -> list[tuple[int, int]]:
    """Return a year's transitions: instant, offset from then on."""
    start = _start_of(year)
    if year > _RULES_YEAR:
        weekday, is_leap = _days_since_1970(year) % 7, _days_since_1970(year + 1) % 7
        year = next(
            like
            for like in range(_RULES_YEAR, _LAST_YEAR)
            if (_days_since_1970(like) % 7, _days_since_1970(like + 1) % 7) == (weekday, is_leap)
        )
    return [(start + since, after) for since, after in _transitions_since_start(zone, year)]


@functools.lru_cache(maxsize=8192)
def _transitions_since_start(zone: str, year: int) -> tuple[tuple[int, int], ...]:
    """Return a year's transitions: seconds since its start, offset from then on.

    Found day by day, then by bisection within a day whose ends have different offsets.
    """
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
    """Return the days from 1970 to the first day of a year."""
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
            msg = f"there is no time zone {zone!r}: use one such as 'Europe/Berlin' or '+02:00'"
            raise ExpressionError(msg) from None

    def offset(instant: int) -> datetime.timedelta:
        shown = datetime.datetime.fromtimestamp(instant, known).utcoffset()
        return shown or datetime.timedelta(0)

    return offset
