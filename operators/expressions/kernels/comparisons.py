"""Comparison and logic kernels: three-valued, NaN equal to itself and greater than all numbers."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ....configs.errors import ExpressionError
from .arrays import Value
from .coercion import unified

__all__ = [
    "equal",
    "equal_null_safe",
    "greater",
    "greater_equal",
    "is_not_null",
    "is_null",
    "isin",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "not_equal",
]


def equal(left: Value, right: Value) -> Value:
    """Tell where both are equal; NaN equals NaN."""
    left, right = unified([left, right], to_compare=True)
    result = pc.equal(left, right)
    if has_nan(left) and has_nan(right):
        result = pc.or_kleene(result, pc.and_kleene(pc.is_nan(left), pc.is_nan(right)))
    return result


def not_equal(left: Value, right: Value) -> Value:
    """Tell where both differ."""
    return pc.invert(equal(left, right))


def less(left: Value, right: Value) -> Value:
    """Tell where left is less."""
    return greater(right, left)


def less_equal(left: Value, right: Value) -> Value:
    """Tell where left is less or equal."""
    return greater_equal(right, left)


def greater(left: Value, right: Value) -> Value:
    """Tell where left is greater; NaN is greater than all numbers."""
    left, right = unified([left, right], to_compare=True)
    result = pc.greater(left, right)
    if has_nan(left):
        result = pc.or_kleene(result, pc.and_kleene(pc.is_nan(left), pc.invert(pc.is_nan(right))))
    return result


def greater_equal(left: Value, right: Value) -> Value:
    """Tell where left is greater or equal."""
    left, right = unified([left, right], to_compare=True)
    result = pc.greater_equal(left, right)
    if has_nan(left):
        true_or_null = pc.if_else(pc.is_valid(right), True, pa.scalar(None, pa.bool_()))
        result = pc.or_kleene(result, pc.and_kleene(pc.is_nan(left), true_or_null))
    return result


def equal_null_safe(left: Value, right: Value) -> Value:
    """Tell where both are equal or both null; never null itself."""
    left, right = unified([left, right], to_compare=True)
    same = pc.fill_null(equal(left, right), False)
    return pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right)))


def logical_and(left: Value, right: Value) -> Value:
    """Combine conditions with and: false if either is false, else null if either is null."""
    return pc.and_kleene(_condition(left), _condition(right))


def logical_or(left: Value, right: Value) -> Value:
    """Combine conditions with or: true if either is true, else null if either is null."""
    return pc.or_kleene(_condition(left), _condition(right))


def logical_not(value: Value) -> Value:
    """Negate a condition; null stays null."""
    return pc.invert(_condition(value))


def is_null(value: Value) -> Value:
    """Tell where there is no value."""
    return pc.is_null(value)


def is_not_null(value: Value) -> Value:
    """Tell where there is a value."""
    return pc.is_valid(value)


def isin(value: Value, *choices: Value) -> Value:
    """Tell where the value is among the choices.

    Null where the value is null, or is not found and a choice is null.
    """
    # If the value is a constant, the choices are arrays, too.
    scalars = [choice[0] if isinstance(choice, pa.Array) else choice for choice in choices]
    if isinstance(value, pa.Scalar):  # a whole number beside decimals stays one
        value = pa.repeat(value, 1)
    value, *scalars = unified([value, *scalars], to_compare=True)
    not_null = [scalar.as_py() for scalar in scalars if scalar.is_valid]
    if pa.types.is_floating(value.type) and 0.0 in not_null:
        not_null += [0.0, -0.0]  # pyarrow compares bits
    found = pc.is_in(value, value_set=pa.array(not_null, value.type))
    unknown = pc.is_null(value)
    if not all(scalar.is_valid for scalar in scalars):
        unknown = pc.or_(unknown, pc.invert(found))
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)


def has_nan(value: Value) -> bool:
    """Tell whether any value is NaN."""
    if not pa.types.is_floating(value.type):
        return False
    found = pc.is_nan(value)
    return bool((found if isinstance(found, pa.Scalar) else pc.any(found)).as_py())


def _condition(value: Value) -> Value:
    if pa.types.is_null(value.type):
        return pc.cast(value, pa.bool_())
    if not pa.types.is_boolean(value.type):
        msg = (
            f"& | ~ combine conditions, not {value.type}: put comparisons in parentheses,"
            " (col('a') > 0) & (col('b') < 1); for bits use bitwise_and"
        )
        raise ExpressionError(msg)
    return value
