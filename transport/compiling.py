"""Compiles functions with numba, and finds a folder for compiled functions.

numba keeps compiled functions beside their source, else in the user's cache folder, and refuses to
compile at all if neither can be written: in a read-only installation without a writable home, such
as a container that runs as any user. They are then kept in a folder of this user's own in the
temporary directory, or not at all, and a warning is logged.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numba
from numba.core import config, event

from .clock import SystemClock
from .compile_notice import CompileNotice
from .compile_time import count_compiling
from .compiled_folder import NOT_KEPT_VARIABLE, choose_folder
from .compiling_in_turn import compile_in_turn
from .deferred_compiling import compile_when_used
from .kept_functions import (
    go_on_without_writing,
    load_quickly,
    treat_unusable_as_missing,
)
from .reached_sources import note_source

__all__ = ["kept_in", "njit", "njit_inner", "notice"]

_BESIDE = os.path.join(os.path.dirname(__file__), "__pycache__")

notice = CompileNotice(SystemClock().monotonic_ns, lambda: sys.stderr)
"""Says on this process' terminal that functions are being compiled; `silent` switches it off."""

event.register("numba:compile", notice)


def njit(signature: object = None, *, cache: bool = False, **options: Any) -> Any:
    """Return a decorator that compiles a function as `numba.njit` does.

    All functions of whale-ray are compiled by this.

    Args:
        signature: of the arguments; without one, the first call compiles.
        cache: keep the compiled function for other processes, if there is a folder for it.
        options: numba's.
    """

    def compiled(function: Any) -> Any:
        kept = cache and _has_place()
        try:
            return _compiled(function, signature, **options, cache=kept)
        except RuntimeError as error:
            if not kept or "no locator available" not in str(error):
                raise
        return _compiled(function, signature, **options, cache=_use_folder_of_own())

    return compiled


def njit_inner(function: Any, **options: Any) -> Any:
    """Return a function that only compiled functions call, and that is compiled together with them.

    numba also makes two functions of each, for calls from Python and from C, which take a fifth of
    the time of compiling. Without them, a call from Python raises TypeError.
    """
    dispatcher = njit(**options, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)

    def refuse(*_arguments: Any, **_named: Any) -> Any:
        msg = f"{function.__module__}.{function.__qualname__} is called by compiled functions only"
        raise TypeError(msg)

    # A call from Python goes to what is inserted here, or else asks for something to be compiled.
    dispatcher._insert = lambda *_compiled: None
    dispatcher._compile_for_args = refuse
    return dispatcher


def _compiled(function: Any, signature: object, *, cache: bool, **options: Any) -> Any:
    note_source(function)
    # Nothing here passes functions to C: a third of the wrappers that numba compiles is for that.
    dispatcher = numba.njit(cache=cache, **{"no_cfunc_wrapper": True, **options})(function)
    count_compiling(dispatcher)
    if cache:
        load_quickly(dispatcher)
        treat_unusable_as_missing(dispatcher)
        go_on_without_writing(dispatcher)
        compile_in_turn(dispatcher)
    if signature is not None:
        compile_when_used(dispatcher, signature)
    return dispatcher


def kept_in() -> str | None:
    """Return the folder in which functions of this module are kept; None if there is none."""
    probe: Any = njit(cache=True)(_nothing)
    path: str | None = probe.stats.cache_path
    return path


def _nothing() -> None:
    """Do nothing; it is never compiled."""


def _use_folder_of_own() -> bool:
    """Let numba keep functions in a folder of this user's own; return whether there is one."""
    folder = choose_folder()
    if folder is not None:
        config.CACHE_DIR = folder
    return folder is not None


def _has_place() -> bool:
    """Return whether to ask numba for a folder.

    Without any home it would make a folder "~" in the working directory.
    """
    if NOT_KEPT_VARIABLE in os.environ:
        return False
    at_home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if config.CACHE_DIR or os.path.isabs(at_home) or os.access(_BESIDE, os.W_OK):
        return True
    return _use_folder_of_own()
