"""Deleting keys from the index of a store, compiled: removing closes the gap that a key leaves."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ..transport.atomics import inner, kernel, load, store
from .index import (
    ABSENT,
    ALIVE,
    BASE,
    FREE,
    GARBAGE,
    IMAGE,
    LIVE,
    ROWS_MAX,
    SLOT_MASK,
    STRIDE,
    TYPE_AT,
    TYPE_BUCKETS,
    TYPE_PLACE,
    TYPE_RANKS,
    USED,
    after,
    distance,
    hash_of,
    home_of,
    keep_image,
    link_word,
)
from .key_comparison import LENGTH_MASK


@inner
def bucket_of(place: Any, at: Any, buckets: Any, ranks: Any, slot: Any) -> Any:
    """Return the bucket that points to a record, or -1 if none does."""
    bucket = home_of(place, at, ranks, hash_of(place, slot))
    while bucket >= 0:
        entry = buckets[bucket]
        if entry == 0:
            return np.int64(-1)
        if np.int64(entry & SLOT_MASK) == slot + 1:
            return bucket
        bucket = after(at, bucket, buckets)
    return np.int64(-1)


@inner
def remove(place: Any, at: Any, buckets: Any, ranks: Any, hole: Any) -> None:
    """Empty a bucket and move later ones up, so that probing meets no gap before its key."""
    other = after(at, hole, buckets)
    while buckets[other] != 0:
        origin = home_of(place, at, ranks, buckets[other])
        count = len(buckets)
        if distance(at, origin, other, count) >= distance(at, hole, other, count):
            buckets[hole] = buckets[other]
            hole = other
        other = after(at, other, buckets)
    buckets[hole] = np.uint64(0)
    at[USED] -= 1


@kernel(
    numba.int64(
        TYPE_PLACE,
        TYPE_AT,
        TYPE_BUCKETS,
        TYPE_RANKS,
        TYPE_PLACE,
        TYPE_PLACE,
        numba.int64,
    ),
    releases_gil=True,
)
def delete(
    place: Any,
    at: Any,
    buckets: Any,
    ranks: Any,
    references: Any,
    slots: Any,
    start: Any,
) -> Any:
    """Delete records from `slots[start]` on; those that are deleted already are skipped.

    Returns as `find_or_insert`.
    """
    for row in range(start, len(slots)):
        slot = slots[row]
        record = place[BASE] + slot * place[STRIDE]
        if (load(record + 8) & 0xFF) != ALIVE:
            continue
        bucket = bucket_of(place, at, buckets, ranks, slot)
        if bucket < 0:  # of another store in this log
            continue
        if keep_image(place, at, slot):
            return -1 - row - IMAGE * ROWS_MAX
        for position in range(len(references)):
            reference = load(record + 8 * references[position])
            at[GARBAGE] += ((reference & LENGTH_MASK) + 7) & ~7
        remove(place, at, buckets, ranks, bucket)
        store(record + 8, link_word(at[FREE], 0, ABSENT))
        at[FREE] = slot + 1
        at[LIVE] -= 1
    return np.int64(len(slots))
