"""Slices: disjoint spans of event time of which windows are composed.

A row belongs to one slice, whatever the overlap of windows; the result of a window is merged from
its slices (Li et al., "No pane, no gain", SIGMOD Record 2005; Krishnamurthy, Wu and Franklin,
SIGMOD 2006, for the pairs). A window of `size` every `slide` begins at the multiples k of the slide
and ends r = size mod slide after one. So there are one or two slices per slide::

    k · slide            k · slide + r                 (k + 1) · slide
    │      slice 2k      │        slice 2k + 1         │                   (only one if r = 0)

A slice is named by an int64; so is a window, by its k.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...configs.errors import BadRowError, InputError
from ...state.watermarks import LATEST_NS
from ...transport.compiling import njit
from .grouping import WINDOW_END, WindowedGrouping
from .specifications import TimeWindow

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch

__all__ = [
    "ClockSlices",
    "ColumnSlices",
    "Slices",
    "TimeSlices",
    "WholeInput",
    "beyond_years",
    "slices_of",
]

Int64s = npt.NDArray[np.int64]


class Slices(ABC):
    """How rows are cut into slices, and which windows these make."""

    @abstractmethod
    def of(self, batch: Batch) -> npt.NDArray[np.int64]:
        """Return the slice of each row, int64 (n,)."""

    @abstractmethod
    def windows_of(self, slice_: int) -> range:
        """Return the windows that a slice is part of."""

    @abstractmethod
    def slices_of(self, window: int) -> range:
        """Return the slices of a window."""

    @abstractmethod
    def start_ns(self, window: int) -> int:
        """Return when a window starts."""

    @abstractmethod
    def end_ns(self, window: int) -> int:
        """Return when a window ends, exclusive."""

    @abstractmethod
    def bounds_ns(self, windows: Int64s) -> tuple[Int64s, Int64s]:
        """Return when windows start and when they end, int64 (n,) each."""

    @abstractmethod
    def first_open(self, watermark_ns: int) -> int:
        """Return the least slice with a window that ends later: at `watermark_ns` + 2 ns or on."""

    @abstractmethod
    def first_unfired(self, watermark_ns: int) -> int:
        """Return the least slice without a window that has ended: at `watermark_ns` + 1 ns."""


class TimeSlices(Slices):
    """Slices of tumbling and hopping windows, by the rows' event times."""

    @property
    def origin_ns(self) -> int:
        """A slice begins here, and at each multiple of `slide_ns` after it."""
        return self._window.start_ns

    @property
    def slide_ns(self) -> int:
        """The distance between the starts of windows."""
        return self._slide

    @property
    def size_ns(self) -> int:
        """How long a window is."""
        return self._window.size_ns

    @property
    def rest_ns(self) -> int:
        """A second slice of each slide begins so long after the first; 0 if there is one."""
        return self._rest

    def has_room_for(self, earliest_ns: int, latest_ns: int) -> bool:
        """Whether windows of all times between these two fit into 64-bit nanoseconds."""
        return -self._reaches_ns <= earliest_ns and latest_ns <= self._reaches_ns

    def open_from_ns(self, watermark_ns: int) -> int:
        """Return the earliest time that is in a slice from `first_open` on."""
        return self.start_ns(self._last_ended(watermark_ns) + 1)

    def __init__(self, window: TimeWindow) -> None:
        self._window = window
        self._slide = window.slide_ns
        self._rest = window.size_ns % window.slide_ns
        self._reaches_ns = LATEST_NS - window.size_ns
        self._per_slide = 2 if self._rest else 1
        self._whole = window.size_ns // window.slide_ns

    def of(self, batch: Batch) -> npt.NDArray[np.int64]:
        """See `Slices.of`.

        Raises:
            BadRowError: a window would begin before 1677 or end after 2262, which 64-bit
                nanoseconds cannot tell.
        """
        times = batch.times
        assert times is not None  # checked while the topology was built
        slices = np.empty(len(times), np.int64)
        wrong = _slices_of_times(
            *(times, self._window.start_ns, self._slide, self._rest),
            *(self._window.size_ns, slices),
        )
        if wrong >= 0:
            raise beyond_years(batch, wrong)
        return slices

    def slice_at(self, time_ns: int) -> int:
        """Return the slice of a time."""
        whole, inside = divmod(time_ns - self._window.start_ns, self._slide)
        return whole * self._per_slide + (1 if self._rest and inside >= self._rest else 0)

    def windows_of(self, slice_: int) -> range:
        """See `Slices.windows_of`."""
        slide, second = divmod(slice_, self._per_slide)
        # Behind the rest, the window that began `whole` slides ago has ended.
        first = slide - self._whole + (1 if second or not self._rest else 0)
        return range(first, slide + 1)

    def slices_of(self, window: int) -> range:
        """See `Slices.slices_of`."""
        first = window * self._per_slide
        return range(first, first + self._whole * self._per_slide + (1 if self._rest else 0))

    def start_ns(self, window: int) -> int:
        """See `Slices.start_ns`."""
        return window * self._slide + self._window.start_ns

    def end_ns(self, window: int) -> int:
        """See `Slices.end_ns`."""
        return self.start_ns(window) + self._window.size_ns

    def bounds_ns(self, windows: Int64s) -> tuple[Int64s, Int64s]:
        """See `Slices.bounds_ns`."""
        starts_ns = windows * self._slide + self._window.start_ns
        return starts_ns, starts_ns + self._window.size_ns

    def first_open(self, watermark_ns: int) -> int:
        """See `Slices.first_open`."""
        return (self._last_ended(watermark_ns) + 1) * self._per_slide

    def first_unfired(self, watermark_ns: int) -> int:
        """See `Slices.first_unfired`."""
        return self.slices_of(self._last_ended(watermark_ns)).stop

    def _last_ended(self, watermark_ns: int) -> int:
        """Return the last window that ends at `watermark_ns` + 1 ns or before."""
        return (watermark_ns + 1 - self._window.size_ns - self._window.start_ns) // self._slide


class ClockSlices(TimeSlices):
    """Slices of windows of processing time: all rows are in that of now.

    Attributes:
        now_ns: the processing time, ns since 1970.
    """

    now_ns: int = 0

    def of(self, batch: Batch) -> npt.NDArray[np.int64]:
        """See `Slices.of`."""
        return np.full(batch.num_rows, self.slice_at(self.now_ns), np.int64)


class ColumnSlices(Slices):
    """Rows that belong to windows already: a slice is a window, named by its end in ns.

    Args:
        end_column: the column with the windows' ends.
        sessions: whether the windows are sessions: their results come, and have event times, 1 ns
            later than those of other windows.
    """

    def __init__(self, end_column: str, sessions: bool) -> None:
        self._end_column = end_column
        self._later = 1 if sessions else 0

    def of(self, batch: Batch) -> npt.NDArray[np.int64]:
        """See `Slices.of`.

        Raises:
            InputError: the column has no windows' ends any more, since it has another type.
            BadRowError: the end of a window is null.
        """
        column = batch.column(self._end_column)
        if column.type.family != "timestamp":
            msg = (
                f"column {self._end_column!r} is {column.type} and no longer the timestamp at which"
                " a window ends: leave it as it is, or rename it to group by it without a window"
            )
            raise InputError(msg)
        if column.null_count and column.validity is not None:
            row = int(np.argmin(column.validity))
            msg = f"{self._end_column!r} is null, so the row is in no window: {batch.preview(row)}"
            raise BadRowError(msg)
        unit = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[column.type.unit or "ns"]
        return column.data * np.int64(unit)

    def windows_of(self, slice_: int) -> range:
        """See `Slices.windows_of`."""
        return range(slice_, slice_ + 1)

    def slices_of(self, window: int) -> range:
        """See `Slices.slices_of`."""
        return range(window, window + 1)

    def start_ns(self, window: int) -> int:
        """Return the end that the rows say: the start is one of their columns."""
        return window

    def end_ns(self, window: int) -> int:
        """See `Slices.end_ns`."""
        return window + self._later

    def bounds_ns(self, windows: Int64s) -> tuple[Int64s, Int64s]:
        """See `Slices.bounds_ns`."""
        return windows, windows + self._later

    def first_open(self, watermark_ns: int) -> int:
        """See `Slices.first_open`."""
        return watermark_ns + 2 - self._later

    def first_unfired(self, watermark_ns: int) -> int:
        """See `Slices.first_unfired`."""
        return watermark_ns + 2 - self._later


class WholeInput(Slices):
    """One slice for everything, of a window that never ends: a group-by without a window."""

    def of(self, batch: Batch) -> npt.NDArray[np.int64]:
        """See `Slices.of`."""
        return np.zeros(batch.num_rows, np.int64)

    def windows_of(self, slice_: int) -> range:
        """See `Slices.windows_of`."""
        return range(1)

    def slices_of(self, window: int) -> range:
        """See `Slices.slices_of`."""
        return range(1)

    def start_ns(self, window: int) -> int:
        """See `Slices.start_ns`."""
        return -LATEST_NS

    def end_ns(self, window: int) -> int:
        """See `Slices.end_ns`."""
        return LATEST_NS

    def bounds_ns(self, windows: Int64s) -> tuple[Int64s, Int64s]:
        """See `Slices.bounds_ns`."""
        return np.full(len(windows), -LATEST_NS), np.full(len(windows), LATEST_NS)

    def first_open(self, watermark_ns: int) -> int:
        """See `Slices.first_open`."""
        return 0

    def first_unfired(self, watermark_ns: int) -> int:
        """See `Slices.first_unfired`."""
        return 0


_TOGETHER = 256
"""Of so many rows the least and the greatest time are looked at first."""


def slices_of(asked: WindowedGrouping) -> Slices:
    """Return the slices of a grouping with a time window, within windows, or without a window."""
    if isinstance(asked.window, TimeWindow):
        return ClockSlices(asked.window) if asked.window.by_clock else TimeSlices(asked.window)
    return ColumnSlices(WINDOW_END, asked.of_sessions) if asked.within_windows else WholeInput()


def beyond_years(batch: Batch, row: int) -> BadRowError:
    """Return the error for a row whose window does not fit into 64-bit nanoseconds."""
    assert batch.times is not None
    time = np.datetime64(int(batch.times[row]), "ns")
    return BadRowError(
        f"a window at {time} would leave the years 1677 to 2262: shorten it, or correct the event"
        f" time of {batch.preview(row)}"
    )


@njit(cache=True, nogil=True)
def _slices_of_times(times: Any, origin: Any, slide: Any, rest: Any, size: Any, slices: Any) -> int:
    """Write the slice of each time; return the first row too near the ends of int64, else −1.

    Rows that follow one another are mostly of one slice, which the least and the greatest of some
    of them tell for all.
    """
    lowest, highest = -LATEST_NS + size, LATEST_NS - size
    per_ns = 1.0 / slide
    for start in range(0, len(times), _TOGETHER):
        some, found = times[start : start + _TOGETHER], slices[start : start + _TOGETHER]
        least = greatest = some[0]
        for row in range(len(some)):
            least, greatest = min(least, some[row]), max(greatest, some[row])
        if least < lowest or greatest > highest:
            for row in range(len(some)):
                if some[row] < lowest or some[row] > highest:
                    return start + row
        first = _slice_of_time(least - origin, slide, rest, per_ns)
        if first == _slice_of_time(greatest - origin, slide, rest, per_ns):
            found[:] = first
            continue
        for row in range(len(some)):
            found[row] = _slice_of_time(some[row] - origin, slide, rest, per_ns)
    return -1


@njit(inline="always")
def _slice_of_time(time: Any, slide: Any, rest: Any, per_ns: Any) -> Any:
    """Return the slice of a time, from the origin of windows on.

    A division of integers takes longer than all else here: a product of floats is off by one or
    two at most, since a slide has at least 1,000 ns.
    """
    whole = np.int64(np.floor(time * per_ns))
    inside = time - whole * slide
    while inside < 0:
        whole -= 1
        inside += slide
    while inside >= slide:
        whole += 1
        inside -= slide
    return 2 * whole + np.int64(inside >= rest) if rest else whole
