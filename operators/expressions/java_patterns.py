"""Spark's date patterns, such as `yyyy-MM-dd HH:mm:ss`: formatting and parsing by them.

They read and write what Java's `DateTimeFormatter` does under Spark's
`timeParserPolicy=CORRECTED`: the number of letters is the exact number of digits, and a day that
does not exist in the calendar is not read.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TypeAlias

from ...configs.errors import ExpressionError
from .civil_days import civil_day, day_number

__all__ = ["JavaPattern"]

Part: TypeAlias = "PatternField | str"

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_HALVES = ("AM", "PM")
#: Letter → how many of it may stand in a row.
_WIDTHS: dict[str, tuple[int, ...]] = {
    "y": (4, 1, 2),
    "M": (1, 2, 3, 4),
    "d": (1, 2),
    "D": (1, 2, 3),
    "E": (1, 2, 3, 4),
    **dict.fromkeys("Hhms", (1, 2)),
    "S": tuple(range(1, 10)),
    "a": (1,),
}
#: Fields that C's strftime writes in the same way in the years 1000 to 9999.
_STRFTIME = {
    "yyyy": "%Y",
    "y": "%Y",
    "yy": "%y",
    "MM": "%m",
    "MMM": "%b",
    "MMMM": "%B",
    "dd": "%d",
    "DDD": "%j",
    "E": "%a",
    "EEE": "%a",
    "EEEE": "%A",
    "HH": "%H",
    "hh": "%I",
    "mm": "%M",
    "ss": "%S",
    "a": "%p",
}
_DIGITS = {"yyyy", "MM", "dd", "HH", "mm", "ss"}
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+|'")


@dataclass(frozen=True)
class PatternField:
    """A letter of a pattern, and how many of it stand in a row."""

    letter: str
    width: int


@dataclass(frozen=True)
class JavaPattern:
    """A parsed and checked pattern.

    Attributes:
        text: as the user wrote it.
        parts: its fields, and the literal text between them.
    """

    text: str
    parts: tuple[Part, ...]

    @staticmethod
    def parse(pattern: str, reading: bool = False) -> JavaPattern:
        """Parse a pattern; raise ExpressionError for a letter that is not supported."""
        if not isinstance(pattern, str):
            msg = f"a date pattern is text such as 'yyyy-MM-dd', not {pattern!r}"
            raise ExpressionError(msg)
        parts: list[Part] = []
        for token in _TOKEN.finditer(pattern):
            quoted, letter = token.group(1), token.group(2)
            if token.group() == "'":
                msg = f"the date pattern {pattern!r} has a quote without an end: write '' for one"
                raise ExpressionError(msg)
            if quoted is not None:
                parts.append(quoted.replace("''", "'") or "'")
            elif letter is None:
                parts.append(token.group())
            else:
                parts.append(_field(pattern, letter, len(token.group())))
                if reading and letter == "E":
                    msg = f"the date pattern {pattern!r} holds 'E', which is only for writing"
                    raise ExpressionError(msg)
        return JavaPattern(pattern, tuple(parts))

    @property
    def strftime(self) -> str | None:
        """The strftime format that writes the same in the years 1000 to 9999, or None."""
        words = [
            part.replace("%", "%%")
            if isinstance(part, str)
            else _STRFTIME.get(part.letter * part.width)
            for part in self.parts
        ]
        return None if None in words else "".join(map(str, words))

    @property
    def is_plain(self) -> bool:
        """Whether all fields are digits of fixed width, each once, with year, month and day."""
        fields = [part.letter * part.width for part in self.parts if not isinstance(part, str)]
        plain = {"yyyy", "MM", "dd"} <= set(fields) <= _DIGITS
        ascii_only = all(part.isascii() for part in self.parts if isinstance(part, str))
        # Letters between the fields match in either case; comparing bytes would not.
        quoted = any(c.isalpha() for part in self.parts if isinstance(part, str) for c in part)
        return plain and ascii_only and not quoted and len(fields) == len(set(fields))

    @property
    def width(self) -> int:
        """The number of characters that a plain pattern reads."""
        return sum(len(part) if isinstance(part, str) else part.width for part in self.parts)

    def write(self, day: int, nanos: int) -> str:
        """Format a time, given as days since 1970 and nanoseconds since midnight."""
        year, month, of_month = civil_day(day)
        seconds, fraction = divmod(nanos, 10**9)
        numbers = {"M": month, "d": of_month, "D": day - (day_number(year, 1, 1) or 0) + 1}
        numbers |= {"H": seconds // 3600, "m": seconds // 60 % 60, "s": seconds % 60}
        numbers["h"] = (numbers["H"] + 11) % 12 + 1  # 1 … 12
        written = []
        for part in self.parts:
            if isinstance(part, str):
                written.append(part)
            elif part.letter == "y":
                written.append(_year_text(year, part.width))
            elif part.letter == "M" and part.width > 2:
                written.append(_named(_MONTHS[month - 1], part.width))
            elif part.letter == "E":
                written.append(_named(_WEEKDAYS[(day + 3) % 7], part.width))
            elif part.letter == "a":
                written.append(_HALVES[numbers["H"] // 12])
            elif part.letter == "S":
                written.append(f"{fraction:09d}"[: part.width])
            else:
                written.append(f"{numbers[part.letter]:0{part.width}d}")
        return "".join(written)

    def read(self, text: str) -> tuple[int, int] | None:
        """Parse a time, returned as `write` takes it; None if the text does not match exactly."""
        match = _expression(self).fullmatch(text)
        if match is None:
            return None
        found: dict[str, int] = {}
        fields = (part for part in self.parts if isinstance(part, PatternField))
        for field, field_text in zip(fields, match.groups(), strict=True):
            value = _value(field, field_text)
            if value is None or found.setdefault(field.letter, value) != value:
                return None  # out of range, or two fields contradict each other
        day, nanos = _day_of(found), _nanos_of(found)
        return None if day is None or nanos is None else (day, nanos)


def _field(pattern: str, letter: str, width: int) -> PatternField:
    if width not in _WIDTHS.get(letter, ()):
        known = "yyyy y yy M MM MMM MMMM d dd D DD DDD E EEEE H HH h hh m mm s ss S…SSSSSSSSS a"
        msg = (
            f"the date pattern {pattern!r} holds {letter * width!r}, which is not supported: use"
            f" {', '.join(known.split())}, and quote other letters"
        )
        raise ExpressionError(msg)
    return PatternField(letter, width)


def _year_text(year: int, width: int) -> str:
    if width == 2:
        return f"{abs(year) % 100:02d}"
    if width == 1:
        return str(year)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}"


def _named(name: str, width: int) -> str:
    return name if width == 4 else name[:3]


# ---- reading ---------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _expression(pattern: JavaPattern) -> re.Pattern[str]:
    """Return a regular expression with one group per field."""
    pieces = (
        re.escape(part) if isinstance(part, str) else f"({_field_expression(part)})"
        for part in pattern.parts
    )
    return re.compile("".join(pieces), re.IGNORECASE | re.ASCII)


def _field_expression(field: PatternField) -> str:
    if field.letter == "y":
        return {1: r"-?\d{1,19}", 2: r"\d\d", 4: r"\d{4}|\+\d{5,19}|-\d{4,19}"}[field.width]
    if field.letter == "a":
        return "|".join(_HALVES)
    if field.letter == "M" and field.width > 2:
        return "|".join(_named(name, field.width) for name in _MONTHS)
    if field.letter == "S":
        return rf"\d{{1,{field.width}}}"
    if field.width == 1:
        return r"\d{1,19}"
    return r"\d{2,3}" if field == PatternField("D", 2) else rf"\d{{{field.width}}}"


_RANGES = {"M": (1, 12), "d": (1, 31), "D": (1, 366), "H": (0, 23), "h": (1, 12)}


def _value(field: PatternField, text: str) -> int | None:
    """Return the number that a field's text means; None if out of range."""
    if field.letter == "a":
        return _HALVES.index(text.upper())
    if field.letter == "M" and field.width > 2:
        return [_named(name, field.width).lower() for name in _MONTHS].index(text.lower()) + 1
    if field.letter == "S":
        return int(text.ljust(9, "0"))
    number = int(text)
    if field.letter == "y":
        is_minus_zero = number == 0 and text.startswith("-")
        return None if is_minus_zero else number + 2000 * (field.width == 2)
    low, high = _RANGES.get(field.letter, (0, 59))
    return number if low <= number <= high else None


def _day_of(found: dict[str, int]) -> int | None:
    """Return the day number; fields that are missing default to those of 1970-01-01."""
    year = found.get("y", 1970)
    day = day_number(year, found.get("M", 1), found.get("d", 1))
    if "y" not in found or "D" not in found:
        return day
    first = day_number(year, 1, 1)
    if first is None:
        return None
    counted = first + found["D"] - 1
    year_there, month, of_month = civil_day(counted)
    agrees = found.get("M", month) == month and found.get("d", of_month) == of_month
    return counted if year_there == year and agrees else None


def _nanos_of(found: dict[str, int]) -> int | None:
    """Return nanoseconds since midnight; fields that are missing default to 0 and AM."""
    half = found.get("a", 0)
    hour = found["h"] % 12 if "h" in found else 0
    hour = found.get("H", hour + 12 * half)
    if ("a" in found and hour // 12 != half) or ("h" in found and hour % 12 != found["h"] % 12):
        return None
    seconds = hour * 3600 + found.get("m", 0) * 60 + found.get("s", 0)
    return seconds * 10**9 + found.get("S", 0)
