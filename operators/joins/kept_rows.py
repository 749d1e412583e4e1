"""`KeptRows`: the rows of one side of a join in one span of time, found by their key's hash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...state.node_transfer import with_columns
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from .kept_arrays import KeptArrays
from .kernels import END, NOT_LINKED, link
from .row_log import RowLog

if TYPE_CHECKING:
    from .key_bytes import KeyBytes

    Array = npt.NDArray[Any]

__all__ = ["KeptRows"]

Int64s = npt.NDArray[np.int64]
Types: TypeAlias = Mapping[str, "np.dtype[Any]"]

_DUMPED_ROWS_MAX = 1 << 16
_ROWS_MIN = 16
"""An index has room for so many rows at least: sparse streams have many spans of few rows."""
_INDEX_BYTES = 37
"""Of a row's place in the index, in that of its key and in the heads."""

_KEYS: Types = {"ends": np.dtype(np.int64), "pool": np.dtype(np.uint8)}
_OF_ROWS: Types = {
    "hashes": np.dtype(np.uint64),
    "times": np.dtype(np.int64),
    "following": np.dtype(np.int32),
    "matched": np.dtype(np.bool_),
}
_INDEX: Types = {"heads": np.dtype(np.int32), **_OF_ROWS}


class KeptRows:
    """Rows of one side in one span.

    Attributes:
        log: their columns.
        keys: their keys, as in `KeyBytes`.
        index: what finds them, as in `kernels`, with their times and which have been joined.
    """

    def __init__(self) -> None:
        self.log = RowLog()
        self.keys = KeptArrays(_KEYS)
        self.index = KeptArrays(_INDEX)
        self._count = 0
        self._table = np.empty(0, np.int64)
        self._table_of = (-1, -1)  # the versions of the arrays whose places `_table` has

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory for columns, keys and index."""
        return self.log.nbytes + self.keys.nbytes + self.index.nbytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes on the disk for them."""
        return self.log.spilled_bytes + self.keys.spilled_bytes + self.index.spilled_bytes

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
        index = self.index
        index["hashes"][first:stop] = hashes
        index["times"][first:stop] = times
        index["matched"][first:stop] = matched
        index["following"][first:stop] = END
        if nulls is not None:
            index["following"][first:stop][nulls] = NOT_LINKED
        self._link(first, stop)
        if before is not None:
            kept, pool = self.keys["ends"], self.keys["pool"]
            ends = kept[first] + before
            kept[first : stop + 1] = ends
            pool[ends[0] : ends[-1]] = keys.pool[keys.ends[0] : keys.ends[-1]]
        self._count = stop
        self.log.append(rows)

    def growth(self, rows: int, key_bytes: int | None) -> int:
        """Return about how many bytes `make_room` takes for arrays that are replaced."""
        count, grown = self._count + rows, 0
        pool_bytes = self.keys.size("pool")
        is_larger = key_bytes is not None and self._used_keys + key_bytes > pool_bytes
        if is_larger and key_bytes is not None:
            pool_bytes = _power_of_two(self._used_keys + key_bytes)
        if count > self.index.size("hashes"):
            grown += _INDEX_BYTES * _power_of_two(count)
        return grown + pool_bytes if grown or is_larger else 0

    def make_room(self, rows: int, key_bytes: int | None) -> None:
        """Make the index large enough for more rows, and for the bytes of keys, if it has some."""
        self._reserve(self._count + rows)
        if key_bytes is not None:
            self._reserve_keys(key_bytes)

    def _link(self, first: int, stop: int) -> None:
        index = self.index
        link(index["hashes"], index["heads"], index["following"], first, stop)

    @property
    def table(self) -> Int64s:
        """Where the index is, for `span_kernels`: int64 (TABLE_ENTRIES,)."""
        version = (self.index.version, self.keys.version)
        if version != self._table_of:
            at, keys_at = self.index.addresses, self.keys.addresses
            chains, pool_bytes = self.index.size("heads"), self.keys.size("pool")
            places = (at["heads"], chains, *(at[name] for name in _OF_ROWS))
            places += (keys_at["ends"], keys_at["pool"], pool_bytes, 0)
            self._table, self._table_of = np.array(places, np.int64), version
        self._table[-1] = self._count
        return self._table

    def grow(self, rows: Batch) -> None:
        """Keep columns, owned, of rows that are in the index already."""
        self._count += rows.num_rows
        self.log.append(rows)

    def unmatched(self, rows_max: int) -> Iterator[Int64s]:
        """Yield the rows that have joined with none, so many at a time at most."""
        for first in range(0, self._count, rows_max):
            rows = np.flatnonzero(~self.matched[first : first + rows_max])
            if len(rows):
                yield first + rows

    def take(self, kept: Int64s) -> Batch:
        """Return the columns of kept rows."""
        return self.log.take(kept)

    def dump(self, wanted: Callable[[Array], Array], marker: str) -> Iterator[Batch]:
        """Yield rows with their event times, and whether they were joined.

        Args:
            wanted: returns which rows, bool (n,), by their hashes, uint64 (n,).
            marker: the column that says which were joined.
        """
        times = self.index["times"]
        rows = np.flatnonzero(wanted(self.index["hashes"][: self._count]))
        for kept in np.array_split(rows, -(-len(rows) // _DUMPED_ROWS_MAX) or 1):
            joined = Column.of(self.matched[kept])
            yield with_columns(self.take(kept), {marker: joined}).with_times(times[kept])

    def between(self, first: int, stop: int) -> Iterator[Batch]:
        """Yield the rows first … stop − 1 with their event times, as views of what never changes.

        Rows that are added later do not change them.
        """
        times = self.index["times"]
        for batch in self.log.between(first, stop):
            yield batch.with_times(times[first : first + batch.num_rows])
            first += batch.num_rows

    @property
    def matched(self) -> npt.NDArray[np.bool_]:
        """Which rows have been joined, bool (n,)."""
        matched: npt.NDArray[np.bool_] = self.index["matched"][: self._count]
        return matched

    @property
    def _used_keys(self) -> int:
        return int(self.keys["ends"][self._count]) if self.keys.size("ends") else 0

    def _reserve(self, count: int) -> None:
        """Make room in the index for so many rows; link those that there are to longer heads."""
        if count <= self.index.size("hashes"):
            return
        size, chains = max(_power_of_two(count), _ROWS_MIN), self.index.size("heads")
        used = dict.fromkeys(_OF_ROWS, self._count)
        if count <= chains:
            self.index.resize(dict.fromkeys(_OF_ROWS, size), {**used, "heads": chains})
            return
        self.index.resize({"heads": 2 * size, **dict.fromkeys(_OF_ROWS, size)}, used)
        self.index["heads"].fill(END)
        if self._count:
            self._link(0, self._count)

    def _reserve_keys(self, nbytes: int) -> None:
        """Make room for keys of so many bytes, of the rows for which there is room."""
        ends, pool_bytes = self.index.size("hashes") + 1, self.keys.size("pool")
        used = self._used_keys
        if self.keys.size("ends") >= ends and used + nbytes <= pool_bytes:
            return
        if used + nbytes > pool_bytes:
            pool_bytes = _power_of_two(used + nbytes)
        kept = {"ends": min(self._count + 1, self.keys.size("ends")), "pool": used}
        self.keys.resize({"ends": ends, "pool": pool_bytes}, kept)
        self.keys["ends"][0] = 0


def _power_of_two(count: int) -> int:
    """Return the least power of two from `count` on."""
    return 1 << (count - 1).bit_length()
