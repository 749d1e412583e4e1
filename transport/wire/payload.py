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
"""What `read_body` finds; the column's position is added to the last three."""


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
    values = carray(pointer(place), count, np.uint8)
    seen = np.uint8(0)
    for i in range(count):
        seen |= values[i]
    return seen > 1


@njit(cache=True, nogil=True)
def _bad_offsets(place: int, rows: int, size: int) -> bool:
    ends = offsets_at(place, rows)
    falling = False
    for i in range(rows):
        falling |= ends[i + 1] < ends[i]
    return falling or ends[0] != 0 or ends[rows] != size


@njit(cache=True, nogil=True)
def _bad_pairs(place: int, count: int, rows: int) -> bool:
    pairs = carray(pointer(place), 2 * count, np.uint32)
    before, falling = np.uint32(0), False
    for i in range(count):
        falling |= pairs[2 * i + 1] < before
        before = pairs[2 * i + 1]
    return falling or (count > 0 and before != rows)


@njit(cache=True, nogil=True)
def read_body(memory: Any, position: int, end: int, rows: int, widths: Any, layout: Any) -> int:
    """Check a data message's payload, from `position` to `end`, and fill `layout`.

    Every length is checked before it is used; offsets and booleans are checked too, so that no
    later reader leaves the message. Returns minus the number of destination pairs, or one of
    UNALIGNED, BAD_COLUMNS, BAD_DESTINATIONS, BAD_LENGTH + column, BAD_OFFSETS + column and
    BAD_BOOLEAN + column.
    """
    columns, base = layout.shape[0], memory.ctypes.data
    if base & 7:
        return UNALIGNED
    start = position + prefix_bytes(columns, 0)
    if start > end:
        return BAD_COLUMNS
    words = carray(pointer(base + position), 2 + 2 * columns, np.uint32)
    if words[1] != columns:
        return BAD_COLUMNS
    pair_count = np.int64(words[0])
    if PAIR_BYTES * pair_count > end - start or _bad_pairs(base + start, pair_count, rows):
        return BAD_DESTINATIONS
    position = start + PAIR_BYTES * pair_count
    for column in range(columns):
        width = widths[column]
        size, flags = np.int64(words[2 + 2 * column]), words[3 + 2 * column]
        if flags > 1 or (width != 0 and size != abs(width) * rows) or size > POOL_BYTES_MAX:
            return BAD_LENGTH + column
        layout[column, VALIDITY] = -1
        layout[column, OFFSETS] = -1
        if flags == 1:
            layout[column, VALIDITY] = position
            position += padded(rows)
        if width == 0:
            layout[column, OFFSETS] = position
            position += padded(4 * (rows + 1))
        layout[column, DATA] = position
        layout[column, BYTES] = size
        position += padded(size)
        if position > end:
            return BAD_LENGTH + column
        if width == 0 and _bad_offsets(base + layout[column, OFFSETS], rows, size):
            return BAD_OFFSETS + column
        if flags == 1 and _bad_booleans(base + layout[column, VALIDITY], rows):
            return BAD_BOOLEAN + column
        if width == -1 and _bad_booleans(base + layout[column, DATA], rows):
            return BAD_BOOLEAN + column
    return BAD_COLUMNS if position != end else -int(pair_count)
