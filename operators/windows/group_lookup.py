"""`GroupLookup`: finds the groups of rows: in a cache, in the batch itself, or in the index.

In front of the indexes stands a direct-mapped cache of slots, as the combiner of Slash's chapter 3
stands in front of its hash table: a row whose group is in it costs a comparison, and no look at the
index. For keys of text, which the cache does not know, the rows of a batch are combined before
(`BatchCombiner`). Where groups are so many that neither is of use, counts and sums are updated as
each group is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .batch_combiner import BatchCombiner
from .slot_cache import SlotCache

if TYPE_CHECKING:
    from ...state.field_updates import FieldUpdate
    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from .slice_stores import SliceStores

__all__ = ["GroupLookup"]

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


class GroupLookup:
    """Finds groups in the stores of one `GroupState`.

    Args:
        keys: the key columns.
        stores: where the groups are.
    """

    def __init__(self, keys: Schema, stores: SliceStores) -> None:
        self._stores = stores
        self._cache, self._combiner = SlotCache(keys), BatchCombiner(keys)

    def slots(self, slices: Int64s, hashes: Hashes, keys: Batch) -> Int64s:
        """Return the slot of each row's group; see `GroupState.slots`."""
        known = self._cache.look_up(slices, hashes, keys)
        if known is None:
            return self._entered(slices, hashes, keys)
        slots, missed = known
        if not len(missed):
            return slots
        if len(missed) < len(slots):
            found = self._entered(slices[missed], hashes[missed], keys.take(missed))
            slots[missed] = found
        else:
            slots = self._entered(slices, hashes, keys)
        self._cache.enter(slices, hashes, keys, slots, missed)
        return slots

    def _entered(self, slices: Int64s, hashes: Hashes, keys: Batch) -> Int64s:
        combined = self._combiner.combine(slices, hashes, keys)
        if combined is None:
            return self._stores.slots(slices, hashes, keys)
        firsts, groups = combined
        found = self._stores.slots(slices[firsts], hashes[firsts], keys.take(firsts))
        return found[groups]

    @property
    def may_update(self) -> bool:
        """Whether rows are better added to their groups by `update`."""
        return self._cache.is_bypassed and not self._combiner.is_of_use

    def update(
        self, slices: Int64s, hashes: Hashes, keys: Batch, updates: Sequence[FieldUpdate]
    ) -> Int64s | None:
        """Do what `slots` does, and updates for each row; None: it is for rows of one slice."""
        slots = self._stores.update(slices, hashes, keys, updates)
        if slots is not None:
            self._cache.pass_over()
        return slots

    def forget(self) -> None:
        """Forget slots: of freed slices, which may come back, or of a sealed store.

        Those of a sealed store must be looked up before they are written to.
        """
        self._cache.forget()
