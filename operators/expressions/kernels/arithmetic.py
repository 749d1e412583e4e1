"""Arithmetic kernels with Spark's semantics: integers wrap, dividing by zero gives null."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....configs.errors import ExpressionError
from .arrays import Value, from_numpy, null_if_zero, to_numpy
from .coercion import coerced, coerced_literal, unified
from .decimals import combined
from .intervals import (
    added_durations,
    difference,
    shifted,
    shifted_in_day,
    subtracted_durations,
)
from .type_rules import as_decimal, common_type, is_number, is_text, number_type

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
    """Add numbers, or a duration to a duration, timestamp or time of day."""
    if _is_date_or_timestamp(left):
        return shifted(left, right)
    if _is_date_or_timestamp(right):
        return shifted(right, left)
    if pa.types.is_time(left.type):
        return shifted_in_day(left, right)
    if pa.types.is_time(right.type):
        return shifted_in_day(right, left)
    if _are_durations(left, right):
        return added_durations(left, right)
    return _computed("add", pc.add, left, right)


def subtract(left: Value, right: Value) -> Value:
    """Subtract numbers, a duration from a duration, timestamp or time of day, or two timestamps."""
    if _is_date_or_timestamp(left):
        if not pa.types.is_duration(right.type):
            return difference(left, right)
        return shifted(left, right, backwards=True)
    if pa.types.is_time(left.type):
        return shifted_in_day(left, right, backwards=True)
    if _are_durations(left, right):
        return subtracted_durations(left, right)
    return _computed("subtract", pc.subtract, left, right)


def multiply(left: Value, right: Value) -> Value:
    """Multiply numbers."""
    return _computed("multiply", pc.multiply, left, right)


def divide(left: Value, right: Value) -> Value:
    """Divide numbers as float64, decimals as decimals; by zero: null."""
    numbers = _numbers("divide", left, right)
    if pa.types.is_decimal(numbers[0].type):
        return combined("divide", *numbers)
    return pc.divide(_double(left), null_if_zero(_double(right)))


def remainder(left: Value, right: Value) -> Value:
    """Return the remainder of a division, with the dividend's sign; by zero: null."""
    left, right = _numbers("take the remainder of", left, right)
    if pa.types.is_decimal(left.type):
        return combined("remainder", left, right)
    rows = len(left) if isinstance(left, pa.Array) else len(right)
    dividend, valid = to_numpy(left, rows)
    divisor, divisor_valid = to_numpy(right, rows)
    usable = divisor != 0
    for not_null in (valid, divisor_valid):
        if not_null is not None:
            usable &= not_null
    result = np.fmod(dividend, np.where(usable, divisor, 1).astype(divisor.dtype))
    return from_numpy(result, None if usable.all() else usable)


def power(base: Value, exponent: Value) -> Value:
    """Raise to a power, as float64; as in Java, ±1 to the power of ±infinity or NaN is NaN."""
    _numbers("raise to a power", base, exponent)
    base, exponent = _double(base), _double(exponent)
    undefined = pc.and_(pc.equal(pc.abs(base), 1.0), pc.invert(pc.is_finite(exponent)))
    return pc.if_else(undefined, np.nan, pc.power(base, exponent))


def negative(value: Value) -> Value:
    """Change the sign."""
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


def _is_date_or_timestamp(value: Value) -> bool:
    return bool(pa.types.is_timestamp(value.type) or pa.types.is_date(value.type))


def _are_durations(left: Value, right: Value) -> bool:
    return bool(pa.types.is_duration(left.type) and pa.types.is_duration(right.type))


def _computed(
    name: str, kernel: Callable[[Value, Value], Value], left: Value, right: Value
) -> Value:
    for value, other in ((left, right), (right, left)):
        if pa.types.is_duration(value.type) and is_text(other.type):
            msg = f"cannot {name} {left.type} and {right.type}: cast the text to 'timestamp'"
            raise ExpressionError(msg)
    if pa.types.is_duration(left.type) or pa.types.is_duration(right.type):
        return kernel(_low_bits(left), _low_bits(right))
    left, right = _numbers(name, left, right)
    return combined(name, left, right) if pa.types.is_decimal(left.type) else kernel(left, right)


def _numbers(what: str, left: Value, right: Value) -> tuple[Value, Value]:
    """Return both operands in the type that the operation computes in; decimals keep theirs."""
    for value in (left, right):
        if not is_number(value.type) and not pa.types.is_null(value.type):
            msg = f"cannot {what} {left.type} and {right.type}: cast both to numbers"
            if is_text(value.type):
                msg += ", or use functions.concat to join text"
            raise ExpressionError(msg)
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        target = common_type([left.type, right.type])
        target = pa.float64() if pa.types.is_null(target) else target
        return coerced(left, target), coerced(right, target)
    left, right = coerced_literal(left, right.type), coerced_literal(right, left.type)
    target = number_type(left.type, right.type)
    if pa.types.is_decimal(target):
        return pc.cast(left, as_decimal(left.type)), pc.cast(right, as_decimal(right.type))
    return coerced(left, target), coerced(right, target)


def _low_bits(value: Value) -> Value:
    """Return a uint64 as the int64 of its bits, which is what durations multiply by."""
    return pc.cast(value, pa.int64(), safe=False) if pa.types.is_uint64(value.type) else value


def _double(value: Value) -> Value:
    return coerced(value, pa.float64())


def _integers(left: Value, right: Value) -> tuple[Any, Any]:
    for value in (left, right):
        if not pa.types.is_integer(value.type):
            msg = f"bit operations need integers, not {value.type}: cast it to 'int' or 'long'"
            raise ExpressionError(msg)
    left, right = unified([left, right])
    return left, right
