"""Explicit casts: a value that does not fit becomes null, as in Spark without ANSI mode.

The common cases are one call of pyarrow. If pyarrow refuses any value of a batch, the batch is
converted by Python value by value, which is slower but covers every case. The session's zone is
UTC: text and timestamps without a zone are read and written in the zone of the target type, or in
UTC.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....configs.errors import ExpressionError
from ....transport.wire.arrow import type_to_arrow
from ....transport.wire.types import DataType
from .arrays import Value, each, from_numpy, to_numpy, zero
from .decimals import fitted
from .time_texts import BLANKS, date_to_text, text_to_date, text_to_timestamp, timestamp_to_text
from .timestamp_casts import (
    PER_SECOND,
    date_to_timestamp,
    in_unit,
    timestamp_to_date,
    timestamp_to_timestamp,
)
from .type_rules import (
    DECIMAL_DIGITS_MAX,
    ArrowType,
    as_decimal,
    is_bytes,
    is_date,
    is_number,
    is_text,
)

__all__ = ["cast", "cast_to", "java_float", "number_to_float", "to_text"]


_WIDE = decimal.Context(prec=100)
_TRUE = frozenset({"t", "true", "y", "yes", "1"})
_FALSE = frozenset({"f", "false", "n", "no", "0"})
_INTEGER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d*)", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[dDfF]?", re.ASCII)
_HEXADECIMAL = re.compile(
    r"[+-]?0[xX](?:[\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)[pP][+-]?\d+[dDfF]?", re.ASCII
)


def cast(value: Value, to: DataType) -> Value:
    """Convert to one of whale-ray's types; null where a value does not fit."""
    return cast_to(value, type_to_arrow(to))


def cast_to(value: Value, to: ArrowType) -> Value:
    """Convert an Arrow array; null where a value does not fit.

    Raises:
        ExpressionError: there is no cast between the two types.
    """
    source = value.type
    if source == to:
        return value
    if pa.types.is_null(source) or (is_text(source) and is_text(to)):
        return pc.cast(value, to)
    for accepts, convert in _CASTS:
        if accepts(source, to):
            return convert(value, to)
    msg = f"there is no cast from {source} to {to}"
    raise ExpressionError(msg)


def to_text(value: Value) -> Value:
    """Return values as text in Spark's notation."""
    if pa.types.is_string(value.type):
        return value
    if isinstance(value, pa.Scalar):
        return cast_to(pa.repeat(value, 1), pa.string())[0]
    return cast_to(value, pa.string())


# ---- from text -------------------------------------------------------------------------------


def _text_to_number(value: Value, to: ArrowType) -> Value:
    # Java trims all control characters around integers, but not 0x7F around other numbers.
    trimmed = pc.utf8_trim(value, BLANKS if pa.types.is_integer(to) else BLANKS[:-1])
    if not pc.any(pc.match_substring(trimmed, "x", ignore_case=True)).as_py():
        # Arrow would read hexadecimal numbers, which Spark does not.
        try:
            return pc.cast(trimmed, to)
        except pa.ArrowInvalid:
            pass  # some value is no such number: converted one by one below
    if pa.types.is_floating(to):
        # Arrow parses to the nearest float of any width, Python of 64 bits only.
        return pc.cast(each(trimmed, _plain_float, pa.string()), to)
    if pa.types.is_decimal(to):
        return each(trimmed, lambda text: fitted(_read_decimal(text), to), to)
    low, high = _integer_range(to)

    def read(text: str) -> int | None:
        if _INTEGER.fullmatch(text) is None:
            return None
        whole = text.partition(".")[0]
        number = 0 if whole in {"", "+", "-"} else int(whole)
        return number if low <= number <= high else None

    return each(trimmed, read, to)


def _plain_float(text: str) -> str | None:
    """Return Java's notation of a float in the form that Arrow parses; None if it is no float."""
    if _FLOAT.fullmatch(text):
        return text.rstrip("dDfF").removeprefix("+")
    if _HEXADECIMAL.fullmatch(text):
        try:
            return repr(float.fromhex(text.rstrip("dDfF")))
        except OverflowError:
            return "-inf" if text.startswith("-") else "inf"
    if text.removeprefix("+").removeprefix("-") == "NaN" or text.lower() == "nan":
        return "nan"
    if text.lower().removeprefix("+").removeprefix("-") in {"inf", "infinity"}:
        return "-inf" if text.startswith("-") else "inf"
    return None


def _read_decimal(text: str) -> decimal.Decimal | None:
    if "_" in text or text != text.strip():  # Python would accept both
        return None
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:
        return None
    return number if number.is_finite() else None


def _text_to_bool(value: Value, to: ArrowType) -> Value:
    def read(text: str) -> bool | None:
        word = text.strip(BLANKS).lower()
        return True if word in _TRUE else False if word in _FALSE else None

    return each(value, read, to)


# ---- from numbers ----------------------------------------------------------------------------


def _number_to_bool(value: Value, to: ArrowType) -> Value:
    return pc.not_equal(value, zero(value.type))


def _bool_to_number(value: Value, to: ArrowType) -> Value:
    return cast_to(pc.cast(value, pa.int8()), to)


def _float_to_integer(value: Value, to: ArrowType) -> Value:
    """Truncate to the nearest integer of the range, and NaN to 0, as Java does.

    As in Java, an int8 or int16 is the low bits of the int32.
    """
    numbers, valid = to_numpy(value, len(value))
    narrow = pa.types.is_signed_integer(to) and to.bit_width < 32
    low, high = _integer_range(pa.int32() if narrow else to)
    cut = np.trunc(np.nan_to_num(numbers.astype(np.float64), nan=0.0, posinf=high, neginf=low))
    # float(high) may be high + 1, which overflows: only smaller values are converted.
    inside = (cut > low) & (cut < high)
    wide = np.uint64 if low == 0 else np.int64
    whole = np.where(inside, cut, 0).astype(wide)
    whole[cut <= low] = low
    whole[cut >= high] = high
    return from_numpy(whole.astype(to.to_pandas_dtype()), valid, to)


def _number_to_integer(value: Value, to: ArrowType) -> Value:
    if pa.types.is_decimal(value.type):
        return pc.cast(each(value, low_bits, pa.int64()), to, safe=False)
    return pc.cast(value, to, safe=False)  # as in Java, an overflow keeps the low bits


def low_bits(number: decimal.Decimal | int) -> int:
    """Return the low 64 bits of a number's whole part, as a signed integer."""
    return (int(number) + 2**63) % 2**64 - 2**63


def number_to_float(value: Value, to: ArrowType) -> Value:
    """Return numbers as the nearest floats."""
    if pa.types.is_decimal(value.type):  # by their text: Arrow's own conversion is off by a bit
        value = pc.cast(value, pa.string())
    return pc.cast(value, to, safe=False)


def _number_to_decimal(value: Value, to: ArrowType) -> Value:
    if pa.types.is_floating(value.type):

        def exact(number: float) -> decimal.Decimal | None:
            if not math.isfinite(number):
                return None
            return fitted(decimal.Decimal(repr(number)), to)

        return each(pc.cast(value, pa.float64()), exact, to)
    wide = pc.cast(value, as_decimal(value.type))
    if wide.type.precision < DECIMAL_DIGITS_MAX:
        if to.scale < wide.type.scale:  # rounding up may need one more digit: 9.5 becomes 10
            roomier = pa.decimal128(wide.type.precision + 1, wide.type.scale)
            wide = pc.round(pc.cast(wide, roomier), to.scale, "half_towards_infinity")
        try:
            return pc.cast(wide, to)
        except pa.ArrowInvalid:
            pass  # some value has too many digits: converted one by one below
    return each(wide, lambda number: fitted(number, to), to)


def _integer_range(kind: ArrowType) -> tuple[int, int]:
    bits = kind.bit_width
    if pa.types.is_signed_integer(kind):
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return 0, 2**bits - 1


# ---- dates and times -------------------------------------------------------------------------


def _timestamp_to_number(value: Value, to: ArrowType) -> Value:
    """Return seconds since 1970: whole seconds for integers, with their fraction otherwise."""
    if pa.types.is_integer(to):
        return cast_to(pc.cast(in_unit(value, "s"), pa.int64()), to)
    ticks, valid = to_numpy(pc.cast(value, pa.int64()), len(value))
    return cast_to(from_numpy(ticks / PER_SECOND[value.type.unit], valid, pa.float64()), to)


def _number_to_timestamp(value: Value, to: ArrowType) -> Value:
    """Read seconds since 1970; out of range, a decimal wraps, any other number is clipped."""
    if pa.types.is_decimal(value.type):
        micros = each(value, lambda number: low_bits(number.scaleb(6, _WIDE)), pa.int64())
    elif pa.types.is_integer(value.type):
        seconds, valid = to_numpy(pc.cast(value, pa.int64(), safe=False), len(value))
        low, high = -(2**63) // 10**6, 2**63 // 10**6
        micros = np.clip(seconds, low, high) * 10**6
        micros = np.where(seconds <= low, -(2**63), np.where(seconds > high, 2**63 - 1, micros))
        micros = from_numpy(micros, valid)
    else:
        numbers, valid = to_numpy(pc.cast(value, pa.float64()), len(value))
        finite = np.isfinite(numbers)
        scaled = from_numpy(numbers * 1e6, finite if valid is None else finite & valid)
        micros = _float_to_integer(scaled, pa.int64())
    return pc.cast(in_unit(pc.cast(micros, pa.timestamp("us")), to.unit), to)


def _bool_to_timestamp(value: Value, to: ArrowType) -> Value:
    """Read true as one microsecond after 1970, as Spark does."""
    micros = pc.cast(pc.cast(value, pa.int64()), pa.timestamp("us"))
    return pc.cast(in_unit(micros, to.unit), to)


def _timestamp_to_bool(value: Value, to: ArrowType) -> Value:
    return pc.not_equal(pc.cast(value, pa.int64()), 0)


# ---- to text ---------------------------------------------------------------------------------


def _float_to_text(value: Value, to: ArrowType) -> Value:
    number = np.float32 if value.type.bit_width <= 32 else np.float64
    return each(value, lambda one: java_float(number(one)), to)


def java_float(number: np.floating[Any]) -> str:
    """Write a float as Java does: 1.0, 1.0E7, 1.0E-4, NaN, Infinity.

    The digits are the fewest that denote this float and no other, but at least two; of two digits
    the nearest, such as 4.9E-324.
    """
    text = str(number)
    sign, text = ("-", text[1:]) if text[0] == "-" else ("", text)
    if text in {"nan", "inf"}:
        return sign + {"nan": "NaN", "inf": "Infinity"}[text]
    _, digits, exponent = decimal.Decimal(text).normalize().as_tuple()
    if len(digits) == 1 and type(number)(nearest := f"{abs(number):.1e}") == abs(number):
        _, digits, exponent = decimal.Decimal(nearest).as_tuple()
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent)  # the number is 0.shown * 10^point
    if shown == "0":
        return f"{sign}0.0"
    if -3 < point <= 7:
        whole = shown[: max(point, 0)].ljust(point, "0") or "0"
        return f"{sign}{whole}.{'0' * max(-point, 0)}{shown[max(point, 0) :] or '0'}"
    return f"{sign}{shown[0]}.{shown[1:] or '0'}E{point - 1}"


def _to_plain(value: Value, to: ArrowType) -> Value:
    return pc.cast(value, to)


def _bytes_to_text(value: Value, to: ArrowType) -> Value:
    try:
        return pc.cast(pc.cast(value, pa.binary()), to)
    except pa.ArrowInvalid:

        def read(raw: bytes) -> str | None:
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return None

        return each(value, read, to)


def _integer_to_bytes(value: Value, to: ArrowType) -> Value:
    """Return the big-endian bytes of integers."""
    numbers, valid = to_numpy(value, len(value))
    raw = numbers.astype(numbers.dtype.newbyteorder(">")).tobytes()
    width = numbers.dtype.itemsize
    cut = [raw[at : at + width] for at in range(0, len(raw), width)]
    not_null = [True] * len(cut) if valid is None else valid.tolist()
    return pa.array(
        [one if is_valid else None for one, is_valid in zip(cut, not_null, strict=True)], to
    )


def _to_bytes(value: Value, to: ArrowType) -> Value:
    if pa.types.is_fixed_size_binary(to):
        width = to.byte_width
        raw = pc.cast(value, pa.binary())
        right = pc.equal(pc.binary_length(raw), width)
        return pc.cast(pc.if_else(right, raw, pa.scalar(None, pa.binary())), to)
    return pc.cast(value, to)


Test: TypeAlias = Callable[[ArrowType, ArrowType], Any]
_TYPES = pa.types
_CASTS: tuple[tuple[Test, Callable[[Value, ArrowType], Value]], ...] = (
    (lambda a, b: is_text(a) and is_number(b), _text_to_number),
    (lambda a, b: is_text(a) and _TYPES.is_boolean(b), _text_to_bool),
    (lambda a, b: is_text(a) and is_date(b), text_to_date),
    (lambda a, b: is_text(a) and _TYPES.is_timestamp(b), text_to_timestamp),
    (lambda a, b: (is_text(a) or is_bytes(a)) and is_bytes(b), _to_bytes),
    (lambda a, b: is_bytes(a) and is_text(b), _bytes_to_text),
    (lambda a, b: _TYPES.is_signed_integer(a) and _TYPES.is_binary(b), _integer_to_bytes),
    (lambda a, b: is_number(a) and _TYPES.is_boolean(b), _number_to_bool),
    (lambda a, b: _TYPES.is_boolean(a) and is_number(b), _bool_to_number),
    (lambda a, b: _TYPES.is_floating(a) and _TYPES.is_integer(b), _float_to_integer),
    (lambda a, b: is_number(a) and _TYPES.is_integer(b), _number_to_integer),
    (lambda a, b: is_number(a) and _TYPES.is_floating(b), number_to_float),
    (lambda a, b: is_number(a) and _TYPES.is_decimal(b), _number_to_decimal),
    (lambda a, b: is_number(a) and _TYPES.is_timestamp(b), _number_to_timestamp),
    (lambda a, b: _TYPES.is_boolean(a) and _TYPES.is_timestamp(b), _bool_to_timestamp),
    (lambda a, b: _TYPES.is_timestamp(a) and _TYPES.is_boolean(b), _timestamp_to_bool),
    (lambda a, b: _TYPES.is_timestamp(a) and is_number(b), _timestamp_to_number),
    (lambda a, b: _TYPES.is_timestamp(a) and _TYPES.is_timestamp(b), timestamp_to_timestamp),
    (lambda a, b: _TYPES.is_timestamp(a) and is_date(b), timestamp_to_date),
    (lambda a, b: is_date(a) and _TYPES.is_timestamp(b), date_to_timestamp),
    (lambda a, b: is_date(a) and is_date(b), _to_plain),
    (lambda a, b: _TYPES.is_duration(a) and _TYPES.is_duration(b), lambda v, t: in_unit(v, t.unit)),
    (
        lambda a, b: _TYPES.is_time(a) and _TYPES.is_time(b),
        lambda v, t: pc.cast(v, t, safe=False),  # which cuts what is finer than its unit
    ),
    (lambda a, b: _TYPES.is_floating(a) and is_text(b), _float_to_text),
    (lambda a, b: _TYPES.is_timestamp(a) and is_text(b), timestamp_to_text),
    (lambda a, b: is_date(a) and is_text(b), date_to_text),
    (lambda a, b: not _TYPES.is_duration(a) and is_text(b), _to_plain),
)
