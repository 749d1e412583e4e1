"""`AggregateWindows`: aggregates rows in time windows, in windows that they come from, or in all.

Rows come in any order. Each is added to the one slice that it falls into; when the watermark
passes the end of a window, its slices are merged and its rows are emitted. A slice is freed once no
window needs it any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...transport.compiling import njit
from ..process import InputOrder, InstanceContext, Output, Process
from .aggregation import LATE, OUTPUTS, WINDOW_END, Aggregation, evaluated_inputs
from .group_state import GroupState
from .slices import ColumnSlices, Slices, TimeSlices, WholeInput
from .specifications import TimeWindow
from .window_results import WindowResults

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema

__all__ = ["AggregateWindows"]

Int64s = npt.NDArray[np.int64]

_NO_WATERMARK_NS = -(1 << 63)
_LATEST_NS = (1 << 63) - 1


class AggregateWindows(Process):
    """Aggregates the groups of an `Aggregation` with a time window, or without a window."""

    per_worker: ClassVar[bool] = True
    outputs: ClassVar[tuple[str, ...]] = OUTPUTS
    takes_late_rows: ClassVar[bool] = True
    late_outputs: ClassVar[tuple[str, ...]] = (LATE,)
    input_order: ClassVar[InputOrder | None] = "arrival"

    def __init__(self, aggregation: Aggregation) -> None:
        self._asked = aggregation
        self._slices = _slices_of(aggregation)
        self._watermark_ns = _NO_WATERMARK_NS
        self._latest_ns: int | None = None
        self._groups: GroupState | None = None
        self._next_end_ns = _LATEST_NS + 1
        self._changed: list[tuple[Int64s, Int64s]] = []
        self._due_ns: int | None = None
        self._merges = 0  # names the slice of `_merged` in which a window's groups are merged

    def open(self, context: InstanceContext) -> None:
        """Take the clock and the operator's name; the columns are known with the first rows."""
        self._context = context

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Add rows to their groups; emit those that have changed, if that is asked for."""
        groups = self._bound(batch.schema)
        slices = self._slices.of(batch)
        batch, slices = self._without_late(batch, slices, out)
        if not batch.num_rows:
            return
        keys = batch.select(self._asked.keys)
        slots = groups.slots(slices, hash_keys(batch, self._asked.keys)[0], keys)
        groups.update(slots, evaluated_inputs(self._asked.aggregates, batch), batch.times)
        if batch.times is not None:
            self._latest_ns = max(int(batch.times.max()), self._latest_ns or _NO_WATERMARK_NS)
        self._note_changes(slices, slots)
        if self._asked.output_mode == "append" or self._is_time():
            self._emit_changed(out)

    def on_watermark(self, watermark_ns: int, out: Output) -> None:
        """Emit the windows that have ended, and free what no window needs any more."""
        if self._asked.output_mode == "update":
            if self._closes_one(watermark_ns) or self._is_time():
                self._emit_changed(out)
        else:
            self._fire(watermark_ns, out)
        self._watermark_ns = watermark_ns
        self._free(watermark_ns)

    def deadline_ns(self) -> int | None:
        """Return when changed rows are to be emitted, in update mode with a trigger."""
        return self._due_ns

    def on_deadline(self, now_ns: int, out: Output) -> None:
        """Emit the rows that have changed."""
        self._emit_changed(out)

    def close(self, out: Output) -> None:
        """Emit all that is left: no row follows."""
        if self._asked.output_mode == "update":
            self._emit_changed(out)
        else:
            self._fire(_LATEST_NS, out)
        for slice_ in self._open_slices():
            self._state.free(slice_)

    # -- taking rows --------------------------------------------------------------------------

    @property
    def _state(self) -> GroupState:
        assert self._groups is not None
        return self._groups

    def _bound(self, schema: Schema) -> GroupState:
        """Return the groups; make them of the columns of the first rows."""
        if self._groups is None:
            accumulators = self._asked.accumulators(schema)
            self.schema = self._asked.output_schema(schema, accumulators)
            keys = schema.select(self._asked.keys)
            name = self._context.operator_id
            self._groups = GroupState(keys, accumulators, self._context)
            self._merged = GroupState(keys, accumulators, self._context)
            self._results = WindowResults(self._asked, self.schema, name)
        return self._groups

    def _without_late(self, batch: Batch, slices: Int64s, out: Output) -> tuple[Batch, Int64s]:
        """Return the rows without those all windows of which are closed; these are emitted."""
        if self._watermark_ns == _NO_WATERMARK_NS or not len(slices):
            return batch, slices
        first = self._slices.first_open(self._watermark_ns - self._asked.allowed_lateness_ns)
        if slices.min() >= first:
            return batch, slices
        late = slices < first
        out.emit_to(LATE, batch.filter(late))
        return batch.filter(~late), slices[~late]

    # -- windows that have ended --------------------------------------------------------------

    def _open_slices(self) -> tuple[int, ...]:
        return () if self._groups is None else self._groups.slices

    def _unfired(self, watermark_ns: int) -> list[int]:
        """Return the windows that end later than at `watermark_ns` + 1 ns and have rows, by end."""
        windows = {
            window for slice_ in self._open_slices() for window in self._slices.windows_of(slice_)
        }
        return sorted(
            (window for window in windows if self._slices.end_ns(window) > watermark_ns + 1),
            key=self._slices.end_ns,
        )

    def _fire(self, watermark_ns: int, out: Output) -> None:
        """Emit the windows that have ended since the last watermark."""
        if self._groups is None:
            return
        if self._groups.slices_changed:
            self._find_next(self._watermark_ns)
        if watermark_ns + 1 < self._next_end_ns:
            return
        for window in self._unfired(self._watermark_ns):
            if self._slices.end_ns(window) > watermark_ns + 1:
                break
            self._emit_window(window, out)
        self._find_next(watermark_ns)

    def _closes_one(self, watermark_ns: int) -> bool:
        """Whether a watermark closes a window that has rows, so that it changes no more."""
        if self._groups is None:
            return False
        lateness = self._asked.allowed_lateness_ns
        if self._groups.slices_changed:
            self._find_next(self._watermark_ns - lateness)
        if watermark_ns - lateness + 1 < self._next_end_ns:
            return False
        self._find_next(watermark_ns - lateness)
        return True

    def _find_next(self, watermark_ns: int) -> None:
        windows = self._unfired(watermark_ns)
        self._next_end_ns = self._slices.end_ns(windows[0]) if windows else _LATEST_NS + 1
        self._state.slices_changed = False

    def _emit_window(self, window: int, out: Output) -> None:
        """Emit all rows of a window."""
        slices = self._slices.slices_of(window)
        if len(slices) == 1:
            self._emit(self._state, self._state.scan(slices[0]), window, out)
            return
        for slice_ in slices:
            others = self._state.scan(slice_)
            if len(others):
                self._merge(others)
        self._emit(self._merged, self._merged.scan(self._merges), window, out)
        self._end_merge()

    def _merge(self, others: Int64s) -> None:
        keys = self._state.keys_of(others)
        self._merged.merge(self._merged_slots(keys), self._state, others)

    def _merged_slots(self, keys: Batch) -> Int64s:
        hashes, _ = hash_keys(keys, self._asked.keys)
        return self._merged.slots(np.full(len(hashes), self._merges, np.int64), hashes, keys)

    def _end_merge(self) -> None:
        self._merged.free(self._merges)
        self._merges += 1

    def _emit(self, groups: GroupState, slots: Int64s, window: int, out: Output) -> None:
        if not len(slots):
            return
        start_ns, end_ns = self._slices.start_ns(window), self._slices.end_ns(window)
        starts, ends = (np.full(len(slots), bound, np.int64) for bound in (start_ns, end_ns))
        rows = self._results.rows(groups.keys_of(slots), groups, slots, starts, ends)
        time_ns = self._latest_ns if isinstance(self._slices, WholeInput) else end_ns - 1
        if time_ns is None:
            out.emit(rows)
            return
        # The watermark of what was passed on already must not be contradicted.
        time_ns = max(time_ns, self._watermark_ns + 1)
        out.emit(rows, np.full(len(slots), time_ns, np.int64))

    def _free(self, watermark_ns: int) -> None:
        open_slices = self._open_slices()
        if not open_slices:
            return
        first = self._slices.first_open(watermark_ns - self._asked.allowed_lateness_ns)
        for slice_ in open_slices:
            if slice_ < first:
                self._state.free(slice_)

    # -- groups that have changed -------------------------------------------------------------

    def _note_changes(self, slices: Int64s, slots: Int64s) -> None:
        """Note the groups whose rows must be emitted again."""
        if self._asked.output_mode == "append":
            if not self._asked.allowed_lateness_ns or self._watermark_ns == _NO_WATERMARK_NS:
                return
            fired = slices < self._slices.first_unfired(self._watermark_ns)
            if not fired.any():
                return
            slices, slots = slices[fired], slots[fired]
        rows = np.empty(len(slots), np.int64)
        count = _mark(self._state.changed, slots, rows)
        if not count:
            return
        self._changed.append((slices[rows[:count]], slots[rows[:count]]))
        if self._due_ns is None and self._asked.trigger_ns is not None:
            self._due_ns = self._context.clock.wall_ns() + self._asked.trigger_ns

    def _is_time(self) -> bool:
        """Whether changed rows are to be emitted now."""
        if self._asked.trigger_ns is None:
            return True
        now_ns = self._context.clock.wall_ns()
        return self._due_ns is not None and now_ns >= self._due_ns

    def _emit_changed(self, out: Output) -> None:
        """Emit the rows of the windows of groups that have changed, by the windows' ends."""
        if not self._changed:
            return
        slices, slots = (np.concatenate(parts) for parts in zip(*self._changed, strict=True))
        self._changed, self._due_ns = [], None
        self._state.changed[slots] = 0
        windows = {w for s in np.unique(slices).tolist() for w in self._slices.windows_of(s)}
        for window in sorted(windows, key=self._slices.end_ns):
            end_ns = self._slices.end_ns(window)
            ended = end_ns <= self._watermark_ns + 1
            closed = end_ns + self._asked.allowed_lateness_ns <= self._watermark_ns + 1
            if closed or (self._asked.output_mode == "append" and not ended):
                continue
            parts = self._slices.slices_of(window)
            inside = slots[(slices >= parts.start) & (slices < parts.stop)]
            if len(parts) == 1:
                self._emit(self._state, inside, window, out)
                continue
            keys = self._state.keys_of(inside)
            merged = self._merged_slots(keys)
            hashes, _ = hash_keys(keys, self._asked.keys)
            _, firsts = np.unique(merged, return_index=True)  # one of each key
            keys, hashes, merged = keys.take(firsts), hashes[firsts], merged[firsts]
            for slice_ in parts:
                found = self._state.find(slice_, hashes, keys)
                present = found >= 0
                self._merged.merge(merged[present], self._state, found[present])
            self._emit(self._merged, merged, window, out)
            self._end_merge()


def _slices_of(aggregation: Aggregation) -> Slices:
    if isinstance(aggregation.window, TimeWindow):
        return TimeSlices(aggregation.window)
    return (
        ColumnSlices(WINDOW_END, aggregation.of_sessions)
        if aggregation.within_windows
        else WholeInput()
    )


@njit(cache=True, nogil=True)
def _mark(changed: Any, slots: Any, rows: Any) -> int:
    """Set the flags of slots; write the rows at which one was set first, and return how many."""
    count = 0
    for row in range(len(slots)):
        if not changed[slots[row]]:
            changed[slots[row]] = 1
            rows[count] = row
            count += 1
    return count
