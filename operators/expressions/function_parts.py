"""What a function of the user's consists of: its code, and the values that this refers to."""

from __future__ import annotations

import dis
import hashlib
import inspect
import io
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

__all__ = ["as_function", "codes", "fingerprint_of", "is_dispatcher", "outer_values"]

_KNOWN_MODULES = ("cmath", "math", "numba", "numpy")
"""What they hold changes with their version alone; of other modules that is not known."""

_COMPILED_OF: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""What each function of numba's consisted of before numba compiled it: it keeps these values."""


def fingerprint_of(function: Callable[..., Any]) -> str | None:
    """Return a text that differs if a function computes anything else; None if none is known.

    It covers the code and all outer values that the code refers to; of a function of numba's, the
    options too.
    """
    plain = inspect.isfunction(function)
    parts = _parts_of(function, ()) if plain else _parts_of_called(function, ())
    if parts is None:
        return None
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def outer_values(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the values of other scopes that a function, or one inside it, refers to, by name."""
    known = function.__globals__
    names = {
        step.argval
        for code in codes(function.__code__)
        for step in dis.get_instructions(code)
        if step.opname == "LOAD_GLOBAL" and step.argval in known
    }
    nonlocals = inspect.getclosurevars(function).nonlocals
    return {**{name: known[name] for name in names}, **nonlocals}


def as_function(value: Any) -> Callable[..., Any] | None:
    """Return the Python function behind what a compiled function may call; None of other values."""
    plain = getattr(value, "py_func", value)
    return plain if inspect.isfunction(plain) else None


def is_dispatcher(value: Any) -> bool:
    """Return whether a value is a function that `numba.njit` has made."""
    made_by = sys.modules.get("numba.core.registry")
    return made_by is not None and isinstance(value, made_by.CPUDispatcher)


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def _parts_of(
    function: Callable[..., Any], callers: tuple[Callable[..., Any], ...]
) -> list[Any] | None:
    """Return all that a function's result depends on, as plain values; None if there are others."""
    if function in callers:
        return [len(callers) - callers.index(function)]
    parts: list[Any] = [
        (one.co_code, one.co_names, one.co_varnames, one.co_freevars, _plain(one.co_consts))
        for one in codes(function.__code__)
    ]
    outer = {**outer_values(function), "": function.__defaults__}
    for name, value in sorted(outer.items()):
        if isinstance(value, ModuleType):
            if not _is_known_module(value.__name__):
                return None
            part: Any = value.__name__, getattr(value, "__version__", "")
        elif as_function(value) is not None:
            part = _parts_of_called(value, (*callers, function))
        else:
            part = _content_of(value)
        if part is None:
            return None
        parts.append((name, part))
    return parts


def _parts_of_called(value: Any, callers: tuple[Callable[..., Any], ...]) -> Any:
    """Return the parts of a compiled function that another one calls; None if not all are known."""
    if inspect.isfunction(value):
        return None  # numba calls what `overload` says in its place
    if (own := getattr(value, "own_dispatcher", None)) is not None:
        return _parts_of_called(own, callers)
    parts = _parts_of(value.py_func, callers)
    if parts is None or not hasattr(value, "overloads"):
        return parts
    parts.append(repr(value.targetoptions))
    if not value.overloads:
        _COMPILED_OF[value] = repr(parts)
    return parts if _COMPILED_OF.get(value) == repr(parts) else None


def _content_of(value: Any) -> bytes | None:
    """Return the content of a plain value; None of others."""
    if type(value).__module__ not in ("builtins", "numpy"):
        return None
    content = io.BytesIO()
    try:
        _ContentPickler(content).dump(value)
    except Exception:  # noqa: BLE001  # pickling may raise anything
        return None
    return content.getvalue()


class _ContentPickler(pickle.Pickler):
    """Refuses functions and classes of other modules, which are pickled as their name alone."""

    def reducer_override(self, value: Any) -> Any:
        """Let all others be pickled as they are."""
        if callable(value) and not _is_known_module(getattr(value, "__module__", None) or ""):
            msg = f"{value!r} may consist of anything"
            raise pickle.PicklingError(msg)
        return NotImplemented


def _is_known_module(name: str) -> bool:
    return name.partition(".")[0] in ("builtins", *_KNOWN_MODULES)


def _plain(constants: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one for one in constants if not isinstance(one, CodeType))
