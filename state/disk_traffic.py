"""`DiskTraffic`: what one operator's state on the disk moves there, and whether that is too much.

Pages of state on the disk may all be in memory, as long as the kernel has room for them. Then a row
that changes its record where it lies costs what a row costs in memory. Else it costs a page read
and a page written, and rows are better gathered for a pass over all records, which costs each row
something, too, but each page only once for many rows.

Which it is, is not known beforehand and changes. So this is the choice of whether to rent or to buy
(Karlin et al. 1988): rows are taken one by one until the pages that were moved for them have cost
what a pass over all of the state costs, and are gathered from then on. As long as passes move
pages, too, it remains so; once they do not, since the kernel has memory again, the debt is paid off
row by row, and rows are taken one by one again. So neither choice costs much more than the other
for long.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

__all__ = ["ROWS_MEASURED", "DiskTraffic", "Moved", "moved_by_thread"]

ROWS_MEASURED = 1 << 13
"""After so many rows is looked: soon enough if each reads a page, and rarely if none does."""

_SECTOR_BYTES = 512
"""The unit of `ru_inblock` and `ru_oublock`, whatever the disk has."""

_READ_COSTS = 10
"""A page read at random is waited for: it costs what ten that are written in passing cost."""
_GATHERED_ROW_BYTES = 256
"""To gather a row and take it in a pass costs about what the disk takes for so many bytes."""
_DEBT_BYTES_MAX = 256 << 20
"""With much state it is known to come from the disk long before a pass is paid for."""


class Moved(NamedTuple):
    """Bytes read from the disk, and bytes of pages in memory that have become unlike the disk's."""

    read_bytes: int
    written_bytes: int


def moved_by_thread() -> Moved:
    """Return what this thread has moved so far, as the kernel counts it."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return Moved(usage.ru_inblock * _SECTOR_BYTES, usage.ru_oublock * _SECTOR_BYTES)


class DiskTraffic:
    """Decides for one operator on one worker whether rows are gathered for passes.

    Args:
        bytes_on_disk: returns how much of the state is there.
        moved: returns what the calling thread has moved so far.
    """

    def __init__(
        self, bytes_on_disk: Callable[[], int], moved: Callable[[], Moved] = moved_by_thread
    ) -> None:
        self._bytes_on_disk, self._moved = bytes_on_disk, moved
        self._debt_bytes = 0
        self._is_heavy = False

    @property
    def is_heavy(self) -> bool:
        """Whether rows are better gathered."""
        return self._is_heavy

    @contextmanager
    def measured(self, rows: int) -> Iterator[None]:
        """Count what the block moves for so many rows."""
        on_disk_bytes = self._bytes_on_disk()
        if not on_disk_bytes:
            yield
            return
        before = self._moved()
        yield
        after = self._moved()
        cost = _READ_COSTS * (after.read_bytes - before.read_bytes)
        cost += after.written_bytes - before.written_bytes
        self._note(cost - _GATHERED_ROW_BYTES * rows, on_disk_bytes)

    def _note(self, cost_bytes: int, on_disk_bytes: int) -> None:
        pass_bytes = min(2 * on_disk_bytes, _DEBT_BYTES_MAX)  # each page is read and written
        self._debt_bytes = min(max(self._debt_bytes + cost_bytes, 0), 2 * pass_bytes)
        if self._debt_bytes > pass_bytes:
            self._is_heavy = True
        elif not self._debt_bytes:
            self._is_heavy = False
