"""What the machine code of a compiled function was made of, beyond the file that it is written in.

numba compiles the functions that a function calls, and the constants that it names, into it, but
compares only the function's own file before it loads kept machine code. If another file has
changed since, as by an upgrade, that machine code is of the version before.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType

import numpy as np
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic

__all__ = ["reached_stamp"]

_PLAIN = (bool, int, float, complex, str, bytes, np.generic, type(None))


def reached_stamp(function: FunctionType) -> str:
    """Return a hash of all sources and constants that the machine code of a function depends on.

    To be called once the function's module is loaded: before, some names have no value.
    """
    files: set[str] = set()
    constants: set[tuple[str, str]] = set()
    waiting, seen = [function], {function}
    while waiting:
        caller = waiting.pop()
        files.add(inspect.getfile(caller))
        for name, value in _named_by(caller):
            called = _written_as(value)
            if called is not None and called not in seen:
                seen.add(called)
                waiting.append(called)
            elif _is_plain(value):
                constants.add((name, repr(value)))
            elif isinstance(value, np.ndarray):
                constants.add((name, f"{value.dtype}{value.shape}{value.tobytes()!r}"))
    reached = (sorted(map(_content, files)), sorted(constants))
    return hashlib.sha256(repr(reached).encode()).hexdigest()


def _named_by(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield what a function's names refer to: globals, and attributes of modules among them."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
        found = {name: function.__globals__.get(name) for name in code.co_names}
        yield from found.items()
        for module in [value for value in found.values() if isinstance(value, ModuleType)]:
            yield from ((name, getattr(module, name, None)) for name in code.co_names)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents


def _written_as(value: object) -> FunctionType | None:
    """Return the function of Python that a compiled function or an intrinsic is written as."""
    written = getattr(value, "_defn", None) if isinstance(value, _Intrinsic) else None
    if isinstance(value, Dispatcher):
        written = value.py_func
    return written if isinstance(written, FunctionType) else None


def _is_plain(value: object) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _content(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:  # text that was made while the process ran
        return path
    return _hash_of(path, found.st_mtime_ns, found.st_size)


@cache
def _hash_of(path: str, _changed_ns: int, _nbytes: int) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
