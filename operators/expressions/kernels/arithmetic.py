"""Arithmetic kernels with Spark's manners: integers wrap, dividing by zero gives null."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....configs.errors import ExpressionError
from .coercion import (
    Value,
    as_decimal,
    common_type,
    converted,
    fitted_literal,
    from_numpy,
    is_number,
    is_text,
    number_type,
    to_numpy,
    unified,
    zero,
)
from .decimals import combined
from .intervals import difference, shifted

__all__ = [
    "add",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "divide",
    "multiply",
    "negative",
    "power",
    "remainder",
    "subtract",
]


def add(left: Value, right: Value) -> Value:
    """Add numbers, or a duration to a duration or timestamp."""
    if _is_moment(left):
        return shifted(left, right)
    if _is_moment(right):
        return shifted(right, left)
    return _computed("add", pc.add, left, right)


def subtract(left: Value, right: Value) -> Value:
    """Subtract numbers, a duration from a duration or timestamp, or two timestamps."""
    if _is_moment(left) and not pa.types.is_duration(right.type):
        return difference(left, right)
    if _is_moment(left):
        return shifted(left, right, backwards=True)
    return _computed("subtract", pc.subtract, left, right)


def multiply(left: Value, right: Value) -> Value:
    """Multiply numbers."""
    return _computed("multiply", pc.multiply, left, right)


def divide(left: Value, right: Value) -> Value:
    """Divide numbers as float64, decimals as decimals; by zero: null."""
    numbers = _numbers("divide", left, right)
    if pa.types.is_decimal(numbers[0].type):
        return combined("divide", *numbers)
    return pc.divide(_double(left), _null_if_zero(_double(right)))


def remainder(left: Value, right: Value) -> Value:
    """Return what a division leaves, with the dividend's sign; by zero: null."""
    left, right = _numbers("take the remainder of", left, right)
    if pa.types.is_decimal(left.type):
        return combined("remainder", left, right)
    rows = len(left) if isinstance(left, pa.Array) else len(right)
    dividend, valid = to_numpy(left, rows)
    divisor, divisor_valid = to_numpy(right, rows)
    usable = divisor != 0
    for known in (valid, divisor_valid):
        if known is not None:
            usable &= known
    result = np.fmod(dividend, np.where(usable, divisor, 1).astype(divisor.dtype))
    return from_numpy(result, None if usable.all() else usable)


def power(base: Value, exponent: Value) -> Value:
    """Raise to a power, as float64; as in Java ±1 to an infinity and 1 to NaN are NaN."""
    _numbers("raise to a power", base, exponent)
    base, exponent = _double(base), _double(exponent)
    undefined = pc.and_(pc.equal(pc.abs(base), 1.0), pc.invert(pc.is_finite(exponent)))
    return pc.if_else(undefined, np.nan, pc.power(base, exponent))


def negative(value: Value) -> Value:
    """Turn the sign."""
    if pa.types.is_unsigned_integer(value.type) or not (
        is_number(value.type) or pa.types.is_duration(value.type)
    ):
        msg = f"cannot negate {value.type}: cast it to a signed number"
        raise ExpressionError(msg)
    return pc.negate(value)


def bitwise_and(left: Value, right: Value) -> Value:
    """Combine bits with and."""
    return pc.bit_wise_and(*_integers(left, right))


def bitwise_or(left: Value, right: Value) -> Value:
    """Combine bits with or."""
    return pc.bit_wise_or(*_integers(left, right))


def bitwise_xor(left: Value, right: Value) -> Value:
    """Combine bits with exclusive or."""
    return pc.bit_wise_xor(*_integers(left, right))


def _is_moment(value: Value) -> bool:
    return bool(pa.types.is_timestamp(value.type) or pa.types.is_date(value.type))


def _computed(
    name: str, kernel: Callable[[Value, Value], Value], left: Value, right: Value
) -> Value:
    for value, other in ((left, right), (right, left)):
        if pa.types.is_duration(value.type) and is_text(other.type):
            msg = f"cannot {name} {left.type} and {right.type}: cast the text to 'timestamp'"
            raise ExpressionError(msg)
    if pa.types.is_duration(left.type) or pa.types.is_duration(right.type):
        return kernel(left, right)
    left, right = _numbers(name, left, right)
    return combined(name, left, right) if pa.types.is_decimal(left.type) else kernel(left, right)


def _numbers(what: str, left: Value, right: Value) -> tuple[Value, Value]:
    """Return both as the numbers that the operation computes with."""
    for value in (left, right):
        if not is_number(value.type) and not pa.types.is_null(value.type):
            msg = f"cannot {what} {left.type} and {right.type}: cast both to numbers"
            if is_text(value.type):
                msg += ", or use functions.concat to join text"
            raise ExpressionError(msg)
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        target = common_type([left.type, right.type])
        target = pa.float64() if pa.types.is_null(target) else target
        return converted(left, target), converted(right, target)
    left, right = fitted_literal(left, right.type), fitted_literal(right, left.type)
    target = number_type(left.type, right.type)
    if pa.types.is_decimal(target):
        return pc.cast(left, as_decimal(left.type)), pc.cast(right, as_decimal(right.type))
    return converted(left, target), converted(right, target)


def _double(value: Value) -> Value:
    return converted(value, pa.float64())


def _integers(left: Value, right: Value) -> tuple[Any, Any]:
    for value in (left, right):
        if not pa.types.is_integer(value.type):
            msg = f"bits are those of integers, not of {value.type}: cast it to 'int' or 'long'"
            raise ExpressionError(msg)
    left, right = unified([left, right])
    return left, right


def _null_if_zero(divisor: Value) -> Value:
    null = pa.scalar(None, divisor.type)
    is_zero = pc.equal(divisor, zero(divisor.type))
    if isinstance(is_zero, pa.Scalar):
        return null if is_zero.as_py() else divisor
    return pc.if_else(is_zero, null, divisor) if pc.any(is_zero).as_py() else divisor
