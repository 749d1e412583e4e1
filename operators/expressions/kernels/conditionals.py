"""Kernels that choose between values: case, coalesce, nullif, least, greatest, nanvl."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc

from ....configs.errors import ExpressionError
from .arrays import Value
from .coercion import coerced, unified
from .comparisons import equal, greater, less
from .type_rules import is_number

__all__ = ["case", "coalesce", "greatest", "isnan", "least", "nanvl", "nullif"]


def case(*values: Value) -> Value:
    """Return the first value whose condition is true; arguments: condition, value, …, default."""
    conditions = values[:-1:2]
    *results, chosen = unified([*values[1:-1:2], values[-1]])
    for condition, result in zip(reversed(conditions), reversed(results), strict=True):
        if not pa.types.is_boolean(condition.type):
            msg = f"when needs a condition, not {condition.type}: compare it"
            raise ExpressionError(msg)
        is_true = pc.fill_null(condition, False)
        if isinstance(is_true, pa.Scalar):
            chosen = result if is_true.as_py() else chosen
        else:
            chosen = pc.if_else(is_true, result, chosen)
    return _as_array(chosen, values)


def coalesce(*values: Value) -> Value:
    """Return the first value that is not null."""
    return _as_array(pc.coalesce(*unified(values)), values)


def nullif(left: Value, right: Value) -> Value:
    """Return left, of its own type, or null where both are equal."""
    if pa.types.is_null(left.type):  # it has none of its own
        left, right = unified([left, right])
    same = pc.fill_null(equal(left, right), False)
    return _as_array(pc.if_else(same, pa.scalar(None, left.type), left), (left, right))


def greatest(*values: Value) -> Value:
    """Return the greatest value, ignoring nulls; NaN is greater than all numbers."""
    return _as_array(reduce(partial(_better, greater), unified(values)), values)


def least(*values: Value) -> Value:
    """Return the least value, ignoring nulls; NaN is greater than all numbers."""
    return _as_array(reduce(partial(_better, less), unified(values)), values)


def _better(wins: Callable[[Value, Value], Value], left: Value, right: Value) -> Value:
    chosen = pc.if_else(wins(right, left), right, left)  # null where either is
    return pc.coalesce(chosen, left, right)


def isnan(value: Value) -> Value:
    """Tell where a number is NaN; false where it is null."""
    if not is_number(value.type):
        msg = f"isnan takes a number, not {value.type}: cast it to 'double'"
        raise ExpressionError(msg)
    return pc.fill_null(pc.is_nan(value), False)


def nanvl(value: Value, instead: Value) -> Value:
    """Return the value, or the other where it is NaN; what is no float becomes a float64."""
    value, instead = unified([_as_float(value), _as_float(instead)])
    return pc.if_else(pc.fill_null(pc.is_nan(value), False), instead, value)


def _as_float(value: Value) -> Value:
    if pa.types.is_floating(value.type) or pa.types.is_null(value.type):
        return value
    if not is_number(value.type):
        msg = f"nanvl takes numbers, not {value.type}: cast it to 'double'"
        raise ExpressionError(msg)
    return coerced(value, pa.float64())


def _as_array(result: Value, values: tuple[Value, ...] | list[Value]) -> Value:
    """Return the result; if constant, repeated to the length of the arguments that are arrays."""
    if not isinstance(result, pa.Scalar):
        return result
    return pa.repeat(result, next(len(v) for v in values if not isinstance(v, pa.Scalar)))
