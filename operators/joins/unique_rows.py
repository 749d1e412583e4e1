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
    from ...transport.wire.types import DataType

__all__ = ["UniqueRows", "index_keys", "is_compiled_for", "unique_rows"]

_PLACES_PER_KEY = 4
"""What is found by distance takes at most as much memory as slots do, nearly."""

_KEYS_CLOSE_MAX = 1 << 14
"""Slots of so many keys lie in a core's own cache, however many each has."""

_FILL_TEXTS = """
def fill(pool, offsets, slots):
    for row in range(len(offsets) - 1):
        begin, end = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        found = row_of_text(pool, begin, end - begin, slots, pool, offsets)
        if found >= 0:
            return False
        slots[-1 - found] = row
    return True
"""
_HASH = np.uint64(0x9E3779B185EBCA87)
"""Of `row_of_integer`."""


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
    def is_without_gaps(self) -> bool:
        """Whether keys are found by their distance, and each between the least and greatest is."""
        return self.is_dense and bool((self.slots[:-1] >= 0).all())

    @property
    def nbytes(self) -> int:
        """Bytes of memory for the slots and the keys."""
        return self.slots.nbytes + self.keys.nbytes

    @property
    def key_bytes(self) -> int | None:
        """How many bytes each key of text has; None if not all have as many, or others."""
        if self.keys.offsets is None:
            return None
        sizes = np.diff(self.keys.offsets)
        return int(sizes[0]) if (sizes == sizes[0]).all() else None

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
    slots = np.full(_slots(len(keys)), -1, np.int32)
    if keys.offsets is None:
        is_unique = _fill_integers(keys.data, slots)
    else:
        is_unique = _text_filler()(keys.data, keys.offsets, slots)
    return slots if is_unique else None


def _slots(keys: int) -> int:
    """Return the number of slots: 2 to 4 for each key, 4 to 8 where all lie in a close cache.

    The more there are the fewer keys share one, so that the processor guesses right where a look-up
    ends: with 4 instead of 2 for each of 1,000 texts it takes a fifth less.
    """
    per_key = 4 if keys <= _KEYS_CLOSE_MAX else 2
    return 1 << max(4, (per_key * keys).bit_length())


def is_compiled_for(type: DataType) -> bool:
    """Whether `unique_rows` of keys of a type compiles nothing: for text that takes a while."""
    return not type.is_text or generated.is_kept(_text_filler_module())


def _fill_integers(keys: npt.NDArray[np.int64], slots: npt.NDArray[np.int32]) -> bool:
    """Fill slots with keys' rows, as `row_of_integer` finds them; False if one is there twice.

    All keys take a step at once: where several meet at a free place one stays, the others go on.
    """
    mask = np.uint64(len(slots) - 1)
    places = keys.view(np.uint64) * _HASH
    places = (places ^ (places >> np.uint64(32))) & mask
    rows = np.arange(len(keys), dtype=np.int32)
    while len(rows):
        free = slots[places] < 0
        slots[places[free]] = rows[free]
        there = slots[places]
        gone_on = there != rows
        rows, places = rows[gone_on], places[gone_on]
        if (keys[there[gone_on]] == keys[rows]).any():
            return False
        places = (places + np.uint64(1)) & mask
    return True


def _text_filler_module() -> str:
    return "".join(HELPERS[name] for name in OF_TEXT_KEYS) + _FILL_TEXTS


@functools.cache
def _text_filler() -> Any:
    import numba

    def taken(of: Any) -> Any:
        return numba.types.Array(of, 1, "C", readonly=True)

    signature = (taken(numba.uint8), taken(numba.int32), numba.int32[::1])
    text = _text_filler_module()
    return generated.compile_text(text, "fill", signature, {"np": np}, OF_TEXT_KEYS)
