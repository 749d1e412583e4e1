"""Flags of groups whose results have changed since they were emitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit

__all__ = ["newly_flagged"]


def newly_flagged(
    flags: npt.NDArray[np.uint8], slots: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Set the flags of slots; return the rows of `slots`, int64 (m,), at which one was set first.

    Args:
        flags: by slot.
        slots: int64 (n,), any of them more than once.
    """
    rows = np.empty(len(slots), np.int64)
    return rows[: _flag(flags, slots, rows)]


@njit(cache=True, nogil=True)
def _flag(flags: Any, slots: Any, rows: Any) -> int:
    count = 0
    for row in range(len(slots)):
        if not flags[slots[row]]:
            flags[slots[row]] = 1
            rows[count] = row
            count += 1
    return count
