"""Prints in the driver what the functions in its workers have printed."""

from __future__ import annotations

import errno
import queue
import sys
import threading
from collections.abc import Callable, Sequence

from ..tasks.printed import PrintedLine, encodable

_WAITING_MAX = 1024
_ROWS_WAITING_MAX = 1 << 20
"""More than all workers together have on their way (`printed.RowWindow`)."""
_ERASE = "\r\033[K"
"""Takes the line of progress away that stands on a terminal; the next one is written below."""


Done = Callable[[int | None], None]
_Batch = tuple[Sequence[PrintedLine], Done | None]


class Printer:
    """Prints lines in a thread of its own, which begins with the first of them.

    A terminal that is held, or a pager, so holds up neither the controller nor what functions
    print: what of that it does not take is dropped in the end, and counted. Rows of sinks are never
    dropped; they come no faster than they are confirmed.
    """

    def __init__(self) -> None:
        self._waiting: queue.Queue[_Batch | None] = queue.Queue(_ROWS_WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._limited = 0  # batches that wait and are not rows
        self._dropped = 0

    def take(self, lines: Sequence[PrintedLine]) -> None:
        """Print lines soon, unless too many wait; from one thread."""
        if not lines:
            return
        with self._lock:
            if self._limited >= _WAITING_MAX:
                self._dropped += len(lines)
                return
            self._limited += 1
        if self._dropped:
            told = f"… {self._dropped:,} lines more, which were not taken in time"
            lines = [PrintedLine("output", told, is_error=True), *lines]
            self._dropped = 0
        self._put((lines, None))

    def take_rows(self, lines: Sequence[PrintedLine], done: Done) -> None:
        """Print lines, then call `done` in the printing thread.

        It is passed the number of the system's error that kept them from being printed, or None.
        """
        self._put((lines, done))

    def close(self, timeout_s: float) -> None:
        """Wait a while until all has been printed. May be called twice."""
        if self._thread is None:
            return
        self._waiting.put(None)
        self._thread.join(timeout_s)  # longer, and the thread ends with the process
        self._thread = None

    def _put(self, batch: _Batch) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._print, name="printer", daemon=True)
            self._thread.start()
        self._waiting.put_nowait(batch)

    def _print(self) -> None:
        is_gone = False
        while (batch := self._waiting.get()) is not None:
            lines, done = batch
            if done is None:
                with self._lock:
                    self._limited -= 1
            error: int | None = errno.EPIPE if is_gone else None
            try:
                if not is_gone:
                    _print_all(lines)
            except OSError as failed:  # such as a pipe whose reader has gone
                is_gone, error = True, failed.errno or errno.EIO
            except ValueError:  # a stream that was closed
                is_gone, error = True, errno.EPIPE
            if done is not None:
                done(error)


def _print_all(lines: Sequence[PrintedLine]) -> None:
    for line in lines:
        stream = sys.stderr if line.is_error else sys.stdout
        text = encodable(str(line), stream.encoding)
        stream.write(f"{_ERASE if stream.isatty() else ''}{text}\n")
        stream.flush()
