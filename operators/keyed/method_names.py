"""The names in a compiled `on_row`: what they mean, and whether they have a value.

The body becomes a part of a loop over rows. A name that this row has not assigned would be 0 there,
or what an earlier row assigned, where Python raises UnboundLocalError.
"""

from __future__ import annotations

import ast
import builtins
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...transport.wire.types import DataType
from ..expressions.function_parts import outer_values

__all__ = [
    "bounds_of",
    "forms_of",
    "is_literal",
    "is_of_the_loop",
    "pythons_function",
    "without_value",
]

_OF_THE_LOOP = re.compile(
    r"_(start|slots?|times|limits|emitted|bits|template|left|count|at|before|amount|total|new|old"
    r"|added|subtracted|multiplied|negated|divided|powered|shifted_left|shifted_right|read"
    r"|negatable|whole|fitted|[cf][0-9]+|o_.*)|np_(float64|u?int64|uint8|zeros|inf)"
)
_SCOPES = (ast.Lambda, ast.FunctionDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def is_of_the_loop(name: str) -> bool:
    """Return whether the loop around a body uses the name itself."""
    return _OF_THE_LOOP.fullmatch(name) is not None


def bounds_of(kind: DataType) -> tuple[int, int]:
    """Return the least and greatest value of a type of whole numbers."""
    import numpy as np

    limits = np.iinfo(kind.storage)
    return int(limits.min), int(limits.max)


def is_literal(node: ast.expr) -> bool:
    """Return whether a number is written as such, perhaps with a minus."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant)


def forms_of(kind: str, method: str) -> Mapping[int, str]:
    """Return how a method of a handle is written, by the number of its arguments.

    Args:
        kind: of the declaration.
        method: of the handle.
    """
    match method:
        case "set":
            return {1: "set(x)"}
        case "add" if kind in ("count", "sum"):
            return {0: "add()", 1: "add(x)"}
        case "add":
            return {1: "add(x)"}
        case "get" if kind in ("min", "max", "value"):
            return {0: "get()", 1: "get(default)"}
        case _:
            return {0: f"{method}()"}


def pythons_function(node: ast.expr, function: Callable[..., Any]) -> Any:
    """Return what is called: a class or function of Python's or of `math`, else None.

    Args:
        node: the name, in the text of a function.
        function: that function, which knows what its names mean.
    """
    outer = outer_values(function)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return getattr(math, node.attr, None) if outer.get(node.value.id) is math else None
    if not isinstance(node, ast.Name) or node.id in function.__code__.co_varnames:
        return None
    value = outer.get(node.id, getattr(builtins, node.id, None))
    return value if isinstance(value, type | types.BuiltinFunctionType) else None


def without_value(definition: ast.FunctionDef) -> ast.Name | None:
    """Return a use of a local name that some way to it does not assign, None if there is none.

    Which conditions exclude each other is not known: a way is any choice of branches.
    """
    arguments = {one.arg for one in definition.args.args}
    finder = _Finder({*_assigned(definition.body)} - arguments)
    finder.block(definition.body, set())
    return finder.found


def _assigned(nodes: Iterable[ast.AST]) -> Iterable[str]:
    """Yield the names that are assigned somewhere in the nodes, not in functions inside them."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if not isinstance(node, _SCOPES):
            yield from _assigned(ast.iter_child_nodes(node))


class _Finder:
    """Follows all ways through statements with the names that have a value on each of them."""

    def __init__(self, local: set[str]) -> None:
        self.found: ast.Name | None = None
        self._local = local
        self._breaks: list[list[set[str]]] = []  # of each loop around: what has a value there

    def block(self, statements: Sequence[ast.stmt], known: set[str]) -> set[str] | None:
        """Return the names with a value behind the statements, None if nothing goes on there."""
        for statement in statements:
            after = self._statement(statement, known)
            if after is None:
                return None
            known = after
        return known

    def _statement(self, node: ast.stmt, known: set[str]) -> set[str] | None:
        match node:
            case ast.If():
                known = self._used(node.test, known)
                return _either(self.block(node.body, known), self.block(node.orelse, known))
            case ast.For():
                return self._loop(node, self._used(node.iter, known), _runs_once(node.iter))
            case ast.While():
                is_endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
                return self._loop(node, self._used(node.test, known), is_endless, is_endless)
            case ast.Return() | ast.Raise():
                self._used(node, known)
                return None
            case ast.Break():
                self._breaks[-1].append(known)
                return None
            case ast.Continue():
                return None
            case ast.AugAssign(target=ast.Name() as target):
                self._use(target, target.id, known)
                return self._used(node.value, known)
            case ast.Try() | ast.With() | ast.Match():  # only some of it may run: not followed
                return known | {*_assigned([node])}
        return self._used(node, known)

    def _loop(
        self, node: ast.For | ast.While, known: set[str], runs: bool, endless: bool = False
    ) -> set[str] | None:
        self._breaks.append([])
        inside = known | {*_assigned([node.target])} if isinstance(node, ast.For) else known
        after = self.block(node.body, inside)
        breaks = self._breaks.pop()
        if endless:
            end = None
        elif runs and after is not None:
            end = self.block(node.orelse, after)
        else:
            end = self.block(node.orelse, known)
        for one in breaks:
            end = _either(end, one)
        return end

    def _used(self, node: ast.AST, known: set[str]) -> set[str]:
        """Note uses in a statement or expression; return the names with a value behind it."""
        names = [one for one in _names(node) if isinstance(one.ctx, ast.Load)]
        new = {*_assigned([node])}
        inside = {one.target.id for one in ast.walk(node) if isinstance(one, ast.NamedExpr)}
        for one in names:
            self._use(one, one.id, known | inside)
        return known | new

    def _use(self, node: ast.Name, name: str, known: set[str]) -> None:
        if name in self._local and name not in known and self.found is None:
            self.found = node


def _names(node: ast.AST) -> Iterable[ast.Name]:
    if isinstance(node, ast.Name):
        yield node
    if not isinstance(node, _SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from _names(child)


def _either(first: set[str] | None, second: set[str] | None) -> set[str] | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _runs_once(iterated: ast.expr) -> bool:
    """Return whether a loop over it certainly runs: `range` of a positive literal."""
    match iterated:
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(end))]):
            return end > 0
    return False
