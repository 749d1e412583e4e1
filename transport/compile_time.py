"""Tells how much of a thread's processor time was spent compiling functions, or loading kept ones.

A function is compiled or loaded when it is first used, so an operator's first row may take a second
and the following ones microseconds. Whoever measures what rows cost leaves that time out.
"""

from __future__ import annotations

import threading
import time
from typing import Any

__all__ = ["compiling_ns", "count_compiling"]


class _Spent(threading.local):
    """What this thread has spent: in all, and how many functions are being compiled just now."""

    cpu_ns = 0
    depth = 0


_spent = _Spent()


def count_compiling(dispatcher: Any) -> None:
    """Count the processor time that a dispatcher of numba's takes to compile or load a version.

    Of functions within one another the outermost counts.
    """
    compile_version = dispatcher.compile

    def counted(signature: object) -> Any:
        began_ns = time.thread_time_ns()
        _spent.depth += 1
        try:
            return compile_version(signature)
        finally:
            _spent.depth -= 1
            if not _spent.depth:
                _spent.cpu_ns += time.thread_time_ns() - began_ns

    dispatcher.compile = counted


def compiling_ns() -> int:
    """Return the processor time that the calling thread has spent compiling so far, ns."""
    return _spent.cpu_ns
