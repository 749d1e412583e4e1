"""Dates and times from text and to text; see `casts` and `java_patterns`."""

from __future__ import annotations

import functools
import re
import zoneinfo
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....transport.wire.column import Column
from ..civil_days import day_number
from ..java_patterns import JavaPattern
from .coercion import Value, from_numpy
from .timestamp_casts import PER_SECOND, SECONDS_PER_DAY, clock_ticks, days_of, from_clock, in_unit
from .zones import instant_seconds

__all__ = [
    "BLANKS",
    "date_to_text",
    "parsed",
    "text_to_date",
    "text_to_timestamp",
    "timestamp_to_text",
    "written",
]

ArrowType: TypeAlias = Any

#: What Spark cuts off before it reads a value: blanks and controls of ASCII.
BLANKS = "".join(map(chr, range(33))) + "\x7f"

_DATE = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_TIMESTAMP = re.compile(
    r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](\d{1,2})(?::(\d{1,2})"
    r"(?::(\d{1,2})(?:\.(\d*))?([^\d.].*)?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
#: Times with an offset that Arrow reads as Spark does.
_ISO_INSTANT = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-](0\d|1[0-7]):[0-5]\d)$"
_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::(\d{1,2})(?::(\d\d))?|(\d\d)(\d\d)?)?", re.ASCII
)
#: Java's old names, where they are not those of zones.
_OLD_ZONES = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "ART": "Africa/Cairo",
    "AGT": "America/Argentina/Buenos_Aires",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IST": "Asia/Kolkata",
    "IET": "America/Indiana/Indianapolis",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00",
    "MST": "-07:00",
    "HST": "-10:00",
    "Z": "UTC",
    "UTC": "UTC",
    "GMT": "UTC",
    "UT": "UTC",
}
_OFFSET_S_MAX = 18 * 3600
_YEAR_0, _YEAR_1000, _YEAR_10000 = -719_528, -354_285, 2_932_897
_DAY = JavaPattern.parse("yyyy-MM-dd")
_MOMENT = JavaPattern.parse("yyyy-MM-dd HH:mm:ss")
_FRACTION = JavaPattern.parse("SSSSSSSSS")


# ---- from text -------------------------------------------------------------------------------


def text_to_date(value: Value, to: ArrowType) -> Value:
    """Read days; a time of day after them is ignored."""
    trimmed = pc.utf8_trim(value, BLANKS)
    try:
        return pc.cast(pc.cast(trimmed, pa.date32()), to)
    except pa.ArrowInvalid:
        pass  # some value is not just a day: below, each for itself
    days = [None if text is None else _read_day(text) for text in trimmed.to_pylist()]
    return pc.cast(pc.cast(pa.array(days, pa.int32()), pa.date32()), to)


def _read_day(text: str) -> int | None:
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    day = day_number(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    return day if day is not None and abs(day) < 2**31 else None


def text_to_timestamp(value: Value, to: ArrowType) -> Value:
    """Read dates and times; without a zone in that of the target type."""
    trimmed = pc.utf8_trim(value, BLANKS)
    try:
        local = pc.cast(trimmed, pa.timestamp(to.unit))
    except pa.ArrowInvalid:
        pass  # a zone, or a value that is no time: below, each for itself
    else:
        return from_clock(*clock_ticks(local), to)
    if to.tz is not None and pc.all(pc.match_substring_regex(trimmed, _ISO_INSTANT)).as_py():
        try:
            return pc.cast(in_unit(pc.cast(trimmed, pa.timestamp("us", "UTC")), to.unit), to)
        except pa.ArrowInvalid:
            pass  # a day that the calendar lacks
    read = [None if text is None else _read_moment(text) for text in trimmed.to_pylist()]
    clocks = pa.array([None if one is None else _fitting(one[0]) for one in read], pa.int64())
    local = in_unit(pc.cast(clocks, pa.timestamp("us")), to.unit)
    shown = from_clock(*clock_ticks(local), to)
    if to.tz is None:
        return shown
    zoned = pa.array(_instants(read), pa.int64())
    return pc.coalesce(pc.cast(in_unit(pc.cast(zoned, pa.timestamp("us")), to.unit), to), shown)


def _read_moment(text: str) -> tuple[int, str | None] | None:
    """Return what the clock shows, in microseconds since it showed 1970, and its zone if given."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, part, named = match.groups()
    number = day_number(int(year), int(month or 1), int(day or 1))
    clock = (int(hour or 0), int(minute or 0), int(second or 0))
    zone = None if named is None else _zone(named.strip(BLANKS))
    if number is None or clock > (23, 59, 59) or max(clock[1:]) > 59 or zone == "":
        return None
    seconds = number * SECONDS_PER_DAY + clock[0] * 3600 + clock[1] * 60 + clock[2]
    return seconds * 10**6 + int((part or "")[:6].ljust(6, "0")), zone


@functools.lru_cache(maxsize=1024)
def _zone(name: str) -> str:
    """Return a zone by one of Java's names for it, as `zones` takes it; empty if there is none."""
    if (old := _OLD_ZONES.get(name)) is not None:
        return old
    match = _OFFSET.fullmatch(name)
    if match is None:
        return name if name in zoneinfo.available_timezones() else ""
    sign, hours, minutes, seconds, *packed = match.groups()
    if packed[0] and len(hours) == 1:
        return ""
    minutes, seconds = minutes or packed[0] or "0", seconds or packed[1] or "0"
    size = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    fits = max(int(minutes), int(seconds)) < 60 and size <= _OFFSET_S_MAX
    return f"{sign}{int(hours):02d}:{int(minutes):02d}:{int(seconds):02d}" if fits else ""


def _instants(moments: Sequence[tuple[int, str | None] | None]) -> list[int | None]:
    """Return the instants in microseconds; None without a zone, or beyond 64 bits."""
    rows_by_zone: dict[str, list[tuple[int, int]]] = {}
    for row, moment in enumerate(moments):
        if moment is not None and moment[1] is not None and _fitting(moment[0]) is not None:
            rows_by_zone.setdefault(moment[1], []).append((row, moment[0]))
    found: list[int | None] = [None] * len(moments)
    for zone, shown in rows_by_zone.items():  # zone by zone, since a call takes longer than a row
        rows, clocks = zip(*shown, strict=True)
        seconds, micros = np.divmod(np.array(clocks, np.int64), 10**6)
        instants = instant_seconds(seconds, zone).tolist()
        for row, instant, rest in zip(rows, instants, micros.tolist(), strict=True):
            found[row] = _fitting(instant * 10**6 + rest)
    return found


def _fitting(number: int) -> int | None:
    return number if -(2**63) <= number < 2**63 else None


def parsed(value: Value, pattern: JavaPattern) -> Value:
    """Read what a clock shows by a pattern, as timestamp[us]; null where the text does not fit."""
    micros = np.zeros(len(value), np.int64)
    known = np.zeros(len(value), np.bool_)
    if pattern.is_plain:
        micros, known = _read_digits(value, pattern)
    left = pc.is_valid(value).to_numpy(zero_copy_only=False) & ~known
    found = pc.cast(from_numpy(micros, known), pa.timestamp("us"))
    if not left.any():
        return found
    rows = pa.array(left)
    read = [_read_by(pattern, text) for text in value.filter(rows).to_pylist()]
    return pc.replace_with_mask(found, rows, pc.cast(pa.array(read, pa.int64()), found.type))


def _read_digits(
    value: Value, pattern: JavaPattern
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Read at once what has digits wherever a plain pattern has letters; tell which rows have."""
    width = pattern.width
    fits = pc.fill_null(pc.equal(pc.binary_length(value), width), False)
    column = Column.of(value.filter(fits))
    start = 0 if column.offsets is None else int(column.offsets[0])
    texts = column.data[start : start + len(column) * width].reshape(-1, width)
    letters = np.ascontiguousarray(texts.T)
    good = np.ones(len(column), np.bool_)
    numbers: dict[str, npt.NDArray[np.int64]] = {}
    at = 0
    for part in pattern.parts:
        size = len(part) if isinstance(part, str) else part.width
        number = np.zeros(len(column), np.int64)
        for place in range(size):
            if isinstance(part, str):
                good &= letters[at + place] == ord(part[place])
                continue
            digit = letters[at + place] - np.uint8(ord("0"))
            good &= digit <= 9
            number = number * 10 + digit
        if not isinstance(part, str):
            numbers[part.letter] = number
        at += size
    months = (numbers["y"] - 1970) * 12 + numbers["M"] - 1
    days = months.astype("M8[M]").astype("M8[D]").astype(np.int64) + numbers["d"] - 1
    good &= (numbers["M"] <= 12) & (numbers["M"] >= 1)
    good &= days.astype("M8[D]").astype("M8[M]").astype(np.int64) == months
    seconds = days * SECONDS_PER_DAY
    for letter, limit, size in (("H", 24, 3600), ("m", 60, 60), ("s", 60, 1)):
        if letter in numbers:
            good &= numbers[letter] < limit
            seconds += numbers[letter] * size
    known = fits.to_numpy(zero_copy_only=False)
    micros = np.zeros(len(value), np.int64)
    micros[known] = seconds * 10**6
    known = known.copy()
    known[known] = good
    return micros, known


def _read_by(pattern: JavaPattern, text: str) -> int | None:
    moment = pattern.read(text)
    if moment is None:
        return None
    day, nanos = moment
    return _fitting(day * SECONDS_PER_DAY * 10**6 + nanos // 1000)


# ---- to text ---------------------------------------------------------------------------------


def written(value: Value, pattern: JavaPattern) -> Value:
    """Write timestamps by a pattern, as the clock of their zone shows them."""
    clock = _clock(value)
    if (format := pattern.strftime) is None:
        return _by_row(clock, pattern.write)
    # Arrow's %S would show the fraction too.
    seconds = in_unit(clock, "s")
    return _beyond(
        seconds, _YEAR_1000, lambda part: pc.strftime(part, format=format), pattern.write
    )


def timestamp_to_text(value: Value, to: ArrowType) -> Value:
    """Write as Spark does, in the zone of the type."""
    return pc.cast(_beyond(_clock(value), _YEAR_0, _in_short, _write_short), to)


def date_to_text(value: Value, to: ArrowType) -> Value:
    """Write as Spark does."""
    midnights = pc.cast(pc.cast(value, pa.date32()), pa.timestamp("s"))
    text = _beyond(
        midnights,
        _YEAR_0,
        lambda days: pc.cast(pc.cast(days, pa.date32()), pa.string()),
        _DAY.write,
    )
    return pc.cast(text, to)


def _in_short(clock: Value) -> Value:
    text = pc.strftime(clock, format="%Y-%m-%d %H:%M:%S")
    if clock.type.unit == "s":
        return text
    # Arrow writes all digits of the fraction, Spark those that count.
    return pc.replace_substring_regex(text, pattern=r"(\.\d*[1-9])0+$|\.0+$", replacement=r"\1")


def _write_short(day: int, nanos: int) -> str:
    fraction = _FRACTION.write(day, nanos).rstrip("0")
    return _MOMENT.write(day, nanos) + (f".{fraction}" if fraction else "")


def _clock(value: Value) -> Value:
    """Return what the clock of the timestamps' zone shows, without the zone."""
    return pc.cast(from_numpy(*clock_ticks(value)), pa.timestamp(value.type.unit))


def _beyond(
    clock: Value,
    first_day: int,
    write: Callable[[Value], Value],
    write_row: Callable[[int, int], str],
) -> Value:
    """Write a column at once, but the days before a first one and after 9999 one by one."""
    days, valid = days_of(clock)
    beyond: npt.NDArray[np.bool_] = (days < first_day) | (days >= _YEAR_10000)
    if valid is not None:
        beyond &= valid
    if not beyond.any():
        return write(clock)
    rows = pa.array(beyond)
    inside = pc.if_else(rows, pa.scalar(None, clock.type), clock)
    return pc.replace_with_mask(write(inside), rows, _by_row(clock.filter(rows), write_row))


def _by_row(clock: Value, write: Callable[[int, int], str]) -> Value:
    ticks, valid = clock_ticks(clock)
    per_second = PER_SECOND[clock.type.unit]
    days, rest = np.divmod(ticks, per_second * SECONDS_PER_DAY)
    nanos = rest * (10**9 // per_second)
    known = np.ones(len(days), np.bool_) if valid is None else valid
    texts = [
        write(day, nano) if is_known else None
        for day, nano, is_known in zip(days.tolist(), nanos.tolist(), known.tolist(), strict=True)
    ]
    return pa.array(texts, pa.string())
