"""`BatchCombiner`: the distinct groups of the rows of one batch, so that each is looked up once.

Rows of one batch are near each other in time, so many of them belong to few groups, and in windows
that have just begun none of these groups is known yet. A small table, made anew for each batch,
tells them apart without the store, as the combiner of Slash's chapter 3 in front of its hash table.
Keys of one word have `SlotCache`, which serves later batches, too; this is for keys of text.

Where most rows of a batch have a group of their own, it costs more than it saves: it is bypassed
for a while, each time for longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema

__all__ = ["BatchCombiner"]

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_ROWS_MIN = 64
_PAUSE_MAX = 64
"""For how many batches it is bypassed at most."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class BatchCombiner:
    """Tells which rows of a batch are the first of their group.

    Args:
        keys: the key columns; batches are combined if there is one, of text or bytes.
    """

    def __init__(self, keys: Schema) -> None:
        (only,) = keys if len(keys) == 1 else (None,)
        self._column = only.name if only is not None and only.type.kind == "bytes" else None
        self._pause = 1  # in batches, once most rows of one are the first of their group
        self._paused = 0  # so many batches from now on

    @property
    def is_of_use(self) -> bool:
        """Whether it combines batches at all."""
        return self._column is not None

    def combine(self, slices: Int64s, hashes: Hashes, keys: Batch) -> tuple[Int64s, Int64s] | None:
        """Return the first row of each group of a batch, and the group of each row.

        Args:
            slices: the slice of each row, int64 (n,).
            hashes: of the keys, uint64 (n,).
            keys: the key columns, n rows.

        Returns:
            firsts: int64 (groups,), ascending.
            groups: int64 (n,), places in `firsts`.
            None if each row is better looked up for itself.
        """
        rows = len(hashes)
        if self._column is None or rows < _ROWS_MIN:
            return None
        if self._paused:
            self._paused -= 1
            return None
        column = keys.column(self._column)
        if column.validity is not None or column.offsets is None:
            return None
        table = np.full(1 << (2 * rows - 1).bit_length(), -1, np.int32)
        firsts, groups = np.empty(rows, np.int64), np.empty(rows, np.int64)
        count = _combine(table, slices, hashes, column.data, column.offsets, firsts, groups)
        if 2 * count > rows:
            self._paused, self._pause = self._pause, min(2 * self._pause, _PAUSE_MAX)
        else:
            self._pause = 1
        return firsts[:count], groups


@njit(inline="always")
def _word(pool: Any, at: Any) -> Any:
    """Read eight bytes; LLVM compiles the loop to one load."""
    value = np.uint64(0)
    for byte in range(8):
        value |= np.uint64(pool[at + np.uint64(byte)]) << np.uint64(8 * byte)
    return value


@njit(inline="always")
def _same(pool: Any, offsets: Any, one: Any, other: Any) -> bool:
    """Whether two rows have the same bytes."""
    here, there = np.uint64(offsets[one]), np.uint64(offsets[other])
    end = np.uint64(offsets[one + 1])
    if end - here != np.uint64(offsets[other + 1]) - there:
        return False
    while here + np.uint64(8) <= end:
        if _word(pool, here) != _word(pool, there):
            return False
        here += np.uint64(8)
        there += np.uint64(8)
    while here < end:
        if pool[here] != pool[there]:
            return False
        here += np.uint64(1)
        there += np.uint64(1)
    return True


@njit(cache=True, nogil=True)
def _combine(
    table: Any, slices: Any, hashes: Any, pool: Any, offsets: Any, firsts: Any, groups: Any
) -> int:
    mask = np.uint64(len(table) - 1)
    count = 0
    for row in range(len(hashes)):
        hashed, slice_ = hashes[row], slices[row]
        at = (hashed + np.uint64(slice_) * _GOLDEN) & mask
        group = table[at]
        while group >= 0:
            first = firsts[group]
            if hashes[first] == hashed and slices[first] == slice_:
                if _same(pool, offsets, first, row):
                    break
            at = (at + np.uint64(1)) & mask
            group = table[at]
        if group < 0:
            group = count
            table[at] = group
            firsts[group] = row
            count += 1
        groups[row] = group
    return count
