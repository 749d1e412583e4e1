"""`HeldDeltas`: the deltas that came last, until it is known whether a window has any others.

Producers' deltas mostly leave as a watermark closes their windows. Then a few batches are all that
most of these windows ever get, and need not be entered into a store to be read out of it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...transport.compiling import njit
from ...transport.wire.batch import Batch

if TYPE_CHECKING:
    from ..process import InstanceContext
    from .dumped_groups import DumpedGroups
    from .group_state import GroupState

__all__ = ["EndedDeltas", "HeldDeltas"]

Int64s = npt.NDArray[np.int64]
_Deltas: TypeAlias = "tuple[Batch, Int64s]"

_ROWS_MAX = 1 << 16
"""Several batches have no more rows than this: what waits cannot be moved to the disk."""


class EndedDeltas(NamedTuple):
    """All that some windows have, which have ended.

    Attributes:
        batch: the deltas, by window.
        windows: the window of each, int64 (n,), ascending.
        firsts: the first delta of each group, int64 (m,), ascending.
        groups: the group of each delta, int64 (n,), a place in `firsts`.
    """

    batch: Batch
    windows: Int64s
    firsts: Int64s
    groups: Int64s

    @property
    def again(self) -> Int64s:
        """The deltas that are not the first of their group, int64 (n − m,), ascending."""
        return _others_than(self.firsts, len(self.windows))

    def keys_of(self, names: Sequence[str], rows: Int64s) -> Batch:
        """Return the key columns of deltas."""
        keys = self.batch.select(names).with_times(None)
        return keys if len(rows) == keys.num_rows else keys.take(rows)

    def merged(self, state: GroupState) -> DumpedGroups:
        """Return the groups; the slot of each is its first delta. Raise as `GroupState.merge`."""
        groups = state.dumped(self.batch)
        if len(self.firsts) < len(self.windows):
            again = self.again
            others = state.dumped(self.batch.take(again))
            groups.merge(self.firsts[self.groups[again]], others)
        return groups


class HeldDeltas:
    """Batches of deltas, in the order in which they came; their memory counts as state."""

    def __init__(self) -> None:
        self._held: list[_Deltas] = []
        self._context: InstanceContext | None = None
        self._rows = self._nbytes = 0
        self._earliest_slice = 0

    def take(self, batch: Batch, slices: Int64s, context: InstanceContext) -> bool:
        """Keep a copy of deltas; return False if there is no room for it behind the others."""
        nbytes = batch.nbytes + slices.nbytes
        if nbytes > context.state_budget.free_bytes:
            return False
        if self._held and (
            self._rows + batch.num_rows > _ROWS_MAX or batch.schema != self._held[0][0].schema
        ):
            return False
        context.state_budget.take(context.operator_id, nbytes, batch.num_rows)
        earliest = int(slices.min())
        self._earliest_slice = min(self._earliest_slice, earliest) if self._held else earliest
        self._held.append((batch.copy(), slices.copy()))
        self._context = context
        self._rows += batch.num_rows
        self._nbytes += nbytes
        return True

    def give_back(self) -> _Deltas | None:
        """Return the deltas and their slices, and keep them no more; None if there are none."""
        if self._context is None or not self._held:
            return None
        self._context.state_budget.give_back(self._context.operator_id, self._nbytes)
        held, self._held = self._held, []
        self._rows = self._nbytes = 0
        if len(held) == 1:
            return held[0]
        batches, slices = zip(*held, strict=True)
        return Batch.concat(batches), np.concatenate(slices)

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return not self._held

    def give_back_ended(
        self, first_unfired: int, state: GroupState, keys: Sequence[str]
    ) -> tuple[EndedDeltas | None, _Deltas | None]:
        """Return the deltas whose windows have ended, and keep them no more.

        Args:
            first_unfired: windows that are slices before it have ended.
            state: has the other groups.
            keys: the key columns.

        Returns:
            those that are all that ended windows have; and the others.
        """
        if not self._held or self._earliest_slice >= first_unfired:
            return None, None
        context, found = self._context, self.give_back()
        assert context is not None and found is not None
        batch, slices = found
        ended = slices < first_unfired
        if not ended.all():
            later = _chosen_rows(batch, ~ended), slices[~ended]
            if not self.take(*later, context):  # with nulls of one batch all have validity
                return None, found
            batch, slices = _chosen_rows(batch, ended), slices[ended]
        others: _Deltas | None = None
        if len(state) and (in_state := np.isin(slices, state.slices)).any():
            others = _chosen_rows(batch, in_state), slices[in_state]
            batch, slices = _chosen_rows(batch, ~in_state), slices[~in_state]
        if not len(slices):
            return None, others
        if (slices[1:] < slices[:-1]).any():
            order = np.argsort(slices, kind="stable")
            batch, slices = batch.take(order), slices[order]
        groups = _groups_of(batch.select(keys), slices)
        if groups is None or (state.texts and len(groups[0]) < len(slices)):
            if others is not None:
                batch = Batch.concat([others[0], batch])
                slices = np.concatenate([others[1], slices])
            return None, (batch, slices)
        return EndedDeltas(batch, slices, *groups), others


def _groups_of(keys: Batch, slices: Int64s) -> tuple[Int64s, Int64s] | None:
    """Return the first delta of each group, and the group of each; None if that is not sure.

    Args:
        keys: of each delta.
        slices: of each, int64 (n,).
    """
    rows = len(slices)
    table = np.full(1 << (2 * rows).bit_length(), -1, np.int32)
    firsts, groups = np.empty(rows, np.int64), np.empty(rows, np.int64)
    hashes = hash_keys(keys, keys.schema.names)[0]
    count = _grouped(table, slices, hashes, firsts, groups)
    firsts = firsts[:count]
    if count < rows:
        again = _others_than(firsts, rows)
        same = keys.take(firsts[groups[again]]).with_times(None)
        if not same.equals(keys.take(again).with_times(None)):  # of two keys with one hash
            return None
    return firsts, groups


def _others_than(firsts: Int64s, rows: int) -> Int64s:
    """Return the rows that are not among `firsts`, int64 (n,), ascending."""
    others = np.ones(rows, np.bool_)
    others[firsts] = False
    return np.flatnonzero(others)


def _chosen_rows(batch: Batch, chosen: npt.NDArray[np.bool_]) -> Batch:
    """Return the chosen rows: a view if they lie beside one another."""
    rows = np.flatnonzero(chosen)
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return batch.slice(int(rows[0]), int(rows[-1]) + 1)
    return batch.take(rows)


@njit(cache=True, nogil=True)
def _grouped(table: Any, slices: Any, hashes: Any, firsts: Any, groups: Any) -> int:
    """Give each (slice, hash) a number as it comes; return how many there are."""
    mask = np.uint64(len(table) - 1)
    count = 0
    for row in range(len(slices)):
        mixed = (hashes[row] ^ np.uint64(slices[row])) * np.uint64(0x9E3779B97F4A7C15)
        at = (mixed ^ (mixed >> np.uint64(32))) & mask
        group = table[at]
        while group >= 0:
            first = firsts[group]
            if slices[first] == slices[row] and hashes[first] == hashes[row]:
                break
            at = (at + np.uint64(1)) & mask
            group = table[at]
        if group < 0:
            group = table[at] = count
            firsts[count] = row
            count += 1
        groups[row] = group
    return count
