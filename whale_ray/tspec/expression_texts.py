"""Expressions, aggregates and windows as the texts that `conditions` reads.

What is written is read again and compared, so that nothing is written that stands for another
expression: a function that has no text is refused.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn
from unicodedata import normalize

from ..configs.errors import UsageError
from ..operators.aggregates.aggregate import Aggregate
from ..operators.expressions.expression import (
    Alias,
    Case,
    ColumnReference,
    Expression,
    FunctionCall,
    Literal,
)
from ..operators.joins.interval import TimeInterval
from ..operators.windows.durations import describe_ns
from ..operators.windows.specifications import CountWindow, SessionWindow, TimeWindow
from .conditions import parse_aggregates, parse_condition, parse_value

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["aggregates_text", "columns_text", "condition_text", "window_text"]

_BINARY = {
    "arithmetic.add": "+",
    "arithmetic.subtract": "-",
    "arithmetic.multiply": "*",
    "arithmetic.divide": "/",
    "arithmetic.remainder": "%",
    "arithmetic.power": "**",
    "comparisons.equal": "==",
    "comparisons.not_equal": "!=",
    "comparisons.less": "<",
    "comparisons.less_equal": "<=",
    "comparisons.greater": ">",
    "comparisons.greater_equal": ">=",
    "comparisons.logical_and": "and",
    "comparisons.logical_or": "or",
}
_UNARY = {"arithmetic.negative": "-", "comparisons.logical_not": "not "}


def condition_text(expression: Expression) -> str:
    """Return an expression as `parse_condition` takes it.

    Raises:
        UsageError: a function or constant in it cannot be written.
    """
    match expression:
        case ColumnReference(name=name):
            is_word = name.isidentifier() and not keyword.iskeyword(name)
            # Python reads ﬁ as fi, but not in quotes.
            return name if is_word and normalize("NFKC", name) == name else f"col({name!r})"
        case Literal(constant=bool() | int() | float() | str() | bytes() | None as constant):
            if isinstance(constant, float) and not abs(constant) < float("inf"):
                _refused(expression)
            return repr(constant)
        case Alias(expression=inner, name=name):
            return f"{_operand(inner)}.alias({name!r})"
        case FunctionCall(kernel=kernel, arguments=(one,)) if kernel in _UNARY:
            return f"({_UNARY[kernel]}{condition_text(one)})"
        case FunctionCall(kernel=kernel, arguments=(left, right)) if kernel in _BINARY:
            return f"({condition_text(left)} {_BINARY[kernel]} {condition_text(right)})"
        case FunctionCall(kernel="casts.cast", arguments=(one,), options=(kind,)):
            return f"{_operand(one)}.cast({str(kind)!r})"
        case FunctionCall(kernel="conditionals.case", arguments=(*branches, last)):
            ended = [] if isinstance(expression, Case) else [f"otherwise({condition_text(last)})"]
            return ".".join([*_whens(branches), *ended])
        case FunctionCall():
            return _call_text(expression)
    return _refused(expression)


def _refused(what: object) -> NoReturn:
    """Raise an error for what cannot be written."""
    msg = f"{what} has no text that is read as the same"
    raise UsageError(msg)


def _operand(expression: Expression) -> str:
    """Return what a method is called on: a constant as a column."""
    text = condition_text(expression)
    return f"lit({text})" if isinstance(expression, Literal) else text


def _whens(branches: list[Expression]) -> Iterable[str]:
    for one, value in zip(branches[::2], branches[1::2], strict=True):
        yield f"when({condition_text(one)}, {condition_text(value)})"


def _call_text(call: FunctionCall) -> str:
    name = call.kernel.rpartition(".")[2]
    first, *others = [_operand(one) for one in call.arguments] or [""]
    options = [repr(one) for one in call.options]
    candidates = (
        f"{name}({', '.join([first, *others, *options])})",
        f"{first}.{name}({', '.join([*others, *options])})",
    )
    return _verified(call, candidates, parse_condition)


def _verified(what: Any, candidates: Iterable[str], parse: Callable[[str], Any]) -> str:
    for text in candidates:
        try:
            found = parse(text)
        except UsageError:
            continue
        if is_same(found, what):
            return text
    _refused(what)


def is_same(one: Any, other: Any) -> bool:
    """Tell whether two trees of expressions are equal, whose `==` builds an expression."""
    if type(one) is not type(other):
        return False
    match one:
        case tuple() | list():
            return len(one) == len(other) and all(map(is_same, one, other))
        case ColumnReference():
            return bool(one.name == other.name)
        case Literal():
            return is_same(one.constant, other.constant)
        case Alias():
            return bool(one.name == other.name) and is_same(one.expression, other.expression)
        case FunctionCall():
            mine, theirs = (
                (call.kernel, call.template, call.options, call.arguments) for call in (one, other)
            )
            return is_same(mine, theirs)
        case Aggregate():
            mine, theirs = ((it.function, it.name, it.options, it.inputs) for it in (one, other))
            return is_same(mine, theirs)
    return bool(one == other)


def columns_text(expressions: Iterable[tuple[str, Expression]]) -> str:
    """Return expressions with the names of their columns, as `parse_columns` takes them.

    Raises:
        UsageError: as `condition_text`.
    """
    return ", ".join(
        condition_text(one if one.output_name == name else Alias(one, name))
        for name, one in expressions
    )


def aggregates_text(aggregates: Iterable[Aggregate]) -> str:
    """Return aggregates as `parse_aggregates` takes them.

    Raises:
        UsageError: one is of a function of the user's, or reads what cannot be written.
    """
    return ", ".join(map(_aggregate_text, aggregates))


def _aggregate_text(one: Aggregate) -> str:
    if not isinstance(one.function, str):
        _refused(one)
    given = [_operand(read) for read in one.inputs] or ["'*'"]
    text = f"{one.function}({', '.join([*given, *map(repr, one.options)])})"
    if one.name is not None:
        text += f".alias({one.name!r})"
    return _verified((one,), (text,), parse_aggregates)


def window_text(window: object) -> str:
    """Return a window or an interval as `parse_value` takes it.

    Raises:
        UsageError: it cannot be written.
    """
    match window:
        case TimeWindow(column=column, size_ns=size, slide_ns=slide, start_ns=start):
            given = [repr(column)] if column else []
            given = ["processing_time()"] if window.by_clock else given
            given.append(repr(describe_ns(size)))
            given += [f"slide={describe_ns(slide)!r}"] if slide != size else []
            given += [f"start_time={describe_ns(start)!r}"] if start else []
            text = f"window({', '.join(given)})"
        case SessionWindow(column=column, gap_ns=gap):
            given = [repr(column)] if column else []
            text = f"session_window({', '.join([*given, repr(describe_ns(gap))])})"
        case CountWindow(rows=rows):
            text = f"count_window({rows})"
        case TimeInterval(lower_ns=lower, upper_ns=upper):
            text = f"interval({describe_ns(lower)!r}, {describe_ns(upper)!r})"
        case _:
            _refused(window)
    return _verified(window, (text,), parse_value)
