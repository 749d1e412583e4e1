"""Whole tables of a store's index: filling a new one, reading one; compiled.

A new table is filled from the old one, which reads the records in the order of their hashes, or
from the log, in the order in which its records lie: that needs no old table beside the new one, and
reads records that are on the disk one after the other.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ..transport.atomics import load
from ..transport.compiling import njit
from .index import (
    ALIVE,
    BASE,
    READ_U64,
    SLOT_MASK,
    STRIDE,
    TYPE_AT,
    TYPE_BUCKETS,
    TYPE_PLACE,
    TYPE_RANKS,
    after,
    home_of,
)


@njit(
    numba.void(TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_BUCKETS, TYPE_RANKS),
    cache=True,
    nogil=True,
    boundscheck=False,
)
def rehash(place: Any, at: Any, old: Any, buckets: Any, ranks: Any) -> None:
    """Enter all keys of the table `old` into the empty table `buckets`."""
    for position in range(len(old)):
        entry = old[position]
        if entry == 0:
            continue
        slot = np.int64(entry & SLOT_MASK) - 1
        bucket = home_of(place, at, ranks, slot)
        while buckets[bucket] != 0:
            bucket = after(bucket, buckets)
        buckets[bucket] = entry


@njit(
    numba.void(TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_RANKS, numba.int64, numba.int64),
    cache=True,
    nogil=True,
    boundscheck=False,
)
def enter_records(place: Any, at: Any, buckets: Any, ranks: Any, first: Any, stop: Any) -> None:
    """Enter those of the records first … stop - 1 that have a key."""
    for slot in range(first, stop):
        record = place[BASE] + slot * place[STRIDE]
        if (load(record + 8) & 0xFF) != ALIVE:
            continue
        bucket = home_of(place, at, ranks, np.int64(slot))
        while buckets[bucket] != 0:
            bucket = after(bucket, buckets)
        tag = np.uint64(load(record)) & SLOT_MASK
        buckets[bucket] = (tag << np.uint64(32)) | np.uint64(slot + 1)


@njit(numba.int64(TYPE_PLACE, READ_U64, TYPE_AT), cache=True, nogil=True, boundscheck=False)
def scan(place: Any, buckets: Any, slots: Any) -> Any:
    """Write the record of each key into `slots`, by virtual node; return their number."""
    count = 0
    for position in range(len(buckets)):
        entry = buckets[position]
        if entry != 0:
            slots[count] = np.int64(entry & SLOT_MASK) - 1
            count += 1
    return np.int64(count)
