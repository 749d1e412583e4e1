"""The index of a store: open addressing by the hash's top bits, compiled.

A bucket is one word: the top 32 bits of the hash (its *tag*) │ number of the key's record + 1; 0 is
empty. Buckets are probed one after the other from the key's *home*, and removing closes the gap, so
that nothing but the keys lies in the table. A home is the first bucket of a group, a line of the
cache (`bucket_groups`). The home follows from the tag, so a table is filled
from another one, and a gap is closed, without a look at the records. It grows with the virtual
node, then with the hash: a virtual node is a contiguous range of buckets. A worker owns but some of
the virtual nodes, so homes are spread over those that were *seen*: `ranks` numbers them. Meeting a
new one, growing the table and opening a chunk are left to the caller: a loop stops, says why, and
goes on from the row where it stopped. While a table grows, its array begins with the old one, see
`index_table`.

Two vectors of words tell a loop where it works, `PLACE` what never changes, `AT` what does.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from ..transport.atomics import copy, fence, inner, kernel, load, prefetch, store, store_release
from .bucket_groups import EQUAL, GROUP_BUCKETS, compared_group, first_of
from .key_comparison import NULLS, same_key

# PLACE: what never changes in the life of a store.
BASE = 0  # address of record 0
STRIDE = 1  # bytes of a record
FIXED = 2  # words of the key columns of fixed width
TEXTS = 3  # number of text columns
TEMPLATE = 4  # address of a new record
FIELDS = 5  # bytes before the fields
NODE_BITS = 6  # log2 of the number of virtual nodes
PLACE_WORDS = 7

# AT: where the store stands.
NEXT = 0  # the next record of the tail
STOP = 1  # the end of the tail's chunk
FREE = 2  # the last freed record of the tail + 1; they are a list, by #link
USED = 3  # buckets in use
LIVE = 4  # keys
SEGMENT = 5  # how many times the store was sealed, + 1
HEAP_NEXT = 6  # where the next value goes, in bytes of the mapping
HEAP_STOP = 7
GARBAGE = 8  # bytes of values that no record refers to any more
SPREAD = 9  # buckets per home, a fixed-point number
LIMIT = 10  # of USED
NEED = 11  # bytes of values of the row at which a loop stopped
IMAGE_NEXT = 12  # where the next image goes, in bytes of the mapping
IMAGE_STOP = 13
START = 14  # the table's first bucket; those before are the table that it replaces step by step
OLD_SPREAD = 15  # of that one
OLD_FIRST = 16  # a bucket of it that stays empty: from there on its keys are moved
MOVED = 17  # how many of its buckets are
AT_WORDS = 18
TABLE_WORDS = (SPREAD, LIMIT, START, OLD_SPREAD, OLD_FIRST, MOVED)

# Why a loop stopped, as a negative row: -1 - row - REASON * ROWS_MAX.
NODE, GROW, CHUNK, HEAP, IMAGE = 1, 2, 3, 4, 5
ROWS_MAX = 1 << 40

BLOCK = 256
"""Rows for which memory is fetched ahead: as many lines of buckets and of records fit the
second-level cache."""

ABSENT, ALIVE = 0, 1
"""States of a record."""

_LINE_BYTES = 64
_OF_ANOTHER, _LATER = -2, -3  # in place of a record
SLOT_MASK = np.uint64(0xFFFFFFFF)

READ_U64 = types.Array(numba.uint64, 1, "C", readonly=True)
READ_U32 = types.Array(numba.uint32, 1, "C", readonly=True)
TYPE_PLACE = types.Array(numba.int64, 1, "C", readonly=True)
TYPE_AT = numba.int64[::1]
TYPE_SLOTS = types.Array(numba.int64, 1, "C", readonly=True)
TYPE_BUCKETS = numba.uint64[::1]
TYPE_RANKS = numba.int32[::1]


@inner
def _position(bits: Any, rank: Any, hashed: Any) -> Any:
    """Return where a hash lies among all that can be, if its virtual node has that rank."""
    inside = np.int64((hashed << bits) >> (np.uint64(32) + bits))  # 32 - bits bits
    return (np.int64(rank) << np.int64(np.uint64(32) - bits)) | inside


@inner
def _spread(position: Any, spread: Any) -> Any:
    """Return the first bucket of a group for a position, in a table with so many per position."""
    return ((position * spread) >> np.int64(32)) & ~(GROUP_BUCKETS - 1)


@inner
def home_in_newest(at: Any, bits: Any, rank: Any, hashed: Any) -> Any:
    """Return the first bucket of a hash in the table to which keys are moved."""
    return at[START] + _spread(_position(bits, rank, hashed), at[SPREAD])


@inner
def home(at: Any, bits: Any, rank: Any, hashed: Any) -> Any:
    """Return the first bucket of a hash whose virtual node has that rank."""
    if at[START] > 0:
        old = _spread(_position(bits, rank, hashed), at[OLD_SPREAD])
        if distance(at, at[OLD_FIRST], old, at[START]) >= at[MOVED]:
            return old
    return home_in_newest(at, bits, rank, hashed)


@inner
def after(at: Any, bucket: Any, buckets: Any) -> Any:
    """Return the bucket behind one: the first of its table behind the last."""
    following = bucket + 1
    if following == at[START]:
        return np.int64(0)
    return following if following < len(buckets) else at[START]


@inner
def _after_group(at: Any, bucket: Any, buckets: Any) -> Any:
    """Return the first bucket of the group behind that of another first one."""
    return after(at, bucket + (GROUP_BUCKETS - 1), buckets)


@inner
def distance(at: Any, start: Any, stop: Any, buckets: Any) -> Any:
    """Return how many buckets `stop` lies behind `start`, in a table of so many in all tables."""
    if stop >= start:
        return stop - start
    return stop - start + (at[START] if start < at[START] else buckets - at[START])


@inner
def node_of(bits: Any, hashed: Any) -> Any:
    """Return the virtual node of a hash."""
    return np.int64((hashed >> np.uint64(1)) >> (np.uint64(63) - bits))


@inner
def home_of(place: Any, at: Any, ranks: Any, hashed: Any) -> Any:
    """Return the first bucket of a hash, or of a bucket's word; -1: a virtual node not seen."""
    bits = np.uint64(place[NODE_BITS])
    rank = ranks[node_of(bits, hashed)]
    return home(at, bits, rank, hashed) if rank >= 0 else np.int64(-1)


@inner
def prefetch_home(at: Any, bits: Any, rank: Any, hashed: Any, table: Any) -> Any:
    """Return `home`, and fetch it into the cache; `table` is the address of the first bucket."""
    bucket = home(at, bits, rank, hashed)
    prefetch(table + 8 * bucket)
    return bucket


@inner
def first_with_tag(at: Any, buckets: Any, bucket: Any, hashed: Any) -> Any:
    """Return the first record with a key's tag, from its home on; -1 if there is none.

    It is nearly always that of the key. The record of the home often is that of another one.
    """
    table, tag = buckets.ctypes.data, hashed >> np.uint64(32)
    found = compared_group(table + 8 * bucket, tag)
    while found == 0:  # all are in use, by keys with other tags
        bucket = _after_group(at, bucket, buckets)
        found = compared_group(table + 8 * bucket, tag)
    equal = found & EQUAL  # no key lies behind an empty bucket of the group of its home
    bucket = np.uint64(bucket + first_of(equal))
    return np.int64(buckets[bucket] & SLOT_MASK) - 1 if equal else np.int64(-1)


@inner
def _prefetch_record(base: Any, stride: Any, in_two_lines: Any, slot: Any) -> Any:
    """Fetch a record into the cache, and return its number; -1 is none."""
    prefetch(base + slot * stride)
    if in_two_lines:
        prefetch(base + slot * stride + stride - 1)
    return slot


@inner
def _prefetch_records(
    place: Any, at: Any, buckets: Any, hashes: Any, slots: Any, first: Any, stop: Any
) -> None:
    """Put `first_with_tag` in place of the homes of rows, -1 may be among them, and fetch it.

    A key that is not in the group of its home waits for the next one, which must be fetched, too:
    meanwhile `_LATER` minus the home stands there.
    """
    base, stride, table = place[BASE], place[STRIDE], buckets.ctypes.data
    in_two_lines = stride > _LINE_BYTES or (stride & (stride - 1)) != 0  # it may be
    for row in range(first, stop):
        bucket, tag = slots[np.uint64(row)], hashes[np.uint64(row)] >> np.uint64(32)
        if bucket < 0:
            continue
        found = compared_group(table + 8 * bucket, tag)
        if found == 0:
            prefetch(table + 8 * _after_group(at, bucket, buckets))
            slots[np.uint64(row)] = _LATER - bucket
            continue
        slot = np.int64(-1)
        if found & EQUAL:
            slot = np.int64(buckets[np.uint64(bucket + first_of(found))] & SLOT_MASK) - 1
        slots[np.uint64(row)] = _prefetch_record(base, stride, in_two_lines, slot)
    for row in range(first, stop):
        bucket = _LATER - slots[np.uint64(row)]
        if bucket >= 0:
            slot = first_with_tag(at, buckets, bucket, hashes[row])
            slots[row] = _prefetch_record(base, stride, in_two_lines, slot)


@inner
def hash_of(place: Any, slot: Any) -> Any:
    """Return the hash of a record's key."""
    return np.uint64(load(place[BASE] + slot * place[STRIDE]))


@inner
def bucket_word(hashed: Any, slot: Any) -> Any:
    """Return the word of a bucket that points to a record."""
    return (hashed & ~SLOT_MASK) | np.uint64(slot + 1)


@inner
def _confirm(
    place: Any, hashes: Any, keys: Any, nulls: Any, slots: Any, first: Any, stop: Any
) -> Any:
    """Let `slots` of rows be `_OF_ANOTHER` whose record has another key; -1 may stay.

    Most keys are one word; a loop for these alone takes half as long.

    Returns: how many of the rows have no record then.
    """
    base, stride, fixed, texts = place[BASE], place[STRIDE], place[FIXED], place[TEXTS]
    width, lacking = 8 * (fixed + 2 * texts), 0
    if fixed == 1 and texts == 0 and len(nulls) == 0:
        for row in range(first, stop):
            slot = slots[np.uint64(row)]
            record = base + max(slot, 0) * stride
            differs = load(record) ^ np.int64(hashes[np.uint64(row)])
            differs |= (load(record + 8) & NULLS) | (load(record + 16) ^ load(keys + 8 * row))
            if differs != 0 or slot < 0:
                slots[row] = _OF_ANOTHER if slot >= 0 else np.int64(-1)
                lacking += 1
        return lacking
    for row in range(first, stop):
        if slots[row] >= 0:
            null = np.int64(nulls[row]) if len(nulls) else np.int64(0)
            record, words = base + slots[row] * stride, keys + row * width
            if same_key(base, fixed, texts, record, hashes[row], words, null):
                continue
            slots[row] = _OF_ANOTHER
        lacking += 1
    return lacking


@inner
def _search(
    place: Any, at: Any, buckets: Any, ranks: Any, hashed: Any, words: Any, nulls: Any
) -> Any:
    """Return the bucket of a key, or the empty one where it belongs; its virtual node was seen."""
    base, fixed, texts = place[BASE], place[FIXED], place[TEXTS]
    bucket, tag = home_of(place, at, ranks, hashed), hashed >> np.uint64(32)
    while True:
        found = compared_group(buckets.ctypes.data + 8 * bucket, tag)
        equal = found & EQUAL
        while equal:
            candidate = bucket + first_of(equal)
            record = base + (np.int64(buckets[candidate] & SLOT_MASK) - 1) * place[STRIDE]
            if same_key(base, fixed, texts, record, hashed, words, nulls):
                return candidate
            equal &= equal - 1
        if found > EQUAL:
            return bucket + first_of(found >> GROUP_BUCKETS)
        bucket = _after_group(at, bucket, buckets)


@inner
def keep_image(place: Any, at: Any, slot: Any) -> Any:
    """Keep an image of a living record before it changes, unless it did since the last seal.

    The image is there before the record says so, and that before anything in it changes: so a
    thread that copies the record, and then sees that nothing says so, has what was sealed.

    Returns: IMAGE if there is no room for it, or 0.
    """
    record = place[BASE] + slot * place[STRIDE]
    link = load(record + 8)
    if (link >> 32) == at[SEGMENT]:
        return 0
    reason = _keep_image_of_any(place, at, slot)
    if reason == 0:
        store_release(record + 8, (link & 0xFFFFFFFF) | (at[SEGMENT] << 32))
        fence()
    return reason


@inner
def _keep_image_of_any(place: Any, at: Any, slot: Any) -> Any:
    target = at[IMAGE_NEXT]
    if target + place[STRIDE] + 8 > at[IMAGE_STOP]:
        return IMAGE
    copy(place[BASE] + target + 8, place[BASE] + slot * place[STRIDE], place[STRIDE])
    store_release(place[BASE] + target, slot + 1)
    at[IMAGE_NEXT] = target + place[STRIDE] + 8
    return 0


@inner
def _new_slot(place: Any, at: Any) -> Any:
    """Return a record without a key, or why there is none: -CHUNK or -IMAGE."""
    if at[FREE] > 0:
        slot = at[FREE] - 1
        if at[SEGMENT] > 1 and _keep_image_of_any(place, at, slot):
            return np.int64(-IMAGE)
        at[FREE] = load(place[BASE] + slot * place[STRIDE] + 8) >> 32
        return slot
    if at[NEXT] < at[STOP]:
        at[NEXT] += 1
        return at[NEXT] - 1
    return np.int64(-CHUNK)


@inner
def link_word(above: Any, nulls: Any, state: Any) -> Any:
    """Return the word `#link`; `above` is the segment, or the next free record + 1."""
    return (above << 32) | (nulls << 8) | state


@inner
def _store_key(place: Any, at: Any, record: Any, words: Any) -> None:
    fixed = place[FIXED]
    copy(record + 16, words, 8 * fixed)
    for text in range(place[TEXTS]):
        value = words + 8 * fixed + 16 * text
        length = load(value + 8)
        target = at[HEAP_NEXT]
        copy(place[BASE] + target, load(value), length)
        at[HEAP_NEXT] += (length + 7) & ~7
        store(record + 16 + 8 * (fixed + text), (target << 24) | length)


@inner
def _text_bytes(place: Any, words: Any) -> Any:
    total = np.int64(0)
    for text in range(place[TEXTS]):
        total += (load(words + 8 * place[FIXED] + 16 * text + 8) + 7) & ~7
    return total


@inner
def _reset(place: Any, record: Any) -> None:
    """Give the fields of a record their initial values."""
    skipped = place[FIELDS]
    copy(record + skipped, place[TEMPLATE] + skipped, place[STRIDE] - skipped)


@inner
def _insert(
    place: Any, at: Any, buckets: Any, bucket: Any, hashed: Any, words: Any, null: Any
) -> Any:
    """Make a record for a key; return why it could not, or 0."""
    if at[USED] >= at[LIMIT] or (at[START] > 0 and bucket == at[OLD_FIRST]):
        return GROW
    if place[TEXTS]:
        at[NEED] = _text_bytes(place, words)
        if at[HEAP_NEXT] + at[NEED] > at[HEAP_STOP]:
            return HEAP
    slot = _new_slot(place, at)
    if slot < 0:
        return -slot
    record = place[BASE] + slot * place[STRIDE]
    store(record, int(hashed))
    store(record + 8, link_word(at[SEGMENT], null, ALIVE))
    _store_key(place, at, record, words)
    _reset(place, record)
    buckets[bucket] = bucket_word(hashed, slot)
    at[USED] += 1
    at[LIVE] += 1
    return 0


@kernel(
    numba.int64(
        *(TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_RANKS),
        *(READ_U64, numba.int64, READ_U32, TYPE_AT, numba.int64),
    ),
    releases_gil=True,
)
def find_or_insert(
    place: Any, at: Any, buckets: Any, ranks: Any, hashes: Any, keys: Any, nulls: Any, slots: Any,
    start: Any,
) -> Any:  # fmt: skip
    """Write the record of each key, which may be changed, into `slots`, from row `start` on.

    `keys` is the address of their words, see `PackedKeys`.
    Rows are taken in blocks, for which buckets and records are fetched into the cache ahead; of
    those to come, `slots` holds the bucket, then the record.

    Returns:
        The number of rows, or where and why it stopped, see `ROWS_MAX`.
    """
    rows = len(hashes)
    width = 8 * (place[FIXED] + 2 * place[TEXTS])
    bits, segment = np.uint64(place[NODE_BITS]), at[SEGMENT]
    table = buckets.ctypes.data
    for first in range(start, rows, BLOCK):
        stop = min(first + BLOCK, rows)
        for row in range(first, stop):
            hashed = hashes[np.uint64(row)]
            rank = ranks[node_of(bits, hashed)]
            if rank < 0:
                if row == first:
                    return -1 - row - NODE * ROWS_MAX
                stop = row
                break
            slots[np.uint64(row)] = prefetch_home(at, bits, rank, hashed, table)
        _prefetch_records(place, at, buckets, hashes, slots, first, stop)
        lacking = _confirm(place, hashes, keys, nulls, slots, first, stop)
        for row in range(first, stop if lacking or segment > 1 else first):
            slot = slots[row]
            if slot < 0:
                hashed, words = hashes[row], keys + row * width
                null = np.int64(nulls[row]) if len(nulls) else np.int64(0)
                bucket = _search(place, at, buckets, ranks, hashed, words, null)
                slot = np.int64(buckets[bucket] & SLOT_MASK) - 1
                if slot < 0:
                    reason = _insert(place, at, buckets, bucket, hashed, words, null)
                    if reason:
                        return -1 - row - reason * ROWS_MAX
                    slots[row] = np.int64(buckets[bucket] & SLOT_MASK) - 1
                    continue
                slots[row] = slot
            if segment > 1:  # something was sealed
                reason = keep_image(place, at, slot)
                if reason:
                    return -1 - row - reason * ROWS_MAX
        if stop < min(first + BLOCK, rows):
            return -1 - stop - NODE * ROWS_MAX
    return np.int64(rows)


@kernel(
    numba.void(
        TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_RANKS, READ_U64, numba.int64, READ_U32, TYPE_AT
    ),
    releases_gil=True,
)
def find(
    place: Any, at: Any, buckets: Any, ranks: Any, hashes: Any, keys: Any, nulls: Any, slots: Any
) -> None:
    """Write the record of each key into `slots`; -1 if there is none.

    `keys` as for `find_or_insert`, whose blocks these are, too.
    """
    rows = len(hashes)
    width, bits = 8 * (place[FIXED] + 2 * place[TEXTS]), np.uint64(place[NODE_BITS])
    table = buckets.ctypes.data
    for first in range(0, rows, BLOCK):
        stop = min(first + BLOCK, rows)
        for row in range(first, stop):
            rank = ranks[node_of(bits, hashes[row])]
            slots[row] = prefetch_home(at, bits, rank, hashes[row], table) if rank >= 0 else -1
        _prefetch_records(place, at, buckets, hashes, slots, first, stop)
        _confirm(place, hashes, keys, nulls, slots, first, stop)
        for row in range(first, stop):
            if slots[row] == _OF_ANOTHER:
                hashed, words = hashes[row], keys + row * width
                null = np.int64(nulls[row]) if len(nulls) else np.int64(0)
                bucket = _search(place, at, buckets, ranks, hashed, words, null)
                slots[row] = np.int64(buckets[bucket] & SLOT_MASK) - 1


@kernel(numba.int64(TYPE_PLACE, TYPE_AT, TYPE_PLACE, numba.int64), releases_gil=True)
def keep_images(place: Any, at: Any, slots: Any, start: Any) -> Any:
    """Keep images of living records from `slots[start]` on, as `keep_image`.

    Returns as `find_or_insert`.
    """
    for row in range(start, len(slots)):
        alive = (load(place[BASE] + slots[row] * place[STRIDE] + 8) & 0xFF) == ALIVE
        if alive and keep_image(place, at, slots[row]):
            return -1 - row - IMAGE * ROWS_MAX
    return np.int64(len(slots))
