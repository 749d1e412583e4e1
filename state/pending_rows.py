"""`PendingRows`: rows that wait on the disk until a pass over their records, which lie there, too.

Whoever has rows whose records come from the disk lets them wait here, and takes all of them at
once: region by region of the memory of the records, each of which is read and written once however
many rows it serves (see `RegionRuns`). Rows of one record keep their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from ..transport.wire.batch import Batch
from ..transport.wire.codec import message_size
from .keys import stable_partition
from .region_runs import RegionRuns

if TYPE_CHECKING:
    from .budget import StateBudget

__all__ = ["PendingRows", "RecordRegions", "StoredRecords"]

Slots = npt.NDArray[np.int64]

NEW = -1
"""The region of rows without a record."""
_ELSEWHERE_ROWS = 1 << 13
"""For so many rows the disk is asked at a time, see `PageFetcher`."""


class RecordRegions(Protocol):
    """The memory of records, by region; see `KeyedStore`."""

    @property
    def region_pages(self) -> int:
        """How many pages a region has."""

    def regions(self, places: Slots) -> Slots:
        """Return in which region each record lies."""

    def passed(self, regions: Iterable[int]) -> Iterator[int]:
        """Yield regions in their order."""


class StoredRecords(Protocol):
    """The records that rows change, of one or more stores that share a log."""

    def places(self, rows: Batch) -> Slots:
        """Return the record of each row as the index alone tells, see `KeyedStore.places`."""

    def slots_at(self, rows: Batch, places: Slots) -> Slots:
        """Return the record of each row; -1 if it is not where the index has told.

        The pages are there. The second argument is overwritten.
        """

    def in_pieces(self, rows: Batch) -> Iterator[tuple[Batch, Slots]]:
        """Yield rows and their records, which may be made, wherever these are."""

    def growth_bytes(self, keys: int) -> int:
        """Return by how much the index and the records grow if so many keys are added, at most."""


class PendingRows:
    """The rows of one operator on one worker that wait.

    Args:
        operator: its id.
        budget: the worker's; it is charged for the room on the disk.
        records: what the rows change.
        memory: in which these lie.
    """

    def __init__(
        self, operator: str, budget: StateBudget, records: StoredRecords, memory: RecordRegions
    ) -> None:
        self._records, self._memory = records, memory
        self._runs = RegionRuns(operator, budget)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._runs.rows.total()

    def put_off(self, rows: Batch, *, new_wait: bool = True) -> Batch | None:
        """Let rows wait on the disk until the next call of `taken`.

        Args:
            rows: with columns of the same types as those that wait.
            new_wait: whether those without a record wait, too: their records are made all at once.

        Returns: the rows that do not wait; None: there is no room, and none do.
        """
        by_region = self._by_region(rows)
        new = by_region.get(NEW, rows.slice(0, 0))
        beside = self._records.growth_bytes(self._runs.rows[NEW] + new.num_rows)
        if not new_wait:
            by_region.pop(NEW, None)
        nbytes = sum(message_size(part, 0, part.has_times) for part in by_region.values())
        if not self._runs.has_room(nbytes, beside):
            return None
        for region, part in by_region.items():
            self._runs.append(region, part)
        self._runs.start_writing()
        return (rows.slice(0, 0) if new_wait else new).select(rows.schema.names)

    def _by_region(self, rows: Batch) -> dict[int, Batch]:
        """Return the rows of each region, with their places."""
        places = self._records.places(rows)
        regions = self._memory.regions(places)
        first, last = int(regions.min(initial=0)), int(regions.max(initial=0))
        regions -= first
        order, counts = stable_partition(regions, last - first + 1)
        ends = np.cumsum(counts).tolist()
        places_of = places.astype(np.uint32)[order]  # a store has fewer records
        ordered = rows.take(order).with_column(_name_beside(rows), places_of)
        return {
            first + number: ordered.slice(ends[number] - count, ends[number])
            for number, count in enumerate(counts.tolist())
            if count
        }

    def taken(self, last: Batch) -> Iterator[tuple[Batch, Slots]]:
        """Yield the rows that wait and others, region by region, and their records.

        They no longer wait. Each part is to be used before the next one is asked for.

        Args:
            last: rows that come behind all that wait.
        """
        own = self._by_region(last) if last.num_rows else {}
        rows = self._runs.rows + Counter({region: one.num_rows for region, one in own.items()})
        pages = self._memory.region_pages
        dense = sorted(one for one, count in rows.items() if one != NEW and count >= pages)
        elsewhere = _Elsewhere(self._records)
        for region, following in zip(self._memory.passed(dense), (*dense, None)[1:], strict=True):
            for part, places in self._of_region(region, own, following):
                slots = self._records.slots_at(part, places)
                is_there = slots >= 0
                if is_there.all():
                    yield part, slots
                    continue
                if is_there.any():
                    yield part.filter(is_there), slots[is_there]
                yield from elsewhere.taken(part.filter(~is_there))
        yield from elsewhere.rest()
        for region in sorted({*rows}.difference(dense, [NEW])):
            for part, _ in self._of_region(region, own):
                yield from self._records.in_pieces(part)
        if not self._runs.rows[NEW]:
            self._runs.close()  # new records may need the room on the disk
        for part, _ in self._of_region(NEW, own):
            yield from self._records.in_pieces(part)
        self._runs.close()

    def _of_region(
        self, region: int, own: Mapping[int, Batch], following: int | None = None
    ) -> Iterator[tuple[Batch, Slots]]:
        """Yield the rows of a region that wait, then those in memory, and their places."""
        last = (own[region],) if region in own else ()
        for part in self._runs.taken(region, following, last):
            *names, place = part.schema.names
            yield part.select(names), part.column(place).data.astype(np.int64)

    def close(self) -> None:
        """Forget the rows, and give their room back."""
        self._runs.close()


class _Elsewhere:
    """Rows whose records lie elsewhere than the index has told, where another one has their tag.

    They are taken together: for each alone the disk would be waited for.
    """

    def __init__(self, records: StoredRecords) -> None:
        self._records = records
        self._rows: list[Batch] = []

    def taken(self, rows: Batch) -> Iterator[tuple[Batch, Slots]]:
        """Keep rows; yield all of them once they are many."""
        self._rows.append(rows)
        if sum(one.num_rows for one in self._rows) >= _ELSEWHERE_ROWS:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[Batch, Slots]]:
        """Yield the rows that are kept, and their records."""
        rows, self._rows = self._rows, []
        if rows:
            yield from self._records.in_pieces(Batch.concat(rows))


def _name_beside(batch: Batch) -> str:
    """Return a name for a column that no column of a batch has."""
    return "#" + max(batch.schema.names, key=len, default="")
