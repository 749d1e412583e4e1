"""`ClockWindows`: aggregates rows in windows of processing time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ...state.watermarks import LATEST_NS, WATERMARK_NONE
from ..portions import exhaust
from ..process import InstanceContext, Output
from .aggregate_windows import AggregateWindows
from .slices import ClockSlices

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...transport.wire.batch import Batch

    Int64s = npt.NDArray[np.int64]

__all__ = ["ClockWindows"]


class ClockWindows(AggregateWindows):
    """Aggregates rows in the windows in which they come, by the worker's clock.

    The clock takes the place of the watermark: a window has ended when the clock says so, and no
    row is late. A clock that is set back stands still for as long. The results have an event time,
    if the rows have: the latest one so far.
    """

    def open(self, context: InstanceContext) -> None:
        """Take the clock and the operator's name; the columns are known with the first rows."""
        super().open(context)
        self._event_watermark_ns = context.watermark_ns
        self._watermark_ns = WATERMARK_NONE

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Add rows to the groups of now."""
        self._reach(self._context.clock.wall_ns(), out)
        super().on_batch(batch, out)

    def portions(self, watermark_ns: int | None, out: Output) -> Iterator[None]:
        """Note what the event times of results must not lie behind; emit all at the end."""
        if watermark_ns is None:
            yield from super().portions(None, out)
        else:
            self._event_watermark_ns = watermark_ns

    def deadline_ns(self) -> int | None:
        """Return when a window ends, or changed rows are to be emitted, whatever comes first."""
        due = super().deadline_ns()
        if self._groups is None:
            return due
        if self._groups.slices_changed:
            self._find_next(self._watermark_ns)
        end = None if self._next_end_ns > LATEST_NS else self._next_end_ns
        return min((one for one in (due, end) if one is not None), default=None)

    def on_deadline(self, now_ns: int, out: Output) -> None:
        """Emit the windows that have ended, and the rows that have changed."""
        self._reach(now_ns, out)

    def _reach(self, now_ns: int, out: Output) -> None:
        """Let the clock be at a time."""
        now_ns = max(now_ns, self._watermark_ns + 1)
        assert isinstance(self._slices, ClockSlices)
        self._slices.now_ns = now_ns
        exhaust(super().portions(now_ns - 1, out))  # rows follow at once

    def _times_of(self, ends_ns: Int64s) -> Int64s | None:
        if self._latest_ns is None:
            return None
        return np.full(len(ends_ns), max(self._latest_ns, self._event_watermark_ns + 1))
