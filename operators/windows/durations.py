"""Durations as users write them: texts, `timedelta`, or milliseconds.

Every argument that is a duration is read here, so all of them take the same.
"""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from numbers import Integral
from typing import TypeAlias

from ...configs.errors import InputError
from ...configs.units import NS_PER_US

__all__ = ["Duration", "describe_ns", "duration_ns"]

Duration: TypeAlias = str | datetime.timedelta | int | float
"""A text such as "10 seconds", "200 ms" or "1 min 30 s", a `timedelta`, or milliseconds."""

_NS_MAX = (1 << 63) - 1
_NS_PER_UNIT = {
    "nanosecond": 1,
    "microsecond": 1_000,
    "millisecond": 1_000_000,
    "second": 1_000_000_000,
    "minute": 60 * 1_000_000_000,
    "hour": 3_600 * 1_000_000_000,
    "day": 86_400 * 1_000_000_000,
    "week": 7 * 86_400 * 1_000_000_000,
}
_SHORT_FORMS = {
    "ns": "nanosecond",
    "us": "microsecond",
    "µs": "microsecond",  # the micro sign
    "μs": "microsecond",  # the Greek letter
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "secs": "second",
    "min": "minute",
    "mins": "minute",
    "h": "hour",
    "hr": "hour",
    "hrs": "hour",
    "d": "day",
    "w": "week",
}
"""Without "m", which is a minute to some and a month to others."""
_PART = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-zµμ]+)", re.IGNORECASE)


def duration_ns(value: object, what: str) -> int:
    """Return a duration in nanoseconds, a whole number of microseconds.

    Args:
        value: see `Duration`; days have 24 hours.
        what: names the parameter in messages.

    Raises:
        InputError: it is no duration, has months or years, is finer than a microsecond, or does not
            fit into 64-bit nanoseconds (292 years).
    """
    if isinstance(value, str):
        exact = _of_text(value, what)
    elif isinstance(value, datetime.timedelta):
        exact = Fraction(value // datetime.timedelta(microseconds=1) * NS_PER_US)
    elif isinstance(value, Integral) and not isinstance(value, bool):
        exact = Fraction(int(value)) * _NS_PER_UNIT["millisecond"]
    elif isinstance(value, float) and isfinite(value):  # 0.2 as it is written
        exact = Fraction(repr(float(value))) * _NS_PER_UNIT["millisecond"]
    else:
        msg = f"{what} is {value!r}: pass a text such as '10 seconds', a timedelta, or milliseconds"
        raise InputError(msg)
    if exact.denominator != 1 or exact.numerator % NS_PER_US:
        msg = f"{what} is {value!r}: the finest duration is a microsecond"
        raise InputError(msg)
    if abs(exact.numerator) > _NS_MAX:
        msg = f"{what} is {value!r}: at most 292 years fit into 64-bit nanoseconds"
        raise InputError(msg)
    return exact.numerator


def describe_ns(duration: int) -> str:
    """Return a duration, ns, in the largest unit of which it is a whole number: "90 seconds"."""
    units = [unit for unit in _NS_PER_UNIT if duration % _NS_PER_UNIT[unit] == 0]
    unit = units[-1] if duration else "second"
    count = duration // _NS_PER_UNIT[unit]
    return f"{count} {unit}{'' if count == 1 else 's'}"


def _of_text(text: str, what: str) -> Fraction:
    rest = text.strip()
    if rest.lower().startswith("interval "):
        rest = rest[len("interval ") :]
    total, at = Fraction(0), 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None:
            break
        word = part[2].lower()
        unit = _SHORT_FORMS.get(word) or word.removesuffix("s")
        if unit in ("month", "year"):
            msg = f"{what} is {text!r}: months and years differ in length; write days"
            raise InputError(msg)
        if unit not in _NS_PER_UNIT:
            units = ", ".join([*_NS_PER_UNIT, "or ns, us, ms, s, min, h, d, w"])
            msg = f"{what} is {text!r}: {part[2]!r} is no unit; use {units}"
            raise InputError(msg)
        total += Fraction(Decimal(part[1])) * _NS_PER_UNIT[unit]
        at = part.end()
    if at < len(rest) or not at:
        msg = f"{what} is {text!r}: write a number and a unit, such as '10 seconds'"
        raise InputError(msg)
    return total
