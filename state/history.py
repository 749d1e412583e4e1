"""Going back to what records were at a seal, and reading it while they change; compiled.

See `images` for how the images of records lie in memory.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ..transport.atomics import copy, fence, inner, kernel, load, load_acquire, store
from .index import (
    ABSENT,
    ALIVE,
    BASE,
    OLD_FIRST,
    START,
    STRIDE,
    TYPE_AT,
    TYPE_BUCKETS,
    TYPE_PLACE,
    TYPE_RANKS,
    TYPE_SLOTS,
    USED,
    after,
    bucket_word,
    hash_of,
    home_of,
)
from .index_deletion import bucket_of, remove

_BLOCK = 64
"""How many records are copied before a fence."""


@kernel(numba.int64(numba.int64, numba.int64, numba.int64), releases_gil=True)
def count_images(begin: Any, stop: Any, size: Any) -> Any:
    """Return how many images there are in a chunk, by its addresses and the width of an image."""
    count = 0
    while begin + (count + 1) * size <= stop and load_acquire(begin + count * size) != 0:
        count += 1
    return np.int64(count)


@kernel(numba.void(numba.int64, numba.int64, numba.int64[::1]), releases_gil=True)
def image_numbers(begin: Any, size: Any, numbers: Any) -> None:
    """Write the records of a chunk's images."""
    for image in range(len(numbers)):
        numbers[image] = load(begin + image * size) - 1


# -- going back -----------------------------------------------------------------------------------


@inner
def _forget_key(place: Any, at: Any, buckets: Any, ranks: Any, slot: Any) -> None:
    if (load(place[BASE] + slot * place[STRIDE] + 8) & 0xFF) == ALIVE:
        bucket = bucket_of(place, at, buckets, ranks, slot)
        if bucket >= 0:
            remove(place, at, buckets, ranks, bucket)


@kernel(numba.void(TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_RANKS, TYPE_SLOTS), releases_gil=True)
def forget_keys(place: Any, at: Any, buckets: Any, ranks: Any, slots: Any) -> None:
    """Let the index forget the keys of records."""
    for row in range(len(slots)):
        _forget_key(place, at, buckets, ranks, slots[row])


@kernel(
    numba.void(TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_RANKS, numba.int64, numba.int64),
    releases_gil=True,
)
def forget_new(place: Any, at: Any, buckets: Any, ranks: Any, first: Any, stop: Any) -> None:
    """Let the index forget the keys of the records first … stop - 1."""
    for slot in range(first, stop):
        _forget_key(place, at, buckets, ranks, np.int64(slot))


@kernel(numba.void(TYPE_PLACE, numba.int64, numba.int64), releases_gil=True)
def put_back(place: Any, begin: Any, count: Any) -> None:
    """Let records be what their images are, the newest first."""
    size = place[STRIDE] + 8
    for image in range(count - 1, -1, -1):
        at = begin + image * size
        copy(place[BASE] + (load(at) - 1) * place[STRIDE], at + 8, place[STRIDE])


@kernel(numba.void(TYPE_PLACE, numba.int64, numba.int64), releases_gil=True)
def empty(place: Any, first: Any, stop: Any) -> None:
    """Let the records first … stop - 1 be without a key."""
    for slot in range(first, stop):
        store(place[BASE] + slot * place[STRIDE] + 8, ABSENT)


@kernel(numba.int64(TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_RANKS, TYPE_SLOTS), releases_gil=True)
def enter_keys(place: Any, at: Any, buckets: Any, ranks: Any, slots: Any) -> Any:
    """Let the index know the keys of living records, which it does not.

    Returns how many records that was done for: it ends at a key that finds no place before the
    bucket that must stay empty as long as the table grows.
    """
    for row in range(len(slots)):
        record = place[BASE] + slots[row] * place[STRIDE]
        if (load(record + 8) & 0xFF) != ALIVE:
            continue
        hashed = hash_of(place, slots[row])
        bucket = home_of(place, at, ranks, hashed)
        while buckets[bucket] != 0:
            bucket = after(at, bucket, buckets)
        if at[START] > 0 and bucket == at[OLD_FIRST]:
            return np.int64(row)
        buckets[bucket] = bucket_word(hashed, slots[row])
        at[USED] += 1
    return np.int64(len(slots))


# -- reading beside the loop ----------------------------------------------------------------------


@kernel(
    numba.int64(TYPE_PLACE, TYPE_SLOTS, numba.int64, numba.int64, numba.int64[::1]),
    releases_gil=True,
)
def copy_records(place: Any, slots: Any, segment: Any, target: Any, changed: Any) -> Any:
    """Copy records to an address; write the rows into `changed` that may not be what they were.

    Those have changed behind `segment`, or are without a key now; returns how many.
    """
    count, stride = 0, place[STRIDE]
    for first in range(0, len(slots), _BLOCK):
        stop = min(first + _BLOCK, len(slots))
        for row in range(first, stop):
            copy(target + row * stride, place[BASE] + slots[row] * stride, stride)
        fence()
        for row in range(first, stop):
            link = load(place[BASE] + slots[row] * stride + 8)
            if (link & 0xFF) != ALIVE or (link >> 32) > segment:
                changed[count] = row
                count += 1
    return np.int64(count)


@kernel(
    numba.void(
        *(TYPE_PLACE, numba.int64, numba.int64, TYPE_SLOTS, TYPE_SLOTS, numba.int64),
    ),
    releases_gil=True,
)
def copy_images(place: Any, begin: Any, count: Any, slots: Any, rows: Any, target: Any) -> None:
    """Copy a chunk's images of some records to their rows at an address, the newest first.

    Args:
        place: of the store.
        begin: the address of the chunk.
        count: its images.
        slots: the records, ascending: int64 (n,).
        rows: their rows: int64 (n,).
        target: the address of row 0.
    """
    stride = place[STRIDE]
    for image in range(count - 1, -1, -1):
        at = begin + image * (stride + 8)
        slot = load(at) - 1
        found = np.searchsorted(slots, slot)
        if found < len(slots) and slots[found] == slot:
            copy(target + rows[found] * stride, at + 8, stride)
