"""The payload of a data message: a prefix and a block, written and checked by compiled loops.

::

    destinations u32 │ columns u32                  8 bytes
    BYTES u32        │ 1 if there are nulls, u32    for each column
    instance u32     │ row end u32                  for each destination
    the block, see `kernels`
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from ..compiling import njit
from .kernels import (
    BYTES,
    DATA,
    LAYOUT_ENTRIES,
    NO_ROOM,
    OFFSETS,
    POOL_BYTES_MAX,
    VALIDITY,
    concat_rows,
    copy_bytes,
    gather_rows,
    offsets_at,
    padded,
    pointer,
)

PAIR_BYTES = 8
WORD_BYTES = 8

BAD_COLUMNS = 1
BAD_DESTINATIONS = 2
UNALIGNED = 3
BAD_LENGTH = 1_000
BAD_OFFSETS = 100_000_000
BAD_BOOLEAN = 200_000_000
"""What `read_body` returns for a damaged payload; the column's position is added to the last
three."""


@njit(cache=True, nogil=True)
def prefix_bytes(columns: int, pair_count: int) -> int:
    """Return the size of what precedes a data message's block."""
    return WORD_BYTES * (1 + columns) + PAIR_BYTES * pair_count


@njit(cache=True, nogil=True)
def _write_prefix(memory: int, pairs: int, pair_count: int, layout: Any) -> None:
    columns = layout.shape[0]
    words = carray(pointer(memory), 2 + 2 * columns, np.uint32)
    words[0] = pair_count
    words[1] = columns
    for column in range(columns):
        words[2 + 2 * column] = layout[column, BYTES]
        words[3 + 2 * column] = 1 if layout[column, VALIDITY] >= 0 else 0
    copy_bytes(memory + WORD_BYTES * (1 + columns), pairs, PAIR_BYTES * pair_count)


@njit(cache=True, nogil=True)
def write_body(memory: Any, position: int, sources: Any, pairs: int, pair_count: int) -> int:
    """Write a data message's payload of all pieces' rows from `position` on.

    `pairs` is the address of the destinations, uint32 (pair_count, 2). Returns as `concat_rows`.
    """
    layout = np.empty((sources.shape[1], LAYOUT_ENTRIES), np.int64)
    start = position + prefix_bytes(sources.shape[1], pair_count)
    end = concat_rows(memory, start, sources, layout)
    if end >= 0:
        _write_prefix(memory.ctypes.data + position, pairs, pair_count, layout)
    return end


@njit(cache=True, nogil=True)
def write_gathered_body(
    memory: Any,
    position: int,
    sources: Any,
    indices: int,
    count: int,
    pairs: int,
    pair_count: int,
) -> int:
    """Write a data message's payload of the rows at `indices`; see `write_body`, `gather_rows`."""
    layout = np.empty((sources.shape[1], LAYOUT_ENTRIES), np.int64)
    start = position + prefix_bytes(sources.shape[1], pair_count)
    end = gather_rows(memory, start, sources, indices, count, layout)
    if end >= 0:
        if start > memory.size:
            return NO_ROOM
        _write_prefix(memory.ctypes.data + position, pairs, pair_count, layout)
    return end


@njit(cache=True, nogil=True)
def _bad_booleans(place: int, count: int) -> np.bool_:
    """Whether a byte is neither 0 nor 1. No branch in the loop, so that it is vectorized."""
    values = carray(pointer(place), count, np.uint8)
    seen = np.uint8(0)
    for i in range(count):
        seen |= values[i]
    return seen > 1


@njit(cache=True, nogil=True)
def _bad_offsets(place: int, rows: int, size: int) -> bool:
    """Whether offsets do not rise from 0 to `size`."""
    ends = offsets_at(place, rows)
    falling = False
    for i in range(rows):
        falling |= ends[i + 1] < ends[i]
    return falling or ends[0] != 0 or ends[rows] != size


@njit(cache=True, nogil=True)
def _bad_pairs(place: int, count: int, rows: int) -> bool:
    """Whether the row ends of destination pairs do not rise to `rows`."""
    pairs = carray(pointer(place), 2 * count, np.uint32)
    before, falling = np.uint32(0), False
    for i in range(count):
        falling |= pairs[2 * i + 1] < before
        before = pairs[2 * i + 1]
    return falling or (count > 0 and before != rows)


@njit(cache=True, nogil=True)
def _fits(size: int, width: int, rows: int) -> bool:
    """Whether a column of this width can have data of `size` bytes; a pool's size is its own."""
    return size <= POOL_BYTES_MAX and (width == 0 or size == abs(width) * rows)


@njit(cache=True, nogil=True)
def _entries(layout: int, column: int) -> Any:
    """Return a column's entries in the layout at an address: int64 (4,).

    Passing the layout's array itself would count references for every column.
    """
    return carray(pointer(layout + 8 * LAYOUT_ENTRIES * column), LAYOUT_ENTRIES, np.int64)


@njit(cache=True, nogil=True)
def _lay_out_column(
    line: Any, position: int, width: int, rows: int, size: int, has_nulls: bool
) -> int:
    """Fill `line`, a column's of `layout`, for one that starts at `position`; return its end."""
    line[VALIDITY] = -1
    line[OFFSETS] = -1
    if has_nulls:
        line[VALIDITY] = position
        position += padded(rows)
    if width == 0:
        line[OFFSETS] = position
        position += padded(4 * (rows + 1))
    line[DATA] = position
    line[BYTES] = size
    return position + padded(size)


@njit(cache=True, nogil=True)
def _bad_values(base: int, line: Any, width: int, rows: int) -> int:
    """Return BAD_OFFSETS, BAD_BOOLEAN, or 0 for a column within the message without either."""
    if width == 0 and _bad_offsets(base + line[OFFSETS], rows, line[BYTES]):
        return BAD_OFFSETS
    if line[VALIDITY] >= 0 and _bad_booleans(base + line[VALIDITY], rows):
        return BAD_BOOLEAN
    if width == -1 and _bad_booleans(base + line[DATA], rows):
        return BAD_BOOLEAN
    return 0


@njit(cache=True, nogil=True)
def read_body(memory: Any, position: int, end: int, rows: int, widths: Any, layout: Any) -> int:
    """Check a data message's payload, from `position` to `end`, and fill `layout`.

    Every length is checked before it is used; offsets and booleans are checked too, so that no
    later reader leaves the message. Returns minus the number of destination pairs, or one of
    UNALIGNED, BAD_COLUMNS, BAD_DESTINATIONS, BAD_LENGTH + column, BAD_OFFSETS + column and
    BAD_BOOLEAN + column.
    """
    columns, base, entries = layout.shape[0], memory.ctypes.data, layout.ctypes.data
    if base & 7:
        return UNALIGNED
    # The prefix: two counts, two words per column, then the destination pairs.
    pairs_at = position + prefix_bytes(columns, 0)
    if pairs_at > end:
        return BAD_COLUMNS
    words = carray(pointer(base + position), 2 + 2 * columns, np.uint32)
    if words[1] != columns:
        return BAD_COLUMNS
    pair_count = np.int64(words[0])
    pairs_bytes = PAIR_BYTES * pair_count
    if pairs_bytes > end - pairs_at or _bad_pairs(base + pairs_at, pair_count, rows):
        return BAD_DESTINATIONS
    # The block: the columns one after another.
    position = pairs_at + pairs_bytes
    for column in range(columns):
        line, width = _entries(entries, column), widths[column]
        size, nulls_flag = np.int64(words[2 + 2 * column]), words[3 + 2 * column]
        if nulls_flag > 1 or not _fits(size, width, rows):
            return BAD_LENGTH + column
        position = _lay_out_column(line, position, width, rows, size, nulls_flag == 1)
        if position > end:
            return BAD_LENGTH + column
        problem = _bad_values(base, line, width, rows)
        if problem:
            return problem + column
    return BAD_COLUMNS if position != end else -int(pair_count)
