"""`OverlappingWindows`: merges the slices of windows that overlap.

A slice is part of several windows, and each of these is merged from the same groups. So the groups
of all slices that windows still need lie beside one another as deltas do, those of a window in one
span; the groups of a key in it are found by their hash, and no index is asked. What is kept here
follows from the groups, so checkpoints need not know of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...state.node_transfer import with_columns
from ...transport.compiling import njit
from ...transport.wire.batch import Batch
from .dumped_groups import DumpedGroups, numbered
from .held_slices import HeldSlices
from .slice_stores import scan_together

if TYPE_CHECKING:
    from ...transport.wire.types import Schema
    from ..aggregates.accumulator import Accumulator, State
    from ..process import InstanceContext
    from .group_state import GroupState

__all__ = ["MergedGroups", "OverlappingWindows", "merge_order"]

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Naming: TypeAlias = "Callable[[Callable[[], Batch]], AbstractContextManager[None]]"

_BYTES_PER_GROUP = 256
"""More than is taken for a group beside its state, here and while windows are merged."""
_TOGETHER_ROWS = 1 << 16
"""With so many groups of slices no further window is merged in one go."""


class MergedGroups(NamedTuple):
    """The groups of windows, each by the order in which its slices had them first.

    Attributes:
        counts: how many groups each window has, int64 (windows,).
        keys: the key columns of all groups of slices.
        firsts: the first of these that each group was merged from, int64 (m,).
        groups: what was merged.
    """

    counts: Int64s
    keys: Batch
    firsts: Int64s
    groups: DumpedGroups

    def keys_of(self, slots: Int64s) -> Batch:
        """See `GroupState.keys_of`."""
        return self.keys.take(self.firsts[slots])


class _SameKeys(NamedTuple):
    """The rows of the same key within each of several windows.

    Attributes:
        rows: of all windows, int64 (n,).
        numbers: the key of each, int64 (n,), a place in `firsts`.
        firsts: the first row of each window's keys, int64 (m,).
        counts: how many keys each window has, int64 (windows,).
    """

    rows: Int64s
    numbers: Int64s
    firsts: Int64s
    counts: Int64s


class OverlappingWindows:
    """Merges windows of several slices, whose groups are all in memory and of fixed width.

    Args:
        state: has the groups of slices.
        keys: the key columns.
        accumulators: what is computed for each group.
        context: whose memory for state it takes.
        naming: see `WindowResults.naming`.

    Attributes:
        held: has the groups of other slices.
    """

    def __init__(
        self,
        state: GroupState,
        keys: Schema,
        accumulators: Sequence[Accumulator],
        context: InstanceContext,
        naming: Naming,
    ) -> None:
        self._state, self.held, self._naming = state, HeldSlices(), naming
        self._names, self._accumulators = keys.names, accumulators
        self._of_fixed_width = all(one.has_fixed_width for one in accumulators)
        widths = [field.dtype.itemsize for one in accumulators for field in one.fields]
        self._group_bytes = _BYTES_PER_GROUP + sum(widths)
        self._budget, self._operator = context.state_budget, context.operator_id
        self._slices: list[int] = []  # ascending
        self._starts = [0]  # the first group of each, and how many there are
        self._parts: list[tuple[Batch, Hashes]] = []  # the groups and the hashes of their keys
        self._taken_bytes = 0

    @property
    def may_merge(self) -> bool:
        """Whether windows may be merged here now."""
        return self._of_fixed_width and not self._state.spills

    def hold(self, deltas: Batch, slices: Int64s, context: InstanceContext) -> bool:
        """Keep deltas of slices that the store does not have, see `HeldSlices.take`."""
        is_held = self.may_merge and self.held.take(deltas, slices, context)
        if is_held:
            self.forget(slices)
            self._state.slices_changed = True
        return is_held

    def merged(self, windows: Sequence[Sequence[int]]) -> MergedGroups | None:
        """Return the groups of the first one of some windows, and of more of them if they are few.

        Args:
            windows: the slices of each, ascending; no later call is for a window before them.

        Returns:
            None if they must be merged otherwise.

        Raises:
            BadRowError: a group holds more than it may.
        """
        spans = self._spans(windows) if self.may_merge else []
        if not spans:
            self.clear()
            return None
        groups, hashes = self._joined()
        keys = groups.select(self._names)
        same = _same_keys(keys, hashes, np.array(spans))
        if same is None:
            self.clear()
            return None
        return MergedGroups(same.counts, keys, same.firsts, self._merged(groups, keys, same))

    def forget(self, slices: Int64s) -> None:
        """Learn that slices may have other groups, int64 (n,)."""
        if self._slices and len(slices):
            self._keep(0, bisect_left(self._slices, int(slices.min())))

    def clear(self) -> None:
        """Forget all slices."""
        self._keep(0, 0)

    def _spans(self, windows: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        """Return the first group of some windows, and the one behind the last one.

        Of none if there is no memory to merge one, or if it is not sure which keys are the same.
        """
        self._keep(bisect_left(self._slices, windows[0][0]), len(self._slices))
        opened = sorted({*self._state.slices, *self.held.slices})
        spans: list[tuple[int, int]] = []
        rows = 0
        for slices in windows:
            known = self._slices[-1] + 1 if self._slices else slices[0]
            new = opened[bisect_left(opened, known) : bisect_right(opened, slices[-1])]
            if not all(self._take(one, rows) for one in new):
                break
            first = self._starts[bisect_left(self._slices, slices[0])]
            stop = self._starts[bisect_right(self._slices, slices[-1])]
            rows += stop - first
            if rows * self._group_bytes > self._budget.free_bytes:
                break
            spans.append((first, stop))
            if rows >= _TOGETHER_ROWS:
                break
        return spans

    def _take(self, slice_: int, rows: int) -> bool:
        """Take the groups of a slice, each key once; False if that is not possible."""
        groups = self.held.of(slice_)
        if groups is None:
            slots = self._state.scan(slice_)
            if (rows + len(slots)) * self._group_bytes > self._budget.free_bytes:
                return False
            groups = with_columns(self._state.keys_of(slots), self._state.dump(slots))
        keys = groups.select(self._names)
        hashes = hash_keys(keys, self._names)[0]
        same = _same_keys(keys, hashes, np.array([(0, len(hashes))]))
        if same is None:
            return False
        if len(same.firsts) < len(hashes):
            slots = np.arange(len(same.firsts))
            columns = self._merged(groups, keys, same).columns(slots)
            groups, hashes = with_columns(keys.take(same.firsts), columns), hashes[same.firsts]
            self.held.replace(slice_, groups)  # a store has each key once
        self._slices.append(slice_)
        self._starts.append(self._starts[-1] + len(hashes))
        self._parts.append((groups, hashes))
        self._charge()
        return True

    def _merged(self, groups: Batch, keys: Batch, same: _SameKeys) -> DumpedGroups:
        """Return the sums of the groups of each key."""
        deltas = self._state.dumped(groups)
        states: list[State] = []
        with self._naming(lambda: keys.take(same.rows)):
            for number, accumulator in enumerate(self._accumulators):
                states.append(_initial(accumulator, len(same.firsts)))
                with numbered(number):
                    accumulator.merge(states[-1], same.numbers, deltas.states[number], same.rows)
        return DumpedGroups(self._accumulators, states)

    def _joined(self) -> tuple[Batch, Hashes]:
        """Return all groups, and the hashes of their keys."""
        if len(self._parts) > 1:
            groups, hashes = zip(*self._parts, strict=True)
            self._parts = [(Batch.concat(groups), np.concatenate(hashes))]
            self._charge()
        return self._parts[0]

    def _keep(self, begin: int, end: int) -> None:
        """Keep the slices at some places, and forget the others."""
        if (begin, end) == (0, len(self._slices)):
            return
        first, stop = self._starts[begin], self._starts[end]
        groups, hashes = self._joined()
        kept = groups.slice(first, stop), hashes[first:stop]
        self._parts = [kept] if begin < end else []
        self._slices = self._slices[begin:end]
        self._starts = [one - first for one in self._starts[begin : end + 1]]
        self._charge()

    def _charge(self) -> None:
        """Let the budget know what the groups take now."""
        nbytes = sum(groups.nbytes + hashes.nbytes for groups, hashes in self._parts)
        if nbytes > self._taken_bytes:
            self._budget.take(self._operator, nbytes - self._taken_bytes, self._starts[-1])
        else:
            self._budget.give_back(self._operator, self._taken_bytes - nbytes)
        self._taken_bytes = nbytes


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


def _same_keys(keys: Batch, hashes: Hashes, spans: Int64s) -> _SameKeys | None:
    """Find the rows of the same key within each of several windows.

    Args:
        keys: of rows.
        hashes: of these keys.
        spans: the first row of each window, and that behind its last one, int64 (windows, 2).

    Returns:
        None if two keys have the same hash.
    """
    lengths = spans[:, 1] - spans[:, 0]
    rows, numbers, firsts, again = np.empty((4, lengths.sum()), np.int64)
    counts = np.empty(len(spans), np.int64)
    table = np.empty(1 << (2 * int(lengths.max())).bit_length(), np.int32)
    groups, repeated = _number_keys(hashes, spans, table, rows, numbers, firsts, counts, again)
    firsts, again = firsts[:groups], again[:repeated]
    if repeated:
        same = keys.take(firsts[numbers[again]]).with_times(None)
        if not same.equals(keys.take(rows[again]).with_times(None)):
            return None
    return _SameKeys(rows, numbers, firsts, counts)


@njit(cache=True, nogil=True)
def _number_keys(
    hashes: Any,
    spans: Any,
    table: Any,
    rows: Any,
    numbers: Any,
    firsts: Any,
    counts: Any,
    again: Any,
) -> tuple[int, int]:
    """Give each hash of each window a number as it comes.

    Args:
        hashes, spans: as for `_same_keys`.
        table: int32 (2^k,), more than twice as long as any window has rows; is overwritten.
        rows, numbers, firsts, counts: those of a `_SameKeys`, to be filled.
        again: int64 (n,), receives the places in `rows` of those that are not first.

    Returns:
        how many numbers there are, and how many places in `again`.
    """
    mask = np.uint64(len(table) - 1)
    count = place = repeated = 0
    for window in range(len(spans)):
        table[:] = -1
        before = count
        for row in range(spans[window, 0], spans[window, 1]):
            mixed = hashes[row] * np.uint64(0x9E3779B97F4A7C15)
            at = (mixed >> np.uint64(32)) & mask
            found = table[at]
            while found >= 0 and hashes[firsts[found]] != hashes[row]:
                at = (at + np.uint64(1)) & mask
                found = table[at]
            if found < 0:
                found = table[at] = count
                firsts[count] = row
                count += 1
            else:
                again[repeated] = place
                repeated += 1
            rows[place] = row
            numbers[place] = found
            place += 1
        counts[window] = count - before
    return count, repeated
