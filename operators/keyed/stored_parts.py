"""`StoredParts`: in which parts rows are taken whose keys' records may be on the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...state.disk_traffic import ROWS_MEASURED
from ...state.keys import hash_keys

if TYPE_CHECKING:
    from ...state.store import KeyedStore
    from ...transport.wire.batch import Batch

__all__ = ["StoredParts"]

Slots = npt.NDArray[np.int64]

_PASS_ROWS_MIN = 256
_GATHERED_BYTES_MAX = 1 << 30
"""Of rows for a pass, which are one batch: a column of it holds at most 2 GiB of text."""


class StoredParts:
    """Divides rows by where the records of their keys lie, once these come from the disk.

    Args:
        store: the records.
        keys: the key columns of the rows.
        begin: is called with the rows of a part and their records, before they are taken.
        settle: is called once they have been taken.
    """

    def __init__(
        self,
        store: KeyedStore,
        keys: Sequence[str],
        begin: Callable[[Batch, Slots], None],
        settle: Callable[[], None],
    ) -> None:
        self._store, self._keys = store, keys
        self._begin, self._settle = begin, settle
        self._set_aside_bytes = 0

    def of(self, batch: Batch) -> Iterator[tuple[Batch, Slots | None]]:
        """Yield rows in parts, and their records if these come from the disk: int64 (n,).

        Rows of one key keep their order.
        """
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
                yield from self._passes(left)
            elif left.num_rows:
                yield left, None

    def _passes(self, batch: Batch) -> Iterator[tuple[Batch, Slots]]:
        self._settle()
        hashes, _ = hash_keys(batch, self._keys)
        for rows, slots in self._store.passes(hashes, batch.select(self._keys)):
            part = batch.take(rows)
            self._begin(part, slots)
            yield part, slots
            self._settle()

    @property
    def bytes_gathered_max(self) -> int:
        """How many bytes of rows may wait for a pass; 0 unless records come from the disk.

        Their memory is set aside before that, while the index leaves room for it.
        """
        if not self._store.spills:
            return 0
        if not self._set_aside_bytes:
            self._set_aside_bytes = self._store.set_aside_share(_GATHERED_BYTES_MAX)
        return self._set_aside_bytes if self._store.traffic.is_heavy else 0

    def close(self) -> None:
        """Give the memory back that was set aside."""
        self._store.give_back(self._set_aside_bytes)
        self._set_aside_bytes = 0
