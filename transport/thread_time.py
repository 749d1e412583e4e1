"""The processor time of a thread's work: without that for compiling, with that of its helpers.

A helper is a thread that does a part of another one's work beside it, such as reading ahead. It
cannot be told from outside for whom it works, so whoever takes its result says what that took.
"""

from __future__ import annotations

import threading
import time

from .compile_time import compiling_ns

__all__ = ["count_helper", "thread_work_ns"]


class _Helped(threading.local):
    """What helpers have spent for this thread."""

    cpu_ns = 0


_helped = _Helped()


def count_helper(cpu_ns: int) -> None:
    """Count the processor time that a helper has spent for the calling thread, ns."""
    _helped.cpu_ns += cpu_ns


def thread_work_ns() -> int:
    """Return the processor time of the calling thread's work so far, ns."""
    return time.thread_time_ns() - compiling_ns() + _helped.cpu_ns
