"""`GroupRecords`: the records of groups on the disk, as rows that wait for a pass meet them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from .deltas import delta_columns
from .grouping import SLICE

if TYPE_CHECKING:
    from ...state.store import KeyedStore
    from ...transport.wire.batch import Batch
    from .group_state import GroupState
    from .slice_stores import SliceStores

__all__ = ["GroupRecords", "slices_in"]

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_PIECE_ROWS = 1 << 16
"""Of rows without a place, or with few neighbours, so many are a piece."""


def slices_in(rows: Batch) -> Int64s:
    """Return the slice of each row: in the column `SLICE`, or of deltas; 0 without either."""
    deltas = delta_columns(rows.schema)
    name = SLICE if deltas is None else deltas.slice
    return rows.column(name).data if name in rows.schema else np.zeros(rows.num_rows, np.int64)


class GroupRecords:
    """The records of the groups of rows, or of deltas; see `StoredRecords`.

    Args:
        groups: whose records these are.
        stores: where they are.
        memory: a store of the same log and layout.
        keys: the key columns.
    """

    def __init__(
        self, groups: GroupState, stores: SliceStores, memory: KeyedStore, keys: Sequence[str]
    ) -> None:
        self._groups, self._stores, self._keys = groups, stores, keys
        self.memory = memory

    def places(self, rows: Batch) -> Int64s:
        """See `StoredRecords`."""
        return self._stores.places(slices_in(rows), self._hashes(rows))

    def slots_at(self, rows: Batch, places: Int64s) -> Int64s:
        """See `StoredRecords`."""
        slices = slices_in(rows)
        self._stores.confirm(places, slices, self._hashes(rows), rows.select(self._keys))
        if self._groups.is_sealed:
            is_there = places >= 0
            self._groups.note(slices[is_there], places[is_there])
        return places

    def in_pieces(self, rows: Batch) -> Iterator[tuple[Batch, Int64s]]:
        """See `StoredRecords`."""
        for start in range(0, rows.num_rows, _PIECE_ROWS):
            piece = rows.slice(start, start + _PIECE_ROWS)
            keys = piece.select(self._keys)
            yield piece, self._groups.slots(slices_in(piece), self._hashes(piece), keys)

    def growth_bytes(self, keys: int) -> int:
        """See `StoredRecords`."""
        return sum(store.growth_bytes(keys) for store in self._stores)

    def _hashes(self, rows: Batch) -> Hashes:
        return hash_keys(rows, self._keys)[0]
