"""Arithmetic on decimals, exact to the last digit, with Spark's types of the results.

A result of at most 38 digits is computed by Arrow. If it may have more, its scale is reduced to
leave room before the point, and it is computed value by value and rounded half up.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from .arrays import Value, null_if_zero
from .type_rules import DECIMAL_DIGITS_MAX, ArrowType

__all__ = ["combined", "fitted", "rounded"]

Number: TypeAlias = decimal.Decimal

_SCALE_MIN = 6
_REMAINDER_DIGITS_MAX = 18  # beyond 64 bits some of Arrow's remainders are wrong
_DIVISION_SCALE = 39  # Spark's scale of a quotient before it is rounded
_EXACT = decimal.Context(
    prec=1000,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    rounding=decimal.ROUND_HALF_UP,
)


def combined(name: str, left: Value, right: Value) -> Value:
    """Add, subtract, multiply, divide two decimals or take the remainder; see `arithmetic`.

    Null where the result does not fit, or where the divisor is zero.
    """
    digits, scale = _unlimited(name, left.type, right.type)
    if name in _BY_ARROW and digits <= DECIMAL_DIGITS_MAX:
        # Arrow derives the type of the result by the same rules.
        return _BY_ARROW[name](left, right)
    to = _bounded(digits, scale)
    if name == "divide" and digits < DECIMAL_DIGITS_MAX:
        return _divided(left, right, to)
    whole = max(kind.precision - kind.scale for kind in (left.type, right.type))
    if name == "remainder" and whole + to.scale <= _REMAINDER_DIGITS_MAX:
        kind = pa.decimal128(whole + to.scale, to.scale)
        rest = pc.remainder(pc.cast(left, kind), null_if_zero(pc.cast(right, kind)))
        return pc.cast(rest, to)
    return _computed_one_by_one(_ONE_BY_ONE[name], left, right, to)


def _computed_one_by_one(
    compute: Callable[[Number, Number], Number | None], left: Value, right: Value, to: ArrowType
) -> Value:
    rows = len(right) if isinstance(left, pa.Scalar) else len(left)
    lefts, rights = (
        (pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value).to_pylist()
        for value in (left, right)
    )
    results = [
        None if a is None or b is None else fitted(compute(a, b), to)
        for a, b in zip(lefts, rights, strict=True)
    ]
    return pa.array(results, to)


def _divided(left: Value, right: Value, to: ArrowType) -> Value:
    """Divide with one digit more than the result has, then round it half up."""
    # Arrow truncates a quotient to a scale that depends on the dividend's, so that is raised.
    more = max(to.scale + 1 - (left.type.scale + right.type.precision - right.type.scale + 1), 0)
    kind = pa.decimal128(left.type.precision + more, left.type.scale + more)
    quotient = pc.divide(pc.cast(left, kind), null_if_zero(right))
    return pc.cast(pc.round(quotient, to.scale, "half_towards_infinity"), to)


def fitted(number: Number | None, to: ArrowType) -> Number | None:
    """Round half up to the type's scale; None if the result has too many digits."""
    if number is None or (number and number.adjusted() > DECIMAL_DIGITS_MAX):
        return None  # far out of range: writing out all digits might exhaust the memory
    shown = rounded(number, to.scale)
    return shown if shown.copy_abs().scaleb(to.scale, _EXACT) < 10**to.precision else None


def rounded(number: Number, scale: int) -> Number:
    """Round half up to `scale` digits after the point; for a negative scale before it."""
    result = number.quantize(decimal.Decimal(1).scaleb(-scale), context=_EXACT)
    return result if scale >= 0 else result.quantize(decimal.Decimal(1), context=_EXACT)


def _unlimited(name: str, left: ArrowType, right: ArrowType) -> tuple[int, int]:
    """Return a result's precision and scale by Spark's rules, before they are limited."""
    whole_left, whole_right = left.precision - left.scale, right.precision - right.scale
    scale = max(left.scale, right.scale)
    if name in ("add", "subtract"):
        return max(whole_left, whole_right) + scale + 1, scale
    if name == "multiply":
        return left.precision + right.precision + 1, left.scale + right.scale
    if name == "remainder":
        return min(whole_left, whole_right) + scale, scale
    scale = max(_SCALE_MIN, left.scale + right.precision + 1)
    return whole_left + right.scale + scale, scale


def _bounded(digits: int, scale: int) -> ArrowType:
    """Return a type of at most 38 digits, its scale reduced in favour of those before the point."""
    if digits > DECIMAL_DIGITS_MAX:
        scale = max(DECIMAL_DIGITS_MAX - (digits - scale), min(scale, _SCALE_MIN))
        digits = DECIMAL_DIGITS_MAX
    return pa.decimal128(max(digits, 1), scale)


def _quotient(left: Number, right: Number) -> Number | None:
    return rounded(_EXACT.divide(left, right), _DIVISION_SCALE) if right else None


def _rest(left: Number, right: Number) -> Number | None:
    return _EXACT.remainder(left, right) if right else None


_BY_ARROW: dict[str, Callable[[Value, Value], Value]] = {
    "add": pc.add,
    "subtract": pc.subtract,
    "multiply": pc.multiply,
}
_ONE_BY_ONE: dict[str, Callable[[Number, Number], Number | None]] = {
    "add": _EXACT.add,
    "subtract": _EXACT.subtract,
    "multiply": _EXACT.multiply,
    "divide": _quotient,
    "remainder": _rest,
}
