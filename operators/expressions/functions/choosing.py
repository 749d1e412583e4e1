"""Functions that choose between values."""

from __future__ import annotations

from ..expression import Expression, function
from .arguments import ColumnOrName, as_column, some_columns

__all__ = [
    "coalesce",
    "greatest",
    "isnan",
    "isnotnull",
    "isnull",
    "least",
    "nanvl",
    "nullif",
]


def coalesce(*columns: ColumnOrName) -> Expression:
    """Return the first value that is not null."""
    return function("conditionals.coalesce", *some_columns("coalesce", columns))


def greatest(*columns: ColumnOrName) -> Expression:
    """Return the greatest value, ignoring nulls; NaN is greater than all numbers."""
    return function("conditionals.greatest", *some_columns("greatest", columns))


def least(*columns: ColumnOrName) -> Expression:
    """Return the least value, ignoring nulls."""
    return function("conditionals.least", *some_columns("least", columns))


def nullif(column: ColumnOrName, other: ColumnOrName) -> Expression:
    """Return the value, of its own type, or null where both are equal."""
    return function("conditionals.nullif", as_column(column), as_column(other))


def nanvl(column: ColumnOrName, instead: ColumnOrName) -> Expression:
    """Return the value, or the other where it is NaN; what is no float becomes a float64."""
    return function("conditionals.nanvl", as_column(column), as_column(instead))


def isnan(column: ColumnOrName) -> Expression:
    """Tell whether a number is NaN; false for null."""
    return function("conditionals.isnan", as_column(column))


def isnull(column: ColumnOrName) -> Expression:
    """Tell whether the value is null."""
    return as_column(column).is_null()


def isnotnull(column: ColumnOrName) -> Expression:
    """Tell whether the value is not null."""
    return as_column(column).is_not_null()
