"""Checks of arguments that users pass while they build a topology.

A failed check raises a `TopologyError` whose message names the operator, the mistake and the
remedy. This module is independent of how a topology is stored.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

from ...configs.errors import TopologyError
from ...operators.arguments import accepts

NAME_LENGTH_MAX = 64
"""Names become parts of file names, thread names and labels."""

PARALLELISM_MAX = 65_536
"""Larger than the largest number of virtual nodes; a larger number is a mistake."""

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def mistake(operator_id: str, text: str) -> TopologyError:
    """Return the error for a mistake at an operator."""
    return TopologyError(f"operator {operator_id!r}: {text}")


def written_as(example: str) -> Callable[[Callable[_Given, _Made]], Callable[_Given, _Made]]:
    """Return a decorator of methods that tells how a call is written whose arguments do not fit."""

    def decorated(method: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
        signature = inspect.signature(method)

        @wraps(method)
        def called(*given: _Given.args, **named: _Given.kwargs) -> _Made:
            try:
                signature.bind(*given, **named)
            except TypeError as error:
                told = f"{method.__name__}() got other arguments than it takes: {error}"
                msg = f"{told}; write {example}"
                raise TopologyError(msg) from None
            return method(*given, **named)

        return called

    return decorated


def check_name(name: object, what: Literal["topology name", "operator id"]) -> str:
    """Return `name` if it is usable in file names, labels and on the command line.

    Raises:
        TopologyError: it is not.
    """
    if not isinstance(name, str):
        msg = f"{what} is {_shorten(name)}: pass a text such as 'ride-hailing'"
        raise TopologyError(msg)
    if len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        msg = (
            f"{what} {_shorten(name)}: use 1 to {NAME_LENGTH_MAX} letters, digits, '-', '_' or '.',"
            " the first a letter or digit"
        )
        raise TopologyError(msg)
    return name


def check_parallelism(operator_id: str, parallelism: object) -> None:
    """Refuse a parallelism that is neither None nor an integer from 1 to `PARALLELISM_MAX`."""
    if parallelism is None:
        return
    if isinstance(parallelism, bool) or not isinstance(parallelism, int):
        raise mistake(
            operator_id,
            f"parallelism is {_shorten(parallelism)}: pass a whole number, such as parallelism=4",
        )
    if not 1 <= parallelism <= PARALLELISM_MAX:
        raise mistake(
            operator_id,
            f"parallelism is {parallelism}: pass a number from 1 to {PARALLELISM_MAX}, or leave it"
            " out",
        )


def check_choice(operator_id: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of `choices`."""
    if value not in choices:
        wanted = " or ".join(f"{name}={choice!r}" for choice in choices)
        raise mistake(operator_id, f"{name} is {_shorten(value)}: pass {wanted}")


def check_bool(operator_id: str, name: str, value: object) -> None:
    """Refuse a value that is neither True nor False: of "no" Python takes it as true."""
    if not isinstance(value, bool):
        raise mistake(operator_id, f"{name} is {_shorten(value)}: pass True or False")


def check_function(
    operator_id: str, verb: str, function: object, takes: tuple[str, ...], makes: str
) -> None:
    """Refuse an object that cannot be called with the arguments `takes`.

    Args:
        operator_id: the operator that would call it.
        verb: the method that it was passed to.
        function: the user's argument.
        takes: the arguments with which it will be called, in words: ("row",).
        makes: the value that it must return, in words.

    Raises:
        TopologyError: it is not a plain function that takes as many arguments.
    """
    arguments = ", ".join(takes)
    if not callable(function):
        raise mistake(
            operator_id,
            f"{verb} takes a function ({arguments}) → {makes}, not {_shorten(function)}",
        )
    name = name_of(function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise mistake(
            operator_id, f"{name} is an async function: {verb} takes a plain one, written with def"
        )
    if not accepts(function, len(takes)):
        raise mistake(
            operator_id,
            f"{name}{_signature(function)} cannot be called with {_times(len(takes))}: {verb} calls"
            f" it as {name}({arguments}) → {makes}",
        )


def name_of(function: object) -> str:
    """Return the name of a function, a class or a callable object for a message."""
    inner = getattr(function, "func", function)  # functools.partial
    name = getattr(inner, "__name__", None)
    if name == "<lambda>":
        return "lambda"
    return str(name) if name else type(inner).__name__


def describe_value(value: object) -> str:
    """Return a short description of a value: a plain value itself, else its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if _is_plain(value):
        return _shorten(value)
    if inspect.isroutine(value):
        return f"the function {name_of(value)}"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def _shorten(value: object) -> str:
    if not _is_plain(value):
        return describe_value(value)
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, bytes))


def _signature(function: Callable[..., Any]) -> str:
    try:
        return re.sub(r" ->.*$", "", str(inspect.signature(function)))
    except (TypeError, ValueError):
        return "(…)"


def _times(count: int) -> str:
    return {0: "no argument", 1: "one argument", 2: "two arguments"}[count]
