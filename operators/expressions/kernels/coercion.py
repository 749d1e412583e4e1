"""Which type two operands share: literals as Arrow scalars, and the common type of values.

Numbers follow Spark: the wider integer; float32 with any integer stays float32, float64 wins over
all; decimals take integers in and give way to floats. Types that Spark lacks widen the same way:
an unsigned integer meets a signed one in the next wider signed type, float16 becomes float32.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....configs.errors import ExpressionError

__all__ = [
    "UNITS",
    "Value",
    "as_decimal",
    "common_type",
    "converted",
    "each",
    "fitted_literal",
    "from_numpy",
    "is_bytes",
    "is_date",
    "is_number",
    "is_text",
    "literal_scalar",
    "number_type",
    "to_numpy",
    "unified",
    "zero",
]

#: A pyarrow Array or Scalar; pyarrow has no types for mypy.
Value: TypeAlias = Any
ArrowType: TypeAlias = Any

_INTEGER_DIGITS = {1: 3, 2: 5, 4: 10, 8: 20}
_SIGNED = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
#: Units of time, from the coarsest to the finest.
UNITS = ("s", "ms", "us", "ns")
_DECIMAL_DIGITS_MAX = 38


def literal_scalar(constant: Any) -> Value:
    """Return a Python or numpy value as an Arrow scalar of the type that `lit` documents."""
    if type(constant) is int:
        return pa.scalar(constant, pa.int32() if -(2**31) <= constant < 2**31 else pa.int64())
    if isinstance(constant, datetime.datetime) and constant.tzinfo is not None:
        return pa.scalar(constant, pa.timestamp("us", "UTC"))
    return pa.scalar(constant)


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


def unified(values: Sequence[Value]) -> list[Value]:
    """Cast values to their common type.

    A literal helps itself in: text beside a date or timestamp is read as one, an integer beside an
    unsigned column takes its type, an integer beside a decimal only the digits that it has.

    Raises:
        ExpressionError: there is no common type; the message names two and the remedy.
    """
    columns = [value.type for value in values if not isinstance(value, pa.Scalar)]
    target = common_type(columns)
    values = [fitted_literal(value, target) for value in values]
    target = common_type([target, *(v.type for v in values if isinstance(v, pa.Scalar))])
    return [converted(value, target) for value in values]


def converted(value: Value, target: ArrowType) -> Value:
    """Cast a value to a type that `common_type` gave for it."""
    if value.type == target:
        return value
    if is_date(value.type) and pa.types.is_timestamp(target):
        from .timestamp_casts import date_to_timestamp

        if isinstance(value, pa.Scalar):
            return date_to_timestamp(pa.repeat(value, 1), target)[0]
        return date_to_timestamp(value, target)
    if pa.types.is_decimal(value.type) and pa.types.is_floating(target):
        # The nearest float: Arrow's own conversion is off by a bit.
        return pc.cast(pc.cast(value, pa.string()), target)
    # To a float every number may be rounded; everything else keeps its value or is refused.
    return pc.cast(value, target, safe=not pa.types.is_floating(target))


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
        return pa.decimal128(min(digits, _DECIMAL_DIGITS_MAX), scale)
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


def zero(kind: ArrowType) -> Value:
    """Return zero as a scalar of a number's type."""
    return pa.scalar(decimal.Decimal(0) if pa.types.is_decimal(kind) else 0, kind)


def to_numpy(value: Value, rows: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return an array or scalar as numpy values and validity (None: no nulls), shape (rows,)."""
    if isinstance(value, pa.Scalar):
        value = pa.repeat(value, rows)
    if not value.null_count:
        return value.to_numpy(zero_copy_only=False), None
    valid = pc.is_valid(value).to_numpy(zero_copy_only=False)
    filled = pc.fill_null(value, zero(value.type))
    return filled.to_numpy(zero_copy_only=False), valid


def from_numpy(
    values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None, kind: ArrowType | None = None
) -> Value:
    """Return numpy values as an Arrow array, null where not valid."""
    return pa.array(values, kind, mask=None if valid is None else ~valid)


def each(value: Value, convert: Callable[[Any], Any], to: ArrowType) -> Value:
    """Convert value by value in Python; None gives null, and null stays null."""
    converted = [None if one is None else convert(one) for one in value.to_pylist()]
    return pa.array(converted, to)


def fitted_literal(value: Value, beside: ArrowType) -> Value:
    """Give a literal the type that its neighbour suggests; return anything else as it is."""
    if not isinstance(value, pa.Scalar) or not value.is_valid:
        return value
    if is_text(value.type) and (is_date(beside) or pa.types.is_timestamp(beside)):
        from .casts import cast_to

        # A time of day compares with days as an instant: it must not lose its hours.
        long = is_date(beside) and len(value.as_py().strip()) > len("2000-01-01")
        read = cast_to(pa.repeat(value, 1), pa.timestamp("us") if long else beside)[0]
        if not read.is_valid:
            msg = f"{value.as_py()!r} is no date or time: write it as '2008-05-17 12:00:00'"
            raise ExpressionError(msg)
        return read
    if pa.types.is_integer(value.type):
        if pa.types.is_unsigned_integer(beside) and beside.bit_width == 64 and value.as_py() >= 0:
            return value.cast(beside)
        if pa.types.is_decimal(beside):
            digits = max(1, len(str(abs(value.as_py()))))
            return value.cast(as_decimal(value.type)).cast(pa.decimal128(digits, 0))
    return value


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
    if is_date(left) and is_date(right):
        return pa.date32()
    for family in (pa.types.is_duration, pa.types.is_timestamp, pa.types.is_time):
        if family(left) and family(right):
            unit = max(left.unit, right.unit, key=UNITS.index)
            if family is pa.types.is_duration:
                return pa.duration(unit)
            if family is pa.types.is_time:
                return pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)
            if (left.tz is None) != (right.tz is None):
                return None
            return pa.timestamp(unit, left.tz if left.tz == right.tz else "UTC")
    if is_date(left) and pa.types.is_timestamp(right):
        return right
    return left if pa.types.is_timestamp(left) and is_date(right) else None
