"""Checks of the arguments of functions: columns, by expression or name, and plain values."""

from __future__ import annotations

from typing import TypeAlias

from ....configs.errors import ExpressionError
from ..expression import Expression, Literal, col, lit

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
    """Return the columns; raise ExpressionError naming the function if there are none."""
    if not columns:
        msg = f"{name} needs at least one column"
        raise ExpressionError(msg)
    return tuple(as_column(column) for column in columns)


def as_integer(value: int | Expression) -> int:
    """Return a plain integer, or that of a literal; refuse anything else."""
    plain = _constant(value, "integer")
    if isinstance(plain, bool) or not isinstance(plain, int):
        msg = f"expected a plain integer, not {plain!r}"
        raise ExpressionError(msg)
    return plain


def as_text(value: str | Expression) -> str:
    """Return plain text, or that of a literal; refuse anything else."""
    plain = _constant(value, "text")
    if not isinstance(plain, str):
        msg = f"expected plain text, not {plain!r}"
        raise ExpressionError(msg)
    return plain


def _constant(value: object, what: str) -> object:
    if isinstance(value, Literal):
        return value.constant
    if isinstance(value, Expression):
        msg = (
            f"expected plain {what} or a literal, not the column {value}: for a value that differs"
            " from row to row use a Python function, stream.map(function)"
        )
        raise ExpressionError(msg)
    return value
