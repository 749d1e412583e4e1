"""Whole tables of a store's index: filling a new one, reading one; compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ..transport.atomics import kernel
from .index import (
    MOVED,
    NODE_BITS,
    OLD_FIRST,
    READ_U64,
    SLOT_MASK,
    START,
    TYPE_AT,
    TYPE_BUCKETS,
    TYPE_PLACE,
    TYPE_RANKS,
    after,
    home_in_newest,
    home_of,
    node_of,
)

_SEARCHED = 1 << 16


@kernel(numba.void(TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_BUCKETS, TYPE_RANKS), releases_gil=True)
def rehash(place: Any, at: Any, old: Any, buckets: Any, ranks: Any) -> None:
    """Enter all keys of buckets of another table into the table `buckets`.

    Both lie in the order of their hashes, so that memory is met in its order.
    """
    for position in range(len(old)):
        entry = old[position]
        if entry == 0:
            continue
        bucket = home_of(place, at, ranks, entry)
        while buckets[bucket] != 0:
            bucket = after(at, bucket, buckets)
        buckets[bucket] = entry


@kernel(numba.void(TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_RANKS, numba.int64), releases_gil=True)
def move_some(place: Any, at: Any, buckets: Any, ranks: Any, count: Any) -> None:
    """Move the keys of `count` more buckets of the old table, and of those up to an empty one.

    So no key lies behind that one whose home is before it.
    """
    moved, bits = at[MOVED], np.uint64(place[NODE_BITS])
    stop = min(moved + count, at[START])
    bucket = (at[OLD_FIRST] + moved) % at[START]
    while moved < stop or (moved < at[START] and buckets[bucket] != 0):
        entry = buckets[bucket]
        if entry != 0:
            target = home_in_newest(at, bits, ranks[node_of(bits, entry)], entry)
            while buckets[target] != 0:
                target = after(at, target, buckets)
            buckets[target] = entry
        moved += 1
        bucket = after(at, bucket, buckets)
    at[MOVED] = moved


@kernel(numba.int64(READ_U64), releases_gil=True)
def end_of_gap(buckets: Any) -> Any:
    """Return the last bucket of the longest row of empty ones, among the first `_SEARCHED`.

    There is an empty one. Keys that come hardly reach the last of many.
    """
    found, longest, length = 0, 0, 0
    for bucket in range(len(buckets)):
        length = length + 1 if buckets[bucket] == 0 else 0
        if length > longest:
            longest, found = length, bucket
        if bucket >= _SEARCHED and longest > 0:
            break
    return np.int64(found)


@kernel(numba.int64(READ_U64, TYPE_AT), releases_gil=True)
def scan(buckets: Any, slots: Any) -> Any:
    """Write the record of each key into `slots`, by virtual node; return their number."""
    count = 0
    for position in range(len(buckets)):
        entry = buckets[position]
        if entry != 0:
            slots[count] = np.int64(entry & SLOT_MASK) - 1
            count += 1
    return np.int64(count)
