"""Checks of the types of arguments, where a user passes them to a source or a sink.

Without them a mistake comes up later, often in a worker, as an error that names no argument.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, NoReturn

from ..configs.errors import UsageError

__all__ = [
    "accepts",
    "check_bool",
    "check_seconds",
    "check_type",
    "columns_to_read",
    "is_time",
    "names",
    "refuse",
]


def check_type(
    call: str, name: str, given: object, kinds: type | tuple[type, ...], wanted: str
) -> None:
    """Refuse an argument of another type.

    Args:
        call: the function that got it, such as "sinks.kafka".
        name: of the argument.
        given: what was passed.
        kinds: the types that it may have; True and False are no numbers here.
        wanted: what to pass, in words.

    Raises:
        UsageError: it has none of them.
    """
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(given, kinds) or (isinstance(given, bool) and bool not in kinds):
        refuse(call, name, given, wanted)


def check_bool(call: str, name: str, given: object) -> None:
    """Refuse an argument that is neither True nor False: of "no" Python takes it as true.

    Raises:
        UsageError: it is something else.
    """
    check_type(call, name, given, bool, "True or False")


def check_seconds(call: str, name: str, given: object, *, or_none: bool = False) -> None:
    """Refuse what is no time to wait, in seconds; None is one without limit, if that is allowed.

    Raises:
        UsageError: it is something else.
    """
    if not (is_time(given) or (or_none and given is None)):
        wanted = "seconds, from 0 on"
        refuse(call, name, given, f"{wanted}, or None for no limit" if or_none else wanted)


def is_time(given: object) -> bool:
    """Return whether it is a finite number from 0 on: neither NaN nor a bool."""
    if isinstance(given, bool) or not isinstance(given, Real):
        return False
    return given < math.inf and not given < 0


def names(call: str, name: str, given: object, wanted: str, *, or_one: bool) -> tuple[str, ...]:
    """Return names that a user passed: a list, or just one if that is allowed (`or_one`).

    Raises:
        UsageError: it is something else.
    """
    if isinstance(given, str) and or_one:
        return (given,)
    is_list = isinstance(given, Iterable) and not isinstance(given, str | bytes)
    several = tuple(given) if isinstance(given, Iterable) else ()
    if not is_list or not all(isinstance(one, str) for one in several):
        refuse(call, name, given, wanted)
    return several


def columns_to_read(call: str, columns: object) -> tuple[str, ...] | None:
    """Return the `columns=` of a source; None for all.

    Raises:
        UsageError: it is no list of names.
    """
    if columns is None:
        return None
    return names(call, "columns", columns, "a list of names of columns", or_one=False)


def accepts(function: Callable[..., Any], arguments: int) -> bool:
    """Return whether a callable can be called with that many positional arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have no signature; the call will show
        return True
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True


def refuse(call: str, name: str, given: object, wanted: str) -> NoReturn:
    """Raise the UsageError that names an argument, what was passed, and what to pass (`wanted`)."""
    plain = given is None or isinstance(given, bool | int | float | str)
    shown = repr(given) if plain else f"a {type(given).__name__}"
    msg = f"{call}({name}=…) got {shown}: pass {wanted}"
    raise UsageError(msg)
