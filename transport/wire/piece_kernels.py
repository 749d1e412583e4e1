"""Compiled loops that gather rows of several pieces into one block, without joining these before.

The tables of addresses are those of `kernels`; rows are numbered over all pieces, in their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from ..compiling import njit
from .kernels import (
    BYTES,
    DATA,
    OFFSETS,
    POOL_BYTES_MAX,
    POOL_TOO_LARGE,
    VALIDITY,
    WIDTH,
    any_null,
    close_padded,
    copy_bytes,
    copy_bytes_16,
    offsets_at,
    padded,
    pointer,
)

__all__ = ["gather_piece_bytes", "gather_piece_rows", "locate_rows"]


@njit(cache=True, nogil=True)
def locate_rows(numbers: Any, starts: Any, pieces: Any, rows: Any) -> bool:
    """Find the piece of each row, and its number there; return whether all rows exist.

    Args:
        numbers: the rows, int64 (m,).
        starts: the number of each piece's first row, then that of all rows, int64 (pieces + 1,).
        pieces, rows: int64 (m,), are filled.
    """
    last = starts.size - 1
    piece = 0
    for i in range(numbers.size):
        number = numbers[i]
        if number < 0 or number >= starts[last]:
            return False
        if not starts[piece] <= number < starts[piece + 1]:
            low, high = 0, last
            while high - low > 1:
                middle = (low + high) // 2
                if starts[middle] <= number:
                    low = middle
                else:
                    high = middle
            piece = low
        pieces[i] = piece
        rows[i] = number - starts[piece]
    return True


@njit(cache=True, nogil=True)
def gather_piece_bytes(sources: Any, pieces: Any, rows: Any) -> int:
    """Return the size of a block of these rows, or POOL_TOO_LARGE − column."""
    count = pieces.size
    total = 0
    for column in range(sources.shape[1]):
        width = sources[0, column, WIDTH]
        data = abs(width) * count
        if width == 0:
            for i in range(count):
                ends = carray(
                    pointer(sources[pieces[i], column, OFFSETS] + 4 * rows[i]), 2, np.int32
                )
                data += np.int64(ends[1]) - np.int64(ends[0])
            if data > POOL_BYTES_MAX:
                return POOL_TOO_LARGE - column
            total += padded(4 * (count + 1))
        if any_null(sources, column):
            total += padded(count)
        total += padded(data)
    return total


@njit(cache=True, nogil=True)
def _gather_validity(target: int, sources: Any, column: int, pieces: Any, rows: Any) -> None:
    flags = carray(pointer(target), pieces.size, np.uint8)
    for i in range(pieces.size):
        place = sources[pieces[i], column, VALIDITY]
        flags[i] = 1 if place == 0 else carray(pointer(place + rows[i]), 1, np.uint8)[0]


@njit(cache=True, nogil=True)
def _gather_texts(
    offsets: int, target: int, sources: Any, column: int, pieces: Any, rows: Any
) -> np.int64:
    """Write the offsets of texts and, at `target`, the texts; return how many bytes these are."""
    into = offsets_at(offsets, pieces.size)
    end = np.int64(0)
    into[0] = 0
    for i in range(pieces.size):
        ends = offsets_at(sources[pieces[i], column, OFFSETS] + 4 * rows[i], 1)
        length = np.int64(ends[1]) - np.int64(ends[0])
        copy_bytes(target + end, sources[pieces[i], column, DATA] + np.int64(ends[0]), length)
        end += length
        into[i + 1] = end
    return end


@njit(cache=True, nogil=True)
def _gather_values(
    target: int, width: int, sources: Any, column: int, pieces: Any, rows: Any
) -> None:
    count = pieces.size
    if width == 8:
        words = carray(pointer(target), count, np.int64)
        for i in range(count):
            place = sources[pieces[i], column, DATA] + 8 * rows[i]
            words[i] = carray(pointer(place), 1, np.int64)[0]
    elif width == 16:
        for i in range(count):
            copy_bytes_16(target + 16 * i, sources[pieces[i], column, DATA] + 16 * rows[i])
    else:
        for i in range(count):
            place = sources[pieces[i], column, DATA] + width * rows[i]
            copy_bytes(target + width * i, place, width)


@njit(cache=True, nogil=True)
def gather_piece_rows(memory: Any, sources: Any, pieces: Any, rows: Any, layout: Any) -> None:
    """Write these rows as one block, and fill `layout`.

    Args:
        memory: uint8, as large as `gather_piece_bytes` says.
        sources: where the rows of the pieces are.
        pieces, rows: the piece of each row, and its number there, int64 (m,).
        layout: of the block.
    """
    base, count = memory.ctypes.data, pieces.size
    position = 0
    for column in range(sources.shape[1]):
        width = sources[0, column, WIDTH]
        layout[column, VALIDITY] = layout[column, OFFSETS] = -1
        if any_null(sources, column):
            layout[column, VALIDITY] = position
            _gather_validity(base + position, sources, column, pieces, rows)
            position = close_padded(base, position + count)
        size = abs(width) * count
        if width == 0:
            layout[column, OFFSETS] = offsets = position
            position = padded(position + 4 * (count + 1))
            size = _gather_texts(base + offsets, base + position, sources, column, pieces, rows)
            close_padded(base, offsets + 4 * (count + 1))
        else:
            _gather_values(base + position, abs(width), sources, column, pieces, rows)
        layout[column, DATA] = position
        layout[column, BYTES] = size
        position = close_padded(base, position + size)
