"""Spans: pieces of event time by which a join keeps and frees its rows.

A span of a windowed join is a window, and rows join within it. Of an interval join it is a piece of
fixed length, and a row may join with those of several spans of the other side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...state.watermarks import LATEST_NS
from ..windows.slices import TimeSlices
from ..windows.specifications import TimeWindow
from .interval import TimeInterval

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch

__all__ = ["IntervalSpans", "Spans", "WindowSpans", "spans_of"]

Int64s = npt.NDArray[np.int64]

_SHORTEST_NS = 1_000_000
_SPANS_PER_INTERVAL = 2


class Spans(ABC):
    """How a join cuts the event times of its sides, 0 (left) and 1 (right), into spans."""

    @abstractmethod
    def late(self, batch: Batch, slices: Int64s, watermark_ns: int) -> npt.NDArray[np.bool_]:
        """Return which rows come too late for all of their spans, bool (n,)."""

    @abstractmethod
    def slices(self, batch: Batch) -> Int64s:
        """Return a number for each row; rows of one number have the same spans."""

    @abstractmethod
    def of_slice(self, slice_: int) -> Iterable[int]:
        """Return the spans of a slice."""

    @abstractmethod
    def partners(self, side: int, span: int, others: Iterable[int]) -> Iterator[int]:
        """Yield those of the other side's spans with which rows of a span may join."""

    @abstractmethod
    def release_ns(self, side: int, span: int) -> int:
        """Return the watermark from which on no row can join with those of a span."""

    def distance_ns(self, side: int) -> tuple[int, int] | None:
        """Return the bounds of (other side's time − a row's time); None: all rows of spans join."""
        return None


class WindowSpans(Spans):
    """Windows, tumbling or hopping."""

    def __init__(self, window: TimeWindow) -> None:
        self._slices = TimeSlices(window)

    def late(self, batch: Batch, slices: Int64s, watermark_ns: int) -> npt.NDArray[np.bool_]:
        """See `Spans.late`."""
        return slices < self._slices.first_open(watermark_ns)

    def slices(self, batch: Batch) -> Int64s:
        """See `Spans.slices`; raise as `TimeSlices.of`."""
        return self._slices.of(batch)

    def of_slice(self, slice_: int) -> Iterable[int]:
        """See `Spans.of_slice`."""
        return self._slices.windows_of(slice_)

    def partners(self, side: int, span: int, others: Iterable[int]) -> Iterator[int]:
        """See `Spans.partners`."""
        yield span

    def release_ns(self, side: int, span: int) -> int:
        """See `Spans.release_ns`."""
        return self._slices.end_ns(span) - 1

    def bounds_ns(self, span: int) -> tuple[int, int]:
        """Return the start and the end of a window."""
        return self._slices.start_ns(span), self._slices.end_ns(span)

    def bounds_of(self, spans: Int64s) -> tuple[Int64s, Int64s]:
        """Return the starts and the ends of windows, int64 (m,) each."""
        starts = spans * self._slices.slide_ns + self._slices.origin_ns
        return starts, starts + self._slices.size_ns


class IntervalSpans(Spans):
    """Spans of half an interval's length: a row joins with those of three or four others."""

    def __init__(self, interval: TimeInterval) -> None:
        self._bounds = (interval.lower_ns, interval.upper_ns)
        length = (interval.upper_ns - interval.lower_ns) // _SPANS_PER_INTERVAL
        self._length = max(length, _SHORTEST_NS)
        self._slices = TimeSlices(TimeWindow("", self._length, self._length, 0))

    def late(self, batch: Batch, slices: Int64s, watermark_ns: int) -> npt.NDArray[np.bool_]:
        """See `Spans.late`."""
        assert batch.times is not None
        return batch.times <= watermark_ns

    def slices(self, batch: Batch) -> Int64s:
        """See `Spans.slices`; raise as `TimeSlices.of`."""
        return self._slices.of(batch)

    def of_slice(self, slice_: int) -> Iterable[int]:
        """See `Spans.of_slice`."""
        return (slice_,)

    def partners(self, side: int, span: int, others: Iterable[int]) -> Iterator[int]:
        """See `Spans.partners`."""
        lower, upper = self.distance_ns(side)
        first = (span * self._length + lower) // self._length
        last = ((span + 1) * self._length - 1 + upper) // self._length
        return (other for other in others if first <= other <= last)

    def release_ns(self, side: int, span: int) -> int:
        """See `Spans.release_ns`."""
        _, upper = self.distance_ns(side)
        return min((span + 1) * self._length - 1 + max(upper, 0), LATEST_NS)

    def distance_ns(self, side: int) -> tuple[int, int]:
        """See `Spans.distance_ns`."""
        lower, upper = self._bounds
        return (-upper, -lower) if side else (lower, upper)


def spans_of(within: TimeWindow | TimeInterval) -> Spans:
    """Return the spans of a join's windows or interval."""
    return WindowSpans(within) if isinstance(within, TimeWindow) else IntervalSpans(within)
