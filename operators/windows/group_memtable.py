"""`GroupMemtable`: groups of the rows that came lately, in memory, in front of groups on the disk.

Each group on the disk that a row changes costs a page read and a page written, if rows are taken
one batch at a time: keys are met at random. So once groups lie on the disk, rows are first added to
groups in memory, as many as a part of the budget holds; frequent ones stay there. When it is full,
they are written behind one another, as deltas that wait (`RegionRuns`), and in the end merged into
the groups on the disk in the order in which these lie: the disk is read and written from one end to
the other, each page once for all of its deltas.

The operator empties it before anything asks for the groups: a window that ends, rows that are due,
a marker. So nobody sees a difference, and checkpoints need not know of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ...state.budget import SETTING, StateBudget
from ...state.keys import stable_partition
from ...state.region_runs import RegionRuns
from ...transport.wire.batch import Batch
from .deltas import deltas_of
from .group_state import NEW
from .grouping import SLICE

if TYPE_CHECKING:
    from ..process import InstanceContext
    from .group_state import GroupState

__all__ = ["GroupMemtable", "report_none"]

_log = logging.getLogger(__name__)

Int64s = npt.NDArray[np.int64]

_NO_SLOTS = np.empty(0, np.int64)

_SHARE_OF_BUDGET = 4
"""It takes this part of the worker's memory for state."""
_BYTES_MIN = 1 << 20
"""It is of no use with less: chunks of memory have 64 KiB at least."""
_BEYOND_BYTES = 16 << 20
"""So much address space is reserved beyond twice of it: `has_room` estimates, and texts are moved
together now and then."""
_ROWS_MIN, _PARTS = 64, 16
"""Rows are added in parts that fit for sure, since each may have a group of its own: the smaller,
the fuller it is, down to this part of it."""
_COPIED_GROUPS = 1 << 14
"""About so many groups are copied at a time as deltas, beside all that the budget counts."""
_SORTED_BYTES = 32
"""What a group takes while all are sorted: its slot, slice and region, and its row."""
_INDEX_BYTES = 32
"""What a new group takes beside its record, at most."""


class _Sorted(NamedTuple):
    """Groups in memory by the region of the stored ones in which each belongs.

    Attributes:
        slots, slices: of each group, int64 (n,).
        order: their rows by region, int64 (n,).
        regions: which of these each region has, the lowest first.
    """

    slots: Int64s
    slices: Int64s
    order: Int64s
    regions: dict[int, slice]

    @classmethod
    def of(cls, groups: GroupState, stored: GroupState) -> _Sorted:
        """Sort all groups."""
        if not len(groups):
            return cls(_NO_SLOTS, _NO_SLOTS, _NO_SLOTS, {})
        slots = [groups.scan(slice_) for slice_ in groups.slices]
        known = zip(groups.slices, slots, strict=True)
        regions = np.concatenate([stored.regions_of(groups, *of_slice) for of_slice in known])
        slices = np.repeat(groups.slices, [len(one) for one in slots])
        first, stop = int(regions.min()), int(regions.max()) + 1
        order, counts = stable_partition(regions - first, stop - first)
        ends = np.cumsum(counts)
        rows = {
            region: slice(int(end - count), int(end))
            for region, count, end in zip(range(first, stop), counts, ends, strict=True)
            if count
        }
        return cls(np.concatenate(slots), slices, order, rows)

    def of_regions(self, regions: Sequence[int]) -> tuple[Int64s, Int64s]:
        """Return the slots and slices of the groups of regions that follow one another."""
        rows = self.order[self.regions[regions[0]].start : self.regions[regions[-1]].stop]
        return self.slots[rows], self.slices[rows]

    def together(self) -> Iterator[list[tuple[int, int]]]:
        """Yield regions that follow one another and have few groups, and how many each has."""
        found: list[tuple[int, int]] = []
        for region, rows in self.regions.items():
            if found and sum(count for _, count in found) + rows.stop - rows.start > _COPIED_GROUPS:
                yield found
                found = []
            found.append((region, rows.stop - rows.start))
        if found:
            yield found


class GroupMemtable:
    """The memory in front of the groups of one operator on one worker.

    Args:
        stored: the groups that are on the disk; its memory is taken from theirs, see `open`.
        nbytes: how much.
        context: of the operator.
        make: makes groups of the same kind, within a budget.

    Attributes:
        groups: those of the rows that came lately.
    """

    def __init__(
        self,
        stored: GroupState,
        nbytes: int,
        context: InstanceContext,
        make: Callable[[StateBudget], GroupState],
    ) -> None:
        self._stored, self._nbytes = stored, nbytes
        self._runs = RegionRuns(context.operator_id, context.state_budget)
        self._earliest_put_off: int | None = None
        self._budget = StateBudget(2 * nbytes + _BEYOND_BYTES)  # `has_room` is asked before
        self.groups = make(self._budget)

    @classmethod
    def open(
        cls,
        stored: GroupState,
        context: InstanceContext,
        make: Callable[[StateBudget], GroupState],
    ) -> GroupMemtable | None:
        """Return a new one for groups on the disk; None if they leave no memory for it.

        Args:
            stored: the groups.
            context: of the operator, whose budget it is.
            make: makes groups of the same kind, within a budget.
        """
        nbytes = context.state_budget.limit_bytes // _SHARE_OF_BUDGET
        if nbytes < _BYTES_MIN or not stored.set_aside(nbytes):
            return None
        return cls(stored, nbytes, context, make)

    def rows_that_fit(self, batch: Batch) -> int:
        """Return how many rows of a batch are to be added now: fewer, the less room is left.

        They are at least those of one of `_PARTS` parts of the memory, for which it is emptied.
        """
        least = max(_ROWS_MIN, self._nbytes // _PARTS // self._group_bytes)
        rows = batch.num_rows
        while rows > least and not self._has_room(rows, batch.nbytes * rows // batch.num_rows):
            rows //= 2
        return max(rows, least)

    def has_room(self, batch: Batch) -> bool:
        """Whether each of these rows may have a group of its own that is not there yet."""
        return self._has_room(batch.num_rows, batch.nbytes)

    def _has_room(self, rows: int, nbytes: int) -> bool:
        used = self._budget.used_bytes + _SORTED_BYTES * len(self.groups)
        added = nbytes * (1 + self.groups.texts) + rows * self._group_bytes
        return used + added + self.groups.growth_bytes(rows) <= self._nbytes

    @property
    def _group_bytes(self) -> int:
        """Bytes that a new group takes at most, beside text in its key."""
        return self.groups.record_bytes + _INDEX_BYTES

    @property
    def earliest_slice(self) -> int | None:
        """The earliest slice of which rows wait; None if none do."""
        known = (*self.groups.slices, self._earliest_put_off)
        return min((one for one in known if one is not None), default=None)

    @property
    def may_put_off(self) -> bool:
        """Whether its groups may wait on the disk to be merged later: see `RegionRuns`."""
        beside = self._stored.growth_bytes(len(self.groups))  # for which records go to the disk
        return self._runs.has_room(self._budget.used_bytes, beside)

    def put_off(self) -> Iterator[Batch]:
        """Let all groups wait on the disk; yield those that are new there, as `emptied` does."""
        self._earliest_put_off = self.earliest_slice
        own = _Sorted.of(self.groups, self._stored)
        for regions in own.together():
            deltas = self._deltas(own, [region for region, _ in regions])
            start = 0
            for region, count in regions:
                of_region = deltas.slice(start, start + count)
                start += count
                if region == NEW:
                    yield of_region
                else:
                    self._runs.append(region, of_region)
        self._runs.start_writing()
        self.groups.clear()

    def emptied(self) -> Iterator[Batch]:
        """Yield all that waits as deltas, in the order of the groups on the disk; then forget it.

        Yields: batches as `merge_dumped` takes them, with the slice of each delta, `SLICE`; of one
            group the earlier ones first.
        """
        own = _Sorted.of(self.groups, self._stored)
        regions = sorted({*own.regions, *self._runs.rows} - {NEW})
        for region, following in zip(
            self._stored.passed(regions), (*regions, None)[1:], strict=True
        ):
            last = [self._deltas(own, [region])] if region in own.regions else []
            yield from self._runs.taken(region, following, last)
        self._runs.close()  # new groups may need the room on the disk
        self._earliest_put_off = None
        if NEW in own.regions:
            yield self._deltas(own, [NEW])
        self.groups.clear()

    def _deltas(self, own: _Sorted, regions: Sequence[int]) -> Batch:
        """Return the groups of regions that follow one another as deltas, by region."""
        return deltas_of(self.groups, *own.of_regions(regions), SLICE)

    def close(self) -> None:
        """Forget all groups, and give the memory back."""
        self._runs.close()
        self.groups.drop()
        self._stored.give_back(self._nbytes)


def report_none(operator: str) -> None:
    """Log that an operator has groups on the disk and no memory for a memtable in front of them."""
    _log.warning(
        "whale-ray: operator %r: its state lies on the disk, and the memory that is left suffices"
        " only to find it there, so each batch reads and writes the pages of its groups one by one:"
        " raise %s, or run more workers",
        operator,
        SETTING,
    )
