"""`RowQueue`: rows in the order in which they came, until nothing more can come of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .asof_kernels import NONE
from .row_log import RowLog

if TYPE_CHECKING:
    from ...state.page_file import PageFile
    from ...transport.wire.batch import Batch

__all__ = ["NONE", "RowQueue"]

Int64s = npt.NDArray[np.int64]

_ROWS_MIN = 1024


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
    """

    def __init__(self) -> None:
        self.log = RowLog()
        self.times, self.owners, self.following = (np.empty(_ROWS_MIN, np.int64) for _ in range(3))
        self.first = self.count = self.generation = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory for the rows."""
        arrays = (self.times, self.owners, self.following)
        return self.log.nbytes + sum(array.nbytes for array in arrays)

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
        owners = self.owners[: self.count]
        owned = np.flatnonzero(owners != NONE)
        if self.count <= 2 * len(owned) or (self.count < _ROWS_MIN and len(owned)):
            return False
        renumbered = np.full(self.count + 1, NONE, np.int64)  # NONE, the last, stays NONE
        renumbered[owned] = np.arange(len(owned))
        keys = owners[owned]
        heads[keys] = renumbered[heads[keys]]
        following = renumbered[self.following[owned]] if len(owned) else owned
        times = self.times[owned]
        self.first, self.count, self.generation = 0, len(owned), self.generation + 1
        self._resize(2 * len(owned))
        for array, kept in zip(
            (self.times, self.owners, self.following), (times, keys, following), strict=True
        ):
            array[: self.count] = kept
        self.log.keep_only(owned, pages)
        return True

    def _resize(self, rows: int) -> None:
        for name in ("times", "owners", "following"):
            new = np.empty(max(rows, _ROWS_MIN), np.int64)
            old = getattr(self, name)[: self.count]
            new[: len(old)] = old
            setattr(self, name, new)
