"""`HeldDeltas`: the deltas that came last, until it is known whether a window has any others.

A producer's deltas mostly leave as a watermark closes their windows. Then they are all that most
of these windows ever get, and need not be entered into a store to be read out of it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...transport.compiling import njit

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ..process import InstanceContext

__all__ = ["HeldDeltas"]

Int64s = npt.NDArray[np.int64]
_Deltas: TypeAlias = "tuple[Batch, Int64s]"


class HeldDeltas:
    """One batch of deltas, or none; its memory counts as state."""

    def __init__(self) -> None:
        self._held: tuple[Batch, Int64s, InstanceContext] | None = None
        self._nbytes = 0

    def take(self, batch: Batch, slices: Int64s, context: InstanceContext) -> bool:
        """Keep a copy of deltas where there are none; return False if there is no memory for it."""
        nbytes = batch.nbytes
        if nbytes > context.state_budget.free_bytes:
            return False
        context.state_budget.take(context.operator_id, nbytes, batch.num_rows)
        self._nbytes = nbytes
        self._held = batch.copy(), slices.copy(), context
        return True

    def give_back(self) -> tuple[Batch, Int64s] | None:
        """Return the deltas and their slices, and keep them no more; None if there are none."""
        if self._held is None:
            return None
        batch, slices, context = self._held
        context.state_budget.give_back(context.operator_id, self._nbytes)
        self._held = None
        return batch, slices

    @property
    def slices(self) -> Int64s | None:
        """The slice of each delta, int64 (n,); None if there are none."""
        return None if self._held is None else self._held[1]

    def give_back_ended(
        self, first_unfired: int, open_slices: Sequence[int], keys: Sequence[str]
    ) -> tuple[_Deltas, _Deltas] | None:
        """Return the deltas once the window of one has ended, and keep them no more; else None.

        Args:
            first_unfired: windows that are slices before it have ended.
            open_slices: those that have other groups.
            keys: the key columns.

        Returns:
            those that are all that ended windows have, by window; and the others.
        """
        if self._held is None:
            return None
        slices = self._held[1]
        ended = slices < first_unfired
        if not ended.any():
            return None
        alone = ended & ~np.isin(slices, open_slices)
        batch = self._held[0]
        self.give_back()
        if not _surely_differ(slices, hash_keys(batch, keys)[0]):
            alone[:] = False
        others = _chosen_rows(batch, ~alone), slices[~alone]
        batch, slices = _chosen_rows(batch, alone), slices[alone]
        if (slices[1:] < slices[:-1]).any():
            order = np.argsort(slices, kind="stable")
            batch, slices = batch.take(order), slices[order]
        return (batch, slices), others


def _surely_differ(slices: Int64s, hashes: npt.NDArray[np.uint64]) -> bool:
    """Whether surely no two deltas are of one group.

    Args:
        slices: of each, int64 (n,).
        hashes: of their keys, uint64 (n,).
    """
    table = np.full(1 << (2 * len(slices)).bit_length(), -1, np.int32)
    return bool(_are_different(table, slices, hashes))


def _chosen_rows(batch: Batch, chosen: npt.NDArray[np.bool_]) -> Batch:
    """Return the chosen rows: a view if they lie beside one another."""
    rows = np.flatnonzero(chosen)
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return batch.slice(int(rows[0]), int(rows[-1]) + 1)
    return batch.take(rows)


@njit(cache=True, nogil=True)
def _are_different(table: Any, slices: Any, hashes: Any) -> bool:
    mask = np.uint64(len(table) - 1)
    for row in range(len(slices)):
        mixed = (hashes[row] ^ np.uint64(slices[row])) * np.uint64(0x9E3779B97F4A7C15)
        at = (mixed ^ (mixed >> np.uint64(32))) & mask
        while table[at] >= 0:
            other = table[at]
            if slices[other] == slices[row] and hashes[other] == hashes[row]:
                return False
            at = (at + np.uint64(1)) & mask
        table[at] = row
    return True
