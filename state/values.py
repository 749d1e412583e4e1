"""The values of records: those of variable size lie in the heap; compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from ..transport.atomics import copy, inner, kernel, load, store
from .index import (
    ABSENT,
    BASE,
    FIELDS,
    GARBAGE,
    HEAP,
    HEAP_NEXT,
    HEAP_STOP,
    NEED,
    ROWS_MAX,
    STRIDE,
    TEMPLATE,
    TYPE_AT,
    TYPE_PLACE,
    TYPE_SLOTS,
)
from .key_comparison import LENGTH_MASK, position_of

_TYPE_WORDS = types.Array(numba.int64, 2, "C", readonly=True)
_TYPE_VALID = types.Array(numba.bool_, 1, "C", readonly=True)
_TYPES_WRITE = (
    *(TYPE_PLACE, TYPE_AT, numba.int64, numba.int64, numba.int64),
    *(_TYPE_WORDS, _TYPE_VALID, TYPE_SLOTS),
)


@inner
def _heap_bytes(length: Any) -> Any:
    """Return the bytes that a value of a length takes in the heap."""
    return (length + 7) & ~7


@inner
def _put(base: Any, at: Any, address: Any, length: Any, instead_of: Any) -> Any:
    """Put a value into the heap in place of another, and return the reference to it.

    -1 if a chunk must be opened before, of `at[NEED]` bytes.
    """
    position, needed = at[HEAP_NEXT], _heap_bytes(length)
    if position + needed > at[HEAP_STOP]:
        at[NEED] = needed
        return np.int64(-1)
    at[GARBAGE] += _heap_bytes(instead_of & LENGTH_MASK)
    at[HEAP_NEXT] = position + needed
    copy(base + position, address, length)
    return (position << 24) | length


@kernel(numba.int64(*_TYPES_WRITE, numba.int64), releases_gil=True)
def write_values(
    place: Any,
    at: Any,
    word: Any,
    set_word: Any,
    bit: Any,
    values: Any,
    valid: Any,
    slots: Any,
    start: Any,
) -> Any:
    """Write the values at `values` (address, length) into a heap field of records.

    `word` and `set_word` are the positions of the reference and of the bits of nullable fields.
    Returns as `find_or_insert`.
    """
    for row in range(start, len(slots)):
        record = place[BASE] + slots[row] * place[STRIDE]
        known, reference = load(record + 8 * set_word), load(record + 8 * word)
        if valid[row]:
            written = _put(place[BASE], at, values[row, 0], values[row, 1], reference)
            if written == -1:  # references beyond 512 GiB are negative, too
                return -1 - row - HEAP * ROWS_MAX
            store(record + 8 * word, written)
            store(record + 8 * set_word, known | (1 << bit))
        else:
            at[GARBAGE] += _heap_bytes(reference & LENGTH_MASK)
            store(record + 8 * word, 0)
            store(record + 8 * set_word, known & ~(1 << bit))
    return np.int64(len(slots))


@inner
def _byte(address: Any) -> Any:
    """Return a byte; a word that is aligned lies in one page."""
    return (load(address & ~7) >> (8 * (address & 7))) & 0xFF


@inner
def _order_of_bytes(here: Any, length: Any, there: Any, other_length: Any) -> Any:
    """Return whether bytes are less than others (< 0), equal to them (0) or greater (> 0)."""
    shared = min(length, other_length)
    position = np.int64(0)
    while position + 8 <= shared and load(here + position) == load(there + position):
        position += 8
    while position < shared:
        differs = _byte(here + position) - _byte(there + position)
        if differs:
            return differs
        position += 1
    return length - other_length


@kernel(
    numba.int64(*_TYPES_WRITE, numba.bool_, numba.bool_, numba.bool_[::1], numba.int64),
    releases_gil=True,
)
def pick_values(
    place: Any,
    at: Any,
    word: Any,
    set_word: Any,
    bit: Any,
    values: Any,
    valid: Any,
    slots: Any,
    greatest: Any,
    later: Any,
    picked: Any,
    start: Any,
) -> Any:
    """Write those values into a heap field of records that are less than what is there, or greater.

    As `write_values`; `later` says whether equal values are picked, too. `picked` receives which
    rows were when their turn came.
    """
    for row in range(start, len(slots)):
        if not valid[row]:
            continue
        record = place[BASE] + slots[row] * place[STRIDE]
        known, reference = load(record + 8 * set_word), load(record + 8 * word)
        length = values[row, 1]
        if (known >> bit) & 1:
            kept = place[BASE] + position_of(reference)
            order = _order_of_bytes(kept, reference & LENGTH_MASK, values[row, 0], length)
            if order == 0:
                picked[row] = later
                continue
            if (order > 0) == greatest:
                continue
        written = _put(place[BASE], at, values[row, 0], length, reference)
        if written == -1:  # references beyond 512 GiB are negative, too
            return -1 - row - HEAP * ROWS_MAX
        store(record + 8 * word, written)
        store(record + 8 * set_word, known | (1 << bit))
        picked[row] = True
    return np.int64(len(slots))


@kernel(numba.void(numba.int64, TYPE_SLOTS, TYPE_SLOTS, numba.uint8[::1]), releases_gil=True)
def copy_values(memory: Any, starts: Any, offsets: Any, pool: Any) -> None:
    """Copy values one behind the other into a pool of bytes.

    Args:
        memory: the address of the log.
        starts: where the values lie there, int64 (n,).
        offsets: where they go in the pool, int64 (n + 1,).
        pool: uint8 (offsets[n],).
    """
    target = pool.ctypes.data
    for row in range(len(starts)):
        copy(target + offsets[row], memory + starts[row], offsets[row + 1] - offsets[row])


@kernel(numba.void(TYPE_PLACE, TYPE_AT, TYPE_PLACE, numba.int64, numba.int64), releases_gil=True)
def move_values(place: Any, at: Any, references: Any, first: Any, stop: Any) -> None:
    """Copy the values of the records first … stop - 1 to where the heap goes on."""
    for slot in range(first, stop):
        record = place[BASE] + slot * place[STRIDE]
        if (load(record + 8) & 0xFF) == ABSENT:
            continue
        for position in range(len(references)):
            reference = load(record + 8 * references[position])
            length = reference & LENGTH_MASK
            if length:
                target = at[HEAP_NEXT]
                copy(place[BASE] + target, place[BASE] + position_of(reference), length)
                at[HEAP_NEXT] += _heap_bytes(length)
                store(record + 8 * references[position], (target << 24) | length)


@kernel(numba.int64(TYPE_PLACE, TYPE_PLACE, numba.int64, numba.int64), releases_gil=True)
def living_bytes(place: Any, references: Any, first: Any, stop: Any) -> Any:
    """Return the bytes of the values to which the records first … stop - 1 refer."""
    total = np.int64(0)
    for slot in range(first, stop):
        record = place[BASE] + slot * place[STRIDE]
        if (load(record + 8) & 0xFF) == ABSENT:
            continue
        for position in range(len(references)):
            total += _heap_bytes(load(record + 8 * references[position]) & LENGTH_MASK)
    return total


@kernel(numba.int64(TYPE_PLACE, TYPE_PLACE, TYPE_AT), releases_gil=True)
def initial_ones(place: Any, slots: Any, found: Any) -> Any:
    """Write those records into `found` whose fields all have their initial values.

    Returns their number; a record that occurs twice in `slots` may be found twice.
    """
    count = 0
    for row in range(len(slots)):
        record = place[BASE] + slots[row] * place[STRIDE]
        same = True
        for position in range(place[FIELDS], place[STRIDE], 8):
            if load(record + position) != load(place[TEMPLATE] + position):
                same = False
                break
        if same:
            found[count] = slots[row]
            count += 1
    return np.int64(count)
