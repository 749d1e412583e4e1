"""Says once, on a terminal, that functions are being compiled: a first run would seem to hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from numba.core import event

__all__ = ["CompileNotice"]

PATIENCE_NS = 1_000_000_000
"""For how long functions are compiled before a word is said."""

NOTICE = "whale-ray: compiling functions for this machine; this takes some seconds, once\n"


class Terminal(Protocol):
    """What the notice is written to."""

    def isatty(self) -> bool:
        """Whether somebody may be watching."""

    def write(self, text: str, /) -> object:
        """Show text."""

    def flush(self) -> object:
        """Show it now."""


class CompileNotice(event.Listener):  # type: ignore[misc]  # numba has no types
    """Notes when numba compiles, and reports it once that has taken a second in all.

    Functions that are loaded from where they are kept are not compiled. A user's own functions do
    not count.

    Args:
        now_ns: a monotonic clock, ns.
        terminal: returns where to write, None if that is closed.
    """

    def __init__(self, now_ns: Callable[[], int], terminal: Callable[[], Terminal | None]) -> None:
        self._now_ns, self._terminal = now_ns, terminal
        self._began_ns: list[int] = []
        self._spent_ns = 0
        self.silent = False
        """Whether nothing is said, or has been said already."""

    def on_start(self, event: Any) -> None:
        """Note that a function begins to be compiled, and speak if enough time has gone."""
        now_ns = self._now_ns()
        spent_ns = self._spent_ns + (now_ns - self._began_ns[0] if self._began_ns else 0)
        self._began_ns.append(now_ns)
        if spent_ns >= PATIENCE_NS and _is_ours(event):
            self._say()

    def on_end(self, event: Any) -> None:
        """Note that it is compiled; of functions within one another the outermost counts."""
        began_ns = self._began_ns.pop()
        if not self._began_ns and _is_ours(event):
            self._spent_ns += self._now_ns() - began_ns

    def _say(self) -> None:
        terminal = self._terminal()
        if not self.silent and terminal is not None and terminal.isatty():
            terminal.write(NOTICE)
            terminal.flush()
        self.silent = True


def _is_ours(event: Any) -> bool:
    module: str | None = event.data["dispatcher"].py_func.__module__
    return (module or "").partition(".")[0] == "whale_ray"
