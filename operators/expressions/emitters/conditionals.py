"""Emitters of `kernels.conditionals`: case, coalesce, nullif, least, greatest, nanvl, isnan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

import pyarrow as pa

from .code import Code, LoopWriter, NotCompilable, plain
from .comparisons import equal, greater, less
from .conversions import converted, unified

__all__ = ["case", "coalesce", "greatest", "isnan", "least", "nanvl", "nullif"]


def case(loop: LoopWriter, *values: Code) -> Code:
    """Return the first value whose condition is true; arguments: condition, value, …, default."""
    conditions = values[:-1:2]
    *results, chosen = unified(loop, [*values[1:-1:2], values[-1]])
    for condition, result in zip(reversed(conditions), reversed(results), strict=True):
        if not pa.types.is_boolean(condition.kind):
            msg = f"a condition of {condition.kind}"
            raise NotCompilable(msg)
        chosen = _choice(loop, _is_true(condition), result, chosen)
    return chosen


def coalesce(loop: LoopWriter, *values: Code) -> Code:
    """Return the first value that is not null."""
    *others, chosen = unified(loop, values)
    for value in reversed(others):
        chosen = _choice(loop, "True" if value.valid is None else value.valid, value, chosen)
    return chosen


def nullif(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Return left, of its own type, or null where both are equal."""
    if pa.types.is_null(left.kind):  # it has none of its own
        left, right = unified(loop, [left, right])
    plain(left)
    same = equal(loop, left, right)
    differ = loop.let(f"not {_is_true(same)}")
    valid = differ if left.valid is None else loop.let(f"{differ} & {left.valid}")
    return Code(left.value, valid, left.kind)


def greatest(loop: LoopWriter, *values: Code) -> Code:
    """Return the greatest value, ignoring nulls; NaN is greater than all numbers."""
    return reduce(partial(_better, loop, greater), unified(loop, values))


def least(loop: LoopWriter, *values: Code) -> Code:
    """Return the least value, ignoring nulls; NaN is greater than all numbers."""
    return reduce(partial(_better, loop, less), unified(loop, values))


def isnan(loop: LoopWriter, value: Code) -> Code:
    """Tell where a number is NaN; false where it is null."""
    plain(value)
    if not pa.types.is_floating(value.kind):
        return loop.truth("False", None)
    is_nan = f"{value.value} != {value.value}"
    return loop.truth(is_nan if value.valid is None else f"({is_nan}) & {value.valid}", None)


def nanvl(loop: LoopWriter, value: Code, instead: Code) -> Code:
    """Return the value, or the other where it is NaN; what is no float becomes a float64."""
    value, instead = unified(loop, [_as_float(loop, value), _as_float(loop, instead)])
    return _choice(loop, isnan(loop, value).value, instead, value)


def _as_float(loop: LoopWriter, value: Code) -> Code:
    if pa.types.is_floating(value.kind) or pa.types.is_null(value.kind):
        return value
    return converted(loop, value, pa.float64())


def _better(
    loop: LoopWriter, wins: Callable[[LoopWriter, Code, Code], Code], left: Code, right: Code
) -> Code:
    """Return right where it wins or left is null, else left."""
    won = wins(loop, right, left).value
    if left.valid is not None:
        won = f"({won}) | (not {left.valid})"
    if right.valid is not None:
        won = f"(({won}) & {right.valid})"
    return _choice(loop, loop.let(won), right, left)


def _choice(loop: LoopWriter, condition: str, value: Code, other: Code) -> Code:
    plain(value, other)
    chosen = loop.typed(value.kind, f"{value.value} if {condition} else {other.value}", None)
    if value.valid is None and other.valid is None:
        return chosen
    here, there = value.valid or "True", other.valid or "True"
    valid = loop.let(f"({condition} & {here}) | ((not {condition}) & {there})")
    return Code(chosen.value, valid, value.kind)


def _is_true(condition: Code) -> str:
    if condition.valid is None:
        return condition.value
    return f"({condition.value} & {condition.valid})"
