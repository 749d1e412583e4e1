"""`RowLog`: rows by their number, in the order in which they were appended.

Columns are kept as batches, which are concatenated so that each is at least twice as large as the
next one: a row is copied a logarithmic number of times, and a look-up meets few batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...transport.wire.batch import Batch

__all__ = ["RowLog"]

Int64s = npt.NDArray[np.int64]

_BATCH_BYTES_MAX = 256 << 20


class RowLog:
    """Rows of one schema, numbered from 0."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    @property
    def nbytes(self) -> int:
        """Bytes of memory for the columns."""
        return sum(batch.nbytes for batch in self._batches)

    def append(self, rows: Batch) -> None:
        """Add rows, which the log then owns."""
        batches = self._batches
        batches.append(rows)
        merged = 1
        while merged < len(batches):
            before, after = batches[-merged - 1], sum(b.num_rows for b in batches[-merged:])
            size = sum(b.nbytes for b in batches[-merged - 1 :])
            if before.num_rows >= 2 * after or size > _BATCH_BYTES_MAX:
                break
            merged += 1
        if merged > 1:
            batches[-merged:] = [Batch.concat(batches[-merged:])]

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
