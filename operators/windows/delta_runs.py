"""`DeltaRuns`: deltas that wait on the disk, to be merged into groups that lie there, too.

A memtable that is full is written behind what waits already, and nothing is read for that. Only
when as many bytes wait as the groups take are all deltas merged into these, region by region of the
memory in which they lie: each region is read and written once for as many deltas as have come. This
is the merge of a log-structured tree of two levels (O'Neil et al. 1996) whose lower level stays in
place. Each delta is written and read once, and so is, for each delta, one group: not two pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...state.spill import SpillFile, SpillRecord
from .grouping import SLICE

if TYPE_CHECKING:
    from ...state.budget import StateBudget
    from ...transport.wire.batch import Batch

__all__ = ["DeltaRuns"]


class DeltaRuns:
    """The deltas of one operator on one worker that are on the disk.

    Args:
        operator: its id.
        budget: the worker's; it is charged for the room on the disk.
    """

    def __init__(self, operator: str, budget: StateBudget) -> None:
        self._operator, self._budget = operator, budget
        self._file = SpillFile(operator, budget.disk_bytes_max, budget.disk_folder)
        self._by_region: dict[int, list[SpillRecord]] = {}
        self._charged_bytes = 0
        self.earliest_slice: int | None = None

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over the regions of which deltas wait."""
        return iter(self._by_region)

    def has_room(self, nbytes: int, beside: int) -> bool:
        """Whether so many bytes of deltas are to wait on the disk.

        They are not if those that wait take as much as the groups, or if there is no room there for
        them and what else comes there meanwhile: groups need it first.
        """
        groups_bytes = self._budget.spilled_by(self._operator) - self._charged_bytes
        if self._charged_bytes + nbytes > groups_bytes:
            return False
        return self._budget.has_room_on_disk(nbytes + beside)

    def append(self, region: int, deltas: Batch) -> None:
        """Let deltas of groups of a region wait, with the slice of each as `SLICE`.

        Raises:
            ResourceError: the disk does not take them.
        """
        record = self._file.append(deltas)
        self._by_region.setdefault(region, []).append(record)
        self._budget.charge(self._operator, record.length, on_disk=True)
        self._charged_bytes += record.length
        earliest = int(deltas.column(SLICE).data.min())
        if self.earliest_slice is None or earliest < self.earliest_slice:
            self.earliest_slice = earliest

    def of(self, region: int) -> Iterator[Batch]:
        """Yield the deltas of a region as they came, each once."""
        for record in self._by_region.pop(region, ()):
            yield self._file.read(record)

    def close(self) -> None:
        """Forget all deltas, and give their room back."""
        self._file.close()
        self._budget.give_back(self._operator, self._charged_bytes, on_disk=True)
        self._by_region, self._charged_bytes, self.earliest_slice = {}, 0, None
