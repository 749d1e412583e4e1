"""Ctrl-C, SIGTERM and SIGHUP while a job runs: the first drains it, the second cancels it.

The process with the controller answers them. The job's other processes often get them, too: Ctrl-C
goes to all processes of a terminal, and service managers and batch systems stop all processes of a
service. They ignore these signals.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..configs.errors import EXIT_INTERRUPTED, Interrupted
from ..transport.clock import Clock, SystemClock

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SAME_STOP_NS = 1_000_000_000
"""Signals within this time count as one, except Ctrl-C: `timeout` signals command and group."""

_received: list[int] = []
"""The signals to stop that this process has answered, since `interrupting_signals` was entered."""


def exit_code_of_stop() -> int:
    """Return the exit code of a command that was stopped: 128 and the number of the first signal.

    Shells report programs that die of a signal by the same code. A command that was stopped
    otherwise, as from another process, exits as if by Ctrl-C.
    """
    return 128 + _received[0] if _received else EXIT_INTERRUPTED


def leave_stops_to_the_controller() -> None:
    """Ignore signals to stop in this process, which ends with its driver; for the main thread.

    Programs that it starts, and processes that it forks, handle the signals as usual.
    """
    for number in _SIGNALS:
        # Not SIG_IGN, which programs started from here would inherit.
        signal.signal(number, _do_nothing)
    os.register_at_fork(after_in_child=_restore_handlers)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@contextmanager
def stops_deferred() -> Iterator[None]:
    """Start a process within the block whose signals to stop wait until it ignores them.

    They are blocked until it calls `leave_stops_to_the_controller`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal that the controller answers."""


def _restore_handlers() -> None:
    """Restore the usual handlers in a forked process, where it still has ours."""
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
    restores the handlers and raises Interrupted, a KeyboardInterrupt, in the block: a
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
        _received.append(number)
        stop(seen == 1)
        if interrupt and seen > 1:
            restore()
            raise Interrupted

    with _handling(handle, _SIGNALS) as restore:
        yield


@contextmanager
def interrupting_signals() -> Iterator[None]:
    """Within the block, raise KeyboardInterrupt for SIGTERM and SIGHUP, too."""
    _received.clear()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        _received.append(number)
        raise KeyboardInterrupt

    with _handling(interrupt, (signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def _handling(
    handler: Callable[[int, FrameType | None], None], numbers: Iterable[int]
) -> Iterator[Callable[[], None]]:
    """Handle signals within the block; yield a function that restores the handlers earlier."""
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            number, former = before.popitem()
            if former is not None:  # else it was not installed by Python, and cannot be restored
                signal.signal(number, former)

    try:
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                # `nohup` has SIGHUP ignored, and so it stays.
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, handler)
        yield restore
    finally:
        restore()
