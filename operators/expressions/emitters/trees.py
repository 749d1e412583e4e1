"""Code for whole expressions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from ....configs.errors import WhaleError
from ....transport.wire.arrow import type_to_arrow
from ....transport.wire.types import Schema
from ..expression import Alias, ColumnReference, FunctionCall, Literal
from ..kernels.type_rules import is_text
from .code import Code, EntryTable, LoopWriter, NotCompilable, constructor_of

if TYPE_CHECKING:
    from ..evaluation import Environment
    from ..expression import Expression

__all__ = ["EMITTING_MODULES", "code_of", "emitter"]

EMITTING_MODULES = (
    "arithmetic",
    "casts",
    "comparisons",
    "conditionals",
    "numbers",
    "text",
    "times",
    "user_functions",
)
"""The modules of emitters, each beside the module of kernels of that name."""


def code_of(
    expression: Expression, loop: LoopWriter, columns: Mapping[str, Code], constants: Environment
) -> Code:
    """Return the code of an expression.

    Args:
        expression: the tree.
        loop: where its parts are written.
        columns: those that are computed already, by name; all others are of the loop's rows.
        constants: where calls whose arguments are all literals are computed, by their kernels.

    Raises:
        NotCompilable: a part of it has no code; the message names the part.
    """
    match expression:
        case Alias():
            return code_of(expression.expression, loop, columns, constants)
        case ColumnReference():
            known = columns.get(expression.name)
            return loop.column(expression.name) if known is None else known
        case Literal():
            return loop.constant(constants.scalar(expression.constant))
        case FunctionCall():
            if (found := _over_entries(expression, loop, columns, constants)) is not None:
                return found
            arguments = [code_of(one, loop, columns, constants) for one in expression.arguments]
            return _call(expression, arguments, loop, constants)
    msg = f"{expression}"
    raise NotCompilable(msg)


def _over_entries(
    call: FunctionCall, loop: LoopWriter, columns: Mapping[str, Code], constants: Environment
) -> Code | None:
    """Return the code of a call whose only column is coded text: it is looked up by the code.

    None if it is no such call, or if it makes text. The kernels compute it for each text of the
    dictionary, so it need not have a compiled form; functions of users are called for rows alone.

    Raises:
        NotCompilable: as `code_of`.
    """
    found = [columns[name] for name in call.columns if name in columns] if loop.coded else []
    places = {code.value for code in found if _is_column_text(code)}
    if len(found) < len(call.columns) or len(places) != 1 or not all(map(_is_column_text, found)):
        return None
    column = int(places.pop())
    if column not in loop.coded:
        return None
    plain = LoopWriter(loop.schema, nullable=loop.nullable)
    try:
        code = code_of(call, plain, columns, constants)
    except NotCompilable:
        return _by_kernels(call, column, loop)
    if plain.functions or code.constant is not None or is_text(code.kind):
        return None
    return loop.looked_up(EntryTable(call, column, code.kind, code.valid is not None), code.kind)


def _by_kernels(call: FunctionCall, column: int, loop: LoopWriter) -> Code | None:
    """Return the code of a call that has no compiled form, over the texts of a coded column."""
    if _calls_users(call):
        return None
    type_ = loop.schema.fields[column].type
    try:
        kind = type_to_arrow(call.output_type(Schema.of(**dict.fromkeys(call.columns, type_))))
        constructor_of(kind)
    except (WhaleError, NotCompilable):
        return None
    return loop.looked_up(EntryTable(call, column, kind, nullable=True), kind)


def _calls_users(expression: Expression) -> bool:
    """Whether a function of the user's is part of an expression."""
    is_users = isinstance(expression, FunctionCall) and expression.kernel.startswith("user_")
    return is_users or any(map(_calls_users, expression.children()))


def _is_column_text(code: Code) -> bool:
    return is_text(code.kind) and code.constant is None


def _call(
    call: FunctionCall, arguments: list[Code], loop: LoopWriter, constants: Environment
) -> Code:
    try:
        literals = [code.constant for code in arguments if code.constant is not None]
        if len(literals) == len(arguments):
            return loop.constant(constants.call(call, literals))
        return emitter(call.kernel)(loop, *arguments, *call.options)
    except NotCompilable as reason:
        if " in " in str(reason):
            raise
        msg = f"{reason} in {call}"
        raise NotCompilable(msg) from None
    except WhaleError as error:  # which the kernels raise as well, and say it better
        raise NotCompilable(str(error)) from None


@functools.cache
def emitter(kernel: str) -> Callable[..., Code]:
    """Return the emitter of a kernel; raise NotCompilable if it has none."""
    module, _, name = kernel.partition(".")
    if module in EMITTING_MODULES:
        found = import_module(f".{module}", __package__)
        if name in found.__all__ and hasattr(found, name):
            made: Callable[..., Code] = getattr(found, name)
            return made
    msg = f"{name}, which has no compiled form,"
    raise NotCompilable(msg)
