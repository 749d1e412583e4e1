"""Lines that tell how far a job is.

On a terminal each is written over the one before. Elsewhere, such as in a file, every line stays:
then nothing is told twice, and of a state in which numbers say little only that it has begun.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_LOOK_S = 0.2
_DRAINING = "the sources end, what was read comes out; one more signal cancels it"


class Watch:
    """Tells of one job on `stream`, every `interval_s`; without a stream it tells nothing."""

    def __init__(self, name: str, stream: TextIO | None, interval_s: float) -> None:
        self._name = name
        self._stream = stream
        self._interval_s = interval_s
        self._next_s = interval_s
        self._unfinished = False
        self._restarts = 0
        self._last = ("", "")
        self._drains = False

    def due(self, waited_s: float) -> bool:
        """Tell whether it is time for the next line."""
        if self._stream is None or waited_s < self._next_s:
            return False
        self._next_s += self._interval_s
        return True

    def tell_restarts(self, restarts: int) -> None:
        """Write a line that stays if the job began anew since the last call."""
        if restarts <= self._restarts:
            return
        self._restarts = restarts
        self._tell(
            f"{self._name}: restart {restarts}: a worker or host was lost; "
            "the sources are read again from their start"
        )

    def show(self, state: str, line: str) -> None:
        """Write a line, unless it is empty or, where all lines stay, tells nothing new."""
        if state == "draining" and not self._drains:
            self._drains = True
            self._tell(f"{self._name}: draining: {_DRAINING}")
            self._last = (state, "")
        if not line or self._stream is None:
            return
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\033[K{line[:width]}")
            self._stream.flush()
            self._unfinished = True
            return
        before, last = self._last
        if line != last and (state == "running" or state != before):
            self._tell(line)
            self._last = (state, line)

    def close(self) -> None:
        """Leave the last line standing."""
        if self._unfinished and self._stream is not None:
            self._stream.write("\n")
            self._stream.flush()
            self._unfinished = False

    def _tell(self, text: str) -> None:
        if self._stream is None:
            return
        over = "\r\033[K" if self._unfinished else ""
        self._stream.write(f"{over}{text}\n")
        self._stream.flush()
        self._unfinished = False


@contextmanager
def watching(watch: Watch, look: Callable[[], None]) -> Iterator[None]:
    """Call `look` whenever a line is due, in a thread, while the block runs in this one."""
    ended = threading.Event()

    def run() -> None:
        waited_s = 0.0
        while not ended.wait(_LOOK_S):
            waited_s += _LOOK_S
            if watch.due(waited_s):
                look()

    thread = threading.Thread(target=run, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
