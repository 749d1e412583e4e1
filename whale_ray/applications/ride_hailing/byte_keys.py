"""Byte strings as keys of compiled hash indexes.

Keys are concatenated in a pool of bytes; key i is `pool[offsets[i] : offsets[i + 1]]`. A hash index
is an int32 array with a power of two entries, each 0 (free) or the key's number + 1; it uses linear
probing and is at most half full. The hashes are those of `hash_keys`, by whose high bits rows are
partitioned; an index uses the low bits, so that the two do not correlate.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...transport.wire.column import Column
from ..shared.columns import frozen

__all__ = ["Bytes", "index_size", "key_bytes"]

Bytes: TypeAlias = npt.NDArray[np.uint8]


def key_bytes(column: Column) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Return a column's values as keys: pool, and offsets of shape (rows + 1,)."""
    if column.offsets is not None:
        return frozen(column.data), frozen(column.offsets)
    width = column.data.dtype.itemsize
    pool = np.ascontiguousarray(column.data).view(np.uint8)
    return frozen(pool), frozen(np.arange(0, len(pool) + 1, width, dtype=np.int32))


def index_size(keys: int) -> int:
    """Return the entries of an index that holds `keys` keys and stays at most half full."""
    size = 16
    while size < 2 * keys:
        size *= 2
    return size
