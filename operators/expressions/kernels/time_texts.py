"""Dates and timestamps from text and to text, for casts and for date patterns."""

from __future__ import annotations

import functools
import re
import zoneinfo
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....transport.wire.column import Column
from ..civil_days import day_number
from ..java_patterns import JavaPattern
from .arrays import Value, from_numpy, truths
from .timestamp_casts import (
    PER_SECOND,
    SECONDS_PER_DAY,
    clock_ticks,
    days_of,
    from_clock,
    in_unit,
    local_time,
)
from .type_rules import ArrowType
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


#: What Spark trims before it parses a value: ASCII blanks and control characters.
BLANKS = "".join(map(chr, range(33))) + "\x7f"

_DATE = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_TIMESTAMP = re.compile(
    r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](\d{1,2})(?::(\d{1,2})"
    r"(?::(\d{1,2})(?:\.(\d*))?([^\d.].*)?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
#: Times with an offset that Arrow parses as Spark does.
_ISO_INSTANT = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-](0\d|1[0-7]):[0-5]\d)$"
_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::(\d{1,2})(?::(\d\d))?|(\d\d)(\d\d)?)?", re.ASCII
)
#: Java's old short names of zones.
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
    """Parse dates; a time of day after a date is ignored."""
    trimmed = pc.utf8_trim(value, BLANKS)
    try:
        return pc.cast(pc.cast(trimmed, pa.date32()), to)
    except pa.ArrowInvalid:
        pass  # some value is not just a date: parsed one by one below
    days = [None if text is None else _parse_day(text) for text in trimmed.to_pylist()]
    return pc.cast(pc.cast(pa.array(days, pa.int32()), pa.date32()), to)


def _parse_day(text: str) -> int | None:
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    day = day_number(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    return day if day is not None and abs(day) < 2**31 else None


def text_to_timestamp(value: Value, to: ArrowType) -> Value:
    """Parse timestamps; a text without a zone is local time in the zone of the target type."""
    trimmed = pc.utf8_trim(value, BLANKS)
    try:
        local = pc.cast(trimmed, pa.timestamp(to.unit))
    except pa.ArrowInvalid:
        pass  # some value has a zone, or is no timestamp
    else:
        return from_clock(*clock_ticks(local), to)
    if to.tz is not None and pc.all(pc.match_substring_regex(trimmed, _ISO_INSTANT)).as_py():
        try:
            return pc.cast(in_unit(pc.cast(trimmed, pa.timestamp("us", "UTC")), to.unit), to)
        except pa.ArrowInvalid:
            pass  # some value is a date that does not exist
    return _timestamps_one_by_one(trimmed.to_pylist(), to)


def _timestamps_one_by_one(texts: Sequence[str | None], to: ArrowType) -> Value:
    parsed = [None if text is None else _parse_timestamp(text) for text in texts]
    clocks = pa.array([None if one is None else _fitting(one[0]) for one in parsed], pa.int64())
    local = in_unit(pc.cast(clocks, pa.timestamp("us")), to.unit)
    without_zone = from_clock(*clock_ticks(local), to)
    if to.tz is None:
        return without_zone
    instants = pc.cast(pa.array(_instants(parsed), pa.int64()), pa.timestamp("us"))
    return pc.coalesce(pc.cast(in_unit(instants, to.unit), to), without_zone)


def _parse_timestamp(text: str) -> tuple[int, str | None] | None:
    """Return local time in microseconds since 1970, and the text's zone, None if it has none."""
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
    """Return the name for `zones` of a zone as Java writes it; "" if there is no such zone."""
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


def _instants(parsed: Sequence[tuple[int, str | None] | None]) -> list[int | None]:
    """Return the instants in microseconds; None without a zone, or if they exceed 64 bits."""
    rows_by_zone: dict[str, list[tuple[int, int]]] = {}
    for row, one in enumerate(parsed):
        if one is not None and one[1] is not None and _fitting(one[0]) is not None:
            rows_by_zone.setdefault(one[1], []).append((row, one[0]))
    found: list[int | None] = [None] * len(parsed)
    for zone, local_times in rows_by_zone.items():  # one call of numpy for each zone
        rows, clocks = zip(*local_times, strict=True)
        seconds, micros = np.divmod(np.array(clocks, np.int64), 10**6)
        instants = instant_seconds(seconds, zone).tolist()
        for row, instant, rest in zip(rows, instants, micros.tolist(), strict=True):
            found[row] = _fitting(instant * 10**6 + rest)
    return found


def _fitting(number: int) -> int | None:
    return number if -(2**63) <= number < 2**63 else None


def parsed(value: Value, pattern: JavaPattern) -> Value:
    """Parse local times by a pattern, as timestamp[us]; null where the text does not match.

    Texts of a plain pattern are parsed all at once, the remaining ones one by one.
    """
    micros = np.zeros(len(value), np.int64)
    done = np.zeros(len(value), np.bool_)
    if pattern.is_plain:
        micros, done = _parse_plain(value, pattern)
    left = truths(pc.is_valid(value)) & ~done
    found = pc.cast(from_numpy(micros, done), pa.timestamp("us"))
    if not left.any():
        return found
    rows = pa.array(left)
    read = [_parse_by(pattern, text) for text in value.filter(rows).to_pylist()]
    return pc.replace_with_mask(found, rows, pc.cast(pa.array(read, pa.int64()), found.type))


def _parse_plain(
    value: Value, pattern: JavaPattern
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Parse the texts that have digits exactly where a plain pattern has letters.

    Returns:
        local times in microseconds since 1970, and which rows were parsed; both of shape (rows,).
    """
    width = pattern.width
    fits = pc.fill_null(pc.equal(pc.binary_length(value), width), False)
    column = Column.of(value.filter(fits))
    start = 0 if column.offsets is None else int(column.offsets[0])
    texts = column.data[start : start + len(column) * width].reshape(-1, width)
    numbers, is_good = _digit_fields(np.ascontiguousarray(texts.T), pattern)
    seconds = _clock_seconds(numbers, is_good)
    fitting = truths(fits)
    micros = np.zeros(len(value), np.int64)
    micros[fitting] = seconds * 10**6
    done = fitting.copy()
    done[fitting] = is_good
    return micros, done


def _digit_fields(
    letters: npt.NDArray[np.uint8], pattern: JavaPattern
) -> tuple[dict[str, npt.NDArray[np.int64]], npt.NDArray[np.bool_]]:
    """Return each field's numbers, by the field's letter, and which texts match the pattern.

    Args:
        letters: the bytes of the texts, shape (pattern.width, texts).
        pattern: a plain one.
    """
    is_good = np.ones(letters.shape[1], np.bool_)
    numbers: dict[str, npt.NDArray[np.int64]] = {}
    rows = iter(letters)
    for part in pattern.parts:
        if isinstance(part, str):
            for letter in part:
                is_good &= next(rows) == ord(letter)
            continue
        number = np.zeros(letters.shape[1], np.int64)
        for _ in range(part.width):
            digit = next(rows) - np.uint8(ord("0"))  # wraps around below "0"
            is_good &= digit <= 9
            number = number * 10 + digit
        numbers[part.letter] = number
    return numbers, is_good


def _clock_seconds(
    numbers: dict[str, npt.NDArray[np.int64]], is_good: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """Return local times in seconds since 1970; clear `is_good` where a field is out of range."""
    months = (numbers["y"] - 1970) * 12 + numbers["M"] - 1
    days = months.astype("M8[M]").astype("M8[D]").astype(np.int64) + numbers["d"] - 1
    is_good &= (numbers["M"] <= 12) & (numbers["M"] >= 1)
    is_good &= days.astype("M8[D]").astype("M8[M]").astype(np.int64) == months
    seconds = days * SECONDS_PER_DAY
    for letter, limit, size in (("H", 24, 3600), ("m", 60, 60), ("s", 60, 1)):
        if letter in numbers:
            is_good &= numbers[letter] < limit
            seconds += numbers[letter] * size
    return seconds


def _parse_by(pattern: JavaPattern, text: str) -> int | None:
    read = pattern.read(text)
    if read is None:
        return None
    day, nanos = read
    return _fitting(day * SECONDS_PER_DAY * 10**6 + nanos // 1000)


# ---- to text ---------------------------------------------------------------------------------


def written(value: Value, pattern: JavaPattern) -> Value:
    """Format timestamps by a pattern, in local time."""
    clock = local_time(value)
    if (format := pattern.strftime) is None:
        return _by_row(clock, pattern.write)
    seconds = in_unit(clock, "s")  # or Arrow's %S would include the fraction
    return _formatted(
        seconds, _YEAR_1000, lambda part: pc.strftime(part, format=format), pattern.write
    )


def timestamp_to_text(value: Value, to: ArrowType) -> Value:
    """Format as Spark does, in local time."""
    return pc.cast(_formatted(local_time(value), _YEAR_0, _arrow_text, _java_text), to)


def date_to_text(value: Value, to: ArrowType) -> Value:
    """Format as Spark does."""
    midnights = pc.cast(pc.cast(value, pa.date32()), pa.timestamp("s"))
    text = _formatted(
        midnights,
        _YEAR_0,
        lambda days: pc.cast(pc.cast(days, pa.date32()), pa.string()),
        _DAY.write,
    )
    return pc.cast(text, to)


def _arrow_text(clock: Value) -> Value:
    text = pc.strftime(clock, format="%Y-%m-%d %H:%M:%S")
    if clock.type.unit == "s":
        return text
    # Arrow writes all digits of the fraction, Spark no trailing zeros.
    return pc.replace_substring_regex(text, pattern=r"(\.\d*[1-9])0+$|\.0+$", replacement=r"\1")


def _java_text(day: int, nanos: int) -> str:
    fraction = _FRACTION.write(day, nanos).rstrip("0")
    return _MOMENT.write(day, nanos) + (f".{fraction}" if fraction else "")


def _formatted(
    clock: Value,
    first_day: int,
    write: Callable[[Value], Value],
    write_row: Callable[[int, int], str],
) -> Value:
    """Format all at once with `write`, but dates before a first day or after 9999 row by row."""
    days, valid = days_of(clock)
    outside: npt.NDArray[np.bool_] = (days < first_day) | (days >= _YEAR_10000)
    if valid is not None:
        outside &= valid
    if not outside.any():
        return write(clock)
    rows = pa.array(outside)
    inside = pc.if_else(rows, pa.scalar(None, clock.type), clock)
    return pc.replace_with_mask(write(inside), rows, _by_row(clock.filter(rows), write_row))


def _by_row(clock: Value, write: Callable[[int, int], str]) -> Value:
    ticks, valid = clock_ticks(clock)
    per_second = PER_SECOND[clock.type.unit]
    days, rest = np.divmod(ticks, per_second * SECONDS_PER_DAY)
    nanos = rest * (10**9 // per_second)
    not_null = [True] * len(days) if valid is None else valid.tolist()
    texts = [
        write(day, nano) if is_valid else None
        for day, nano, is_valid in zip(days.tolist(), nanos.tolist(), not_null, strict=True)
    ]
    return pa.array(texts, pa.string())
