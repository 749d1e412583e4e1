"""Ctrl-C and SIGTERM while a job runs: the first drains it, the second cancels it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def draining_signals(stop: Callable[[bool], None], *, interrupt: bool = False) -> Iterator[None]:
    """Within the block, answer SIGINT and SIGTERM with `stop(drain)`.

    `drain` is true for the first signal and false for all others. With `interrupt`, the second one
    gives the handlers back and raises KeyboardInterrupt where the block is: a user's function that
    runs in this very thread may never return. Outside the main thread, where Python allows no
    handlers, the block runs without them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        stop(seen == 1)
        if interrupt and seen > 1:
            give_back()
            raise KeyboardInterrupt

    def give_back() -> None:
        for number, handler in before.items():
            if handler is not None:  # else it was not installed from Python, and cannot be
                signal.signal(number, handler)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        give_back()
