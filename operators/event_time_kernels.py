"""Which rows come too late, compiled."""

from __future__ import annotations

from typing import Any

from ..transport.compiling import njit

__all__ = ["mark_late"]


@njit(cache=True, nogil=True)
def mark_late(times: Any, latest_ns: int, behind_ns: int, late: Any) -> tuple[int, int, int, int]:
    """Write which times are late; one pass, since in numpy it takes as long as all else here.

    Args:
        times: int64 (n,), in the order of the rows.
        latest_ns: the latest time of all rows before.
        behind_ns: how far a time may be behind the latest of the rows before it.
        late: bool (n,), is written.

    Returns:
        the latest time of all; how many are late; the first of these, and the latest time before
        it.
    """
    count, first, before_ns = 0, -1, latest_ns
    for row in range(len(times)):
        is_late = times[row] < latest_ns - behind_ns
        late[row] = is_late
        if is_late:
            if not count:
                first, before_ns = row, latest_ns
            count += 1
        latest_ns = max(latest_ns, times[row])
    return latest_ns, count, first, before_ns
