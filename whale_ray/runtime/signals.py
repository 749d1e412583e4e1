"""Ctrl-C and SIGTERM while a job runs: the first drains it, the second cancels it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruptions:
    """How often the user asked for the end, and by which signal first."""

    def __init__(self) -> None:
        self.count = 0
        self.first: int | None = None


@contextmanager
def draining_signals(stop: Callable[[bool], None]) -> Iterator[Interruptions]:
    """Within the block, answer SIGINT and SIGTERM with `stop(drain)`.

    `drain` is true for the first signal and false for all others. Outside the main thread, where
    Python allows no handlers, the block runs without them.
    """
    seen = Interruptions()
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        seen.count += 1
        if seen.first is None:
            seen.first = number
        stop(seen.count == 1)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
