"""Compiles functions whose text is made while a job runs, and keeps them for other processes.

numba keeps a compiled function beside the file that it was written in. So the text is written into
a file, whose name is a hash of all that the machine code depends on: the text itself, how it is
compiled, the versions of Python, numba and llvmlite, and the processor. A file is never executed:
what runs is always the text that was made here, and a file that holds anything else is replaced.

A process loads a kept function once: its jobs, and the attempts of a job, share it.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import llvmlite
import llvmlite.binding
import numba
from numba.core import config

from .compiled_folder import FOLDER_VARIABLE, NOT_KEPT_VARIABLE, folder_of_own
from .compiling import njit, njit_inner
from .deferred_compiling import entry_point
from .unused_files import mark_used, remove_unused

__all__ = ["compile_text", "is_kept"]

MODULE = __name__
"""Of all functions: numba looks for that of a kept one when it loads it."""

_FOLDER = "loops"
_OPTIONS: dict[str, object] = {"nogil": True, "_nrt": False}
"""Loops and helpers make no arrays, so those that they pass on need no counts of references: these
took half of the time of a loop with keys of text."""
_OF_LOOPS: dict[str, object] = {**_OPTIONS, "boundscheck": False, "error_model": "numpy"}
_OF_HELPERS: dict[str, object] = {**_OPTIONS, "forceinline": True}
"""An array is passed as seven numbers, so a call for each row took a quarter of a look-up of text;
and what is constant in a call, as the size of a text, is so in the helper."""
_OF_ROWS: dict[str, object] = {"nogil": True, "boundscheck": True}
"""Of a user's code for a row: it may make arrays, and to divide by zero is an error of Python's, as
is a place beyond an array. That is checked in no measurable time, and could end the process."""
_KEPT_MAX = 1_000
"""How many functions are kept: each has some 100 KB in files."""
_LOADED_MAX = 64
"""How many functions a process has at hand; one has some 50 KB of machine code."""
_log = logging.getLogger(__name__)
_told: set[str] = set()


def compile_text(
    text: str,
    name: str,
    signature: tuple[Any, ...] | None,
    known: Mapping[str, object],
    helpers: tuple[str, ...] = (),
    *,
    keep: bool = True,
    of_rows: bool = False,
) -> Any:
    """Return a function of a module's text, compiled or loaded by this call.

    Args:
        text: the module, without imports; it depends on nothing but `known`, and makes no arrays.
        name: of the function.
        signature: numba's, of its arguments; None: each call with other types compiles or loads.
        known: the modules and functions that the text uses, by name.
        helpers: functions of the text that the function calls.
        keep: whether to keep it: the text tells all that its machine code depends on.
        of_rows: whether it is a user's code for a row, which may make arrays, and raises what
            Python does if it divides by zero or reads beyond an array.

    Raises:
        NumbaError: numba refuses it.
    """
    path = _kept_file(text, of_rows) if keep else None
    is_shared = path is not None and all(isinstance(one, ModuleType) for one in known.values())
    make = _loaded if is_shared else _compiled
    return make(path, text, name, signature, tuple(known.items()), helpers, of_rows)


def _compiled(
    path: Path | None,
    text: str,
    name: str,
    signature: tuple[Any, ...] | None,
    known: tuple[tuple[str, object], ...],
    helpers: tuple[str, ...],
    of_rows: bool,
) -> Any:
    namespace: dict[str, Any] = {**dict(known), "__name__": MODULE}
    exec(compile(text, str(path or f"<{MODULE}>"), "exec"), namespace)  # noqa: S102 - made here
    for helper in helpers:
        namespace[helper] = njit_inner(namespace[helper], **_OF_HELPERS)
    function = njit(signature, cache=path is not None, **_options(of_rows))(namespace[name])
    if signature is not None:
        entry_point(function)  # compiled here, not at the first call: that is made between rows
    return function


def _options(of_rows: bool) -> dict[str, object]:
    return _OF_ROWS if of_rows else _OF_LOOPS


_loaded = functools.lru_cache(maxsize=_LOADED_MAX)(_compiled)


def is_kept(text: str) -> bool:
    """Whether a process of this user has compiled the text before, on such a machine."""
    folder = _folder()
    if folder is None:
        return False
    path = folder / _file_name(text)
    index = f"{path.stem}.*.nbi"
    return path.is_file() and any(next(place.glob(index), None) for place in _places(folder))


def _places(folder: Path) -> list[Path]:
    """Return the folders in which numba keeps what the files of a folder are compiled to."""
    places = [folder / "__pycache__"]
    if config.CACHE_DIR:  # where numba keeps each folder's functions in a folder of its own
        places += Path(config.CACHE_DIR).glob(f"{folder.name}_*")
    return places


def _kept_file(text: str, of_rows: bool) -> Path | None:
    """Return a file that holds the text; None, with a warning, if there can be none."""
    folder = _folder()
    if folder is None:
        return None
    path = folder / _file_name(text, of_rows)
    raw = text.encode()
    try:
        if path.is_file() and path.read_bytes() == raw:
            mark_used(path)
            return path
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as made:
            made.write(raw)
        try:
            os.replace(made.name, path)
        except OSError:
            with suppress(OSError):
                os.unlink(made.name)
            raise
    except OSError as error:
        _warn_not_cached(f"{folder}: {error.strerror}")
        return None
    with suppress(OSError):
        remove_unused(folder, _places(folder), _KEPT_MAX)
    return path


def _folder() -> Path | None:
    """Return the folder of this user for such files, made if need be; None if there is none."""
    if NOT_KEPT_VARIABLE in os.environ:
        return None
    chosen = os.environ.get(FOLDER_VARIABLE)
    at_home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parents = [chosen] if chosen else [at_home, os.environ.get("TMPDIR", "/tmp")]
    for parent in parents:
        if os.path.isabs(parent):
            with suppress(OSError):
                os.makedirs(parent, mode=0o700, exist_ok=True)
                own = folder_of_own(parent)
                if own is not None:
                    own.joinpath(_FOLDER).mkdir(mode=0o700, exist_ok=True)
                    return own / _FOLDER
    _warn_not_cached(f"{' and '.join(parents)} cannot be written, or others can write there")
    return None


def _warn_not_cached(reason: str) -> None:
    """Say once in this process that loops are compiled again by every process, and why."""
    if reason not in _told:
        _told.add(reason)
        _log.warning(
            "whale-ray: compiled loops are not kept (%s), so every process compiles its own; set"
            " %s to a folder that only you can write",
            reason,
            FOLDER_VARIABLE,
        )


def _file_name(text: str, of_rows: bool = False) -> str:
    depends_on = (text, (_OF_HELPERS, _options(of_rows)), *_machine())
    return f"loop_{hashlib.sha256(repr(depends_on).encode()).hexdigest()[:24]}.py"


@functools.cache
def _machine() -> tuple[str, ...]:
    """Return what machine code depends on beside the text: it is the same for a process."""
    return (
        platform.python_version(),
        numba.__version__,
        llvmlite.__version__,
        llvmlite.binding.get_host_cpu_name(),
        llvmlite.binding.get_host_cpu_features().flatten(),
    )
