"""Lines that users' functions print or log, on their way from a worker to the driver; without I/O.

Everything here is bounded: a function that prints a line per row must neither fill a memory nor
slow the job down to the speed of a terminal. Lines that are left out are counted, and the count is
reported.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
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
        left_out: how many lines were left out, if it says so; else 0.
    """

    place: str
    text: str
    is_error: bool = False
    left_out: int = 0

    def __str__(self) -> str:
        return f"({self.place}) {self.text}"


def count_of(lines: Iterable[PrintedLine]) -> int:
    """Return how many lines these are, with those of which they say that they were left out."""
    return sum(line.left_out or 1 for line in lines)


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


def lost_lines(lines: int, why: str) -> tuple[PrintedLine, ...]:
    """Return a line that says how many lines were lost on their way and why, if there are any."""
    if not lines:
        return ()
    what = "1 line" if lines == 1 else f"{lines:,} lines"
    return (PrintedLine("output", f"… {what}, {why}", is_error=True, left_out=lines),)


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
        self._totals: dict[str, int] = {}

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
        for place, lines in left_out.items():
            self._totals[place] = self._totals.get(place, 0) + lines
        return [
            PrintedLine(place, self._describe(place, lines), is_error=True, left_out=lines)
            for place, lines in left_out.items()
        ]

    def _describe(self, place: str, lines: int) -> str:
        more = "1 line more" if lines == 1 else f"{lines:,} lines more"
        total = f", {self._totals[place]:,} in all" if self._totals[place] > lines else ""
        setting = f"runtime.output_lines_per_s={self._lines_per_s}"
        return f"… {more}, {self._elsewhere} ({setting}){total}"


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
    """An answer of an `Outbox`.

    Attributes:
        number: of this answer, to be named in the next question, which confirms its receipt.
        lines: those whose receipt was not confirmed before.
        closed: there will be no more.
    """

    number: int
    lines: tuple[PrintedLine, ...]
    closed: bool


class Outbox:
    """Lines that wait until they are fetched; each is kept until its receipt is confirmed.

    Of more than `lines_max` the oldest are dropped, and counted.
    """

    def __init__(self, lines_max: int) -> None:
        self._lines_max = lines_max
        self._lines: deque[PrintedLine] = deque(maxlen=lines_max)
        self._handed_over: tuple[PrintedLine, ...] = ()
        self._answers = 0
        self._lost = 0
        self._changed = threading.Condition()
        self._closed = False

    def add(self, lines: Sequence[PrintedLine]) -> None:
        """Take lines."""
        with self._changed:
            for line in lines:
                if len(self._lines) == self._lines.maxlen:
                    self._lost += count_of([self._lines[0]])
                self._lines.append(line)
            self._changed.notify_all()

    def fetch(self, last_answer: int, timeout_s: float) -> Fetched:
        """Return the lines of which the receipt is not confirmed; wait a while for the first.

        `last_answer` is the number of the last answer received, 0 if there was none, or that of
        an earlier process.
        """
        with self._changed:
            if last_answer == self._answers:
                self._handed_over = ()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_more or self._closed, timeout_s)
            lines = (*self._handed_over, *lost_lines(self._lost, "not fetched in time"))
            lines += tuple(self._lines)
            self._lines.clear()
            beyond = max(len(lines) - self._lines_max - 1, 0)
            self._lost = count_of(lines[:beyond])
            self._handed_over = lines[beyond:]
            self._answers += 1
            return Fetched(self._answers, self._handed_over, self._closed)

    def close(self, timeout_s: float) -> None:
        """Say that there will be no more, and wait a while until all was received."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._has_more, timeout_s)

    @property
    def _has_more(self) -> bool:
        return bool(self._handed_over or self._lines or self._lost)
