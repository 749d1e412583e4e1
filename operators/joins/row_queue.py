"""`RowQueue`: rows in the order in which they came, until nothing more can come of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit
from .asof_kernels import NONE
from .kept_arrays import KeptArrays
from .row_log import RowLog

if TYPE_CHECKING:
    from ...state.page_file import PageFile
    from ...transport.wire.batch import Batch

__all__ = ["NONE", "RowQueue"]

Int64s = npt.NDArray[np.int64]

_ROWS_MIN = 1024
_PLACES = dict.fromkeys(("times", "owners", "following"), np.dtype(np.int64))


class RowQueue:
    """Rows of one side of a join, numbered from 0, that belong to keys or sessions.

    Attributes:
        times: event times by number, int64; beyond `count`, anything.
        owners: the record of the key or session that a row belongs to, int64; NONE once nothing
            more can come of the row.
        following: the next older row of the same owner, or NONE, int64.
        first: rows before this number have no owner.
        count: the number of rows.
        generation: how many times rows were numbered anew.
        log: the columns of the rows.
        places: where times, owners and following rows are.
    """

    def __init__(self) -> None:
        self.log = RowLog()
        self.places = KeptArrays(_PLACES)
        self.first = self.count = self.generation = 0
        self._resize(_ROWS_MIN)

    @property
    def times(self) -> Int64s:
        """See the attributes."""
        return self.places["times"]

    @property
    def owners(self) -> Int64s:
        """See the attributes."""
        return self.places["owners"]

    @property
    def following(self) -> Int64s:
        """See the attributes."""
        return self.places["following"]

    @property
    def nbytes(self) -> int:
        """Bytes of memory for the rows."""
        return self.log.nbytes + self.places.nbytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes on the disk for the rows."""
        return self.log.spilled_bytes + self.places.spilled_bytes

    def growth(self, rows: int) -> int:
        """Return how many bytes `add` takes for so many rows, beside their columns."""
        stop = self.count + rows
        return 16 * len(_PLACES) * stop if stop > len(self.times) else 0

    def add(self, rows: Batch, owners: Int64s) -> None:
        """Add rows with times, which the queue then owns, after all others."""
        assert rows.times is not None  # checked while the topology was built
        stop = self.count + rows.num_rows
        if stop > len(self.times):
            self._resize(2 * stop)
        self.times[self.count : stop] = rows.times
        self.owners[self.count : stop] = owners
        self.following[self.count : stop] = NONE
        self.count = stop
        self.log.append(rows.with_times(None))

    def take(self, numbers: Int64s) -> Batch:
        """Return the columns of rows, at least one."""
        return self.log.take(numbers)

    def owned(self) -> Batch | None:
        """Return the rows that have an owner, with their times; None if there are none."""
        numbers = np.flatnonzero(self.owners[: self.count] != NONE)
        return self.take(numbers).with_times(self.times[numbers]) if len(numbers) else None

    def between(self, first: int, stop: int) -> Iterator[Batch]:
        """Yield the rows first … stop − 1 with their times, as views of what never changes."""
        for batch in self.log.between(first, stop):
            yield batch.with_times(self.times[first : first + batch.num_rows])
            first += batch.num_rows

    def drop_unowned(self, heads: Int64s, pages: PageFile) -> bool:
        """Drop the rows without an owner if they are more than the others, and number anew.

        Args:
            heads: the row that each owner holds, by record; these get their new numbers.
            pages: where rows are that are on the disk.

        Returns:
            whether rows were dropped.
        """
        count = self.count
        kept = int(np.count_nonzero(self.owners[:count] != NONE))
        if count <= 2 * kept or (count < _ROWS_MIN and kept):
            return False
        numbers = self.places.made(kept, np.int64)
        anew = self.places.made(count, np.int64)
        drop_rows(count, self.owners, self.following, heads, numbers, anew)
        times = self.times  # stays as it is: snapshots that are yet to be written have views of it
        self.first, self.count, self.generation = 0, kept, self.generation + 1
        self._resize(2 * kept)
        np.take(times, numbers, out=self.times[:kept], mode="clip")  # "raise" copies before
        self.log.keep_only(numbers, pages)
        return True

    def _resize(self, rows: int) -> None:
        sizes = dict.fromkeys(_PLACES, max(rows, _ROWS_MIN))
        self.places.resize(sizes, dict.fromkeys(_PLACES, self.count))


@njit(cache=True, nogil=True)
def drop_rows(count: int, owners: Any, following: Any, heads: Any, numbers: Any, anew: Any) -> None:
    """Let the rows that have an owner be the first ones, in their order, but for their times.

    Args:
        count: how many rows there are.
        owners, following: as in `RowQueue`.
        heads: see `RowQueue.drop_unowned`.
        numbers: is filled with the numbers that the kept rows had.
        anew: is filled with the new number of each row, NONE if it has none, int64 (count,).
    """
    kept = 0
    for row in range(count):
        owner = owners[row]
        anew[row] = NONE
        if owner != NONE:
            anew[row], numbers[kept] = kept, row
            kept += 1
            if heads[owner] != NONE and owners[heads[owner]] == NONE:
                heads[owner] = NONE
    for new in range(kept):
        row = numbers[new]
        owner, behind = owners[row], following[row]
        owners[new] = owner
        following[new] = anew[behind] if behind != NONE else NONE
        if heads[owner] == row:  # rows are renumbered downwards, so it was not renumbered yet
            heads[owner] = new
