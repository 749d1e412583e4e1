"""Conditions of filters as text: `km > 5 and not free`, with Python's operators and precedence.

Names are columns. Nothing is evaluated: the text is parsed, and only what is listed here is taken.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..configs.errors import UsageError

if TYPE_CHECKING:
    from ..operators.expressions.expression import Expression

__all__ = ["parse_condition"]

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
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


def parse_condition(text: str) -> Expression:
    """Return the expression that a text stands for.

    Raises:
        UsageError: it is not one, or uses more than columns, constants and operators.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        msg = f"{text!r:.80} is not an expression: {getattr(error, 'msg', error)}"
        raise UsageError(msg) from error
    return _expression(tree, text)


def _expression(node: ast.AST, text: str) -> Expression:
    from ..operators.expressions.expression import col, lit

    match node:
        case ast.Name(id=name):
            return col(name)
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return lit(value)
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
    msg = (
        f"{text!r:.80}: {ast.unparse(node):.80} is more than columns, constants, comparisons,"
        " arithmetic, and, or, not"
    )
    raise UsageError(msg)


def _made(operation: Callable[..., Any], operands: list[ast.expr], text: str) -> Expression:
    made: Expression = operation(*(_expression(one, text) for one in operands))
    return made
