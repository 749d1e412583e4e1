"""Aggregate functions by PySpark's names, for `stream.group_by(…).agg(…)`.

Nulls are left out unless a function says otherwise; of no value at all the result is null, and of
`count` functions 0. NaN is greater than all numbers and equal to itself, as in Spark. What differs
from Spark: `first` and `last` go by event time, not by arrival; a sum of integers or decimals that
does not fit its type fails the job, with operator, key and window.
"""

from __future__ import annotations

from typing import Any

from ...configs.errors import ExpressionError
from ..expressions.expression import Expression, Literal
from ..expressions.functions.arguments import ColumnOrName, as_column
from .aggregate import Aggregate

__all__ = [
    "approx_count_distinct",
    "avg",
    "collect_list",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "percentile_approx",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "sum",
    "var_pop",
    "var_samp",
    "variance",
]


def count(column: ColumnOrName = "*") -> Aggregate:
    """Count rows, `count("*")`, or the values of a column that are not null; an int64."""
    if isinstance(column, str) and column == "*":
        return Aggregate("count", ())
    if isinstance(column, Literal) and column.constant is not None:
        return Aggregate("count", ())
    return Aggregate("count", (as_column(column),))


def sum(column: ColumnOrName) -> Aggregate:
    """Add up: of integers an int64, of floats a float64, of decimal(p, s) a decimal(p + 10, s).

    Integers and decimals are added exactly; a total that does not fit fails the job. Floats are
    added with a compensation of rounding errors (Neumaier).
    """
    return Aggregate("sum", (as_column(column),))


def avg(column: ColumnOrName) -> Aggregate:
    """Return the mean: a float64, of decimal(p, s) a decimal(p + 4, s + 4)."""
    return Aggregate("avg", (as_column(column),))


mean = avg
"""The same as `avg`."""


def min(column: ColumnOrName) -> Aggregate:
    """Return the least value, of the column's type."""
    return Aggregate("min", (as_column(column),))


def max(column: ColumnOrName) -> Aggregate:
    """Return the greatest value, of the column's type; NaN is greater than all numbers."""
    return Aggregate("max", (as_column(column),))


def first(column: ColumnOrName, ignorenulls: bool = False) -> Aggregate:
    """Return the value of the row with the earliest event time, the first to arrive if several.

    Where rows have no event times, that of the first to arrive.

    Args:
        column: whose value.
        ignorenulls: leave out rows where it is null.
    """
    return Aggregate("first", (as_column(column),), _when(ignorenulls, "ignorenulls"))


def last(column: ColumnOrName, ignorenulls: bool = False) -> Aggregate:
    """Return the value of the row with the latest event time, the last to arrive if several."""
    return Aggregate("last", (as_column(column),), _when(ignorenulls, "ignorenulls"))


def min_by(column: ColumnOrName, ord: ColumnOrName) -> Aggregate:
    """Return the value, which may be null, of a row with the least `ord`; of any if several."""
    return Aggregate("min_by", (as_column(column), as_column(ord)))


def max_by(column: ColumnOrName, ord: ColumnOrName) -> Aggregate:
    """Return the value, which may be null, of a row with the greatest `ord`; of any if several."""
    return Aggregate("max_by", (as_column(column), as_column(ord)))


def var_samp(column: ColumnOrName) -> Aggregate:
    """Return the variance of a sample (divided by n − 1), a float64; null of fewer than 2 values.

    Computed by Welford's method, merged by that of Chan, Golub and LeVeque.
    """
    return Aggregate("var_samp", (as_column(column),))


variance = var_samp
"""The same as `var_samp`."""


def var_pop(column: ColumnOrName) -> Aggregate:
    """Return the variance (divided by n), a float64."""
    return Aggregate("var_pop", (as_column(column),))


def stddev_samp(column: ColumnOrName) -> Aggregate:
    """Return the standard deviation of a sample, the root of `var_samp`."""
    return Aggregate("stddev_samp", (as_column(column),))


stddev = stddev_samp
"""The same as `stddev_samp`."""


def stddev_pop(column: ColumnOrName) -> Aggregate:
    """Return the standard deviation, the root of `var_pop`."""
    return Aggregate("stddev_pop", (as_column(column),))


def count_distinct(column: ColumnOrName, *columns: ColumnOrName) -> Aggregate:
    """Count the different values, or combinations of values without a null; an int64.

    Every different value is kept: where there are many, use `approx_count_distinct`.
    """
    return Aggregate("count_distinct", tuple(as_column(one) for one in (column, *columns)))


def approx_count_distinct(column: ColumnOrName, rsd: float = 0.05) -> Aggregate:
    """Estimate the number of different values, an int64, by HyperLogLog with Ertl's estimator.

    Args:
        column: whose values.
        rsd: the relative standard deviation; a key takes about (1.1 / rsd)² bytes.
    """
    if isinstance(rsd, bool) or not isinstance(rsd, (int, float)) or not 0.005 <= rsd <= 0.4:
        msg = f"approx_count_distinct takes rsd from 0.005 to 0.4, not {rsd!r}"
        raise ExpressionError(msg)
    return Aggregate("approx_count_distinct", (as_column(column),), (float(rsd),))


def percentile_approx(col: ColumnOrName, percentage: float, accuracy: int = 10_000) -> Aggregate:
    """Return one of the values, at or near the rank ⌈percentage · n⌉.

    Args:
        col: a column of numbers.
        percentage: from 0 to 1; 0.5 is the median.
        accuracy: the rank is off by at most n / accuracy; up to as many values it is exact.
    """
    if isinstance(percentage, bool) or not isinstance(percentage, (int, float)):
        msg = f"percentile_approx takes one percentage from 0 to 1, not {percentage!r}"
        raise ExpressionError(msg)
    if not 0 <= percentage <= 1:
        msg = f"percentile_approx takes a percentage from 0 to 1, not {percentage!r}"
        raise ExpressionError(msg)
    if isinstance(accuracy, bool) or not isinstance(accuracy, int) or not 1 <= accuracy <= 1 << 20:
        msg = f"percentile_approx takes an accuracy from 1 to {1 << 20}, not {accuracy!r}"
        raise ExpressionError(msg)
    return Aggregate("percentile_approx", (as_column(col),), (float(percentage), accuracy))


def collect_list(col: ColumnOrName, limit: int = 1_000) -> Aggregate:
    """Return the values that are not null as text, a JSON array, by event time.

    Spark's `to_json(collect_list(col))`: whale-ray carries no arrays.

    Args:
        col: whose values.
        limit: more values of one group than this fail the job.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        msg = f"collect_list takes a limit of 1 or more values, not {limit!r}"
        raise ExpressionError(msg)
    return Aggregate("collect_list", (as_column(col),), (limit,))


def _when(given: object, name: str) -> tuple[Any, ...]:
    if not isinstance(given, bool):
        shown = str(given) if isinstance(given, Expression) else repr(given)
        msg = f"{name} is {shown}: pass True or False"
        raise ExpressionError(msg)
    return (True,) if given else ()
