"""`OverlappingWindows`: merges the slices of windows that overlap, and looks up each group once.

A slice is part of several windows, and each of these is merged from the same groups. So a key gets
a number when a slice that has it is met first, and the groups of a slice are kept with the numbers
of their keys: for the other windows of the slice no index is asked. What is kept here follows from
the groups, so checkpoints need not know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...transport.compiling import njit
from .dumped_groups import DumpedGroups, numbered
from .group_state import GroupState
from .slice_stores import scan_together

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.column import Column
    from ...transport.wire.types import Schema
    from ..aggregates.accumulator import Accumulator, State
    from ..process import InstanceContext

__all__ = ["MergedGroups", "OverlappingWindows", "merge_order"]

Int64s = npt.NDArray[np.int64]
Naming: TypeAlias = "Callable[[Callable[[], Batch]], AbstractContextManager[None]]"

_BYTES_PER_GROUP = 256
"""More than is taken for a group beside its state: what finds its key, also those left over."""
_NUMBERS_LEFT = 1 << 15
"""With more keys, and twice those of a window, all get new numbers: most are of closed slices."""
_TOGETHER_ROWS = 1 << 16
"""With so many groups of slices no further window is merged in one go."""
_SHARE_OF_FREE = 4
"""Keys with numbers take a quarter of the free memory for state at most: groups may need it."""


class MergedGroups(NamedTuple):
    """The groups of windows, each by the order in which its slices had them first.

    Attributes:
        counts: how many groups each window has; there are as many windows.
        state: the groups of the slices.
        firsts: the first of those of each group, int64 (m,).
        groups: what was merged.
    """

    counts: list[int]
    state: GroupState
    firsts: Int64s
    groups: DumpedGroups

    def keys_of(self, slots: Int64s) -> Batch:
        """See `GroupState.keys_of`."""
        return self.state.keys_of(self.firsts[slots])

    def finish(self, number: int, slots: Int64s) -> Column:
        """See `GroupState.finish`."""
        return self.groups.finish(number, slots)


class OverlappingWindows:
    """Merges windows of several slices, whose groups are all in memory and of fixed width.

    Args:
        keys: the key columns.
        accumulators: what is computed for each group.
        context: whose memory for state it takes.
    """

    def __init__(
        self, keys: Schema, accumulators: Sequence[Accumulator], context: InstanceContext
    ) -> None:
        self._names = keys.names
        self._accumulators = accumulators
        self._of_fixed_width = all(one.has_fixed_width for one in accumulators)
        widths = [field.dtype.itemsize for one in accumulators for field in one.fields]
        self._group_bytes = _BYTES_PER_GROUP + sum(widths)
        self._budget, self._operator = context.state_budget, context.operator_id
        self._numbers = GroupState(keys, (), context)
        self._generation = 0  # stands for the slice of the keys that have numbers
        self._places = np.empty(0, np.int64)
        self._slices: dict[int, tuple[Int64s, Int64s]] = {}
        self._taken_bytes = 0

    def merged(
        self, state: GroupState, windows: Sequence[Sequence[int]], naming: Naming
    ) -> MergedGroups | None:
        """Return the groups of the first one of some windows, and of more of them if they are few.

        Args:
            state: has the groups of the slices.
            windows: the slices of each, ascending; no later call is for a window before them.
            naming: see `WindowResults.naming`.

        Returns:
            None if they must be merged otherwise.

        Raises:
            BadRowError: a group holds more than it may.
        """
        if not self._of_fixed_width or state.spills or not self._has_room(len(state)):
            self.clear()
            return None
        counts, all_slots, all_rows, all_firsts = [], list[Int64s](), list[Int64s](), list[Int64s]()
        groups = taken = 0
        for slices in windows:
            slots, rows, firsts = self._slots_of(state, slices)
            all_slots.append(slots)
            all_rows.append(rows + groups if groups else rows)
            all_firsts.append(firsts)
            counts.append(len(firsts))
            groups, taken = groups + len(firsts), taken + len(slots)
            if taken >= _TOGETHER_ROWS:
                break
        is_scarce = self._numbers.nbytes > self._budget.free_bytes // _SHARE_OF_FREE
        if is_scarce or len(self._numbers) > max(_NUMBERS_LEFT, 2 * max(counts)):
            self.clear()
        slots, rows = np.concatenate(all_slots), np.concatenate(all_rows)
        states: list[State] = []
        with naming(partial(state.keys_of, slots)):
            for number, accumulator in enumerate(self._accumulators):
                states.append(_initial(accumulator, groups))
                with numbered(number):
                    accumulator.merge(states[-1], rows, state.state(number), slots)
        merged = DumpedGroups(self._accumulators, states)
        return MergedGroups(counts, state, np.concatenate(all_firsts), merged)

    def _slots_of(self, state: GroupState, slices: Sequence[int]) -> tuple[Int64s, Int64s, Int64s]:
        """Return the groups of a window's slices, the number of each one's key, and the first ones.

        Keys have numbers from 0 on; int64 (n,), (n,) and (keys,).
        """
        for passed in [one for one in self._slices if one < slices[0]]:
            self._forget(passed)
        parts = [self._numbered(state, slice_) for slice_ in slices]
        slots, numbers = (np.concatenate(some) for some in zip(*parts, strict=True))
        highest = int(numbers.max(initial=-1))
        if highest >= len(self._places):
            self._places = np.full(2 * (highest + 1), -1)
        rows, firsts = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
        count = _number_from_0(numbers, self._places, rows, firsts)
        return slots, rows, slots[firsts[:count]]

    def forget(self, slices: Int64s) -> None:
        """Learn that slices may have other groups, int64 (n,)."""
        if self._slices and len(slices) and slices.min() <= max(self._slices):
            for slice_ in np.unique(slices).tolist():
                self._forget(slice_)

    def _forget(self, slice_: int) -> None:
        found = self._slices.pop(slice_, None)
        if found is not None:
            self._charge(-sum(one.nbytes for one in found))

    def clear(self) -> None:
        """Forget all slices and all numbers."""
        for slice_ in tuple(self._slices):
            self._forget(slice_)
        self._numbers.free(self._generation)
        self._generation += 1
        self._places = np.empty(0, np.int64)

    def _has_room(self, groups: int) -> bool:
        taken = self._taken_bytes + self._numbers.nbytes
        return groups * self._group_bytes <= self._budget.free_bytes + taken

    def _numbered(self, state: GroupState, slice_: int) -> tuple[Int64s, Int64s]:
        """Return the groups of a slice, and the numbers of their keys, int64 (n,) each."""
        found = self._slices.get(slice_)
        if found is None:
            slots = state.scan(slice_)
            keys = state.keys_of(slots)
            generation = np.full(len(slots), self._generation)
            numbers = self._numbers.slots(generation, hash_keys(keys, self._names)[0], keys)
            self._slices[slice_] = found = slots, numbers
            self._charge(sum(one.nbytes for one in found))
        return found

    def _charge(self, nbytes: int) -> None:
        if nbytes > 0:
            self._budget.take(self._operator, nbytes, len(self._numbers))
        else:
            self._budget.give_back(self._operator, -nbytes)
        self._taken_bytes += nbytes


def merge_order(state: GroupState, slices: Sequence[int]) -> Iterator[Int64s]:
    """Yield the groups of slices, those of a key by slice: its first value is in the first one.

    Groups on the disk are met in the order in which they lie, so there each slice is by itself.
    """
    parts = [[one] for one in slices] if state.spills else [slices]
    for part in parts:
        for _, slots in scan_together(state.scan, part):
            yield from state.by_place(slots)


def _initial(accumulator: Accumulator, count: int) -> State:
    """Return the state of so many groups without rows."""
    found: dict[str, npt.NDArray[Any]] = {}
    for field in accumulator.fields:
        found[field.name] = np.empty(count, field.dtype)
        found[field.name][:] = field.initial
    return found


@njit(cache=True, nogil=True)
def _number_from_0(numbers: Any, places: Any, rows: Any, firsts: Any) -> int:
    """Give new numbers from 0 on, in the order in which numbers come; return how many there are.

    Args:
        numbers: int64 (n,), not negative.
        places: int64, longer than the greatest of them; -1 before and after the call.
        rows: int64 (n,), receives the new number of each.
        firsts: int64 (n,), receives the row of the first of each new number.
    """
    count = 0
    for row in range(len(numbers)):
        found = places[numbers[row]]
        if found < 0:
            found = places[numbers[row]] = count
            firsts[count] = row
            count += 1
        rows[row] = found
    for new in range(count):
        places[numbers[firsts[new]]] = -1
    return count
