"""The times of rows, and which of them come too late, compiled."""

from __future__ import annotations

from typing import Any

import numba

from ..transport.compiling import njit

__all__ = ["mark_late", "scale_times"]

_BLOCK_ROWS = 256


@njit(inline="always")
def _falls(part: Any) -> bool:
    """Whether a number is less than the one before it."""
    before, after = part[:-1], part[1:]
    falling = 0
    for at in range(len(after)):
        falling += after[at] < before[at]
    return falling > 0


@njit(
    numba.types.Tuple((numba.boolean, numba.int64))(
        numba.types.Array(numba.int64, 1, "C", readonly=True),
        numba.int64,
        numba.int64,
        numba.int64,
        numba.int64,
        numba.int64,
        numba.int64[::1],
    ),
    cache=True,
    nogil=True,
)
def scale_times(
    raw: Any, ticks: Any, earliest: Any, latest: Any, latest_ns: Any, behind_ns: Any, times: Any
) -> Any:
    """Write times in nanoseconds, if all are in range and none is late: as most are, in one pass.

    It takes a block of rows at a time. None of these is late if they come in the order of their
    times, or if they are less apart than rows may be out of order, which are loops without a
    branch.

    Args:
        raw: int64 (n,), in the order of the rows.
        ticks: the nanoseconds of one.
        earliest, latest: the range of those that can be used; their nanoseconds fit into 64 bits.
        latest_ns: the latest time of all rows before.
        behind_ns: how far a time may be behind the latest of the rows before it.
        times: int64 (n,), is written; without a meaning if the answer is no.

    Returns:
        whether they are such; the latest time of all.
    """
    for begin in range(0, len(raw), _BLOCK_ROWS):
        part, scaled = raw[begin : begin + _BLOCK_ROWS], times[begin : begin + _BLOCK_ROWS]
        least = most = part[0]
        for at in range(len(part)):
            least, most = min(least, part[at]), max(most, part[at])
            scaled[at] = part[at] * ticks
        if least < earliest or most > latest:
            return False, latest_ns
        highest_ns = max(latest_ns, most * ticks)
        may_be_late = least * ticks < highest_ns - behind_ns
        if may_be_late and (scaled[0] < latest_ns - behind_ns or _falls(part)):
            for at in range(len(scaled)):
                if scaled[at] < latest_ns - behind_ns:
                    return False, latest_ns
                latest_ns = max(latest_ns, scaled[at])
        latest_ns = highest_ns
    return True, latest_ns


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
