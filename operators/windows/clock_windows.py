"""`ClockWindows`: aggregates rows in windows of processing time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from .grouping import SLICE
from .slices import ClockSlices

if TYPE_CHECKING:
    import numpy.typing as npt

    from .dumped_groups import DumpedGroups
    from .group_state import GroupState

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
        self._loaded: list[tuple[int, list[Int64s]]] = []  # clocks, and the nodes of their groups
        self._ahead: Int64s | None = None  # the nodes whose windows have ended before

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Add rows to the groups of now."""
        self._reach(self._context.clock.wall_ns(), out)
        super().on_batch(batch, out)

    def portions(self, watermark_ns: int | None, out: Output) -> Iterator[None]:
        """Note what the event times of results must not lie behind; emit all at the end."""
        if watermark_ns is None:
            self._reach_together(out)
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
        """See `Process.load`; of several clocks the one that is behind counts at first."""
        if _CLOCK in batch.schema:
            self._loaded.append((int(batch.column(_CLOCK).data[0]), []))
            self._watermark_ns = min(clock_ns for clock_ns, _ in self._loaded)
            return
        super().load(batch)
        if self._loaded and SLICE in batch.schema and self._asked.keys:
            self._loaded[-1][1].append(np.unique(self._context.nodes_of(batch, self._asked.keys)))

    def _reach_together(self, out: Output) -> None:
        """Let all groups that were loaded be where the foremost of their clocks was.

        Windows that had ended by some of these clocks only end for the groups of the others. In
        update mode their end emits nothing, and all that has changed is still to be emitted.
        """
        loaded, self._loaded = self._loaded, []
        clocks_ns = {clock_ns for clock_ns, _ in loaded if clock_ns > self._watermark_ns}
        for clock_ns in sorted(clocks_ns) if self._asked.output_mode == "append" else ():
            ahead = [one for at_ns, nodes in loaded if at_ns >= clock_ns for one in nodes]
            self._ahead = np.concatenate(ahead) if ahead else None
            exhaust(super().portions(clock_ns, out))
        self._ahead = None

    def _emit_rows_of(
        self,
        groups: GroupState | DumpedGroups,
        slots: Int64s,
        keys_of: Callable[[Int64s], Batch],
        windows: Int64s,
        out: Output,
    ) -> Iterator[int]:
        if self._ahead is not None and len(slots):
            kept = ~np.isin(self._context.nodes_of(keys_of(slots), self._asked.keys), self._ahead)
            slots, windows = slots[kept], windows[kept]
        yield from super()._emit_rows_of(groups, slots, keys_of, windows, out)

    def _first_end_ns(self) -> int:
        """Return when the next window ends that has rows; later than `LATEST_NS` if none does."""
        if self._groups is not None and self._groups.slices_changed:
            self._find_next(self._watermark_ns)
        return self._next_end_ns

    def _reach(self, now_ns: int, out: Output) -> None:
        """Let the clock be at a time."""
        if self._loaded:
            self._reach_together(out)
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
