"""`UniqueRows`: the rows of a table that has no key twice, as a compiled loop finds them.

A loop asks for one row at a time and gets one or none, so it needs no lists of pairs. Integers that
lie close together are found by their distance from the least one, without a hash and without a
branch; other keys by open addressing in a table of row numbers that is at most half full. The
functions that look keys up are the loop's own (`HELPERS`), so that it depends on nothing else.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...transport import generated
from ...transport.wire.column import Column
from ..expressions.emitters.code import HELPERS, OF_TEXT_KEYS

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch

__all__ = ["ROWS_MAX", "UniqueRows", "index_keys", "unique_rows"]

ROWS_MAX = 1 << 18
"""Larger tables are not in the caches anyway; then the batch-wise look-up is as good."""

_PLACES_PER_KEY = 4
"""What is found by distance takes at most as much memory as slots do, nearly."""

_FILL_TEXTS = """
def fill(pool, offsets, slots):
    for row in range(len(offsets) - 1):
        begin, end = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        found = row_of_text(pool, begin, end, slots, pool, offsets)
        if found >= 0:
            return False
        slots[-1 - found] = row
    return True
"""
_FILL_INTEGERS = """
def fill(keys, slots):
    for row in range(len(keys)):
        found = row_of_integer(keys[row], slots, keys)
        if found >= 0:
            return False
        slots[-1 - found] = row
    return True
"""


@dataclass(frozen=True, eq=False)
class UniqueRows:
    """What a loop needs of a table.

    Attributes:
        slots: int32 (2^k,): the number of a key, or −1. Of dense keys (range + 1,): by the distance
            from the least one; the last place, always −1, is for keys that are not between them.
        keys: by number: int64, or text. Of dense keys only the least one.
        added: the columns that the table adds, by number; None if it adds none. With a row of nulls
            before all others where rows without a match are kept.
        is_dense: whether keys are found by their distance from the least one.
    """

    slots: npt.NDArray[np.int32]
    keys: Column
    added: Batch | None
    is_dense: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of memory for the slots and the keys."""
        return self.slots.nbytes + self.keys.nbytes

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """The arguments of a loop: the slots, then the keys, with offsets if they are text."""
        if self.keys.offsets is None:
            return self.slots, self.keys.data
        return self.slots, self.keys.data, self.keys.offsets


def unique_rows(keys: Column, added: Batch | None) -> UniqueRows | None:
    """Return the rows with keys of type int64 or text, at least one; None if one is there twice.

    `added` is as in `UniqueRows`.
    """
    if keys.offsets is None:
        first, last = int(keys.data.min()), int(keys.data.max())
        if last - first < _PLACES_PER_KEY * len(keys):
            rows = np.full(last - first + 2, -1, np.int32)
            rows[keys.data - first] = np.arange(len(keys), dtype=np.int32)
            if np.count_nonzero(rows >= 0) < len(keys):
                return None
            least = Column(keys.type, np.array([first], np.int64))
            return UniqueRows(rows, least, added, is_dense=True)
    slots = index_keys(keys)
    return None if slots is None else UniqueRows(slots, keys, added)


def index_keys(keys: Column) -> npt.NDArray[np.int32] | None:
    """Return the slots of keys of type int64 or text, without nulls; None if one is there twice."""
    slots = np.full(1 << max(4, (2 * len(keys)).bit_length()), -1, np.int32)
    if keys.offsets is None:
        is_unique = _filler(texts=False)(keys.data, slots)
    else:
        is_unique = _filler(texts=True)(keys.data, keys.offsets, slots)
    return slots if is_unique else None


@functools.cache
def _filler(*, texts: bool) -> Any:
    import numba

    def taken(of: Any) -> Any:
        return numba.types.Array(of, 1, "C", readonly=True)

    helpers = OF_TEXT_KEYS if texts else ("row_of_integer",)
    text = "".join(HELPERS[name] for name in helpers) + (_FILL_TEXTS if texts else _FILL_INTEGERS)
    keys = (taken(numba.uint8), taken(numba.int32)) if texts else (taken(numba.int64),)
    signature = (*keys, numba.int32[::1])
    return generated.compile_text(text, "fill", signature, {"np": np}, helpers)
