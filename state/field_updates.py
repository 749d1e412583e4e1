"""Counts and sums in fields of records, updated as the records of their keys are found; compiled.

Where keys are many, each row takes the line of its record through all caches. So a block of rows is
added to its records while these are in the nearest cache, not once all rows of a batch have theirs.
The results have the bits that they have if a field is updated for all rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba import carray, types

from ..transport.atomics import inner, kernel
from ..transport.wire.kernels import pointer
from . import index
from .index import (
    BASE,
    BLOCK,
    READ_U32,
    READ_U64,
    ROWS_MAX,
    STRIDE,
    TYPE_AT,
    TYPE_BUCKETS,
    TYPE_PLACE,
    TYPE_RANKS,
)

if TYPE_CHECKING:
    from .records import RecordLayout

__all__ = ["FieldUpdate", "float_sum", "integer_sum", "words_of"]

COUNT, INTEGERS, FLOATS = range(3)
_FIELDS_MAX = 3
_KIND, _FIELDS, _VALUES, _VALIDITY = 0, 1, 1 + _FIELDS_MAX, 2 + _FIELDS_MAX
_WORDS = _VALIDITY + 1
_NOTHING = np.empty(0, np.int64)


class FieldUpdate(NamedTuple):
    """What is done for each row: the values that are valid are counted, or counted and added.

    Attributes:
        kind: `COUNT`; `INTEGERS`, see `integer_sum`; `FLOATS`, see `float_sum`.
        fields: the names of the count, and of sums of the two fields of the total; all take eight
            bytes.
        values: int64 or float64 (n,) by the kind, aligned; none for a count.
        validity: bool (n,); (0,) if all are valid.
    """

    kind: int
    fields: tuple[str, ...]
    values: npt.NDArray[Any]
    validity: npt.NDArray[np.bool_]

    @classmethod
    def of_count(cls, field: str, validity: npt.NDArray[np.bool_]) -> FieldUpdate | None:
        """Return the update that counts values; None if the loop cannot read their validity."""
        if not validity.flags.c_contiguous:
            return None
        return cls(COUNT, (field,), _NOTHING, validity)

    @classmethod
    def of_sum(
        cls, fields: tuple[str, ...], values: npt.NDArray[Any], validity: npt.NDArray[np.bool_]
    ) -> FieldUpdate | None:
        """Return the update that adds values up; None if the loop cannot read them."""
        kind = {"<i8": INTEGERS, "<f8": FLOATS}.get(values.dtype.str)
        arrays = values.flags, validity.flags
        if kind is None or not all(one.c_contiguous and one.aligned for one in arrays):
            return None
        return cls(kind, fields, values, validity)


def words_of(layout: RecordLayout, updates: Sequence[FieldUpdate]) -> npt.NDArray[np.int64]:
    """Return updates as the loop takes them, int64 (n, words); their arrays must be kept."""
    words = [
        (kind, *_places(layout, fields), _address(values), _address(validity))
        for kind, fields, values, validity in updates
    ]
    return np.array(words, np.int64).reshape(len(updates), _WORDS)


@lru_cache(maxsize=256)
def _places(layout: RecordLayout, fields: tuple[str, ...]) -> tuple[int, ...]:
    """Return the words of a record that are these fields, 0 for those that there are not."""
    return (*(layout.word(one) for one in fields), *[0] * (_FIELDS_MAX - len(fields)))


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0]) if array.size else 0


@inner
def integer_sum(low: Any, high: Any, value: Any) -> Any:
    """Return a total of 128 bits, low uint64 and high int64, with an int64 added."""
    part = np.uint64(value)
    total = low + part
    return total, high + ((value >> 63) + np.int64(total < part))


@inner
def float_sum(total: Any, lost: Any, value: Any) -> Any:
    """Return a total and what roundings took from it, with a float64 added (Neumaier 1974)."""
    after = total + value
    if abs(total) >= abs(value):
        return after, lost + ((total - after) + value)
    return after, lost + ((value - after) + total)


@inner
def _update(place: Any, update: Any, slots: Any, first: Any, stop: Any) -> None:
    """Do one update for the rows first … stop - 1."""
    rows, words = len(slots), place[STRIDE] >> 3
    records = carray(pointer(place[BASE]), ROWS_MAX, np.int64)
    count, one, other = update[_FIELDS], update[_FIELDS + 1], update[_FIELDS + 2]
    all_valid = update[_VALIDITY] == 0
    validity = carray(pointer(update[_VALIDITY]), rows, np.uint8)
    if update[_KIND] == COUNT:
        for row in range(first, stop):
            at = np.uint64(slots[np.uint64(row)] * words + count)
            records[at] += 1 if all_valid else np.int64(validity[row])
        return
    if update[_KIND] == INTEGERS:
        integers = carray(pointer(update[_VALUES]), rows, np.int64)
        for row in range(first, stop):
            if all_valid or validity[row]:
                record = slots[np.uint64(row)] * words
                low, high = np.uint64(record + one), np.uint64(record + other)
                records[np.uint64(record + count)] += 1
                total = integer_sum(np.uint64(records[low]), records[high], integers[row])
                records[low], records[high] = np.int64(total[0]), total[1]
        return
    values = carray(pointer(update[_VALUES]), rows, np.float64)
    totals = carray(pointer(place[BASE]), ROWS_MAX, np.float64)
    for row in range(first, stop):
        if all_valid or validity[row]:
            record = slots[np.uint64(row)] * words
            total, lost = np.uint64(record + one), np.uint64(record + other)
            records[np.uint64(record + count)] += 1
            totals[total], totals[lost] = float_sum(totals[total], totals[lost], values[row])


@kernel(
    numba.int64(
        *(TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_RANKS),
        *(READ_U64, numba.int64, READ_U32, TYPE_AT, numba.int64),
        types.Array(numba.int64, 2, "C", readonly=True),
    ),
    releases_gil=True,
)
def find_and_update(
    place: Any,
    at: Any,
    buckets: Any,
    ranks: Any,
    hashes: Any,
    keys: Any,
    nulls: Any,
    slots: Any,
    start: Any,
    updates: Any,
) -> Any:
    """Do what `index.find_or_insert` does, and `updates` for each row that has its record.

    So of the rows before the one at which it stops.
    """
    for first in range(start, len(hashes), BLOCK):
        stop = min(first + BLOCK, len(hashes))
        known = hashes[:stop], keys, nulls, slots, first
        found = index.find_or_insert(place, at, buckets, ranks, *known)
        done = found if found >= 0 else (-1 - found) % ROWS_MAX
        for update in range(len(updates)):
            _update(place, updates[update], slots, first, done)
        if found < 0:
            return found
    return np.int64(len(hashes))
