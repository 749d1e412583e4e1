"""`RowLog`: rows by their number, in the order in which they were appended.

Columns are kept as batches, which are concatenated so that each is at least twice as large as the
next one: a row is copied a logarithmic number of times, and a look-up meets few batches. The oldest
ones can lie on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...state.page_file import PageFile
from ...transport.wire.batch import Batch
from ...transport.wire.placed_batch import copy_to

__all__ = ["RowLog"]

Int64s = npt.NDArray[np.int64]

_BATCH_BYTES_MAX = 256 << 20
_SPILLED_BYTES_MIN = 256 << 10
"""Each spilled batch is a mapping of its own, of which a process has 65,530 at most."""


class RowLog:
    """Rows of one schema, numbered from 0."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._on_disk: list[int] = []  # bytes of the oldest batches, when they were in memory

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._batches)

    @property
    def nbytes(self) -> int:
        """Bytes of memory for the columns."""
        return sum(batch.nbytes for batch in self._batches[len(self._on_disk) :])

    @property
    def spilled_bytes(self) -> int:
        """Bytes of the columns that are on the disk."""
        return sum(self._on_disk)

    def append(self, rows: Batch) -> None:
        """Add rows, which the log then owns."""
        batches = self._batches
        batches.append(rows)
        merged = 1
        while merged < len(batches) - len(self._on_disk):
            before, after = batches[-merged - 1], sum(b.num_rows for b in batches[-merged:])
            size = sum(b.nbytes for b in batches[-merged - 1 :])
            if before.num_rows >= 2 * after or size > _BATCH_BYTES_MAX:
                break
            merged += 1
        if merged > 1:
            batches[-merged:] = [Batch.concat(batches[-merged:])]

    @property
    def next_to_spill(self) -> int:
        """Bytes of the oldest batch in memory; 0 if it is too small to be put on the disk."""
        for batch in self._batches[len(self._on_disk) :]:
            return batch.nbytes if batch.nbytes >= _SPILLED_BYTES_MIN else 0
        return 0

    def spill(self, pages: PageFile) -> None:
        """Put the oldest batch in memory into a file of its own; raise as `PageFile.back`."""
        at = len(self._on_disk)
        batch = self._batches[at]
        self._batches[at] = copy_to(batch, pages.memory)
        self._on_disk.append(batch.nbytes)

    def pieces(self, numbers: Int64s) -> Iterator[tuple[Any, Batch]]:
        """Yield rows by the batches that they are in.

        Yields:
            (chosen, rows): which of `numbers`, an index into it, and their columns.
        """
        if len(self._batches) == 1:
            yield slice(None), self._batches[0].take(numbers)
            return
        first = 0
        for batch in self._batches:
            stop = first + batch.num_rows
            chosen = np.flatnonzero((numbers >= first) & (numbers < stop))
            if len(chosen):
                yield chosen, batch.take(numbers[chosen] - first)
            first = stop

    def take(self, numbers: Int64s) -> Batch:
        """Return the rows of these numbers, at least one, in this order."""
        pieces = list(self.pieces(numbers))
        if len(pieces) == 1:
            return pieces[0][1]
        place = np.empty(len(numbers), np.int64)
        place[np.concatenate([chosen for chosen, _ in pieces])] = np.arange(len(numbers))
        return Batch.concat([rows for _, rows in pieces]).take(place)

    def between(self, first: int, stop: int) -> Iterator[Batch]:
        """Yield the rows first … stop − 1, as views of what never changes."""
        start = 0
        for batch in self._batches:
            here, until = max(first - start, 0), min(stop - start, batch.num_rows)
            if here < until:
                yield batch.slice(here, until)
            start += batch.num_rows

    def keep_only(self, numbers: Int64s) -> None:
        """Drop all rows but these, which are numbered anew from 0."""
        self._batches = [self.take(numbers)] if len(numbers) else []
        self._on_disk = []
