"""Functions on numbers."""

from __future__ import annotations

from ..expression import Expression, function
from .arguments import ColumnOrName, as_column, as_integer, as_number

__all__ = [
    "abs",
    "acos",
    "asin",
    "atan",
    "atan2",
    "ceil",
    "cos",
    "degrees",
    "exp",
    "floor",
    "hypot",
    "log",
    "log2",
    "log10",
    "pow",
    "radians",
    "round",
    "shiftleft",
    "shiftright",
    "signum",
    "sin",
    "sqrt",
    "tan",
]


def abs(column: ColumnOrName) -> Expression:
    """Return the absolute value."""
    return function("numbers.abs", as_column(column))


def signum(column: ColumnOrName) -> Expression:
    """Return the sign, -1.0, 0.0 or 1.0."""
    return function("numbers.signum", as_column(column))


def round(column: ColumnOrName, scale: int = 0) -> Expression:
    """Round to `scale` digits after the point, half away from zero."""
    return function("numbers.round", as_column(column), options=(as_integer(scale),))


def floor(column: ColumnOrName) -> Expression:
    """Round down, to an int64 (a decimal: to a decimal without fraction)."""
    return function("numbers.floor", as_column(column))


def ceil(column: ColumnOrName) -> Expression:
    """Round up, to an int64 (a decimal: to a decimal without fraction)."""
    return function("numbers.ceil", as_column(column))


def sqrt(column: ColumnOrName) -> Expression:
    """Return the square root; NaN below zero."""
    return function("numbers.sqrt", as_column(column))


def exp(column: ColumnOrName) -> Expression:
    """Return e to the power of a column."""
    return function("numbers.exp", as_column(column))


def log(column: ColumnOrName) -> Expression:
    """Return the natural logarithm; null for zero and below."""
    return function("numbers.log", as_column(column))


def log2(column: ColumnOrName) -> Expression:
    """Return the logarithm to base 2; null for zero and below."""
    return function("numbers.log2", as_column(column))


def log10(column: ColumnOrName) -> Expression:
    """Return the logarithm to base 10; null for zero and below."""
    return function("numbers.log10", as_column(column))


def pow(base: Expression | str | float, exponent: Expression | str | float) -> Expression:
    """Return `base` to the power of `exponent`, as float64."""
    return function("arithmetic.power", as_number(base), as_number(exponent))


def hypot(column: Expression | str | float, other: Expression | str | float) -> Expression:
    """Return the length of the vector with these two coordinates."""
    return function("numbers.hypot", as_number(column), as_number(other))


def sin(column: ColumnOrName) -> Expression:
    """Return the sine of an angle in radians."""
    return function("numbers.sin", as_column(column))


def cos(column: ColumnOrName) -> Expression:
    """Return the cosine of an angle in radians."""
    return function("numbers.cos", as_column(column))


def tan(column: ColumnOrName) -> Expression:
    """Return the tangent of an angle in radians."""
    return function("numbers.tan", as_column(column))


def asin(column: ColumnOrName) -> Expression:
    """Return the arc sine, in radians; NaN outside [-1, 1]."""
    return function("numbers.asin", as_column(column))


def acos(column: ColumnOrName) -> Expression:
    """Return the arc cosine, in radians; NaN outside [-1, 1]."""
    return function("numbers.acos", as_column(column))


def atan(column: ColumnOrName) -> Expression:
    """Return the arc tangent, in radians."""
    return function("numbers.atan", as_column(column))


def atan2(y: Expression | str | float, x: Expression | str | float) -> Expression:
    """Return the angle of the point (x, y), in radians."""
    return function("numbers.atan2", as_number(y), as_number(x))


def radians(column: ColumnOrName) -> Expression:
    """Convert degrees to radians."""
    return function("numbers.radians", as_column(column))


def degrees(column: ColumnOrName) -> Expression:
    """Convert radians to degrees."""
    return function("numbers.degrees", as_column(column))


def shiftleft(column: ColumnOrName, bits: int) -> Expression:
    """Shift an int32 or int64 left; only the low 5 or 6 bits of `bits` count, as in Java."""
    return function("numbers.shiftleft", as_column(column), options=(as_integer(bits),))


def shiftright(column: ColumnOrName, bits: int) -> Expression:
    """Shift an int32 or int64 right, keeping its sign; `bits` as in `shiftleft`."""
    return function("numbers.shiftright", as_column(column), options=(as_integer(bits),))
