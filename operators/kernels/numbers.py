"""Kernels on numbers; `functions` documents what each returns."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...configs.errors import ExpressionError
from .casts import cast_to
from .coercion import Value, converted, from_numpy, is_number, to_numpy

# The names are PySpark's, some of them Python's too; `functions` has the public ones.


def abs(value: Value) -> Value:
    """Return the magnitude; the least integer stays itself, as in Java."""
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
        if scale >= 0:
            return value
        wide = pc.cast(value, pa.decimal128(20 if value.type.bit_width == 64 else 10, 0))
        whole = cast_to(_round_decimal(wide, scale), pa.int64())
        return pc.cast(whole, value.type, safe=False)  # beyond the type its low bits, as in Java
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
    """Return e to this power."""
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
    """Return the angle of a sine."""
    return pc.asin(_double("asin", value))


def acos(value: Value) -> Value:
    """Return the angle of a cosine."""
    return pc.acos(_double("acos", value))


def atan(value: Value) -> Value:
    """Return the angle of a tangent."""
    return pc.atan(_double("atan", value))


def atan2(y: Value, x: Value) -> Value:
    """Return the angle of a point."""
    return pc.atan2(_double("atan2", y), _double("atan2", x))


def radians(value: Value) -> Value:
    """Turn degrees into radians; divide last, as Java does."""
    return pc.multiply(_double("radians", value), np.pi / 180.0)


def degrees(value: Value) -> Value:
    """Turn radians into degrees."""
    return pc.multiply(_double("degrees", value), 180.0 / np.pi)


def shiftleft(value: Value, bits: int) -> Value:
    """Shift left."""
    return _shift(value, bits, np.left_shift)


def shiftright(value: Value, bits: int) -> Value:
    """Shift right, with the sign."""
    return _shift(value, bits, np.right_shift)


def _check(name: str, value: Value) -> None:
    if not is_number(value.type):
        msg = f"{name} takes a number, not {value.type}: cast it to 'int' or 'double'"
        raise ExpressionError(msg)


def _double(name: str, value: Value) -> Value:
    _check(name, value)
    return converted(value, pa.float64())


def _positive(name: str, value: Value) -> Value:
    value = _double(name, value)
    return pc.if_else(pc.less_equal(value, 0.0), pa.scalar(None, pa.float64()), value)


def _shift(value: Value, bits: int, kernel: Callable[..., Any]) -> Value:
    if not pa.types.is_integer(value.type):
        msg = f"bits are those of integers, not of {value.type}: cast it to 'int' or 'long'"
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
    if pa.types.is_decimal(value.type):
        digits = min(value.type.precision - value.type.scale + 1, 38)
        wide = pa.decimal128(min(value.type.precision + 1, 38), value.type.scale)
        return pc.cast(pc.round(pc.cast(value, wide), 0, mode), pa.decimal128(digits, 0))
    return cast_to(kernel(value), pa.int64())


def _round_decimal(value: Value, scale: int) -> Value:
    """Round to a scale; the result has that scale and one more digit before the point."""
    kind = value.type
    if scale >= kind.scale:
        return value
    # One digit more than the type has: 9.5 becomes 10.
    wide = pc.cast(value, pa.decimal128(min(kind.precision + 1, 38), kind.scale))
    rounded = pc.round(wide, scale, "half_towards_infinity")
    digits = kind.precision - kind.scale + max(scale, 0) + 1
    return pc.cast(rounded, pa.decimal128(min(max(digits, 1), 38), max(scale, 0)))


def _round_float(value: Value, scale: int) -> Value:
    """Round a float as the decimal number that it shows as.

    Almost all are settled in binary; those that lie at a half within the error of the scaling are
    rounded in decimal, one by one.
    """
    numbers, valid = to_numpy(value, len(value))
    precise = numbers.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = precise * 10.0**scale if scale >= 0 else precise / 10.0**-scale
        whole = np.trunc(scaled)
        part = np.abs(scaled - whole)
        whole += np.where(part > 0.5, np.sign(scaled), 0.0)
        result = whole / 10.0**scale if scale >= 0 else whole * 10.0**-scale
        # Beyond 2^52 floats have no fraction to round, and scaling might overflow.
        unsure = np.abs(part - 0.5) <= 1e-6 + np.abs(scaled) * 1e-7
        unsure |= ~(np.abs(scaled) < 2.0**52)
    digit = decimal.Decimal(1).scaleb(-scale)
    for row in np.flatnonzero(unsure & np.isfinite(precise)).tolist():
        with decimal.localcontext(prec=400):
            shown = decimal.Decimal(str(numbers[row]))
            result[row] = float(shown.quantize(digit, decimal.ROUND_HALF_UP))
    result = np.where(np.isfinite(precise), result, precise)
    return from_numpy(result.astype(numbers.dtype), valid)
