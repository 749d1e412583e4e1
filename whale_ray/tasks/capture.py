"""Catches what users' functions print and log in a worker, with the operator that runs.

Python's `sys.stdout` and `sys.stderr` are replaced; what C code writes to the file descriptors goes
where it always went. In a process that a user's function forks, the streams are as before.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from ..transport.clock import Clock
from .printed import LINE_CHARACTERS_MAX, PrintedLine, PrintedRows, PrintLimit, cut, encodable

LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"

_NOT_THE_USERS = ("ray", "py4j", "whale_ray")
"""Loggers whose levels are not the user's choice."""

_ROWS_AT_ONCE = 1024

Forward = Callable[[Sequence[PrintedLine]], None]


class RowForward(Protocol):
    """Takes what sinks print."""

    def send(self, rows: PrintedRows) -> None:
        """Pass rows on; wait while too many are on their way."""

    def await_all(self) -> None:
        """Wait until all have been printed."""


_running = threading.local()


@contextmanager
def running(place: str) -> Iterator[None]:
    """Name the operator and instance whose code the block calls, in this thread."""
    before = enter(place)
    try:
        yield
    finally:
        leave(before)


def enter(place: str) -> str | None:
    """Set what runs in this thread from now on; return what ran before, for `leave`."""
    before: str | None = getattr(_running, "place", None)
    _running.place = place
    return before


def leave(before: str | None) -> None:
    """Set again what ran before `enter`."""
    _running.place = before


def log_levels() -> dict[str, int]:
    """Return the levels that the user has given to loggers in this process, the root's as ""."""
    levels = {"": logging.getLogger().level}
    for name, logger in list(logging.Logger.manager.loggerDict.items()):
        is_theirs = name.partition(".")[0] not in _NOT_THE_USERS
        if isinstance(logger, logging.Logger) and logger.level and is_theirs:
            levels[name] = logger.level
    return levels


class Capture:
    """The captured output of this process.

    Args:
        name: of the worker, for what is printed outside of all operators.
        forward: takes the lines that go to the driver; None: they stay here.
        limit: how many may go there.
        clock: the time for the limit.
        keep: write all lines to the streams of this process, too, as its log.
        foreign: beginnings of lines that are not the user's and stay as they are.
        rows: takes what sinks print; None: it is treated as all other lines.
    """

    def __init__(
        self,
        name: str,
        forward: Forward | None,
        limit: PrintLimit,
        clock: Clock,
        *,
        keep: bool,
        foreign: tuple[str, ...] = (),
        rows: RowForward | None = None,
    ) -> None:
        self._name = name
        self._forward = forward
        self._limit = limit
        self._clock = clock
        self._keep = keep
        self._foreign = foreign
        self._rows = rows
        self._lock = threading.RLock()  # a signal handler may print while something is printed
        self._streams: tuple[_CapturedStream, ...] = ()

    def install(self, levels: Mapping[str, int]) -> None:
        """Take over the streams, and log messages for which the user's code has no handler.

        Args:
            levels: of loggers by name, as `log_levels` gives those of the driver.
        """
        sys.stdout = out = _CapturedStream(sys.stdout, False, self._take, self)
        sys.stderr = err = _CapturedStream(sys.stderr, True, self._take, self)
        self._streams = (out, err)
        logging.lastResort = _LogHandler()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)

    def flush(self) -> None:
        """Pass on unfinished lines, and how many lines were left out."""
        for stream in self._streams:
            stream.end_lines()
        with self._lock:
            self._pass_on(self._limit.report(self._clock.monotonic_ns()))

    def take_rows(self, lines: Sequence[PrintedLine], original: TextIO) -> None:
        """Pass on all lines of a sink, as soon as there is room."""
        if self._rows is None:
            for line in lines:
                self._take(line, original)
            return
        for first in range(0, len(lines), _ROWS_AT_ONCE):
            self._rows.send(PrintedRows(tuple(lines[first : first + _ROWS_AT_ONCE])))

    def await_rows(self) -> None:
        """Wait until all lines of sinks have been printed."""
        if self._rows is not None:
            self._rows.await_all()

    def _take(self, line: PrintedLine, original: TextIO) -> None:
        if line.text.startswith(self._foreign):
            original.write(f"{line.text}\n")
            return
        place = line.place or self._name
        line = PrintedLine(place, line.text, line.is_error)
        with self._lock:
            if self._keep:
                original.write(f"{encodable(str(line), original.encoding)}\n")
            if self._forward is not None:
                short = PrintedLine(place, cut(line.text), line.is_error)
                self._pass_on(self._limit.offer(short, self._clock.monotonic_ns()))

    def _pass_on(self, lines: Sequence[PrintedLine]) -> None:
        if lines and self._forward is not None:
            self._forward(lines)


class _LogHandler(logging.Handler):
    """Writes messages to whatever `sys.stderr` is at the moment."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(LOG_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001  # a message with wrong arguments must not end the job
            self.handleError(record)


class _CapturedStream(io.TextIOBase):
    """Cuts what is written into lines, each with the place that wrote it."""

    def __init__(
        self,
        original: TextIO,
        is_error: bool,
        take: Callable[[PrintedLine, TextIO], None],
        capture: Capture,
    ) -> None:
        self._capture = capture
        self.original = original
        self._is_error = is_error
        self._take = take
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._begun: dict[str, str] = {}  # lines without an end, by place

    def write(self, text: str) -> int:
        """Take text; whole lines are passed on at once."""
        if os.getpid() != self._pid:
            return self.original.write(text)
        place = getattr(_running, "place", None) or ""
        with self._lock:
            *lines, begun = (self._begun.pop(place, "") + text).split("\n")
            begun = begun.rpartition("\r")[2]  # progress bars write over what they wrote
            if len(begun) > LINE_CHARACTERS_MAX:
                lines.append(begun)
            elif begun:
                self._begun[place] = begun
        for line in lines:
            self._pass_on(place, line)
        return len(text)

    def write_rows(self, text: str) -> None:
        """Take whole lines of a sink; see `operators.sinks.each.RowStream`."""
        place = getattr(_running, "place", None) or ""
        lines = [PrintedLine(place, line, self._is_error) for line in text.split("\n")[:-1]]
        self._capture.take_rows(lines, self.original)

    def await_rows(self) -> None:
        """Wait until they have been printed."""
        self._capture.await_rows()

    def end_lines(self) -> None:
        """Pass on unfinished lines."""
        with self._lock:
            begun, self._begun = self._begun, {}
        for place, line in begun.items():
            self._pass_on(place, line)

    def _pass_on(self, place: str, line: str) -> None:
        shown = line.removesuffix("\r").rpartition("\r")[2]
        self._take(PrintedLine(place, shown, self._is_error), self.original)

    def flush(self) -> None:
        """Flush the original stream; an unfinished line still waits for its end."""
        self.original.flush()

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the original stream."""
        return self.original.fileno()

    def isatty(self) -> bool:
        """Return False: lines are passed on, not shown as they are written."""
        return False

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute there
        """The encoding of the original stream."""
        return self.original.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # an attribute there
        """How the original stream treats what it cannot encode."""
        return self.original.errors

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the original stream, such as its `buffer`."""
        return getattr(self.original, name)
