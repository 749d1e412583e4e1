"""`RegionRuns`: rows that wait on the disk for a pass over records that lie there, too.

Rows whose records come from the disk are written behind what waits already, and nothing is read for
that. Only when enough of them wait are they taken, region by region of the memory in which their
records lie: each region is read and written once for as many rows as have come. This is the merge
of a log-structured tree of two levels (O'Neil et al. 1996) whose lower level stays in place. Each
row is written and read once, and so is, for each row, one record: not two pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from ..transport.wire.batch import Batch
from .spill import SpillFile, SpillRecord

if TYPE_CHECKING:
    from .budget import StateBudget

__all__ = ["RegionRuns"]

_JOINED_ROWS = 1 << 14
"""What takes rows has a fixed cost for each batch."""


class RegionRuns:
    """The rows of one operator on one worker that wait on the disk.

    Args:
        operator: its id.
        budget: the worker's; it is charged for the room on the disk.

    Attributes:
        rows: region → how many wait.
    """

    def __init__(self, operator: str, budget: StateBudget) -> None:
        self._operator, self._budget = operator, budget
        self._file = SpillFile(operator, budget.disk_bytes_max, budget.disk_folder)
        self._by_region: dict[int, list[SpillRecord]] = {}
        self._charged_bytes = 0
        self.rows: Counter[int] = Counter()

    def has_room(self, nbytes: int, beside: int) -> bool:
        """Whether so many bytes of rows are to wait on the disk.

        They are not if those that wait take as much as the records, or if there is no room there
        for them and what else comes there meanwhile: records need it first.
        """
        records_bytes = self._budget.spilled_by(self._operator) - self._charged_bytes
        if self._charged_bytes + nbytes > records_bytes:
            return False
        return self._budget.has_room_on_disk(nbytes + beside)

    def append(self, region: int, rows: Batch) -> None:
        """Let rows wait whose records lie in a region.

        Raises:
            ResourceError: the disk does not take them.
        """
        record = self._file.append(rows)
        self._by_region.setdefault(region, []).append(record)
        self._budget.charge(self._operator, record.length, on_disk=True)
        self._charged_bytes += record.length
        self.rows[region] += rows.num_rows

    def start_writing(self) -> None:
        """Let the kernel write what was appended: what is read would wait for its pages."""
        self._file.start_writing()

    def taken(self, region: int, following: int | None, last: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the rows of a region as they came, each once, in batches that are not small.

        Args:
            region: whose rows are no longer to wait.
            following: the region that will be asked for next, whose rows are being read meanwhile.
            last: rows that did not wait here, and come behind those that did.
        """
        for record in () if following is None else self._by_region.get(following, ()):
            self._file.start_reading(record)
        self.rows.pop(region, None)
        waiting = map(self._file.read, self._by_region.pop(region, ()))
        found: list[Batch] = []
        rows = 0
        for batch in chain(waiting, last):
            found.append(batch)
            rows += batch.num_rows
            if rows >= _JOINED_ROWS:
                yield Batch.concat(found)
                found, rows = [], 0
        if found:
            yield Batch.concat(found)

    def close(self) -> None:
        """Forget all rows, and give their room back."""
        self._file.close()
        self._budget.give_back(self._operator, self._charged_bytes, on_disk=True)
        self._by_region, self._charged_bytes, self.rows = {}, 0, Counter()
