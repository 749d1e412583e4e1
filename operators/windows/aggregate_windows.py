"""`AggregateWindows`: aggregates rows in time windows, in windows that they come from, or in all.

Rows come in any order. Each is added to the one slice that it falls into; when the watermark
passes the end of a window, its slices are merged and its rows are emitted. A slice is freed once no
window needs it any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...state.disk_traffic import ROWS_MEASURED
from ...state.keys import hash_keys
from ...state.node_transfer import column_name, with_columns
from ...state.watermarks import WATERMARK_NONE
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ..portions import exhaust
from ..process import Output
from .aggregation import Aggregation, evaluated_inputs
from .changed_groups import newly_flagged
from .deltas import DeltaForm, delta_columns
from .evaluated_rows import EvaluatedRows
from .group_records import slices_in
from .group_state import CHANGED
from .group_windows import GroupWindows
from .grouping import SLICE
from .pending_groups import PendingGroups, report_none
from .sealed_windows import dated
from .slice_stores import scan_together
from .slices import WholeInput
from .trigger import Trigger

__all__ = ["AggregateWindows"]

Int64s = npt.NDArray[np.int64]


class AggregateWindows(GroupWindows):
    """Aggregates the groups of an `Aggregation` with a time window, or without a window."""

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation)
        self._changed: list[tuple[Int64s, Int64s]] = []
        self._trigger = Trigger(aggregation.trigger_ns)
        self._evaluated = EvaluatedRows(aggregation)
        self._waiting: PendingGroups | None = None  # once groups come from the disk
        self._has_reported = False  # that there is no memory for it

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Add rows, or deltas of partial aggregates; emit what has changed if that is asked for."""
        deltas = delta_columns(batch.schema)
        for part in self._parts(batch):
            with self._measured(part.num_rows):
                if deltas is not None:
                    self._merge_deltas(part, deltas)
                else:
                    self._add_rows(part, out)
        if self._asked.output_mode == "append" or self._trigger.is_time(self._context.clock):
            self._emit_changed(out)

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        """Yield a batch in parts: all of it while all groups are in memory, as it is then.

        Else as many rows as may wait in memory, or after which they may have to.
        """
        start = 0
        while start < batch.num_rows or not start:
            rows = max(batch.num_rows, 1)
            if self._waiting is not None:
                rows = self._waiting.rows_max(batch) if batch.num_rows else 1
            elif self._groups is not None and self._groups.spills:
                rows = ROWS_MEASURED
            is_whole = not start and rows >= batch.num_rows
            yield batch if is_whole else batch.slice(start, start + rows)
            start += rows

    def _measured(self, rows: int) -> AbstractContextManager[None]:
        """Measure what rows that change groups on the disk move there, if they do not wait."""
        if self._waiting is None and self._groups is not None:
            return self._groups.traffic.measured(rows)
        return nullcontext()

    def _add_rows(self, batch: Batch, out: Output) -> None:
        self._bound(batch.schema)
        self._merge_held()
        slices = self._slices.of(batch)
        batch, slices = self._without_late(batch, slices, out)
        if not batch.num_rows:
            return
        self._note_time(batch)
        inputs = evaluated_inputs(self._asked.aggregates, batch)
        if self._may_put_off(slices):
            is_whole = isinstance(self._slices, WholeInput)
            if self._put_off(self._evaluated.of(batch, inputs, None if is_whole else slices)):
                return
        keys = batch.select(self._asked.keys)
        hashes = hash_keys(batch, self._asked.keys)[0]
        with self._results.naming(lambda: keys):
            slots = self._state.add(slices, hashes, keys, inputs, batch.times)
        self._note_taken(slices, slots)

    def _merge_deltas(self, batch: Batch, columns: DeltaForm) -> None:
        """Add deltas to their groups; none is late, see `partial_windows`."""
        self._bound(columns.inputs)
        slices = batch.column(columns.slice).data
        lateness_ns = self._asked.allowed_lateness_ns
        if self._watermark_ns != WATERMARK_NONE and slices.min() < self._slices.first_open(
            self._watermark_ns - lateness_ns
        ):
            msg = f"{self._context.operator_id}: a watermark came before the deltas behind it"
            raise AssertionError(msg)
        self._note_time(batch)
        may_hold = self._may_hold and self._waiting is None
        if may_hold and self._are_sliced:
            batch, slices = self._without_stored(batch, slices)
            if not batch.num_rows:
                return
        if may_hold and self._hold(batch, slices, columns.slice):
            return
        self._merge_held()
        if not self._are_sliced and may_hold and self._hold(batch, slices, columns.slice):
            return
        if not (self._may_put_off(slices) and self._put_off(batch)):
            self._merge_into(batch, slices)

    def _merge_into(self, batch: Batch, slices: Int64s) -> None:
        keys = batch.select(self._asked.keys)
        slots = self._state.slots(slices, hash_keys(keys, self._asked.keys)[0], keys)
        with self._results.naming(lambda: keys):
            self._state.merge_dumped(slots, batch)
        self._note_taken(slices, slots)

    def portions(self, watermark_ns: int | None, out: Output) -> Iterator[None]:
        """Emit the windows that have ended, and free what no window needs any more."""
        if watermark_ns is None:
            if self._asked.output_mode == "update":
                self._emit_changed(out)
            self._take_waiting()
            self._forget_waiting()
        else:
            self._prepare(watermark_ns, out)
        yield from super().portions(watermark_ns, out)

    def _prepare(self, watermark_ns: int, out: Output) -> None:
        """Emit what has changed before a watermark, and let no row wait that it concerns."""
        if self._ends_one_that_waits(watermark_ns):
            self._take_waiting()
        is_update = self._asked.output_mode == "update"
        if is_update and (
            self._closes_one(watermark_ns) or self._trigger.is_time(self._context.clock)
        ):
            self._emit_changed(out)

    def deadline_ns(self) -> int | None:
        """Return when changed rows are to be emitted, in update mode with a trigger."""
        return self._trigger.deadline_ns(self._context.clock)

    def on_deadline(self, now_ns: int, out: Output) -> None:
        """Emit the rows that have changed."""
        self._emit_changed(out)

    def _fire(self, watermark_ns: int, out: Output) -> Iterator[int]:
        if self._asked.output_mode == "append":  # else all that has changed is emitted already
            whole = self._whole_windows(watermark_ns)
            yield from super()._fire(watermark_ns, out)
            if whole is not None:
                yield from self._emit_deltas(whole, out)

    # -- rows that wait for a pass over groups on the disk -------------------------------------

    def _may_put_off(self, slices: Int64s) -> bool:
        """Whether rows may wait; if not, those that do have been taken before them."""
        is_heavy = self._state.spills and self._state.traffic.is_heavy
        if self._waiting is None and is_heavy and self._may_wait:
            self._waiting = PendingGroups.open(self._state, self._context)
            if self._waiting is None and not self._has_reported:
                self._has_reported = True
                report_none(self._context.operator_id)
        if self._waiting is not None and self._changes_results(slices):
            self._take_waiting()
            return False
        return self._waiting is not None

    def _put_off(self, rows: Batch) -> bool:
        """Let rows, or deltas, wait behind those that do; return whether they may."""
        if self._waiting is not None and not self._waiting.fits(rows):
            self._take_waiting()
        if self._waiting is not None and not self._waiting.has_room(rows):
            self._make_room(self._waiting)
        if self._waiting is None:
            return False
        self._waiting.add(rows)
        if self._asked.output_mode == "update":
            self._trigger.note_change(self._context.clock)
        return True

    def _make_room(self, waiting: PendingGroups) -> None:
        """Let the rows in memory wait on the disk, or take all that wait."""
        new = waiting.put_off()
        if new is None:
            self._take_waiting()
        else:
            for rows, slots in new:
                self._take(rows, slots)
        waiting.leave_room()

    def _take_waiting(self) -> None:
        """Add the rows that wait to their groups.

        If that moves too little to be worth the waiting, the next rows do not wait.
        """
        waiting = self._waiting
        if waiting is None:
            return
        with self._state.traffic.measured(len(waiting)):
            for rows, slots in waiting.taken():
                self._take(rows, slots)
        if not self._state.traffic.is_heavy:
            self._forget_waiting()

    def _take(self, rows: Batch, slots: Int64s) -> None:
        """Add rows, or deltas, to their groups."""
        with self._results.naming(lambda: rows.select(self._asked.keys)):
            if delta_columns(rows.schema) is None:
                self._state.update(slots, self._evaluated.inputs(rows), rows.times)
            else:
                self._state.merge_dumped(slots, rows)
        self._note_taken(slices_in(rows), slots)

    def _forget_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None

    @property
    def _may_wait(self) -> bool:
        """Whether results are not asked for with each batch."""
        is_asked = self._asked.output_mode == "update" and self._asked.trigger_ns is None
        return not is_asked and not self._asked.is_by_clock

    def _changes_results(self, slices: Int64s) -> bool:
        """Whether rows belong to windows whose results have been emitted and will be again."""
        if self._asked.output_mode == "update" or not self._asked.emits_changes:
            return False
        before_ns = self._watermark_ns
        return before_ns != WATERMARK_NONE and bool(
            (slices < self._slices.first_unfired(before_ns)).any()
        )

    def _note_taken(self, slices: Int64s, slots: Int64s) -> None:
        """Note that rows have been added to groups."""
        self._overlapping.forget(slices)
        self._note_changes(slices, slots)

    def _ends_one_that_waits(self, watermark_ns: int) -> bool:
        """Whether a watermark lets a window end, or close, of which rows may wait."""
        earliest = None if self._waiting is None else self._waiting.earliest_slice
        if earliest is None:
            return False
        if earliest < self._slices.first_open(watermark_ns - self._lateness_ns):
            return True
        first = self._slices.first_unfired(watermark_ns)
        before_ns = self._watermark_ns
        is_new = before_ns == WATERMARK_NONE or first > self._slices.first_unfired(before_ns)
        return is_new and earliest < first

    # -- saving and moving --------------------------------------------------------------------

    def dump(self, nodes: Int64s) -> Iterator[Batch]:
        """Return the groups, after an empty batch with the input's columns."""
        if self._groups is None:
            return
        self._merge_held()
        self._take_waiting()
        yield Batch.empty(self._input)
        for slices, slots in scan_together(self._state.scan, self._state.slices, nodes):
            parts = [(np.arange(len(slots)), self._state.dump(slots, sets=False))]
            for rows, columns in (*parts, *self._state.dump_sets(slots)):
                keys = self._state.keys_of(slots[rows])
                batch = with_columns(keys, {SLICE: Column.of(slices[rows]), **columns})
                yield dated(batch, self._latest_ns)

    def load(self, batch: Batch) -> None:
        """See `Process.load`; the memory for state may be used up: StateFullError."""
        if SLICE not in batch.schema:
            self._bound(batch.schema)
        elif batch.num_rows:
            slices, keys = batch.column(SLICE).data, batch.select(self._asked.keys)
            slots = self._state.slots(slices, hash_keys(keys, self._asked.keys)[0], keys)
            self._state.load(slots, batch)
            self._note_time(batch)
            if column_name(CHANGED) in batch.schema:
                changed = self._state.changed[slots] != 0
                self._wait_with(slices[changed], slots[changed])

    def seal(self, epoch: int) -> None:
        """See `Sealing.seal`; deltas that wait are merged before."""
        self._merge_held()
        self._take_waiting()
        super().seal(epoch)

    def roll_back(self, epoch: int) -> None:
        """See `Sealing.roll_back`."""
        self._forget_waiting()
        super().roll_back(epoch)

    def _forget(self) -> None:
        self._forget_waiting()
        super()._forget()

    def _settle_loaded(self) -> None:
        """Find out which groups have changed in the end."""
        self._go_back((self._latest_ns, ()))
        if self._groups is None or not self._asked.emits_changes:
            return
        for slice_ in self._state.slices:
            slots = self._state.scan(slice_)
            slots = slots[self._state.changed[slots] != 0]
            self._wait_with(np.full(len(slots), slice_), slots)

    def _beside(self) -> tuple[int | None, Sequence[tuple[Int64s, Int64s]]]:
        return self._latest_ns, tuple(self._changed)

    def _go_back(self, beside: Any) -> None:
        self._latest_ns, changed = beside
        self._forget_held()
        self._changed = []
        self._trigger.reset()
        for slices, slots in changed:
            self._wait_with(slices, slots)

    # -- groups that have changed -------------------------------------------------------------

    def _note_changes(self, slices: Int64s, slots: Int64s) -> None:
        """Note the groups whose rows must be emitted again."""
        if not self._asked.emits_changes:
            return
        if self._asked.output_mode == "append":
            if self._watermark_ns == WATERMARK_NONE:
                return
            fired = slices < self._slices.first_unfired(self._watermark_ns)
            if not fired.any():
                return
            slices, slots = slices[fired], slots[fired]
        rows = newly_flagged(self._state.changed, slots)
        self._wait_with(slices[rows], slots[rows])

    def _wait_with(self, slices: Int64s, slots: Int64s) -> None:
        """Keep groups that have changed until it is time to emit them."""
        if not len(slots):
            return
        self._changed.append((slices, slots))
        self._trigger.note_change(self._context.clock)

    def _emit_changed(self, out: Output) -> None:
        """Emit the rows of the windows of groups that have changed, by the windows' ends."""
        if self._asked.output_mode == "update":
            self._take_waiting()
        if not self._changed:
            return
        slices, slots = (np.concatenate(parts) for parts in zip(*self._changed, strict=True))
        self._changed = []
        self._trigger.reset()
        self._state.note(slices, slots)
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
                for part in self._state.by_place(inside):
                    exhaust(self._emit(self._state, part, window, out))
                continue
            keys = self._state.keys_of(inside)
            merged = self._merged_slots(keys)
            hashes, _ = hash_keys(keys, self._asked.keys)
            _, firsts = np.unique(merged, return_index=True)  # one of each key
            keys, hashes, merged = keys.take(firsts), hashes[firsts], merged[firsts]
            for slice_ in parts:
                found = self._state.find(slice_, hashes, keys)
                present = np.flatnonzero(found >= 0)
                with self._results.naming(partial(keys.take, present)):
                    self._merged.merge(merged[present], self._state, found[present])
            exhaust(self._emit(self._merged, merged, window, out))
            self._end_merge()
