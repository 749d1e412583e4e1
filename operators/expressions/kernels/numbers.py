"""Kernels on numbers; `functions` documents what each returns."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....configs.errors import ExpressionError
from .arrays import Value, each, from_numpy, to_numpy
from .casts import cast_to
from .coercion import coerced
from .decimals import fitted, rounded
from .type_rules import DECIMAL_DIGITS_MAX, is_number

#: The digits of 64 bits: rounded to higher powers of ten, every integer is 0.
_PLACES_MAX = 19
#: No float has that many digits before or after the point.
_SCALE_MAX = 350
#: The largest power of ten by which floats are scaled in binary.
_BINARY_SCALE_MAX = 300
_WHOLE = {"down": math.floor, "up": math.ceil}

# The names are PySpark's and shadow some of Python's; the public functions are in `functions`.


def abs(value: Value) -> Value:
    """Return the absolute value; the least integer stays negative, as in Java."""
    _check("abs", value)
    return pc.abs(value)


def signum(value: Value) -> Value:
    """Return the sign as float64; that of -0.0 is -0.0."""
    value = _double("signum", value)
    return pc.if_else(pc.equal(value, 0.0), value, pc.sign(value))


def round(value: Value, scale: int) -> Value:
    """Round half away from zero, in decimal: 2.675 to two digits is 2.68."""
    _check("round", value)
    if pa.types.is_integer(value.type):
        return value if scale >= 0 else _round_integer(value, -scale)
    if pa.types.is_decimal(value.type):
        return _round_decimal(value, scale)
    return _round_float(value, scale)


def floor(value: Value) -> Value:
    """Round down."""
    return _whole("floor", value, pc.floor, "down")


def ceil(value: Value) -> Value:
    """Round up."""
    return _whole("ceil", value, pc.ceil, "up")


def sqrt(value: Value) -> Value:
    """Return the square root."""
    return pc.sqrt(_double("sqrt", value))


def exp(value: Value) -> Value:
    """Return e to the power of a value."""
    return pc.exp(_double("exp", value))


def log(value: Value) -> Value:
    """Return the natural logarithm."""
    return pc.ln(_positive("log", value))


def log2(value: Value) -> Value:
    """Return the logarithm to base 2."""
    return pc.log2(_positive("log2", value))


def log10(value: Value) -> Value:
    """Return the logarithm to base 10."""
    return pc.log10(_positive("log10", value))


def hypot(left: Value, right: Value) -> Value:
    """Return the length of a vector."""
    return pc.hypot(_double("hypot", left), _double("hypot", right))


def sin(value: Value) -> Value:
    """Return the sine."""
    return pc.sin(_double("sin", value))


def cos(value: Value) -> Value:
    """Return the cosine."""
    return pc.cos(_double("cos", value))


def tan(value: Value) -> Value:
    """Return the tangent."""
    return pc.tan(_double("tan", value))


def asin(value: Value) -> Value:
    """Return the arc sine."""
    return pc.asin(_double("asin", value))


def acos(value: Value) -> Value:
    """Return the arc cosine."""
    return pc.acos(_double("acos", value))


def atan(value: Value) -> Value:
    """Return the arc tangent."""
    return pc.atan(_double("atan", value))


def atan2(y: Value, x: Value) -> Value:
    """Return the angle of a point."""
    # Spark ignores the sign of a zero, which adding 0.0 removes: -0.0 + 0.0 is 0.0.
    return pc.atan2(pc.add(_double("atan2", y), 0.0), pc.add(_double("atan2", x), 0.0))


def radians(value: Value) -> Value:
    """Convert degrees to radians, with Java's constant."""
    return pc.multiply(_double("radians", value), np.pi / 180.0)


def degrees(value: Value) -> Value:
    """Convert radians to degrees."""
    return pc.multiply(_double("degrees", value), 180.0 / np.pi)


def shiftleft(value: Value, bits: int) -> Value:
    """Shift left."""
    return _shift(value, bits, np.left_shift)


def shiftright(value: Value, bits: int) -> Value:
    """Shift right, keeping the sign."""
    return _shift(value, bits, np.right_shift)


def _check(name: str, value: Value) -> None:
    if not is_number(value.type):
        msg = f"{name} takes a number, not {value.type}: cast it to 'int' or 'double'"
        raise ExpressionError(msg)


def _double(name: str, value: Value) -> Value:
    _check(name, value)
    return coerced(value, pa.float64())


def _positive(name: str, value: Value) -> Value:
    value = _double(name, value)
    return pc.if_else(pc.less_equal(value, 0.0), pa.scalar(None, pa.float64()), value)


def _shift(value: Value, bits: int, kernel: Callable[..., Any]) -> Value:
    if not pa.types.is_integer(value.type):
        msg = f"bit operations need integers, not {value.type}: cast it to 'int' or 'long'"
        raise ExpressionError(msg)
    if value.type.bit_width < 32:
        value = pc.cast(value, pa.int32())
    numbers, valid = to_numpy(value, len(value))
    places = np.array(bits % value.type.bit_width, numbers.dtype)
    return from_numpy(kernel(numbers, places), valid)


def _whole(name: str, value: Value, kernel: Callable[[Value], Value], mode: str) -> Value:
    _check(name, value)
    if pa.types.is_integer(value.type):
        return value if pa.types.is_uint64(value.type) else pc.cast(value, pa.int64())
    if not pa.types.is_decimal(value.type):
        return cast_to(kernel(value), pa.int64())
    kind = value.type
    to = pa.decimal128(min(kind.precision - kind.scale + 1, DECIMAL_DIGITS_MAX), 0)
    if kind.precision == DECIMAL_DIGITS_MAX:
        return each(value, lambda number: fitted(decimal.Decimal(_WHOLE[mode](number)), to), to)
    wide = pa.decimal128(kind.precision + 1, kind.scale)
    return pc.cast(pc.round(pc.cast(value, wide), 0, mode), to)


def _round_integer(value: Value, places: int) -> Value:
    """Round half away from zero to tens, hundreds …; an overflow keeps the low bits, as in Java.

    Absolute values are rounded as uint64, which holds that of the least int64, too.
    """
    numbers, valid = to_numpy(value, len(value))
    if places > _PLACES_MAX:
        return from_numpy(np.zeros_like(numbers), valid)
    unit = np.uint64(10**places)
    wide = numbers.astype(np.uint64)
    size = np.where(numbers < 0, ~wide + np.uint64(1), wide)
    rest = size % unit
    size = size - rest + np.where(rest >= unit - rest, unit, np.uint64(0))
    result = np.where(numbers < 0, ~size + np.uint64(1), size)
    return from_numpy(result.astype(numbers.dtype), valid)


def _round_decimal(value: Value, scale: int) -> Value:
    """Round to a scale; the type of the result has room for one more digit before the point."""
    kind = value.type
    digits = kind.precision - kind.scale + 1
    shown = min(max(scale, 0), kind.scale)
    digits = max(digits, 1 - scale) if scale < 0 else digits + shown
    to = pa.decimal128(min(digits, DECIMAL_DIGITS_MAX), shown)
    if scale >= 0 and kind.precision < DECIMAL_DIGITS_MAX:
        wide = pc.cast(value, pa.decimal128(kind.precision + 1, kind.scale))
        return pc.cast(pc.round(wide, shown, "half_towards_infinity"), to)

    def nearest(number: decimal.Decimal) -> decimal.Decimal | None:
        return fitted(rounded(number, min(scale, kind.scale)), to)

    return each(value, nearest, to)


def _round_float(value: Value, scale: int) -> Value:
    """Round the shortest decimal number that denotes the float (a float32 as its float64).

    Most floats are rounded in binary. Those whose fraction is one half within the error of scaling
    are rounded in decimal, one by one.
    """
    scale = min(max(scale, -_SCALE_MAX), _SCALE_MAX)
    numbers, valid = to_numpy(value, len(value))
    precise = numbers.astype(np.float64)
    finite = np.isfinite(precise)
    if -_BINARY_SCALE_MAX <= scale <= _BINARY_SCALE_MAX:
        result, unsure = _round_in_binary(precise, scale)
    else:
        result, unsure = precise.copy(), finite
    for row in np.flatnonzero(unsure & finite).tolist():
        result[row] = float(rounded(decimal.Decimal(repr(float(precise[row]))), scale))
    result = np.where(finite, result + 0.0, precise)  # + 0.0 removes the sign of a zero
    return from_numpy(result.astype(numbers.dtype), valid)


def _round_in_binary(
    precise: npt.NDArray[np.float64], scale: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Round by scaling; return the results, and for each whether it may be wrong."""
    scaled = precise * 10.0**scale if scale >= 0 else precise / 10.0**-scale
    whole = np.trunc(scaled)
    part = np.abs(scaled - whole)
    whole += np.where(part > 0.5, np.sign(scaled), 0.0)
    result = whole / 10.0**scale if scale >= 0 else whole * 10.0**-scale
    # Beyond 2^52 floats have no fraction to round, and scaling might overflow.
    unsure = np.abs(part - 0.5) <= 1e-6 + np.abs(scaled) * 1e-7
    unsure |= ~(np.abs(scaled) < 2.0**52)
    return result, unsure
