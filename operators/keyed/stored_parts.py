"""`StoredParts`: in which parts rows are taken whose keys' records may be on the disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...state.disk_traffic import ROWS_MEASURED
from ...state.keys import hash_keys, stable_partition
from ...state.region_runs import RegionRuns
from ...transport.wire.batch import Batch
from ...transport.wire.codec import message_size

if TYPE_CHECKING:
    from ...state.budget import StateBudget
    from ...state.store import KeyedStore

__all__ = ["StoredParts"]

Slots = npt.NDArray[np.int64]

_PASS_ROWS_MIN = 256
_NEW = -1
"""The region of keys without a record."""
_GATHERED_BYTES_MAX = 1 << 30
"""Of rows for a pass, which are one batch: a column of it holds at most 2 GiB of text."""


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
        self._store, self._keys = store, keys
        self._begin, self._settle = begin, settle
        self._set_aside_bytes = 0
        self._runs = RegionRuns(operator, budget)

    def of(self, batch: Batch) -> Iterator[tuple[Batch, Slots | None]]:
        """Yield rows in parts, and their records if these come from the disk: int64 (n,).

        Rows of one key keep their order, and follow those that were put off.
        """
        if self._runs.rows:
            with self._store.traffic.measured(self._runs.rows.total() + batch.num_rows):
                yield from self._with_put_off(batch)
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

    def put_off(self, batch: Batch) -> bool:
        """Let rows wait on the disk until the next call of `of`.

        Returns: whether there is room for them.
        """
        by_region = self._by_region(batch)
        nbytes = sum(message_size(rows, 0, rows.has_times) for rows in by_region.values())
        if not self._runs.has_room(nbytes, self._store.growth_bytes(batch.num_rows)):
            return False
        for region, rows in by_region.items():
            self._runs.append(region, rows)
        self._runs.start_writing()
        return True

    def _by_region(self, batch: Batch) -> dict[int, Batch]:
        """Return the rows of each region, with their places; `_NEW`: of keys without a record."""
        hashes, _ = hash_keys(batch, self._keys)
        places = self._store.places_in_passes(hashes)
        regions = self._store.regions(places)
        first = int(regions.min(initial=0))
        order, counts = stable_partition(regions - first, int(regions.max(initial=0)) - first + 1)
        ends = np.cumsum(counts).tolist()
        ordered = batch.take(order).with_column(_name_beside(batch), places[order])
        return {
            first + number: ordered.slice(ends[number] - count, ends[number])
            for number, count in enumerate(counts.tolist())
            if count
        }

    def _with_put_off(self, batch: Batch) -> Iterator[tuple[Batch, Slots]]:
        """Yield the rows that were put off and those of a batch, region by region."""
        own = self._by_region(batch) if batch.num_rows else {}
        rows = self._runs.rows + Counter({region: one.num_rows for region, one in own.items()})
        pages = self._store.region_pages
        dense = sorted(one for one, count in rows.items() if one != _NEW and count >= pages)
        for region, following in zip(self._store.passed(dense), (*dense, None)[1:], strict=True):
            for part, places in self._of_region(region, own, following):
                hashes, _ = hash_keys(part, self._keys)
                slots = self._store.slots_at(places, hashes, part.select(self._keys))
                self._begin(part, slots)
                yield part, slots
                self._settle()
        for region in sorted({*rows}.difference(dense), reverse=True):
            for part, _ in self._of_region(region, own):
                yield from self._passes(part)
        self._runs.close()

    def _of_region(
        self, region: int, own: Mapping[int, Batch], following: int | None = None
    ) -> Iterator[tuple[Batch, Slots]]:
        """Yield the rows of a region that were put off, then those in memory, and their places."""
        last = (own[region],) if region in own else ()
        for part in self._runs.taken(region, following, last):
            *names, place = part.schema.names
            yield part.select(names), part.column(place).data.copy()

    def forget(self) -> None:
        """Forget the rows that were put off."""
        self._runs.close()

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
        """Forget the rows that were put off, and give the memory back that was set aside."""
        self.forget()
        self._store.give_back(self._set_aside_bytes)
        self._set_aside_bytes = 0


def _name_beside(batch: Batch) -> str:
    """Return a name for a column that no column of a batch has."""
    return "#" + max(batch.schema.names, key=len)
