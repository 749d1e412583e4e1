"""What a function takes: columns, by expression or name, and plain values."""

from __future__ import annotations

from typing import TypeAlias

from ...configs.errors import ExpressionError
from ..expressions import Expression, col, lit

ColumnOrName: TypeAlias = Expression | str


def as_column(column: ColumnOrName) -> Expression:
    """Return a column given as an expression or by its name."""
    if isinstance(column, Expression):
        return column
    if isinstance(column, str):
        return col(column)
    msg = f"expected a column or its name, not {column!r}: make a constant with lit({column!r})"
    raise ExpressionError(msg)


def as_number(value: Expression | str | float) -> Expression:
    """Return a column given as an expression, by its name, or as a constant number."""
    return lit(value) if isinstance(value, (int, float)) else as_column(value)


def some_columns(name: str, columns: tuple[ColumnOrName, ...]) -> tuple[Expression, ...]:
    """Return at least one column, on behalf of the function of that name."""
    if not columns:
        msg = f"{name} needs at least one column"
        raise ExpressionError(msg)
    return tuple(as_column(column) for column in columns)


def as_integer(value: int) -> int:
    """Return a plain integer, or refuse anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"expected a plain integer, not {value!r}"
        raise ExpressionError(msg)
    return value
