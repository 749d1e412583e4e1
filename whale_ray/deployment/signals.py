"""Ctrl-C, SIGTERM and SIGHUP while a job runs: the first drains it, the second cancels it.

Whoever leads the job answers them; its other processes, which often get them too (Ctrl-C goes to
all that a terminal has started, service managers and batch systems stop everything of a service),
leave them to it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..configs.errors import Interrupted
from ..transport.clock import Clock, SystemClock

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SAME_STOP_NS = 1_000_000_000
"""Signals but Ctrl-C are one within this time: `timeout` sends each to a command and its group."""


def leave_stops_to_the_controller() -> None:
    """Have this process, the main thread of which calls, live on after signals to stop.

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
        signal.SIGHUP: signal.SIG_DFL,
    }
    for number, handler in usual.items():
        if signal.getsignal(number) is _do_nothing:
            signal.signal(number, handler)


@contextmanager
def draining_signals(
    stop: Callable[[bool], None], *, interrupt: bool = False, clock: Clock | None = None
) -> Iterator[None]:
    """Within the block, answer signals to stop with `stop(drain)`.

    `drain` is true for the first signal and false for all others. With `interrupt`, the second one
    gives the handlers back and raises Interrupted, a KeyboardInterrupt, where the block is: a
    user's function that runs in this very thread may never return. Outside the main thread, where
    Python allows no handlers, the block runs without them.
    """
    clock = clock or SystemClock()
    seen, first_ns = 0, 0

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal seen, first_ns
        now_ns = clock.monotonic_ns()
        if seen and number != signal.SIGINT and now_ns - first_ns < _SAME_STOP_NS:
            return
        seen, first_ns = seen + 1, first_ns if seen else now_ns
        stop(seen == 1)
        if interrupt and seen > 1:
            give_back()
            raise Interrupted

    with _handling(handle, _SIGNALS) as give_back:
        yield


@contextmanager
def interrupting_signals() -> Iterator[None]:
    """Within the block, answer SIGTERM and SIGHUP as Ctrl-C is: all is undone on the way out."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling(interrupt, (signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def _handling(
    handler: Callable[[int, FrameType | None], None], numbers: Iterable[int]
) -> Iterator[Callable[[], None]]:
    """Have the main thread answer signals; yield what gives the former handlers back before."""
    before: dict[int, Any] = {}

    def give_back() -> None:
        while before:
            number, former = before.popitem()
            if former is not None:  # else it was not installed from Python, and cannot be
                signal.signal(number, former)

    try:
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                # What `nohup` has switched off stays so.
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, handler)
        yield give_back
    finally:
        give_back()
