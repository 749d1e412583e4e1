"""Compares the key of a record with the words of a key, as `PackedKeys` has them; compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..transport.atomics import inner, load

__all__ = ["LENGTH_MASK", "NULLS", "position_of", "same_key"]

NULLS = 0xFFFFFF << 8
"""The bits of a record's word `#link` that say which key columns are null."""
LENGTH_MASK = (1 << 24) - 1
"""The bits of a reference that are the length."""

_POSITION_MASK = (1 << 40) - 1

_PAGE_MASK = 4095  # of the smallest pages


@inner
def position_of(reference: Any) -> Any:
    """Return where in the log the value of a reference lies: its upper 40 bits, without a sign."""
    return (reference >> 24) & _POSITION_MASK


@inner
def _few_bytes(address: Any, count: Any) -> Any:
    """Return 1 to 7 bytes as a word, reading none beyond the page that they lie in."""
    unused = np.uint64(8 * (8 - count))
    if (address & _PAGE_MASK) <= _PAGE_MASK - 7:
        return np.uint64(load(address)) << unused
    return (np.uint64(load(address + count - 8)) >> unused) << unused


@inner
def _same_bytes(here: Any, there: Any, length: Any) -> Any:
    whole = length & ~7
    for position in range(0, whole, 8):
        if load(here + position) != load(there + position):
            return False
    rest = length & 7
    return rest == 0 or _few_bytes(here + whole, rest) == _few_bytes(there + whole, rest)


@inner
def _same_texts(base: Any, references: Any, words: Any, texts: Any) -> Any:
    """Compare `texts` references at an address with as many (address, length) at another."""
    for text in range(texts):
        reference = load(references + 8 * text)
        length = reference & LENGTH_MASK
        if length != load(words + 16 * text + 8):
            return False
        if not _same_bytes(base + position_of(reference), load(words + 16 * text), length):
            return False
    return True


@inner
def same_key(
    base: Any, fixed: Any, texts: Any, record: Any, hashed: Any, words: Any, nulls: Any
) -> Any:
    """Compare a record's key with the words at an address."""
    differs = (load(record) ^ np.int64(hashed)) | ((load(record + 8) & NULLS) ^ (nulls << 8))
    size = 8 * fixed
    for word in range(0, size, 8):  # without a branch for each word
        differs |= load(record + 16 + word) ^ load(words + word)
    if differs:
        return False
    return texts == 0 or _same_texts(base, record + 16 + size, words + size, texts)
