"""`HeldSlices`: deltas of windows that overlap, by slice, which need not go into a store.

Producers' deltas mostly leave as a watermark closes the first window of their slice. Then a few
batches are all that the slice ever gets, and each of its windows is merged from these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...transport.wire.batch import Batch

if TYPE_CHECKING:
    from ..process import InstanceContext

__all__ = ["HeldSlices"]

Int64s = npt.NDArray[np.int64]

_SLICES_MAX = 64
"""Deltas of more slices go into stores, which small slices share."""
_SHARE_OF_FREE = 4
"""Deltas take a quarter of the free memory for state at most: they cannot be moved to the disk."""


class HeldSlices:
    """Batches of deltas, by slice, in the order in which they came; they count as state."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Batch]] = {}
        self._nbytes: dict[int, int] = {}
        self._context: InstanceContext | None = None

    @property
    def slices(self) -> tuple[int, ...]:
        """The slices that have deltas here, in the order in which they came."""
        return tuple(self._parts)

    def take(self, batch: Batch, slices: Int64s, context: InstanceContext) -> bool:
        """Keep a copy of deltas; return False if there is no room for it beside the others."""
        budget, taken_bytes = context.state_budget, sum(self._nbytes.values())
        if taken_bytes + _most_bytes(batch) > (budget.free_bytes + taken_bytes) // _SHARE_OF_FREE:
            return False
        found = np.unique(slices)
        if len(found) + len(self._parts) > _SLICES_MAX:
            return False
        others = next(iter(self._parts.values()), None)
        if others is not None and others[0].schema != batch.schema:
            return False
        self._context = context
        for slice_ in found.tolist():
            part = batch.take(np.flatnonzero(slices == slice_))
            self._parts.setdefault(slice_, []).append(part)
            self._charge(slice_)
        return True

    def of(self, slice_: int) -> Batch | None:
        """Return the deltas of a slice in the order in which they came; None if there are none."""
        parts = self._parts.get(slice_)
        if parts is None:
            return None
        if len(parts) > 1:
            self.replace(slice_, Batch.concat(parts))
        return self._parts[slice_][0]

    def replace(self, slice_: int, deltas: Batch) -> None:
        """Keep other deltas of a slice, which say the same."""
        self._parts[slice_] = [deltas]
        self._charge(slice_)

    def free(self, slice_: int) -> None:
        """Forget the deltas of a slice."""
        del self._parts[slice_]
        self._charge(slice_)

    def give_back(self) -> tuple[Batch, Int64s] | None:
        """Return all deltas and their slices, and keep them no more; None if there are none."""
        if not self._parts:
            return None
        parts = [(one, slice_) for slice_, batches in self._parts.items() for one in batches]
        for slice_ in self.slices:
            self.free(slice_)
        batches, slices = zip(*parts, strict=True)
        return Batch.concat(batches), np.repeat(slices, [one.num_rows for one in batches])

    def _charge(self, slice_: int) -> None:
        """Let the budget know what a slice takes now."""
        assert self._context is not None
        budget, operator = self._context.state_budget, self._context.operator_id
        parts = self._parts.get(slice_, ())
        before, now = self._nbytes.pop(slice_, 0), sum(map(_most_bytes, parts))
        if now > before:
            budget.take(operator, now - before, sum(one.num_rows for one in parts))
        else:
            budget.give_back(operator, before - now)
        if now:
            self._nbytes[slice_] = now


def _most_bytes(batch: Batch) -> int:
    """Return what rows take at most, also once they are one batch with others that have nulls."""
    without_nulls = sum(column.validity is None for column in batch.columns)
    return batch.nbytes + batch.num_rows * without_nulls
