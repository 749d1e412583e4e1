"""Lines that users' functions print or log, on their way from a worker to the driver; without I/O.

Everything here is bounded: a function that prints a line per row must neither fill a memory nor
slow the job down to the speed of a terminal. Lines that are left out are counted, and the count is
reported.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

LINE_CHARACTERS_MAX = 4096
_BURST_S = 10
_REPORT_INTERVAL_NS = 1_000_000_000


@dataclass(frozen=True)
class PrintedLine:
    """One line, without its end.

    Attributes:
        place: who printed it, such as "count#2": the operator and its instance.
        text: what was printed.
        is_error: it was meant for standard error, as log messages are.
    """

    place: str
    text: str
    is_error: bool = False

    def __str__(self) -> str:
        return f"({self.place}) {self.text}"


def cut(text: str) -> str:
    """Return a line cut to `LINE_CHARACTERS_MAX`, with the number of characters left out."""
    beyond = len(text) - LINE_CHARACTERS_MAX
    if beyond <= 0:
        return text
    return f"{text[:LINE_CHARACTERS_MAX]}… ({beyond:,} characters more)"


def encodable(text: str, encoding: str | None) -> str:
    """Return a text with the characters escaped that an encoding does not have."""
    if encoding is None:
        return text
    return text.encode(encoding, "backslashreplace").decode(encoding)


class PrintLimit:
    """Decides which lines are passed on, and counts the others: a token bucket.

    On average `lines_per_s` pass, in bursts of up to ten seconds' lines. `elsewhere` says where the
    lines that do not pass can be found.
    """

    def __init__(self, lines_per_s: int, elsewhere: str) -> None:
        self._lines_per_s = lines_per_s
        self._elsewhere = elsewhere
        self._capacity = float(lines_per_s * _BURST_S)
        self._credit = self._capacity
        self._at_ns: int | None = None
        self._reported_at_ns = 0
        self._left_out: dict[str, int] = {}

    def offer(self, line: PrintedLine, now_ns: int) -> list[PrintedLine]:
        """Return the lines to pass on now: this one, unless there were too many, and reports."""
        elapsed_ns = 0 if self._at_ns is None else now_ns - self._at_ns
        self._at_ns = now_ns
        self._credit = min(self._capacity, self._credit + elapsed_ns * self._lines_per_s / 1e9)
        if self._credit < 1:
            self._left_out[line.place] = self._left_out.get(line.place, 0) + 1
            return []
        self._credit -= 1
        if now_ns - self._reported_at_ns < _REPORT_INTERVAL_NS:
            return [line]
        return [*self.report(now_ns), line]

    def report(self, now_ns: int) -> list[PrintedLine]:
        """Return a line for each operator that had lines left out since the last report."""
        self._reported_at_ns = now_ns
        left_out, self._left_out = self._left_out, {}
        return [
            PrintedLine(place, self._describe(lines), is_error=True)
            for place, lines in left_out.items()
        ]

    def _describe(self, lines: int) -> str:
        more = "1 line more" if lines == 1 else f"{lines:,} lines more"
        return f"… {more}, {self._elsewhere} (runtime.output_lines_per_s={self._lines_per_s})"


@dataclass(frozen=True)
class PrintedRows:
    """Lines of a `print` sink, which are confirmed once they have been printed."""

    lines: tuple[PrintedLine, ...]


class RowWindow:
    """Limits how many `PrintedRows` are unconfirmed, so that the sink waits for the printing."""

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._changed = threading.Condition()
        self._on_their_way = 0
        self._is_aborted = False
        self._error: int | None = None

    def enter(self) -> None:
        """Count one more as sent, once there is room for it; raises OSError as `await_all`."""
        self._wait(self._messages_max - 1)
        with self._changed:
            self._on_their_way += 1

    def await_all(self) -> None:
        """Wait until all have been printed, or the attempt was aborted.

        Raises:
            OSError: they could not be printed.
        """
        self._wait(0)

    def confirm(self, error: int | None) -> None:
        """Note that one was printed, or the number of the system's error if it was not."""
        with self._changed:
            self._on_their_way -= 1
            self._error = error
            self._changed.notify_all()

    def abort(self, is_aborted: bool) -> None:
        """End all waiting if `is_aborted`: what prints may be gone. Allow it again if not."""
        with self._changed:
            self._is_aborted = is_aborted
            self._changed.notify_all()

    def _wait(self, most: int) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._on_their_way <= most or self._is_aborted or self._error is not None
            )
            error, self._error = self._error, None
        if error is not None:
            raise OSError(error, os.strerror(error))


@dataclass(frozen=True)
class Fetched:
    """What an `Outbox` hands over.

    Attributes:
        seen: how many lines there have been, to be named in the next question.
        lines: those that have not been handed over before.
        closed: there will be no more.
    """

    seen: int
    lines: tuple[PrintedLine, ...]
    closed: bool


class Outbox:
    """Lines that wait until they are fetched; each is kept until its receipt is confirmed.

    Of more than `lines_max` the oldest are dropped, and counted.
    """

    def __init__(self, lines_max: int) -> None:
        self._lines: deque[PrintedLine] = deque(maxlen=lines_max)
        self._changed = threading.Condition()
        self._count = 0
        self._lost = 0
        self._closed = False

    def add(self, lines: Sequence[PrintedLine]) -> None:
        """Take lines."""
        with self._changed:
            for line in lines:
                self._lost += len(self._lines) == self._lines.maxlen
                self._lines.append(line)
            self._count += len(lines)
            self._changed.notify_all()

    def fetch(self, seen: int, timeout_s: float) -> Fetched:
        """Return what came after the first `seen` lines; wait a while for the first of it.

        A caller that has seen more lines than there were counts those of an earlier process, too.
        """
        with self._changed:
            if seen <= self._count:
                while len(self._lines) > self._count - seen:
                    self._lines.popleft()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lines or self._closed, timeout_s)
            lost, self._lost = self._lost, 0
            told = [PrintedLine("output", f"… {lost:,} lines were not fetched in time", True)]
            return Fetched(self._count, (*(told if lost else ()), *self._lines), self._closed)

    def close(self, timeout_s: float) -> None:
        """Say that there will be no more, and wait a while until all was received."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._lines, timeout_s)
