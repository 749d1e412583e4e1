"""Compiled look-up of a vehicle's slot by its id, in a hash index that new vehicles are added to.

numba keeps compiled functions from run to run, and looks for changes only in the file that a
function is in. So all that is compiled into one lies in its own module, constants included.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit

__all__ = ["reindex", "slots_of"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint64]
#: Shape (capacity,), dtype `VEHICLE`.
Rows: TypeAlias = npt.NDArray[Any]


@njit(cache=True, nogil=True)
def slots_of(
    counts: Int64s,
    index: Int32s,
    rows: Rows,
    ids: Bytes,
    pool: Bytes,
    offsets: Int32s,
    hashes: Hashes,
    first: int,
    slots: Int32s,
) -> int:
    """Find the slots of vehicles from row `first` on; vehicles not seen before get new slots.

    Args:
        counts, index, rows, ids: of the `Vehicles`, changed in place.
        pool, offsets: the ids to find; id i is `pool[offsets[i] : offsets[i + 1]]`.
        hashes: of the ids to find, shape (rows,).
        first: row to begin at.
        slots: shape (rows,): where the answers go.

    Returns:
        The first row without an answer because there is no room for its vehicle; all rows if none.
    """
    last = len(offsets) - 1
    row = _known_slots(index, rows, ids, pool, offsets, hashes, first, slots)
    while row < last:
        key = pool[offsets[row] : offsets[row + 1]]
        if not _add_vehicle(counts, index, rows, ids, key, hashes[row]):
            break
        row = _known_slots(index, rows, ids, pool, offsets, hashes, row, slots)
    return row


@njit(cache=True, nogil=True)
def reindex(known: int, index: Int32s, rows: Rows) -> None:
    """Fill an empty index from the hashes of the first `known` rows."""
    for slot in range(known):
        _enter(index, rows[slot].hash, slot)


@njit(cache=True, nogil=True)
def _known_slots(
    index: Int32s,
    rows: Rows,
    ids: Bytes,
    pool: Bytes,
    offsets: Int32s,
    hashes: Hashes,
    first: int,
    slots: Int32s,
) -> int:
    """Find slots up to the first vehicle that is not in the index; return its row.

    This loop is separate from the insertion since numba counts no references in a loop that only
    reads.
    """
    mask = np.uint64(len(index) - 1)
    for row in range(first, len(offsets) - 1):
        start, stop = offsets[row], offsets[row + 1]
        hashed = hashes[row]
        entry = hashed & mask
        slot = index[entry] - 1
        while slot >= 0:
            if rows[slot].hash == hashed and _same_key(
                pool, start, stop, ids, rows[slot].id_start, rows[slot].id_stop
            ):
                break
            entry = (entry + np.uint64(1)) & mask
            slot = index[entry] - 1
        if slot < 0:
            return row
        slots[row] = slot
    return len(offsets) - 1


@njit(cache=True, nogil=True, inline="always")
def _same_key(
    pool: Bytes, start: int, stop: int, other_pool: Bytes, other_start: int, other_stop: int
) -> bool:
    """Tell whether two keys hold the same bytes."""
    if stop - start != other_stop - other_start:
        return False
    for step in range(stop - start):
        if pool[start + step] != other_pool[other_start + step]:
            return False
    return True


@njit(cache=True, nogil=True)
def _add_vehicle(
    counts: Int64s, index: Int32s, rows: Rows, ids: Bytes, key: Bytes, hashed: int
) -> bool:
    """Give the next slot to a vehicle not seen before; return False if there is no room."""
    slot, used = counts[0], counts[1]
    if slot == len(rows) or used + len(key) > len(ids):
        return False
    ids[used : used + len(key)] = key
    rows[slot].hash = hashed
    rows[slot].id_start, rows[slot].id_stop = used, used + len(key)
    counts[0] = slot + 1
    counts[1] = used + len(key)
    _enter(index, hashed, slot)
    return True


@njit(cache=True, nogil=True)
def _enter(index: Int32s, hashed: int, slot: int) -> None:
    """Put a slot into the hash index."""
    mask = np.uint64(len(index) - 1)
    entry = hashed & mask
    while index[entry] != 0:
        entry = (entry + np.uint64(1)) & mask
    index[entry] = slot + 1
