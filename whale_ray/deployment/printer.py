"""Prints in the driver what functions have printed in its workers."""

from __future__ import annotations

import errno
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TextIO

from ..tasks.printed import PrintedLine, count_of, encodable, lost_lines

_WAITING_MAX = 1024
_ROWS_WAITING_MAX = 1 << 20
"""More than all workers together send before they wait (`printed.RowWindow`)."""
_ERASE = "\r\033[K"
"""Erases the line of progress on a terminal; the next one is written below."""


Done = Callable[[int | None], None]
_Batch = tuple[Sequence[PrintedLine], Done | None]


class Printer:
    """Prints lines in a thread of its own, which starts with the first line.

    So a stopped terminal, or a pager, delays neither the controller nor the functions that print.
    Lines that the terminal does not take are dropped once too many wait, and counted. Rows of sinks
    are never dropped: workers send no more than are confirmed.
    """

    def __init__(self) -> None:
        self._waiting: queue.Queue[_Batch | None] = queue.Queue(_ROWS_WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._limited = 0  # waiting batches that may be dropped
        self._dropped = 0

    def take(self, lines: Sequence[PrintedLine]) -> None:
        """Print lines soon, or drop them if too many wait; call it from one thread only."""
        if not lines:
            return
        with self._lock:
            if self._limited >= _WAITING_MAX:
                self._dropped += count_of(lines)
                return
            self._limited += 1
        self._put(((*self._note_of_dropped(), *lines), None))

    def take_rows(self, lines: Sequence[PrintedLine], done: Done) -> None:
        """Print lines, then call `done` in the printing thread.

        `done` gets the errno of the error by which printing failed, or None.
        """
        self._put((lines, done))

    def close(self, timeout_s: float) -> None:
        """Wait until all lines are printed, for a limited time. May be called twice."""
        if self._thread is None:
            return
        if self._dropped:
            with self._lock:
                self._limited += 1
            self._put((self._note_of_dropped(), None))
        self._waiting.put(None)
        self._thread.join(
            timeout_s
        )  # the thread is a daemon and ends with the process at the latest
        self._thread = None

    def _note_of_dropped(self) -> Sequence[PrintedLine]:
        dropped, self._dropped = self._dropped, 0
        return lost_lines(dropped, "not taken in time")

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
                    _print_all(lines, of_sink=done is not None)
            except OSError as failed:  # such as a pipe whose reader has gone
                is_gone, error = True, failed.errno or errno.EIO
            except ValueError:  # a stream that was closed
                is_gone, error = True, errno.EPIPE
            if done is not None:
                done(error)


def _print_all(lines: Sequence[PrintedLine], *, of_sink: bool) -> None:
    """Print lines; those of functions to a stream that is closed are left out, as Python does."""
    for line in lines:
        stream: TextIO | None = sys.stderr if line.is_error else sys.stdout
        if stream is None:
            if of_sink:
                raise OSError(errno.EBADF, "")
            continue
        text = encodable(str(line), stream.encoding)
        stream.write(f"{_ERASE if stream.isatty() else ''}{text}\n")
        stream.flush()
