"""`LoopFunction`: the machine code of a loop, compiled before the first row or beside the rows."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Mapping
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from ..expressions.compiled_function import CompiledFunction

__all__ = [
    "Begin",
    "LoopFunction",
    "LoopModule",
    "begin_beside",
    "compiled_or_none",
    "is_kept",
    "may_be_kept",
]

_log = logging.getLogger(__name__)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

Begin: TypeAlias = "Callable[[Callable[[], None]], object]"
"""Begins some work, and returns before it is done."""


class LoopFunction:
    """A function that may not be compiled yet.

    Args:
        make: compiles it; None if that is refused.
        is_kept: returns whether it was compiled before, so that it is only loaded: asked at most
            once, as it looks into a folder, and not if it is compiled at once anyway.
        begin: lets it be compiled while the rows go on without it.
    """

    def __init__(
        self, make: Callable[[], Any], *, is_kept: Callable[[], bool], begin: Begin
    ) -> None:
        self._make, self._is_kept, self._begin = make, functools.cache(is_kept), begin
        self._begun = self._ended = False
        self._function: Any = None

    @property
    def is_coming(self) -> bool:
        """Whether it is being compiled."""
        return self._begun and not self._ended

    def get(self, *, at_once: bool, is_due: bool) -> Any:
        """Return the function; None while it is not there, or if it is refused.

        Args:
            at_once: compile it now, if it was not tried before; what is kept is loaded in any case.
            is_due: else begin to compile it, if that has not begun.
        """
        if not self._begun and (at_once or self._is_kept()):
            self._begun = True
            self._compile()
        elif not self._begun and is_due:
            self._begun = True
            self._begin(self._compile)
        return self._function

    def _compile(self) -> None:
        try:
            self._function = self._make()
        finally:
            self._ended = True


def begin_beside(work: Callable[[], None]) -> None:
    """Begin some work in a thread; a process that ends waits for it.

    A thread of its own for each loop, not an executor, which takes no work once the main thread has
    ended: jobs in other threads go on then. numba compiles one function at a time anyway.
    """
    Thread(target=_noting_failure, args=(work,), name="whale-ray-compiles").start()


def _noting_failure(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:  # noqa: BLE001  # there is nobody to raise it to; the rows go on without
        _log.exception("whale-ray: a loop cannot be compiled and is interpreted")


class LoopModule(Protocol):
    """What is compiled; attributes as of `LoopText`."""

    @property
    def text(self) -> str:
        """See `LoopText`."""

    @property
    def helpers(self) -> tuple[str, ...]:
        """See `LoopText`."""

    @property
    def functions(self) -> Mapping[str, CompiledFunction]:
        """See `LoopText`."""


def compiled_or_none(loop: LoopModule, signature: tuple[Any, ...]) -> Any:
    """Return the function `loop` of a module; None, with a warning, if numba refuses it."""
    from numba.core.errors import NumbaError

    from ...transport import generated

    functions = {name: one.dispatcher for name, one in loop.functions.items()}
    try:
        return generated.compile_text(
            loop.text,
            "loop",
            signature,
            {"np": np, **functions},
            loop.helpers,
            keep=may_be_kept(loop.functions),
        )
    except NumbaError as error:
        reason = " ".join(_COLOURS.sub("", str(error)).split())[:300]
        _log.warning("whale-ray: a loop cannot be compiled and is interpreted: %s", reason)
        return None


def is_kept(loop: LoopModule) -> bool:
    """Return whether a process of this user has compiled a loop before."""
    from ...transport import generated

    return may_be_kept(loop.functions) and generated.is_kept(loop.text)


def may_be_kept(functions: Mapping[str, CompiledFunction]) -> bool:
    """Return whether the text of a loop says all that its machine code depends on."""
    return all(one.fingerprint() is not None for one in functions.values())
