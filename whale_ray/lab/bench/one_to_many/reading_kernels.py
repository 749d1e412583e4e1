"""`read_rows`, compiled: every instance reads every byte of every row in a pass of its own.

A row has 100 bytes in three columns: a number (uint32), a time (int64) and 88 bytes of content,
read as eleven words. An instance's checksum is the sum of all words that it has read; so the
expected value follows from the input alone, and any word that was not read changes it.

The passes of a worker's instances take turns over some rows at a time, which stay in the L1 cache.
Each pass loads all words itself: the compiler must assume that the pass before has changed them.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ....transport.compiling import njit

__all__ = ["CONTENT_WORDS", "TILE_ROWS", "read_rows"]

CONTENT_WORDS = 11
TILE_ROWS = 320
"""Rows of a turn: 32 kB, two thirds of the L1 cache of present processors."""

Numbers: TypeAlias = npt.NDArray[np.uint32]
Words: TypeAlias = npt.NDArray[np.uint64]


@njit(cache=True, nogil=True, boundscheck=False, inline="never")
def _pass(numbers: Numbers, moments: Words, content: Words, sums: Words, instance: int) -> None:
    """Read all rows once, for one instance."""
    total = np.uint64(0)
    for index in range(numbers.size):
        total += np.uint64(numbers[index])
    for index in range(moments.size):
        total += moments[index]
    for index in range(content.size):
        total += content[index]
    sums[instance] += total


@njit(cache=True, nogil=True, boundscheck=False)
def read_rows(numbers: Numbers, moments: Words, content: Words, sums: Words) -> None:
    """Read all rows once for each instance, and add to its checksum.

    Args:
        numbers: shape (rows,).
        moments: shape (rows,).
        content: shape (11 · rows,).
        sums: shape (instances,); the checksums, to which the words are added modulo 2**64.
    """
    rows = numbers.size
    start = 0
    while start < rows:
        stop = min(start + TILE_ROWS, rows)
        some = numbers[start:stop]
        when = moments[start:stop]
        words = content[CONTENT_WORDS * start : CONTENT_WORDS * stop]
        for instance in range(sums.size):
            _pass(some, when, words, sums, instance)
        start = stop
