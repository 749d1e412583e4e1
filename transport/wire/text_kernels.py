"""Whether the places of texts, their bytes, and their codes can be trusted: compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numba import carray

from ..compiling import njit
from .kernels import pointer

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["FITTING", "MISPLACED", "NOT_ASCII", "codes_fit", "offsets_fit", "state_of_texts"]

FITTING = 0
NOT_ASCII = 1
"""The offsets fit; whether all texts are UTF-8 must be found out in another way."""
MISPLACED = 2
"""Offsets fall, or lie outside the pool."""

_NOT_ASCII = np.uint64(0x8080808080808080)


@njit(inline="always")
def _fit(offsets: Any, pool_bytes: int) -> bool:
    before, after = offsets[:-1], offsets[1:]
    falls = False
    for at in range(len(after)):
        falls |= after[at] < before[at]
    return not falls and offsets[0] >= 0 and offsets[-1] <= pool_bytes


@njit(inline="always")
def _are_ascii(place: int, count: int) -> bool:
    """Whether bytes are: the rest of a word, then words."""
    found, odd = np.uint64(0), count % 8
    for byte in carray(pointer(place), odd, np.uint8):
        found |= np.uint64(byte)
    for word in carray(pointer(place + odd), count // 8, np.uint64):
        found |= word
    return (found & _NOT_ASCII) == 0


@njit(
    numba.int64(numba.int64, numba.int64, numba.boolean, numba.int64, numba.int64, numba.boolean),
    cache=True,
    nogil=True,
)
def state_of_texts(
    offsets: int, rows: int, is_large: bool, pool: int, pool_bytes: int, looks: bool
) -> int:
    """Return `FITTING`, `NOT_ASCII` or `MISPLACED`.

    Args:
        offsets: the address of the first of rows + 1.
        rows: how many texts there are.
        is_large: whether offsets have 64 bits, not 32.
        pool: the address of the texts' bytes; of any memory if there is none.
        pool_bytes: how many there are.
        looks: whether to look at the bytes, too, once the offsets are found to fit.
    """
    if is_large:
        wide = carray(pointer(offsets), rows + 1, np.int64)
        fits, first, last = _fit(wide, pool_bytes), wide[0], wide[-1]
    else:
        narrow = carray(pointer(offsets), rows + 1, np.int32)
        fits, first, last = _fit(narrow, pool_bytes), np.int64(narrow[0]), np.int64(narrow[-1])
    if not fits:
        return MISPLACED
    if looks and not _are_ascii(pool + first, last - first):
        return NOT_ASCII
    return FITTING


@njit(numba.boolean(numba.int64, numba.int64, numba.int64), cache=True, nogil=True)
def codes_fit(codes: int, rows: int, texts: int) -> bool:
    """Whether codes, so many of int32 at an address, are all of a dictionary of `texts` texts."""
    highest = np.uint32(0)
    for code in carray(pointer(codes), rows, np.uint32):  # one below 0 is large
        highest = max(highest, code)
    fits: Any = rows == 0 or np.int64(highest) < texts
    return bool(fits)


def offsets_fit(offsets: npt.NDArray[np.int32], pool_bytes: int) -> bool:
    """Whether offsets, int32 (n + 1,) of at least one, rise within a pool of so many bytes."""
    place = offsets.__array_interface__["data"][0]
    state: int = state_of_texts(place, offsets.size - 1, False, place, pool_bytes, False)
    return state == FITTING
