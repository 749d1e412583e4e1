"""What a function of the user's consists of: its code, and the values that this refers to."""

from __future__ import annotations

import dis
import hashlib
import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

__all__ = ["as_function", "codes", "fingerprint_of", "outer_values"]

_KNOWN_MODULES = ("cmath", "math", "numba", "numpy")
"""What they hold changes with their version alone; of other modules that is not known."""


def fingerprint_of(function: Callable[..., Any]) -> str | None:
    """Return a text that differs if a function computes anything else; None if none is known.

    It covers the code and all outer values that the code refers to.
    """
    parts = _parts_of(function, set())
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


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def _parts_of(function: Callable[..., Any], seen: set[int]) -> list[Any] | None:
    """Return all that a function's result depends on, as plain values; None if there are others."""
    if id(function) in seen:
        return []
    seen.add(id(function))
    parts: list[Any] = [
        (one.co_code, one.co_names, one.co_varnames, one.co_freevars, _plain(one.co_consts))
        for one in codes(function.__code__)
    ]
    parts.append(function.__defaults__)
    for name, value in sorted(outer_values(function).items()):
        if isinstance(value, ModuleType):
            if value.__name__.partition(".")[0] not in _KNOWN_MODULES:
                return None
            parts.append((name, value.__name__, getattr(value, "__version__", "")))
        elif (called := as_function(value)) is not None:
            inner = _parts_of(called, seen)
            if inner is None:
                return None
            parts.append((name, inner))
        elif type(value).__module__ in ("builtins", "numpy"):
            try:
                parts.append((name, pickle.dumps(value)))
            except Exception:  # noqa: BLE001  # pickling may raise anything
                return None
        else:
            return None
    return parts


def _plain(constants: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one for one in constants if not isinstance(one, CodeType))
