"""Rules of types: what kind a type is, and the common type of two.

Numbers follow Spark: the wider integer; float32 with any integer stays float32, float64 wins over
all; decimals absorb integers and give way to floats. Types that Spark lacks widen the same way: an
unsigned and a signed integer meet in the next wider signed type, float16 becomes float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import pyarrow as pa

from ....configs.errors import ExpressionError

__all__ = [
    "DECIMAL_DIGITS_MAX",
    "ArrowType",
    "as_decimal",
    "common_type",
    "finer_unit",
    "is_bytes",
    "is_date",
    "is_number",
    "is_text",
    "number_type",
]

#: A pyarrow DataType; pyarrow has no types for mypy.
ArrowType: TypeAlias = Any

DECIMAL_DIGITS_MAX = 38
#: Bytes of an integer → digits of its largest value.
_INTEGER_DIGITS = {1: 3, 2: 5, 4: 10, 8: 20}
_SIGNED = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
#: Units of time, from the coarsest to the finest.
_UNITS = ("s", "ms", "us", "ns")


def is_number(kind: ArrowType) -> bool:
    """Tell whether values of the type are integers, floats or decimals."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def is_text(kind: ArrowType) -> bool:
    """Tell whether values of the type are strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: ArrowType) -> bool:
    """Tell whether values of the type are binary."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def is_date(kind: ArrowType) -> bool:
    """Tell whether values of the type are days."""
    return bool(pa.types.is_date(kind))


def common_type(kinds: Iterable[ArrowType]) -> ArrowType:
    """Return the type that all the types fit into; raise ExpressionError if there is none."""
    result = pa.null()
    for kind in kinds:
        result = _common(result, kind)
    return result


def number_type(left: ArrowType, right: ArrowType) -> ArrowType:
    """Return the type in which two numbers are computed; raise ExpressionError if there is none."""
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        if pa.types.is_decimal(left) or pa.types.is_decimal(right):
            return pa.float64()
        floats = [kind for kind in (left, right) if pa.types.is_floating(kind)]
        return pa.float64() if any(k.bit_width == 64 for k in floats) else pa.float32()
    if pa.types.is_decimal(left) or pa.types.is_decimal(right):
        left, right = as_decimal(left), as_decimal(right)
        scale = max(left.scale, right.scale)
        digits = max(left.precision - left.scale, right.precision - right.scale) + scale
        return pa.decimal128(min(digits, DECIMAL_DIGITS_MAX), scale)
    signed_left, signed_right = (pa.types.is_signed_integer(kind) for kind in (left, right))
    if signed_left == signed_right:
        return left if left.bit_width >= right.bit_width else right
    signed, unsigned = (left, right) if signed_left else (right, left)
    width = max(signed.bit_width, 2 * unsigned.bit_width) // 8
    if width > 8:
        msg = f"{left} and {right} share no integer type: cast the uint64 to 'long' or 'double'"
        raise ExpressionError(msg)
    return _SIGNED[width]


def as_decimal(kind: ArrowType) -> ArrowType:
    """Return the decimal type that holds all values of an integer type."""
    if pa.types.is_decimal(kind):
        return kind
    return pa.decimal128(_INTEGER_DIGITS[kind.bit_width // 8], 0)


def finer_unit(left: ArrowType, right: ArrowType) -> str:
    """Return the finer of the units of two timestamps, durations or times of day."""
    return max(left.unit, right.unit, key=_UNITS.index)


def _common(left: ArrowType, right: ArrowType) -> ArrowType:
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if is_number(left) and is_number(right):
        return number_type(left, right)
    if is_text(left) and is_text(right):
        return pa.string()
    if is_bytes(left) and is_bytes(right):
        return pa.binary()
    if (common := _common_time(left, right)) is not None:
        return common
    msg = f"{left} and {right} have no common type: cast one of them"
    if pa.types.is_timestamp(left) and pa.types.is_timestamp(right):
        msg = (
            f"{left} and {right}: one has a zone and the other has none: cast one to 'timestamp'"
            " or 'timestamp_ntz'"
        )
    raise ExpressionError(msg)


def _common_time(left: ArrowType, right: ArrowType) -> ArrowType | None:
    """Return the common type of dates, timestamps, durations or times of day; None if none.

    A date beside a timestamp becomes one; two of a kind take the finer unit.
    """
    types = pa.types
    if is_date(left) and is_date(right):
        return pa.date32()
    if is_date(left) and types.is_timestamp(right):
        return right
    if types.is_timestamp(left) and is_date(right):
        return left
    if types.is_timestamp(left) and types.is_timestamp(right):
        return _common_timestamp(left, right)
    if types.is_duration(left) and types.is_duration(right):
        return pa.duration(finer_unit(left, right))
    if types.is_time(left) and types.is_time(right):
        unit = finer_unit(left, right)
        return pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)
    return None


def _common_timestamp(left: ArrowType, right: ArrowType) -> ArrowType | None:
    """Return a timestamp type; in UTC if the zones differ, None if only one type has a zone."""
    if (left.tz is None) != (right.tz is None):
        return None
    return pa.timestamp(finer_unit(left, right), left.tz if left.tz == right.tz else "UTC")
