"""`ClockWindows`: aggregates rows in windows of processing time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...state.watermarks import LATEST_NS, WATERMARK_NONE
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import Schema
from ..portions import exhaust
from ..process import InstanceContext, Output
from ..snapshots import StateChunk
from .aggregate_windows import AggregateWindows
from .slices import ClockSlices

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

__all__ = ["ClockWindows"]

_CLOCK = "#clock"
"""In dumped rows: how far the clock had come, so that no window ends once more."""


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
        due, end_ns = super().deadline_ns(), self._first_end_ns()
        end = None if end_ns > LATEST_NS else end_ns
        return min((one for one in (due, end) if one is not None), default=None)

    def on_deadline(self, now_ns: int, out: Output) -> None:
        """Emit the windows that have ended, and the rows that have changed."""
        self._reach(now_ns, out)

    # -- saving and moving --------------------------------------------------------------------

    def seal(self, epoch: int) -> None:
        """See `Sealing.seal`; the clock has come to now, or to where a window must end first."""
        reached_ns = min(self._context.clock.wall_ns(), self._first_end_ns() - 1)
        self._watermark_ns = max(self._watermark_ns, reached_ns - 1)
        super().seal(epoch)

    def chunks(self, epoch: int) -> Sequence[StateChunk]:
        """See `Sealing.chunks`: how far the clock has come is behind the groups."""
        found = super().chunks(epoch)
        return [*found, StateChunk(_clock_at(self._watermark_ns))] if found else found

    def dump(self, nodes: Int64s) -> Iterator[Batch]:
        """Return the groups, and before them how far the clock has come."""
        if self._groups is not None:
            yield _clock_at(self._watermark_ns)
        yield from super().dump(nodes)

    def load(self, batch: Batch) -> None:
        """See `Process.load`; of several clocks the one that is behind counts.

        Windows that end together may then end once more for some groups, but for none never.
        """
        if _CLOCK not in batch.schema:
            super().load(batch)
            return
        reached_ns = int(batch.column(_CLOCK).data[0])
        if self._watermark_ns != WATERMARK_NONE:
            reached_ns = min(self._watermark_ns, reached_ns)
        self._watermark_ns = reached_ns

    def _first_end_ns(self) -> int:
        """Return when the next window ends that has rows; later than `LATEST_NS` if none does."""
        if self._groups is not None and self._groups.slices_changed:
            self._find_next(self._watermark_ns)
        return self._next_end_ns

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


def _clock_at(now_ns: int) -> Batch:
    return Batch(Schema.of(**{_CLOCK: "int64"}), [Column.of(np.array([now_ns], np.int64))], 1)
