"""What the machine code of a compiled function was made of, beyond the file that it is written in.

numba compiles the functions that a function calls, and the constants that it names, into it, but
compares only the function's own file before it loads kept machine code. If another file has
changed since, as by an upgrade, that machine code is of the version before.

Files are compared by their content, as it was when their modules were loaded: a function may be
compiled long after that, when its file holds another version already. The time of a file, which
numba before 0.68 compares, says little: whoever packs files into an image rounds it to seconds.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType

import llvmlite
import numba
import numpy as np
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic

__all__ = ["note_source", "reached_stamp"]

_NOTED = "__whale_ray_source__"
"""Name, in a module, of its `__spec__` and the hash of the source that it was loaded from."""
_COMPILED_BY = (numba.__version__, llvmlite.__version__)
_PLAIN = (bool, int, float, complex, str, bytes, np.generic, type(None))


def note_source(function: object) -> None:
    """Note what the file of a function's module holds, while the module is loaded."""
    if not isinstance(function, FunctionType):
        return
    module = function.__globals__
    spec = module.get("__spec__")  # another one each time that the module is loaded
    if _NOTED not in module or module[_NOTED][0] is not spec:
        module[_NOTED] = spec, _content(inspect.getfile(function))


def reached_stamp(function: FunctionType) -> str:
    """Return a hash of all sources and constants that the machine code of a function depends on.

    To be called once the function's module is loaded: before, some names have no value.
    """
    sources: set[str] = set()
    constants: set[tuple[str, str]] = set()
    waiting, seen = [function], {function}
    while waiting:
        caller = waiting.pop()
        sources.add(_source_of(caller))
        for name, value in _named_by(caller):
            called = _written_as(value)
            if called is not None and called not in seen:
                seen.add(called)
                waiting.append(called)
            elif _is_plain(value):
                constants.add((name, repr(value)))
            elif isinstance(value, np.ndarray):
                constants.add((name, f"{value.dtype}{value.shape}{value.tobytes()!r}"))
    reached = (_COMPILED_BY, sorted(sources), sorted(constants))
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


def _source_of(function: FunctionType) -> str:
    noted: tuple[object, str] | None = function.__globals__.get(_NOTED)
    return _content(inspect.getfile(function)) if noted is None else noted[1]


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
