"""Compiled choice of each request's best vehicle, in two passes over a batch.

numba keeps compiled functions from run to run, and looks for changes only in the file that a
function is in. So all that is compiled into one lies in its own module, constants included.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit

__all__ = ["best_rows", "requests_of"]

Bytes: TypeAlias = npt.NDArray[np.uint8]


@njit(cache=True, nogil=True)
def requests_of(
    index: npt.NDArray[np.int32],
    hashes: npt.NDArray[np.uint64],
    pool: Bytes,
    offsets: npt.NDArray[np.int32],
    times_ns: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], int]:
    """Assign numbers to the requests of a batch, in the order of their first rows.

    Args:
        index: an empty hash index for as many keys as there are rows, see `byte_keys`.
        hashes: of the request ids.
        pool, offsets: the request ids; id i is `pool[offsets[i] : offsets[i + 1]]`.
        times_ns: event times; a request is identified by its id and time.

    Returns:
        Each row's request, shape (rows,), and how many requests there are.
    """
    mask = np.uint64(len(index) - 1)
    numbers = np.empty(len(times_ns), np.int64)
    first_rows = np.empty(len(times_ns), np.int64)
    count = 0
    for row in range(len(times_ns)):
        start, stop = offsets[row], offsets[row + 1]
        entry = hashes[row] & mask
        request = index[entry] - 1
        while request >= 0:
            first = first_rows[request]
            if (
                times_ns[first] == times_ns[row]
                and _compare_keys(pool, start, stop, offsets[first], offsets[first + 1]) == 0
            ):
                break
            entry = (entry + np.uint64(1)) & mask
            request = index[entry] - 1
        if request < 0:
            request = count
            first_rows[request] = row
            count += 1
            index[entry] = count
        numbers[row] = request
    return numbers, count


@njit(cache=True, nogil=True)
def best_rows(
    requests: npt.NDArray[np.int64],
    count: int,
    pool: Bytes,
    offsets: npt.NDArray[np.int32],
    has_vehicle: npt.NDArray[np.bool_],
    distances_m: npt.NDArray[np.float64],
) -> npt.NDArray[np.int64]:
    """Return each request's best row: nearest in whole mm, then smallest vehicle id by its bytes.

    A row without a vehicle is the answer only to a request that has no other row.

    Args:
        requests: each row's request, from 0 to `count` − 1.
        count: how many requests there are.
        pool, offsets: the vehicle ids; id i is `pool[offsets[i] : offsets[i + 1]]`.
        has_vehicle: False for the row that stands for a request without matches.
        distances_m: haversine distances.

    Returns:
        Row numbers, shape (count,).
    """
    best = np.full(count, -1, np.int64)
    best_mm = np.empty(count, np.int64)
    for row in range(len(requests)):
        request = requests[row]
        other = best[request]
        if not has_vehicle[row]:
            if other < 0:
                best[request] = row
            continue
        row_mm = _whole_millimetres(distances_m[row])
        better = other < 0 or not has_vehicle[other] or row_mm < best_mm[request]
        if not better and row_mm == best_mm[request]:
            start, stop = offsets[row], offsets[row + 1]
            better = _compare_keys(pool, start, stop, offsets[other], offsets[other + 1]) < 0
        if better:
            best[request], best_mm[request] = row, row_mm
    return best


@njit(cache=True, nogil=True)
def _whole_millimetres(distance_m: float) -> np.int64:
    """Return a distance in whole millimetres, half a millimetre rounded up."""
    return np.int64(math.floor(distance_m * 1000.0 + 0.5))


@njit(cache=True, nogil=True, inline="always")
def _compare_keys(pool: Bytes, start: int, stop: int, other_start: int, other_stop: int) -> int:
    """Return −1, 0 or 1 as the first key sorts before, equals or sorts after the second one."""
    shorter = min(stop - start, other_stop - other_start)
    for step in range(shorter):
        here, there = pool[start + step], pool[other_start + step]
        if here != there:
            return -1 if here < there else 1
    if stop - start == other_stop - other_start:
        return 0
    return -1 if stop - start < other_stop - other_start else 1
