"""`GroupWindows`: the base of `AggregateWindows`: emits the groups of windows that have ended.

Groups are in a store by slice, or still outside of it, as the deltas that came last. Windows that
are single slices are often all in these; those of several slices are merged from both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ..portions import pieces_of
from .group_state import GroupState
from .held_deltas import EndedDeltas, HeldDeltas
from .overlapping_windows import OverlappingWindows, merge_order
from .slices import WholeInput, slices_of
from .time_windows import TimeWindows
from .window_results import WindowResults

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..process import Output
    from .aggregation import Aggregation
    from .dumped_groups import DumpedGroups

__all__ = ["GroupWindows"]

Int64s = npt.NDArray[np.int64]


class GroupWindows(TimeWindows):
    """Keeps groups by slice, in `_state` or as deltas, and emits those of windows that have ended.

    Args:
        aggregation: what is asked for.
    """

    surviving: ClassVar[tuple[str, ...]] = (
        *TimeWindows.surviving,
        *("_merged", "_merges", "_overlapping", "_results"),
    )

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(slices_of(aggregation), aggregation.allowed_lateness_ns)
        self._asked = aggregation
        self._held = HeldDeltas()
        self._merges = 0  # the slice of groups in `_merged`, while those of a window are merged
        self._are_sliced = len(self._slices.slices_of(0)) > 1

    def _bound(self, schema: Schema) -> GroupState:
        """Return the groups, made of the columns of the first rows; raise as `check_types`."""
        if self._groups is None:
            accumulators = self._asked.accumulators(schema)
            self.schema = self._asked.output_schema(schema, accumulators)
            keys = schema.select(self._asked.keys)
            name = self._context.operator_id
            groups = GroupState(
                keys,
                accumulators,
                self._context,
                notes_changes=self._asked.emits_changes,
                shares_stores=not isinstance(self._slices, WholeInput),
            )
            self._keep_in(groups, schema)
            self._merged = GroupState(keys, accumulators, self._context)
            self._results = WindowResults(self._asked, self.schema, name)
            self._overlapping = OverlappingWindows(
                groups, keys, accumulators, self._context, self._results.naming
            )
        elif schema is not self._input and schema != self._input:
            self._asked.check_types(self._input, schema)
        return self._state

    # -- deltas that are in no store ----------------------------------------------------------

    @abstractmethod
    def _merge_into(self, batch: Batch, slices: Int64s) -> None:
        """Merge deltas into the groups of their slices."""

    def _hold(self, batch: Batch, slices: Int64s, slice_column: str) -> bool:
        """Keep deltas until their windows end; False if there is no room for them."""
        if not self._are_sliced:
            return self._held.take(batch, slices, self._context)
        deltas = batch.drop([slice_column]).with_times(None)
        return self._overlapping.hold(deltas, slices, self._context)

    def _without_stored(self, batch: Batch, slices: Int64s) -> tuple[Batch, Int64s]:
        """Return deltas without those of slices that the store has, which are merged into it."""
        stored = np.isin(slices, self._state.slices)
        if stored.any():
            self._merge_into(batch.filter(stored), slices[stored])
            batch, slices = batch.filter(~stored), slices[~stored]
        return batch, slices

    @property
    def _may_hold(self) -> bool:
        """Whether deltas may wait for the watermark, as they are all that windows have at times."""
        if self._asked.emits_changes or isinstance(self._slices, WholeInput):
            return False
        return self._state.is_in_records

    def _merge_held(self) -> None:
        """Merge deltas that wait for the watermark into the groups of their slices."""
        if self._groups is None:
            return
        for held in (self._held.give_back(), self._overlapping.held.give_back()):
            if held is not None:
                self._merge_into(*held)

    def _forget_held(self) -> None:
        """Forget deltas that wait, and what was made of them or of groups in the store."""
        self._held.give_back()
        if self._groups is not None:
            self._overlapping.held.give_back()
            self._overlapping.clear()
            self._merged.clear()  # it has had slices of the numbers that come again

    def _open_slices(self) -> tuple[int, ...]:
        if self._groups is None:
            return ()
        return (*self._groups.slices, *self._overlapping.held.slices)

    def _free_slice(self, slice_: int) -> None:
        if slice_ in self._overlapping.held.slices:
            self._overlapping.held.free(slice_)
        super()._free_slice(slice_)

    def _whole_windows(self, watermark_ns: int) -> EndedDeltas | None:
        """Return the deltas that wait and are all that windows have which end now; merge others.

        Most windows of an aggregate that gets deltas are such ones: they need no index, and no
        memory for their groups.
        """
        if self._held.is_empty:
            return None
        first = self._slices.first_unfired(watermark_ns)
        whole, others = self._held.give_back_ended(first, self._state, self._asked.keys)
        if others is not None:
            self._merge_into(*others)
        return whole

    def _emit_deltas(self, ended: EndedDeltas, out: Output) -> Iterator[int]:
        """Emit the rows of windows that are single slices, of which these are all deltas."""
        keys_of = partial(ended.keys_of, self._asked.keys)
        with self._results.naming(lambda: keys_of(ended.again)):
            groups = ended.merged(self._state)
        windows = ended.windows[ended.firsts]
        yield from self._emit_rows_of(groups, ended.firsts, keys_of, windows, out)

    def _emit_rows_of(
        self,
        groups: GroupState | DumpedGroups,
        slots: Int64s,
        keys_of: Callable[[Int64s], Batch],
        windows: Int64s,
        out: Output,
    ) -> Iterator[int]:
        """Emit the rows of groups, each of its window; yield as `_emit_window`."""
        starts, ends = self._slices.bounds_ns(windows)
        for rows in pieces_of(np.arange(len(slots))):
            part = slots[rows]
            found = self._results.rows(keys_of(part), groups, part, starts[rows], ends[rows])
            out.emit(found, self._times_of(ends[rows]))
            yield len(rows)

    # -- windows in a store, or of several slices ---------------------------------------------

    def _emit_window(self, window: int, out: Output) -> Iterator[int]:
        """See `TimeWindows`."""
        slices = self._slices.slices_of(window)
        if len(slices) == 1:
            for slots in self._state.by_place(self._state.scan(slices[0])):
                yield from self._emit(self._state, slots, window, out)
            return
        for slots in merge_order(self._state, slices):
            self._merge(slots)
        yield from self._emit(self._merged, self._merged.scan(self._merges), window, out)
        self._end_merge()

    def _emit_windows(self, windows: Sequence[int], out: Output) -> Iterator[int]:
        """Emit all rows of windows, of several together, as there may be many."""
        if len(self._slices.slices_of(windows[0])) > 1:
            yield from self._emit_overlapping(windows, out)
        elif len(windows) == 1:
            yield from self._emit_window(windows[0], out)
        else:
            parts = [self._state.scan(*self._slices.slices_of(window)) for window in windows]
            slots, of = np.concatenate(parts), np.repeat(windows, [len(part) for part in parts])
            yield from self._emit_rows_of(self._state, slots, self._state.keys_of, of, out)

    def _emit_overlapping(self, windows: Sequence[int], out: Output) -> Iterator[int]:
        """Emit all rows of windows that have several slices."""
        left = list(windows)
        while left:
            slices = [self._slices.slices_of(window) for window in left]
            found = self._overlapping.merged(slices)
            if found is None:
                self._merge_held()
                yield from self._emit_window(left.pop(0), out)
                continue
            done, left = left[: len(found.counts)], left[len(found.counts) :]
            slots, of = np.arange(len(found.firsts)), np.repeat(done, found.counts)
            yield from self._emit_rows_of(found.groups, slots, found.keys_of, of, out)

    def _merge(self, others: Int64s) -> None:
        keys = self._state.keys_of(others)
        with self._results.naming(lambda: keys):
            self._merged.merge(self._merged_slots(keys), self._state, others)

    def _merged_slots(self, keys: Batch) -> Int64s:
        hashes, _ = hash_keys(keys, self._asked.keys)
        return self._merged.slots(np.full(len(hashes), self._merges, np.int64), hashes, keys)

    def _end_merge(self) -> None:
        self._merged.free(self._merges)
        self._merges += 1

    def _emit(self, groups: GroupState, slots: Int64s, window: int, out: Output) -> Iterator[int]:
        """Emit the rows of groups of a window; yield as `_emit_window`."""
        windows = np.full(len(slots), window, np.int64)
        yield from self._emit_rows_of(groups, slots, groups.keys_of, windows, out)
