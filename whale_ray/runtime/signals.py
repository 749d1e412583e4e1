"""Ctrl-C and SIGTERM while a job runs: the first drains it, the second cancels it.

Whoever leads the job answers them; its other processes, which often get them too (Ctrl-C goes to
all that a terminal has started, service managers and batch systems stop everything of a service),
leave them to it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..configs.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def leave_stops_to_the_controller() -> None:
    """Have this process, the main thread of which calls, live on after SIGINT and SIGTERM.

    It ends with its driver. Programs that it starts, and processes that it forks, end as ever.
    """
    for number in _SIGNALS:
        # Not SIG_IGN, which programs started from here would inherit.
        signal.signal(number, _do_nothing)
    os.register_at_fork(after_in_child=_end_as_ever)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@contextmanager
def stops_deferred() -> Iterator[None]:
    """Start a process within the block that is not stopped before it can leave that to others.

    What it is sent waits until it has called `leave_stops_to_the_controller`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Take a signal that the controller answers."""


def _end_as_ever() -> None:
    """Give a forked process the usual handlers back, where it still has ours."""
    usual: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
    }
    for number, handler in usual.items():
        if signal.getsignal(number) is _do_nothing:
            signal.signal(number, handler)


@contextmanager
def draining_signals(stop: Callable[[bool], None], *, interrupt: bool = False) -> Iterator[None]:
    """Within the block, answer SIGINT and SIGTERM with `stop(drain)`.

    `drain` is true for the first signal and false for all others. With `interrupt`, the second one
    gives the handlers back and raises Interrupted, a KeyboardInterrupt, where the block is: a
    user's function that runs in this very thread may never return. Outside the main thread, where
    Python allows no handlers, the block runs without them.
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
            raise Interrupted

    def give_back() -> None:
        for number, handler in before.items():
            if handler is not None:  # else it was not installed from Python, and cannot be
                signal.signal(number, handler)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        give_back()
