"""Progress lines of a job.

On a terminal each line overwrites the one before. Elsewhere, such as in a file, all lines remain:
then a line that repeats the last one is left out, and every state but "running" gets only one.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from ..operators.arguments import refuse
from ..transport.clock import SystemClock

_CHECK_INTERVAL_S = 0.2
_DRAINING = "the sources end, all rows read are processed; one more signal cancels it"
_A_STREAM = ("write", "flush", "isatty")


def check_watch(call: str, watch: object, line: object) -> None:
    """Raise UsageError for a `watch=` that is no stream, or a `line=` that is no function."""
    if watch is not None and not all(callable(getattr(watch, name, None)) for name in _A_STREAM):
        refuse(call, "watch", watch, "a stream such as sys.stderr")
    if line is not None and not callable(line):
        refuse(call, "line", line, "a function (metrics) → str")


class Watch:
    """Prints progress lines of one job on `stream`, every `interval_s` seconds; None: no lines."""

    def __init__(self, name: str, stream: TextIO | None, interval_s: float) -> None:
        self._name = name
        self._stream = stream
        self._interval_s = interval_s
        self._next_s = interval_s
        self._unfinished = False
        self._restarts = 0
        self._last = ("", "")
        self._reported_draining = False

    def due(self, waited_s: float) -> bool:
        """Return whether it is time for the next line, after `waited_s` seconds in all."""
        if self._stream is None or waited_s < self._next_s:
            return False
        self._next_s = max(self._next_s + self._interval_s, waited_s)  # none is caught up on
        return True

    def report_restarts(self, restarts: int, restored: int, lost: str) -> None:
        """Print a permanent line if the job has restarted since the last call.

        `restored` is the checkpoint from which it went on, 0 if it began at the start; `lost` says
        why it was restarted.
        """
        if restarts <= self._restarts:
            return
        self._restarts = restarts
        then = "the sources are read again from their start"
        if restored:
            then = f"the job goes on from checkpoint {restored}"
        self._print_permanently(f"{self._name}: restart {restarts}: {lost}; {then}")

    def show(self, state: str, line: str) -> None:
        """Print a line, unless it is empty or, on a stream that is not a terminal, repeats."""
        if state == "draining" and not self._reported_draining:
            self._reported_draining = True
            self._print_permanently(f"{self._name}: draining: {_DRAINING}")
            self._last = (state, "")
        if not line or self._stream is None:
            return
        if _is_terminal(self._stream):
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\033[K{line[:width]}")
            self._unfinished = True
            return
        before, last = self._last
        if line != last and (state == "running" or state != before):
            self._print_permanently(line)
            self._last = (state, line)

    def close(self) -> None:
        """End the last line, so that it is not overwritten."""
        if self._unfinished:
            self._write("\n")
            self._unfinished = False

    def _print_permanently(self, text: str) -> None:
        over = "\r\033[K" if self._unfinished else ""
        self._write(f"{over}{text}\n")
        self._unfinished = False

    def _write(self, text: str) -> None:
        """Write a text; if it cannot be written, the job goes on, without any more lines."""
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the disk is full, the reader is gone, the stream is closed
            self._stream = None


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (OSError, ValueError):  # it is closed
        return False


@contextmanager
def watching(watch: Watch, report: Callable[[], None]) -> Iterator[None]:
    """Call `report` in another thread whenever a line is due, while the block runs in this one."""
    ended = threading.Event()

    def run() -> None:
        clock = SystemClock()
        begun_ns = clock.monotonic_ns()
        while not ended.wait(_CHECK_INTERVAL_S):
            if watch.due((clock.monotonic_ns() - begun_ns) / 1e9):
                report()

    thread = threading.Thread(target=run, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
