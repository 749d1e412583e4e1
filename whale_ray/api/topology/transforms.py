"""The transforms of the stateless methods, with checks of their arguments.

Every function here takes the operator's id and the user's arguments, and returns the transform with
the columns of its output, as far as they are known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...operators.aggregates.aggregate import Aggregate
from ...operators.expressions.compiled_function import CompiledFunction
from ...operators.expressions.expression import Expression
from ...operators.expressions.function_parts import is_dispatcher
from ...operators.transforms import (
    FilterColumns,
    FilterExpression,
    FilterRows,
    FlatMapBatches,
    FlatMapRows,
    MapBatches,
    MapExpressions,
    MapRows,
)
from .checks import check_function, describe_value, mistake, name_of
from .functions import ColumnFunction
from .known import KnownColumns, as_schema, check_columns, columns_of

if TYPE_CHECKING:
    from ...operators.transforms import Transform

    Made = tuple[Transform, KnownColumns | None]

_A_ROW = "a mapping of column name → value"
_ROWS = f"an iterable of rows, each {_A_ROW}"


def map_transform(operator_id: str, function: object, schema: object) -> Made:
    """Return the transform of `map`."""
    declared = as_schema(operator_id, schema)
    if isinstance(function, ColumnFunction):
        return MapBatches(function.function, declared), columns_of(declared)
    _refuse_expression(operator_id, "map", function)
    called = _check_row_function(operator_id, "map", function, _A_ROW)
    if inspect.isgeneratorfunction(called):
        raise mistake(
            operator_id,
            f"{name_of(called)} is a generator, which yields any number of rows: use flat_map",
        )
    return MapRows(called, declared), columns_of(declared)


def flat_map_transform(operator_id: str, function: object, schema: object) -> Made:
    """Return the transform of `flat_map`."""
    declared = as_schema(operator_id, schema)
    if isinstance(function, ColumnFunction):
        return FlatMapBatches(function.function, declared), columns_of(declared)
    _refuse_expression(operator_id, "flat_map", function)
    called = _check_row_function(operator_id, "flat_map", function, _ROWS)
    return FlatMapRows(called, declared), columns_of(declared)


def filter_transform(operator_id: str, condition: object, known: KnownColumns | None) -> Made:
    """Return the transform of `filter`; the columns stay as they are."""
    if isinstance(condition, Expression):
        check_columns(operator_id, "filter", condition.columns, known)
        return FilterExpression(condition), known
    if isinstance(condition, ColumnFunction):
        return FilterColumns(condition.function), known
    if not callable(condition):
        example = condition if isinstance(condition, str) and condition.isidentifier() else "lat_e5"
        raise mistake(
            operator_id,
            f"filter takes an expression such as whale.col({example!r}) > 0, or a function"
            f" (row) → True or False, not {describe_value(condition)}",
        )
    return FilterRows(_check_row_function(operator_id, "filter", condition, "True or False")), known


def select_transform(
    operator_id: str, columns: tuple[object, ...], known: KnownColumns | None
) -> Made:
    """Return the transform of `select`."""
    from ...operators.expressions.expression import col

    if not columns:
        raise mistake(operator_id, "select needs at least one column: select('vehicle_id', …)")
    expressions: list[Expression] = []
    for column in columns:
        _refuse_aggregate(operator_id, "select", column)
        if not isinstance(column, (str, Expression)):
            raise mistake(
                operator_id,
                f"select takes column names and expressions, not {describe_value(column)}",
            )
        if isinstance(column, str) and column == "*":
            raise mistake(
                operator_id,
                "select has no '*': name the columns, or add one to all that there are by "
                "with_column('name', …)",
            )
        expressions.append(col(column) if isinstance(column, str) else column)
    names = [expression.output_name for expression in expressions]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise mistake(
            operator_id, f"select makes column {twice!r} twice: give one another name, .alias('…')"
        )
    for expression in expressions:
        check_columns(operator_id, "select", expression.columns, known)
    made = {e.output_name: _type_of(e, known) for e in expressions}
    return MapExpressions.select(expressions), made


def with_column_transform(
    operator_id: str, name: object, expression: object, known: KnownColumns | None
) -> Made:
    """Return the transform of `with_column`."""
    if not isinstance(name, str) or not name:
        raise mistake(
            operator_id,
            f"with_column takes a name and an expression, but the name is {describe_value(name)}",
        )
    _refuse_aggregate(operator_id, "with_column", expression)
    if not isinstance(expression, Expression):
        fix = (
            "for a function use map"
            if callable(expression)
            else f"for a constant pass whale.lit({expression!r})"
        )
        raise mistake(
            operator_id,
            f"with_column takes a name and an expression, not {describe_value(expression)}: {fix}",
        )
    check_columns(operator_id, "with_column", expression.columns, known)
    made = None if known is None else {**known, name: _type_of(expression, known)}
    return MapExpressions.with_column(name, expression), made


def _type_of(expression: Expression, known: KnownColumns | None) -> Any:
    """Return the type of a column that is only renamed; None for a computed one."""
    from ...operators.expressions.expression import Alias, ColumnReference

    inner = expression.expression if isinstance(expression, Alias) else expression
    if known is None or not isinstance(inner, ColumnReference):
        return None
    return known[inner.name]


def _check_row_function(
    operator_id: str, verb: str, function: object, makes: str
) -> Callable[[Any], Any]:
    name = name_of(function)
    if is_dispatcher(function):
        raise mistake(
            operator_id,
            f"{verb} takes a function (row) → {makes}, and {name} is compiled by numba, which knows"
            f" no rows: call whale.compiled({name})('column'), in filter, select or with_column",
        )
    if isinstance(function, CompiledFunction):
        raise mistake(
            operator_id,
            f"{verb} takes a function (row) → {makes}, and {name} is compiled for values: call it"
            f" with columns, {name}('column'), in filter, select or with_column",
        )
    check_function(operator_id, verb, function, ("row",), makes)
    assert callable(function)  # check_function refuses the rest
    return function


def _refuse_expression(operator_id: str, verb: str, function: object) -> None:
    if isinstance(function, Expression):
        raise mistake(
            operator_id,
            f"{verb} takes a function, not an expression: use select(…) or with_column('name', …)",
        )


def _refuse_aggregate(operator_id: str, verb: str, given: object) -> None:
    if isinstance(given, Aggregate):
        raise mistake(
            operator_id,
            f"{verb} takes expressions, and {given} is an aggregate: compute it of groups of rows,"
            " group_by('column').agg(…)",
        )
