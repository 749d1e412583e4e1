"""Finding the record of one key in one call: for handles, whose keys come one by one from Python.

Unpacking an array argument costs a compiled function as much as finding a key. So a vector holds
the addresses of all that `index` works on, and the vector's address is the only argument. The two
functions that take it both make arrays of the addresses, in the same lines: handing these arrays on
from a function of their own is not known to cost nothing.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray

from ..configs.errors import InputError
from ..transport.atomics import direct, inner, kernel
from ..transport.wire.kernels import pointer
from . import index
from .keys import hash_bytes, hash_words
from .records import VALUE_BYTES_MAX

__all__ = ["OneKey", "OneTextKey"]

Int64s = npt.NDArray[np.int64]

# The vector: addresses of what `index` works on, and of the key, its hash and its record.
_PLACE, _AT, _BUCKETS, _RANKS = range(4)
_BUCKET_COUNT, _COLUMNS, _WORDS, _HASH, _SLOT, _HAS_TEXT = range(4, 10)
_VECTOR_WORDS = 10

_TEXT_BYTES = 64
"""So long a text is looked up without an allocation, at first."""


class OneKey:
    """Looks single keys of 64-bit integers up in the index of a store.

    Args:
        place, at: of the store, see `index`.
        columns: how many integers a key has.

    Attributes:
        hashes: the hash of the key that was looked up last, uint64 (1,).
        address: where its words are.
    """

    def __init__(self, place: Int64s, at: Int64s, columns: int) -> None:
        self._words: Any = np.empty(columns, np.uint64)
        self.hashes = np.empty(1, np.uint64)
        self._slot = np.empty(1, np.int64)
        self.address = int(self._words.ctypes.data)
        self._write = struct.Struct(f"={columns}q").pack_into
        self._buckets: Any = None
        self._ranks: Any = None
        self._always = (place, at)
        self._vector = np.zeros(_VECTOR_WORDS, np.int64)
        self._vector[:2] = [array.ctypes.data for array in self._always]
        self._vector[_COLUMNS:_HAS_TEXT] = [
            *(columns, self.address, self.hashes.ctypes.data, self._slot.ctypes.data)
        ]
        self._at_vector = int(self._vector.ctypes.data)

    def find(self, buckets: Any, ranks: Any, words: tuple[Any, ...]) -> int:
        """Return the record of a key, −1 if there is none; `buckets` and `ranks` as they are."""
        if buckets is not self._buckets or ranks is not self._ranks:
            self._note(buckets, ranks)
        self._write_key(words)
        return _find(self._at_vector)

    def find_or_insert(self, buckets: Any, ranks: Any, words: tuple[Any, ...]) -> int:
        """Return the record of a key as `find`, a new one if there is none.

        A negative number says that room must be made first, as by `index.find_or_insert`.
        """
        if buckets is not self._buckets or ranks is not self._ranks:
            self._note(buckets, ranks)
        self._write_key(words)
        return _find_or_insert(self._at_vector)

    def _write_key(self, words: tuple[Any, ...]) -> None:
        self._write(self._words, 0, *words)

    def _note(self, buckets: Any, ranks: Any) -> None:
        self._buckets, self._ranks = buckets, ranks
        self._vector[_BUCKETS] = buckets.ctypes.data
        self._vector[_RANKS] = ranks.ctypes.data
        self._vector[_BUCKET_COUNT] = len(buckets)


class OneTextKey(OneKey):
    """Looks single keys of an integer and a text, or bytes, up in the index of a store."""

    def __init__(self, place: Int64s, at: Int64s) -> None:
        super().__init__(place, at, 3)  # the integer; address and length of the text
        self._vector[_HAS_TEXT] = 1
        self._make_room(_TEXT_BYTES)

    def _make_room(self, nbytes: int) -> None:
        room = np.empty(nbytes, np.uint8)
        self._room: Any = room.data
        self._room_bytes, self._room_address = nbytes, int(room.ctypes.data)

    def _write_key(self, words: tuple[Any, ...]) -> None:
        number, text = words
        size = len(text)
        if size > self._room_bytes:
            if size > VALUE_BYTES_MAX:
                msg = f"a key of {size:,} bytes; at most {VALUE_BYTES_MAX:,} fit"
                raise InputError(msg)
            self._make_room(2 * size)
        self._room[:size] = text
        self._write(self._words, 0, number, self._room_address, size)


@inner
def _hash(words: Any, has_text: Any, hashes: Any) -> None:
    """Hash a key as `hash_keys` does: its words uint64 (1, columns) into hashes (1,)."""
    if not has_text:
        hash_words(words, hashes)
        return
    hash_words(carray(pointer(words.ctypes.data), (1, 1), np.uint64), hashes)
    text = carray(pointer(np.int64(words[0, 1])), np.int64(words[0, 2]), np.uint8)
    hashes[0] = hash_bytes(text, np.uint64(0), words[0, 2], hashes[0])


@direct
@kernel("int64(int64)")
def _find(vector: int) -> int:
    known = carray(pointer(vector), _VECTOR_WORDS, np.int64)
    place = carray(pointer(known[_PLACE]), index.PLACE_WORDS, np.int64)
    at = carray(pointer(known[_AT]), index.AT_WORDS, np.int64)
    buckets = carray(pointer(known[_BUCKETS]), known[_BUCKET_COUNT], np.uint64)
    ranks = carray(pointer(known[_RANKS]), 1 << place[index.NODE_BITS], np.int32)
    words = carray(pointer(known[_WORDS]), (1, known[_COLUMNS]), np.uint64)
    hashes = carray(pointer(known[_HASH]), 1, np.uint64)
    slots = carray(pointer(known[_SLOT]), 1, np.int64)
    no_nulls = carray(pointer(known[_SLOT]), 0, np.uint32)
    _hash(words, known[_HAS_TEXT], hashes)
    index.find(place, at, buckets, ranks, hashes, known[_WORDS], no_nulls, slots)
    return slots[0]


@direct
@kernel("int64(int64)")
def _find_or_insert(vector: int) -> int:
    known = carray(pointer(vector), _VECTOR_WORDS, np.int64)
    place = carray(pointer(known[_PLACE]), index.PLACE_WORDS, np.int64)
    at = carray(pointer(known[_AT]), index.AT_WORDS, np.int64)
    buckets = carray(pointer(known[_BUCKETS]), known[_BUCKET_COUNT], np.uint64)
    ranks = carray(pointer(known[_RANKS]), 1 << place[index.NODE_BITS], np.int32)
    words = carray(pointer(known[_WORDS]), (1, known[_COLUMNS]), np.uint64)
    hashes = carray(pointer(known[_HASH]), 1, np.uint64)
    slots = carray(pointer(known[_SLOT]), 1, np.int64)
    no_nulls = carray(pointer(known[_SLOT]), 0, np.uint32)
    _hash(words, known[_HAS_TEXT], hashes)
    done = index.find_or_insert(
        place, at, buckets, ranks, hashes, known[_WORDS], no_nulls, slots, 0
    )
    return slots[0] if done == 1 else done
