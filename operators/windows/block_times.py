"""`BlockTimes`: the earliest and the latest event time of each block of a batch's rows.

One pass over the times tells whether a compiled loop may take the batch, and in which blocks it
need not look at the time of each row: in those that lie within one slice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit

__all__ = ["BLOCK_ROWS", "NO_BLOCK_TIMES", "BlockTimes", "block_times"]

BLOCK_ROWS = 256
"""Rows of a block: what a loop notes of one takes little of the nearest cache, which its tables
need."""


class BlockTimes(NamedTuple):
    """Of each block, its `earliest` and its `latest` event time in ns, int64 (blocks,)."""

    earliest: npt.NDArray[np.int64]
    latest: npt.NDArray[np.int64]


NO_BLOCK_TIMES = BlockTimes(np.empty(0, np.int64), np.empty(0, np.int64))
"""Of rows that are not told apart by time."""


def block_times(times: npt.NDArray[np.int64]) -> BlockTimes:
    """Return the extents of blocks of `BLOCK_ROWS` rows, of which the last may have fewer."""
    blocks = -(-len(times) // BLOCK_ROWS)
    found = BlockTimes(np.empty(blocks, np.int64), np.empty(blocks, np.int64))
    _note_extents(times, *found)
    return found


@njit(cache=True, nogil=True)
def _note_extents(times: Any, earliest: Any, latest: Any) -> None:
    for block in range(len(earliest)):
        part = times[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS]  # 4 x less than by places
        least = most = part[0]
        for at in range(len(part)):
            least = min(least, part[at])
            most = max(most, part[at])
        earliest[block], latest[block] = least, most
