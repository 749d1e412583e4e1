"""Older versions of records: how to go back to them, and to give them up; compiled.

A record that was copied from a sealed segment to the tail refers to the version that it replaced.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ..transport.atomics import load, store
from ..transport.compiling import njit
from .index import (
    ABSENT,
    ALIVE,
    BASE,
    GRANULE_SHIFT,
    LIVE,
    SLOT_MASK,
    STRIDE,
    TOMBSTONE,
    TYPE_AT,
    TYPE_BUCKETS,
    TYPE_PLACE,
    TYPE_RANKS,
    TYPE_SEGMENTS,
    bucket_of,
    remove,
)


@njit(
    numba.void(TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_RANKS, numba.int64, numba.int64),
    cache=True,
    nogil=True,
    boundscheck=False,
)
def undo(place: Any, at: Any, buckets: Any, ranks: Any, first: Any, stop: Any) -> None:
    """Let the index forget the records first … stop - 1, the newest ones of their keys.

    It points to the version before each again, if there is one.
    """
    for slot in range(first, stop):
        link = load(place[BASE] + slot * place[STRIDE] + 8)
        state, previous = link & 0xFF, link >> 32
        if state == ABSENT:
            continue
        bucket = bucket_of(place, at, buckets, ranks, np.int64(slot))
        at[LIVE] -= 1 if state == ALIVE else 0
        if previous == 0:
            remove(place, at, buckets, ranks, bucket)
        else:
            buckets[bucket] = (buckets[bucket] & ~SLOT_MASK) | np.uint64(previous)
            before = load(place[BASE] + (previous - 1) * place[STRIDE] + 8) & 0xFF
            at[LIVE] += 1 if before == ALIVE else 0


@njit(
    numba.void(
        TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_RANKS, TYPE_SEGMENTS, numba.int64, numba.int64
    ),
    cache=True,
    nogil=True,
    boundscheck=False,
)
def settle(place: Any, at: Any, buckets: Any, ranks: Any, dead: Any, first: Any, stop: Any) -> None:
    """Give up what the records first … stop - 1 replaced: nothing goes back behind them any more.

    `dead` counts the records without use, for each 64 KiB of the log.
    """
    for slot in range(first, stop):
        record = place[BASE] + slot * place[STRIDE]
        link = load(record + 8)
        state, previous = link & 0xFF, link >> 32
        if previous != 0 and state != ABSENT:
            before = place[BASE] + (previous - 1) * place[STRIDE]
            store(before + 8, ABSENT)
            dead[((previous - 1) * place[STRIDE]) >> GRANULE_SHIFT] += np.uint32(1)
            store(record + 8, link & 0xFFFFFFFF)
        if state == TOMBSTONE:
            bucket = bucket_of(place, at, buckets, ranks, np.int64(slot))
            if bucket >= 0:
                remove(place, at, buckets, ranks, bucket)
                store(record + 8, ABSENT)
                dead[(slot * place[STRIDE]) >> GRANULE_SHIFT] += np.uint32(1)
        elif state == ABSENT:
            dead[(slot * place[STRIDE]) >> GRANULE_SHIFT] += np.uint32(1)
