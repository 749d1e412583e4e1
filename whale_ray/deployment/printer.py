"""Prints in the driver what the functions in its workers have printed."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Sequence

from ..tasks.printed import PrintedLine, encodable

_WAITING_MAX = 1024
_ERASE = "\r\033[K"
"""Takes the line of progress away that stands on a terminal; the next one is written below."""


class Printer:
    """Prints lines in a thread of its own, which begins with the first of them.

    A terminal that is held, or a pager, so holds up neither the job nor its controller. What it
    does not take is dropped in the end, and counted.
    """

    def __init__(self) -> None:
        self._waiting: queue.Queue[Sequence[PrintedLine] | None] = queue.Queue(_WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._dropped = 0

    def take(self, lines: Sequence[PrintedLine]) -> None:
        """Print lines soon; from one thread."""
        if not lines:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._print, name="printer", daemon=True)
            self._thread.start()
        try:
            if self._dropped:
                told = f"… {self._dropped:,} lines more, which were not taken in time"
                self._waiting.put_nowait([PrintedLine("output", told, is_error=True)])
                self._dropped = 0
            self._waiting.put_nowait(lines)
        except queue.Full:
            self._dropped += len(lines)

    def close(self, timeout_s: float) -> None:
        """Wait a while until all has been printed. May be called twice."""
        if self._thread is None:
            return
        try:
            self._waiting.put(None, timeout=timeout_s)
        except queue.Full:
            return  # nobody takes what is printed; the thread ends with the process
        self._thread.join(timeout_s)
        self._thread = None

    def _print(self) -> None:
        while (lines := self._waiting.get()) is not None:
            for line in lines:
                stream = sys.stderr if line.is_error else sys.stdout
                try:
                    text = encodable(str(line), stream.encoding)
                    stream.write(f"{_ERASE if stream.isatty() else ''}{text}\n")
                    stream.flush()
                except (OSError, ValueError):
                    return  # a pipe whose reader has gone, or a stream that was closed
