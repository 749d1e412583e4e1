"""`StoredParts`: in which parts rows are taken whose keys' records may be on the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...state.disk_traffic import ROWS_MEASURED
from ...state.keys import hash_keys
from ...state.memory_for_rows import MemoryForRows
from ...state.pending_rows import PendingRows
from ...transport.wire.batch import Batch

if TYPE_CHECKING:
    from ...state.budget import StateBudget
    from ...state.store import KeyedStore

__all__ = ["StoredParts"]

Slots = npt.NDArray[np.int64]

_PASS_ROWS_MIN = 256
_GATHERED_BYTES_MAX = 1 << 30
"""Of rows for a pass, which are one batch: a column of it holds at most 2 GiB of text."""


class _RecordsByKey:
    """The records of the keys of rows, see `StoredRecords`."""

    def __init__(self, store: KeyedStore, keys: Sequence[str]) -> None:
        self._store, self._keys = store, keys

    def places(self, rows: Batch) -> Slots:
        return self._store.places_in_passes(hash_keys(rows, self._keys)[0])

    def slots_at(self, rows: Batch, places: Slots) -> Slots:
        self._store.confirm(places, hash_keys(rows, self._keys)[0], rows.select(self._keys))
        self._store.note(places[places >= 0])
        return places

    def in_pieces(self, rows: Batch) -> Iterator[tuple[Batch, Slots]]:
        hashes, _ = hash_keys(rows, self._keys)
        for piece, slots in self._store.passes(hashes, rows.select(self._keys)):
            yield rows.take(piece), slots

    def growth_bytes(self, keys: int) -> int:
        return self._store.growth_bytes(keys)


class StoredParts:
    """Divides rows by where the records of their keys lie, once these come from the disk.

    Args:
        operator: its id.
        budget: the worker's.
        store: the records.
        keys: the key columns of the rows.
        begin: is called with the rows of a part and their records, before they are taken.
        settle: is called once they have been taken.
    """

    def __init__(
        self,
        operator: str,
        budget: StateBudget,
        store: KeyedStore,
        keys: Sequence[str],
        begin: Callable[[Batch, Slots], None],
        settle: Callable[[], None],
    ) -> None:
        self._store = store
        self._begin, self._settle = begin, settle
        self._memory = MemoryForRows(store, budget.limit_bytes, bytes_max=_GATHERED_BYTES_MAX)
        self._records = _RecordsByKey(store, keys)
        self._waiting = PendingRows(operator, budget, self._records, store)

    def of(self, batch: Batch) -> Iterator[tuple[Batch, Slots | None]]:
        """Yield rows in parts, and their records if these come from the disk: int64 (n,).

        Rows of one key keep their order, and follow those that were put off.
        """
        if waiting := len(self._waiting):
            with self._store.traffic.measured(waiting + batch.num_rows):
                yield from self._settled(self._waiting.taken(batch))
            return
        if not self._store.spills or not batch.num_rows:
            yield batch, None
            return
        traffic, start = self._store.traffic, 0
        while start < batch.num_rows and not traffic.is_heavy:
            stop = min(start + ROWS_MEASURED, batch.num_rows)
            with traffic.measured(stop - start):
                yield batch.slice(start, stop), None
            start = stop
        left = batch.slice(start)
        with traffic.measured(left.num_rows):
            if left.num_rows >= _PASS_ROWS_MIN:
                yield from self._settled(self._records.in_pieces(left))
            elif left.num_rows:
                yield left, None

    def _settled(self, parts: Iterator[tuple[Batch, Slots]]) -> Iterator[tuple[Batch, Slots]]:
        """Yield parts of a pass, each settled before the next one is looked up."""
        self._settle()
        for part, slots in parts:
            self._begin(part, slots)
            yield part, slots
            self._settle()

    def put_off(self, batch: Batch) -> bool:
        """Let rows wait on the disk until the next call of `of`.

        Returns: whether there is room for them.
        """
        return self._waiting.put_off(batch) is not None

    def forget(self) -> None:
        """Forget the rows that were put off."""
        self._waiting.close()

    @property
    def bytes_gathered_max(self) -> int:
        """How many bytes of rows may wait for a pass; 0 unless records come from the disk.

        Their memory is taken before that, while the index leaves room for it.
        """
        if not self._store.spills or not self._memory.take():
            return 0
        self._memory.leave_room()
        return self._memory.nbytes if self._store.traffic.is_heavy else 0

    def close(self) -> None:
        """Forget the rows that were put off, and give the memory back that was set aside."""
        self.forget()
        self._memory.close()
