"""`KeptRows`: the rows of one side of a join in one span of time, found by their key's hash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...state.node_transfer import with_columns
from ...transport.wire.batch import Batch
from ...transport.wire.block import address_of
from ...transport.wire.column import Column
from .kernels import END, NOT_LINKED, link
from .row_log import RowLog

if TYPE_CHECKING:
    from .key_bytes import KeyBytes

    Array = npt.NDArray[Any]

__all__ = ["KeptRows"]

Int64s = npt.NDArray[np.int64]

_DUMPED_ROWS_MAX = 1 << 16


class KeptRows:
    """Rows of one side in one span.

    Attributes:
        log: their columns.
    """

    def __init__(self) -> None:
        self.log = RowLog()
        self._heads = np.full(1024, END, np.int32)
        self._hashes = np.empty(0, np.uint64)
        self._times = np.empty(0, np.int64)
        self._following = np.empty(0, np.int32)
        self._matched = np.empty(0, np.bool_)
        self._ends = np.zeros(1, np.int64)  # with `_pool` as in `KeyBytes`
        self._pool = np.empty(0, np.uint8)
        self._count = 0
        self._table = np.empty(0, np.int64)  # see table; empty once arrays have been replaced

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory for columns and index."""
        index = (self._heads, self._hashes, self._times, self._following, self._matched)
        return sum(a.nbytes for a in (*index, self._ends, self._pool)) + self.log.nbytes

    def add(
        self,
        rows: Batch,
        hashes: Array,
        times: Int64s,
        nulls: Array | None,
        keys: KeyBytes,
        matched: Array,
    ) -> None:
        """Keep rows.

        Args:
            rows: their columns, owned.
            hashes: of their keys, uint64 (n,).
            times: their event times, int64 (n,).
            nulls: which keys are null, and so match nothing, bool (n,), or None.
            keys: of the rows.
            matched: which have been joined already, bool (n,).
        """
        before = keys.before(None)
        self.make_room(rows.num_rows, None if before is None else int(before[-1]))
        first, stop = self._count, self._count + rows.num_rows
        self._hashes[first:stop] = hashes
        self._times[first:stop] = times
        self._matched[first:stop] = matched
        self._following[first:stop] = END
        if nulls is not None:
            self._following[first:stop][nulls] = NOT_LINKED
        link(self._hashes, self._heads, self._following, first, stop)
        if before is not None:
            ends = self._ends[first] + before
            self._ends[first : stop + 1] = ends
            self._pool[ends[0] : ends[-1]] = keys.pool[keys.ends[0] : keys.ends[-1]]
        self._count = stop
        self.log.append(rows)

    def make_room(self, rows: int, key_bytes: int | None) -> None:
        """Make the index large enough for more rows, and for the bytes of keys, if it has some."""
        self._reserve(self._count + rows)
        if key_bytes is not None:
            self._reserve_keys(key_bytes)
        if self._count + rows > len(self._heads):
            self._heads = np.full(2 * _power_of_two(self._count + rows), END, np.int32)
            self._table = np.empty(0, np.int64)
            link(self._hashes, self._heads, self._following, 0, self._count)

    @property
    def table(self) -> Int64s:
        """Where the index is, for `span_kernels`: int64 (TABLE_ENTRIES,)."""
        if not self._table.size:
            arrays = (self._hashes, self._times, self._following, self._matched)
            addresses = [address_of(array) for array in (*arrays, self._ends, self._pool)]
            heads = (address_of(self._heads), len(self._heads))
            self._table = np.array([*heads, *addresses, len(self._pool), 0], np.int64)
        self._table[-1] = self._count
        return self._table

    def grow(self, rows: Batch) -> None:
        """Keep columns, owned, of rows that are in the index already."""
        self._count += rows.num_rows
        self.log.append(rows)

    def unmatched(self) -> Int64s:
        """Return the rows that have joined with none."""
        return np.flatnonzero(~self._matched[: self._count])

    def take(self, kept: Int64s) -> Batch:
        """Return the columns of kept rows."""
        return self.log.take(kept)

    def dump(self, wanted: Callable[[Array], Array], marker: str) -> Iterator[Batch]:
        """Yield rows with their event times, and whether they were joined.

        Args:
            wanted: returns which rows, bool (n,), by their hashes, uint64 (n,).
            marker: the column that says which were joined.
        """
        rows = np.flatnonzero(wanted(self._hashes[: self._count]))
        for kept in np.array_split(rows, -(-len(rows) // _DUMPED_ROWS_MAX) or 1):
            joined = Column.of(self._matched[kept])
            yield with_columns(self.take(kept), {marker: joined}).with_times(self._times[kept])

    def between(self, first: int, stop: int) -> Iterator[Batch]:
        """Yield the rows first … stop − 1 with their event times, as views of what never changes.

        Rows that are added later do not change them.
        """
        for batch in self.log.between(first, stop):
            yield batch.with_times(self._times[first : first + batch.num_rows])
            first += batch.num_rows

    @property
    def matched(self) -> npt.NDArray[np.bool_]:
        """Which rows have been joined, bool (n,)."""
        return self._matched[: self._count]

    def _reserve(self, count: int) -> None:
        if count <= len(self._hashes):
            return
        size = max(_power_of_two(count), 1024)
        for name in ("_hashes", "_times", "_following", "_matched"):
            old = getattr(self, name)
            new = np.empty(size, old.dtype)
            new[: self._count] = old[: self._count]
            setattr(self, name, new)
        self._table = np.empty(0, np.int64)

    def _reserve_keys(self, nbytes: int) -> None:
        """Make room for keys of so many bytes, of the rows for which there is room."""
        if len(self._ends) <= len(self._hashes):
            ends = np.zeros(len(self._hashes) + 1, np.int64)
            ends[: self._count + 1] = self._ends[: self._count + 1]
            self._ends, self._table = ends, np.empty(0, np.int64)
        used = int(self._ends[self._count])
        if used + nbytes > len(self._pool):
            pool = np.empty(_power_of_two(used + nbytes), np.uint8)
            pool[:used] = self._pool[:used]
            self._pool, self._table = pool, np.empty(0, np.int64)


def _power_of_two(count: int) -> int:
    """Return the least power of two from `count` on."""
    return 1 << (count - 1).bit_length()
