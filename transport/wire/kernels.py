"""Compiled loops over the columns of a batch; one call moves all of them.

Kernels take a table of addresses instead of the columns' arrays: they are compiled once for all
types and numbers of columns, and a call costs the same for one column as for fifty. The caller
keeps the arrays alive while a kernel runs. Two tables describe columns::

    sources (pieces, columns, 5)   where rows are stored, as addresses
        DATA      of the first row; of the whole pool for bytes
        OFFSETS   of the first row's offset, 0 for fixed columns
        VALIDITY  of the first row's byte, 0 without nulls
        WIDTH     bytes per row, 0 for bytes, -1 for booleans
        ROWS      of the piece

    layout (columns, 4)            where rows are stored in a block, as positions in it
        DATA      of the first row; of the pool for bytes
        OFFSETS   or -1
        VALIDITY  or -1
        BYTES     of data

The columns of a block follow one another, each part padded with zeros to 8 bytes::

    per column:  [validity u8 × rows]  [offsets i32 × (rows + 1), from 0]  [data]

This is the body of a data message as well as the memory of every batch that the library makes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..compiling import njit

DATA = 0
OFFSETS = 1
VALIDITY = 2
WIDTH = 3
BYTES = 3
ROWS = 4
SOURCE_ENTRIES = 5
LAYOUT_ENTRIES = 4

POOL_BYTES_MAX = (1 << 31) - 1
"""Offsets are int32: one column of one batch holds at most 2 GiB of text."""

NO_ROOM = -1
BAD_INDEX = -2
POOL_TOO_LARGE = -1000
"""Returned in place of sizes and ends that cannot be; from POOL_TOO_LARGE the column's position is
subtracted."""


@intrinsic
def pointer(_context: Any, _address: Any) -> Any:
    """Turn an address into a pointer that `carray` accepts."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def copy_bytes(_context: Any, _target: Any, _source: Any, _count: Any) -> Any:
    """Copy bytes from address to address: memcpy."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        target, source, count = arguments
        pointers = (builder.inttoptr(one, cgutils.voidptr_t) for one in (target, source))
        cgutils.raw_memcpy(builder, *pointers, count, 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def copy_bytes_16(_context: Any, _target: Any, _source: Any) -> Any:
    """Copy exactly 16 bytes: one unaligned load and store."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointers = (builder.inttoptr(one, cgutils.voidptr_t) for one in arguments)
        count = context.get_constant(types.int64, 16)
        cgutils.raw_memcpy(builder, *pointers, count, 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@njit(cache=True, nogil=True)
def address(array: Any) -> int:
    """Return the address of an array of uint8 (n,)."""
    return array.ctypes.data


@njit(cache=True, nogil=True)
def padded(count: int) -> int:
    """Return the next multiple of 8."""
    return (count + 7) & ~7


@njit(cache=True, nogil=True)
def close_padded(memory: int, end: int) -> int:
    """Write zeros from `end` to the next multiple of 8 and return that."""
    room = carray(pointer(memory + end), 8, np.uint8)
    for i in range(padded(end) - end):
        room[i] = 0
    return padded(end)


@njit(cache=True, nogil=True)
def offsets_at(place: int, rows: int) -> Any:
    """Return the offsets at an address: int32 (rows + 1,)."""
    return carray(pointer(place), rows + 1, np.int32)


@njit(cache=True, nogil=True)
def block_source(memory: Any, layout: Any, widths: Any, start: int, rows: int, source: Any) -> None:
    """Fill `source` (columns, 5) for `rows` rows of a block from `start` on."""
    base = memory.ctypes.data
    for column in range(source.shape[0]):
        width = widths[column]
        source[column, ROWS] = rows
        source[column, WIDTH] = width
        source[column, DATA] = base + layout[column, DATA] + start * abs(width)
        source[column, OFFSETS] = 0
        source[column, VALIDITY] = 0
        if layout[column, OFFSETS] >= 0:
            source[column, OFFSETS] = base + layout[column, OFFSETS] + 4 * start
        if layout[column, VALIDITY] >= 0:
            source[column, VALIDITY] = base + layout[column, VALIDITY] + start


@njit(cache=True, nogil=True)
def _rows_in_all(sources: Any) -> int:
    rows = 0
    for piece in range(sources.shape[0] if sources.shape[1] else 0):
        rows += sources[piece, 0, ROWS]
    return rows


@njit(cache=True, nogil=True)
def any_null(sources: Any, column: int) -> bool:
    """Whether a piece has validity for a column, so that a block of it needs that, too."""
    for piece in range(sources.shape[0]):
        if sources[piece, column, VALIDITY] != 0:
            return True
    return False


@njit(cache=True, nogil=True)
def concat_bytes(sources: Any) -> int:
    """Return the size of a block of all pieces' rows, or POOL_TOO_LARGE − column."""
    rows = _rows_in_all(sources)
    total = 0
    for column in range(sources.shape[1]):
        width = sources[0, column, WIDTH]
        data = abs(width) * rows
        if width == 0:
            for piece in range(sources.shape[0]):
                count = sources[piece, column, ROWS]
                ends = offsets_at(sources[piece, column, OFFSETS], count)
                data += np.int64(ends[count]) - np.int64(ends[0])
            if data > POOL_BYTES_MAX:
                return POOL_TOO_LARGE - column
            total += padded(4 * (rows + 1))
        if any_null(sources, column):
            total += padded(rows)
        total += padded(data)
    return total


@njit(cache=True, nogil=True)
def coded_bytes(codes: Any, offsets: Any) -> Any:
    """Return the bytes of texts that are codes, int32 (n,), of a dictionary with these offsets."""
    total = np.int64(0)
    for code in codes:
        entry = np.uint64(code)
        total += np.int64(offsets[entry + np.uint64(1)] - offsets[entry])
    return total


@njit(cache=True, nogil=True)
def _concat_validity(memory: int, start: int, sources: Any, column: int) -> int:
    """Write all pieces' validity at `start`; return where it ends."""
    end = start
    for piece in range(sources.shape[0]):
        count = sources[piece, column, ROWS]
        if sources[piece, column, VALIDITY] != 0:
            copy_bytes(memory + end, sources[piece, column, VALIDITY], count)
        else:
            flags = carray(pointer(memory + end), count, np.uint8)
            for i in range(count):
                flags[i] = 1
        end += count
    return close_padded(memory, end)


@njit(cache=True, nogil=True)
def _concat_offsets(memory: int, start: int, sources: Any, column: int) -> int:
    """Write all pieces' offsets, counted from 0, at `start`; return where they end."""
    place, pool = memory + start, np.int32(0)
    offsets_at(place, 0)[0] = 0
    for piece in range(sources.shape[0]):
        count = sources[piece, column, ROWS]
        ends = offsets_at(sources[piece, column, OFFSETS], count)
        target = offsets_at(place, count)
        shift = pool - ends[0]
        if shift == 0:
            copy_bytes(place, sources[piece, column, OFFSETS], 4 * (count + 1))
        else:
            for i in range(count + 1):
                target[i] = ends[i] + shift
        pool = target[count]
        place += 4 * count
    return close_padded(memory, place + 4 - memory)


@njit(cache=True, nogil=True)
def concat_rows(memory: Any, position: int, sources: Any, layout: Any) -> int:
    """Write all pieces' rows as one block from `position` on and fill `layout`.

    Returns where the block ends, NO_ROOM if it would end beyond the memory, uint8 (n,), or what
    `concat_bytes` returns.
    """
    size = concat_bytes(sources)
    if size < 0 or position + size > memory.size:
        return min(size, NO_ROOM)
    base = memory.ctypes.data
    for column in range(sources.shape[1]):
        layout[column, VALIDITY] = -1
        layout[column, OFFSETS] = -1
        if any_null(sources, column):
            layout[column, VALIDITY] = position
            position = _concat_validity(base, position, sources, column)
        width = sources[0, column, WIDTH]
        if width == 0:
            layout[column, OFFSETS] = position
            position = _concat_offsets(base, position, sources, column)
        end = position
        for piece in range(sources.shape[0]):
            begin, rows = sources[piece, column, DATA], sources[piece, column, ROWS]
            count = abs(width) * rows
            if width == 0:
                ends = offsets_at(sources[piece, column, OFFSETS], rows)
                begin += ends[0]
                count = np.int64(ends[rows]) - np.int64(ends[0])
            copy_bytes(base + end, begin, count)
            end += count
        layout[column, DATA] = position
        layout[column, BYTES] = end - position
        position = close_padded(base, end)
    return position


@njit(cache=True, nogil=True)
def _outside(chosen: Any, rows: int) -> bool:
    outside = False
    for i in range(chosen.size):
        outside |= (chosen[i] < 0) | (chosen[i] >= rows)
    return outside


@njit(cache=True, nogil=True)
def gather_bytes(sources: Any, indices: int, count: int) -> int:
    """Return the size of a block of the first piece's rows at `indices`.

    `indices` is the address of int64 (count,). Returns BAD_INDEX if one is outside the rows, or
    POOL_TOO_LARGE − column.
    """
    chosen = carray(pointer(indices), count, np.int64)
    if count and (sources.shape[1] == 0 or _outside(chosen, sources[0, 0, ROWS])):
        return BAD_INDEX
    total = 0
    for column in range(sources.shape[1]):
        width = sources[0, column, WIDTH]
        data = abs(width) * count
        if width == 0:
            ends = offsets_at(sources[0, column, OFFSETS], sources[0, column, ROWS])
            for i in range(count):
                row = np.uint64(chosen[i])
                data += np.int64(ends[row + np.uint64(1)]) - np.int64(ends[row])
            if data > POOL_BYTES_MAX:
                return POOL_TOO_LARGE - column
            total += padded(4 * (count + 1))
        if sources[0, column, VALIDITY] != 0:
            total += padded(count)
        total += padded(data)
    return total


@njit(cache=True, nogil=True)
def _gather_typed(target: Any, source: Any, chosen: Any) -> None:
    for i in range(chosen.size):
        target[i] = source[np.uint64(chosen[i])]


@njit(cache=True, nogil=True)
def _gather_fixed(target: int, source: int, width: int, rows: int, chosen: Any) -> None:
    count = chosen.size
    into, out_of = pointer(target), pointer(source)
    if width == 8:
        _gather_typed(carray(into, count, np.int64), carray(out_of, rows, np.int64), chosen)
    elif width == 4:
        _gather_typed(carray(into, count, np.int32), carray(out_of, rows, np.int32), chosen)
    elif width == 1:
        _gather_typed(carray(into, count, np.uint8), carray(out_of, rows, np.uint8), chosen)
    elif width == 2:
        _gather_typed(carray(into, count, np.int16), carray(out_of, rows, np.int16), chosen)
    elif width == 16:
        for i in range(count):
            copy_bytes_16(target + 16 * i, source + 16 * chosen[i])
    else:
        for i in range(count):
            copy_bytes(target + width * i, source + width * chosen[i], width)


@njit(cache=True, nogil=True)
def _gather_offsets(into: Any, ends: Any, chosen: Any) -> np.int64:
    """Write the offsets of the chosen rows, counted from 0; return the bytes of their pool."""
    end = np.int64(0)
    into[0] = 0
    for i in range(chosen.size):
        row = np.uint64(chosen[i])
        end += np.int64(ends[row + np.uint64(1)]) - np.int64(ends[row])
        into[i + 1] = end
    return end


@njit(cache=True, nogil=True)
def _gather_pool(target: int, into: Any, pool: int, ends: Any, chosen: Any) -> None:
    """Copy the chosen rows' bytes one after another, to the offsets `into`.

    A short value is copied as 16 bytes where source and target have them: the next value overwrites
    the surplus.
    """
    last = np.int64(ends[ends.size - 1])
    total = np.int64(into[chosen.size])
    for i in range(chosen.size):
        begin = np.int64(ends[np.uint64(chosen[i])])
        start = np.int64(into[i])
        length = np.int64(into[i + 1]) - start
        if length <= 16 and begin + 16 <= last and start + 16 <= total:
            copy_bytes_16(target + start, pool + begin)
        else:
            copy_bytes(target + start, pool + begin, length)


@njit(cache=True, nogil=True)
def gather_rows(
    memory: Any, position: int, sources: Any, indices: int, count: int, layout: Any
) -> int:
    """Write the first piece's rows at `indices` as one block from `position` on; fill `layout`.

    Returns where the block ends, NO_ROOM if it would end beyond the memory, uint8 (n,), or what
    `gather_bytes` returns.
    """
    chosen = carray(pointer(indices), count, np.int64)
    if count and (sources.shape[1] == 0 or _outside(chosen, sources[0, 0, ROWS])):
        return BAD_INDEX
    base, room = memory.ctypes.data, memory.size
    for column in range(sources.shape[1]):
        width, rows = sources[0, column, WIDTH], sources[0, column, ROWS]
        layout[column, VALIDITY] = -1
        layout[column, OFFSETS] = -1
        if sources[0, column, VALIDITY] != 0:
            if position + padded(count) > room:
                return NO_ROOM
            layout[column, VALIDITY] = position
            _gather_fixed(base + position, sources[0, column, VALIDITY], 1, rows, chosen)
            position = close_padded(base, position + count)
        size = abs(width) * count
        ends = into = offsets_at(sources[0, column, OFFSETS], rows)
        if width == 0:
            if position + padded(4 * (count + 1)) > room:
                return NO_ROOM
            into = offsets_at(base + position, count)
            size = _gather_offsets(into, ends, chosen)
            if size > POOL_BYTES_MAX:
                return POOL_TOO_LARGE - column
            layout[column, OFFSETS] = position
            position = close_padded(base, position + 4 * (count + 1))
        if position + padded(size) > room:
            return NO_ROOM
        if width == 0:
            _gather_pool(base + position, into, sources[0, column, DATA], ends, chosen)
        else:
            _gather_fixed(base + position, sources[0, column, DATA], abs(width), rows, chosen)
        layout[column, DATA] = position
        layout[column, BYTES] = size
        position = close_padded(base, position + size)
    return position
