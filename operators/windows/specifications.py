"""Windows as users ask for them: `window`, `session_window`, `count_window`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ...configs.errors import InputError, TopologyError
from .durations import Duration, describe_ns, duration_ns

__all__ = [
    "CountWindow",
    "ProcessingTime",
    "SessionWindow",
    "TimeWindow",
    "WindowSpecification",
    "count_window",
    "processing_time",
    "session_window",
    "window",
]


WINDOWS_OF_A_ROW_MAX = 1_000_000
"""Each row makes a result of every window that it is in, and all of these are open at once."""

_ROWS_MAX = (1 << 63) - 1
"""Rows are counted in 64 bits."""


@dataclass(frozen=True)
class TimeWindow:
    """Windows of one length, tumbling or hopping; see `window`.

    Attributes:
        column: the event-time column; empty for a join.
        size_ns: the length of a window.
        slide_ns: the distance between the starts of windows; equal to `size_ns` if they tumble.
        start_ns: a window starts at this many ns after 1970, modulo `slide_ns`.
        by_clock: whether rows are in the windows in which they come, by the worker's clock.
    """

    column: str
    size_ns: int
    slide_ns: int
    start_ns: int
    by_clock: bool = False

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        size, clock = describe_ns(self.size_ns), ", by the clock" if self.by_clock else ""
        shift = f", shifted by {describe_ns(self.start_ns)}" if self.start_ns else ""
        if self.slide_ns == self.size_ns:
            return f"tumbling window of {size}{shift}{clock}"
        slide = describe_ns(self.slide_ns)
        return f"hopping window of {size} every {slide}, by slices{shift}{clock}"


@dataclass(frozen=True)
class SessionWindow:
    """Windows that end with a gap; see `session_window`.

    Attributes:
        column: the event-time column; empty for a join.
        gap_ns: how far the rows of one session may be apart.
    """

    column: str
    gap_ns: int

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        return f"session window with a gap of {describe_ns(self.gap_ns)}"


@dataclass(frozen=True)
class CountWindow:
    """Windows of a number of rows; see `count_window`."""

    rows: int

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        return f"count window of {self.rows} rows"


WindowSpecification: TypeAlias = TimeWindow | SessionWindow | CountWindow


@dataclass(frozen=True)
class ProcessingTime:
    """Stands for the time at which rows are processed, see `processing_time`."""


def processing_time() -> ProcessingTime:
    """Return what `window` takes for windows of processing time, in place of a column.

    `group_by(whale.window(whale.processing_time(), "10 seconds"), "bidder")`: a row is in the
    window in which it comes, by the clock of its worker. So results differ from run to run, and
    differ after a restart.
    """
    return ProcessingTime()


def window(
    column: Duration | ProcessingTime,
    size: Duration | None = None,
    slide: Duration | None = None,
    start_time: Duration | None = None,
) -> TimeWindow:
    """Return windows of one length: `window("date_time", "10 seconds")` for `group_by`.

    For `join`, both streams of which go by their event times, leave out the column:
    `window("12 hours")`, `window("12 hours", slide="1 hour")`.

    A window holds the rows with start ≤ event time < end. Windows are aligned to 1970-01-01 in UTC,
    also before it. With a `slide` shorter than the size they overlap, and a row is in several.

    Args:
        column: the event-time column of the stream, or `window_end` of windowed rows; or
            `whale.processing_time()`.
        size: the length of a window: "10 seconds", a `timedelta`, or milliseconds.
        slide: the distance between the starts of windows; by default the size.
        start_time: shifts all windows: "15 minutes" lets hours begin at a quarter past.

    Raises:
        TopologyError: a duration is not valid, is zero or less, or the slide exceeds the size or is
            less than a millionth of it.
    """
    by_clock = isinstance(column, ProcessingTime)
    if size is None and not by_clock:
        column, size = "", column
    elif not by_clock:
        _check_column("window", column)
    size_ns = _positive("window", "size", size)
    slide_ns = size_ns if slide is None else _positive("window", "slide", slide)
    if slide_ns > size_ns:
        msg = (
            f"window: the slide {slide!r} is larger than the size {size!r}, so rows between windows"
            " would be in none: pass a slide of at most the size"
        )
        raise TopologyError(msg)
    if size_ns > slide_ns * WINDOWS_OF_A_ROW_MAX:
        msg = (
            f"window: with the size {size!r} and the slide {slide!r} each row would be in"
            f" {size_ns // slide_ns:,} windows, more than {WINDOWS_OF_A_ROW_MAX:,}: pass a longer"
            " slide or a shorter size"
        )
        raise TopologyError(msg)
    start_ns = 0 if start_time is None else _duration("window", "start_time", start_time)
    name = column if isinstance(column, str) else ""
    return TimeWindow(name, size_ns, slide_ns, start_ns % slide_ns, by_clock)


def session_window(column: Duration, gap: Duration | None = None) -> SessionWindow:
    """Return windows of activity, for `group_by`: `session_window("date_time", "10 seconds")`.

    For `join`, both streams of which go by their event times, leave out the column:
    `session_window("10 seconds")`.

    Rows of a key are in one session as long as each is at most `gap` from another. A session starts
    with its first row, and ends `gap` after its last one, which is its event time.

    Args:
        column: the event-time column of the stream.
        gap: "10 seconds", a `timedelta`, or milliseconds.

    Raises:
        TopologyError: the gap is no duration, or zero or less.
    """
    if gap is None:
        column, gap = "", column
    else:
        _check_column("session_window", column)
    name = column if isinstance(column, str) else ""
    return SessionWindow(name, _positive("session_window", "gap", gap))


def count_window(rows: int) -> CountWindow:
    """Return windows of a number of rows, for `group_by`: the next rows of a key, as they come.

    Rows that do not fill a window when the input ends make no result.

    Raises:
        TopologyError: it is not a whole number from 1 to 2^63 - 1.
    """
    if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= _ROWS_MAX:
        msg = f"count_window takes a number of rows from 1 to 2^63 - 1, not {rows!r}"
        raise TopologyError(msg)
    return CountWindow(rows)


def _check_column(function: str, column: object) -> None:
    if not isinstance(column, str) or not column:
        msg = f"{function} takes the name of the event-time column first, not {column!r}"
        raise TopologyError(msg)


def _duration(function: str, parameter: str, value: object) -> int:
    try:
        return duration_ns(value, f"{function}: {parameter}")
    except InputError as error:
        raise TopologyError(str(error)) from None


def _positive(function: str, parameter: str, value: object) -> int:
    duration = _duration(function, parameter, value)
    if duration <= 0:
        msg = f"{function}: {parameter} is {value!r}: it must be longer than nothing"
        raise TopologyError(msg)
    return duration
