"""Byte strings as keys for compiled look-ups, and arrays made fit for compiled loops.

Keys lie one after another in a pool of bytes; key i is `pool[offsets[i] : offsets[i + 1]]`. A hash
index is an int32 array with a power of two entries, each 0 (free) or the key's number + 1; it uses
linear probing and is kept at most half full. Hashes are those of `hash_keys`, by which rows are
routed: that goes by the high bits, an index goes by the low ones.
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ...transport.wire.column import Column

__all__ = ["Bytes", "frozen", "index_size", "key_bytes"]

Bytes: TypeAlias = npt.NDArray[np.uint8]

_Any = TypeVar("_Any", bound=np.generic)


def frozen(array: npt.NDArray[_Any]) -> npt.NDArray[_Any]:
    """Return a read-only, contiguous view: numba compiles anew for arrays that can be written."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


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
