"""Expressions as text: `km > 5 and not free`, `count('*').alias('trips')`, both ways.

Python's syntax and precedence; names are columns, and `and`, `or`, `not` those of conditions. The
functions are those of `whale_ray.functions`, with windows; methods those of expressions. Nothing
is evaluated by Python: the text is parsed, and only what is listed here is taken.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..configs.errors import UsageError, WhaleError

if TYPE_CHECKING:
    from ..operators.aggregates.aggregate import Aggregate
    from ..operators.expressions.expression import Expression

__all__ = ["parse_aggregates", "parse_columns", "parse_condition", "parse_value"]

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.And: operator.and_,
    ast.Or: operator.or_,
}
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.Not: operator.invert,
    ast.USub: operator.neg,
}
_METHODS = frozenset(
    {
        *("alias", "between", "bitwise_and", "bitwise_or", "bitwise_xor", "cast", "contains"),
        *("endswith", "eq_null_safe", "ilike", "is_not_null", "is_null", "isin", "like"),
        *("otherwise", "rlike", "startswith", "substr", "when"),
    }
)


def parse_condition(text: str) -> Expression:
    """Return the expression that a text stands for.

    Raises:
        UsageError: it is not one, or uses more than columns, constants, operators and functions.
    """
    from ..operators.expressions.expression import Expression

    found: Expression
    (found,) = _of_kinds((_parsed(text),), Expression, text, "an expression on columns")
    return found


def parse_columns(text: str) -> tuple[Expression, ...]:
    """Return expressions with commas between them: `cab, (km / 1000).alias('m')`.

    Raises:
        UsageError: as `parse_condition`.
    """
    from ..operators.expressions.expression import Expression

    return _of_kinds(_several(text), Expression, text, "expressions on columns")


def parse_aggregates(text: str) -> tuple[Aggregate, ...]:
    """Return aggregates with commas between them: `count('*'), max(price).alias('highest')`.

    Raises:
        UsageError: as `parse_condition`.
    """
    from ..operators.aggregates.aggregate import Aggregate

    return _of_kinds(_several(text), Aggregate, text, "aggregates, such as count('*')")


def parse_value(text: str) -> Any:
    """Return the window or interval that a text stands for: `window('time', '10 seconds')`.

    Raises:
        UsageError: as `parse_condition`.
    """
    return _parsed(text)


def _several(text: str) -> tuple[Any, ...]:
    found = _parsed(text)
    return found if isinstance(found, tuple) else (found,)


def _of_kinds(found: tuple[Any, ...], kind: type, text: str, what: str) -> tuple[Any, ...]:
    if not all(isinstance(one, kind) for one in found):
        msg = f"{text!r:.80} is not {what}"
        raise UsageError(msg)
    return found


def _parsed(text: str) -> Any:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        msg = f"{text!r:.80} is not an expression: {getattr(error, 'msg', error)}"
        raise UsageError(msg) from error
    except MemoryError as error:  # of Python's parser, whose stack is bounded
        msg = f"{text!r:.80} is nested too deeply"
        raise UsageError(msg) from error
    try:
        if isinstance(tree, ast.Tuple):
            return tuple(_expression(one, text) for one in tree.elts)
        return _expression(tree, text)
    except (TypeError, ValueError, AttributeError) as error:  # of a function's arguments
        msg = f"{text!r:.80}: {error}"
        raise UsageError(msg) from error
    except UsageError:
        raise
    except WhaleError as error:
        msg = f"{text!r:.80}: {error}"
        raise UsageError(msg) from error


def _expression(node: ast.AST, text: str) -> Any:
    from ..operators.expressions.expression import col, lit

    match node:
        case ast.Name(id=name):
            return col(name)
        case ast.Constant(value=bool() | int() | float() | str() | bytes() | None as value):
            return lit(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return lit(-value)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _made(_UNARY[type(op)], [operand], text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _made(_BINARY[type(op)], [left, right], text)
        case ast.BoolOp(op=op, values=[first, *others]) if type(op) in _BINARY:
            found = _expression(first, text)
            for other in others:
                found = _BINARY[type(op)](found, _expression(other, text))
            return found
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _BINARY:
            return _made(_BINARY[type(op)], [left, right], text)
        case ast.Call(func=ast.Name(id=name)) if name in _functions():
            return _called(_functions()[name], node, text)
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _METHODS:
            return _called(getattr(_expression(value, text), name), node, text)
    msg = (
        f"{text!r:.80}: {ast.unparse(node):.80} is more than columns, constants, comparisons,"
        " arithmetic, and, or, not, and functions of whale_ray.functions"
    )
    raise UsageError(msg)


def _made(operation: Callable[..., Any], operands: list[ast.expr], text: str) -> Any:
    return operation(*(_expression(one, text) for one in operands))


def _called(function: Callable[..., Any], call: ast.Call, text: str) -> Any:
    named = {str(one.arg): _argument(one.value, text) for one in call.keywords}
    return function(*(_argument(one, text) for one in call.args), **named)


def _argument(node: ast.AST, text: str) -> Any:
    """Return an argument of a function: constants as they are, all else as an expression."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=elements):
            return [_argument(one, text) for one in elements]
    return _expression(node, text)


@functools.cache
def _functions() -> Mapping[str, Callable[..., Any]]:
    """Return the functions that a text may call, by name."""
    from .. import functions
    from ..operators.expressions.expression import col, lit, when
    from ..operators.joins.interval import interval
    from ..operators.windows import specifications as windows

    beside = (
        col,
        lit,
        when,
        interval,
        windows.window,
        windows.session_window,
        windows.count_window,
        windows.processing_time,
    )
    listed = {name: getattr(functions, name) for name in functions.__all__}
    return {**listed, **{one.__name__: one for one in beside}}
