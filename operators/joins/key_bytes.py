"""`KeyBytes`: keys as bytes, which a loop compares where equal hashes may be other keys.

A number is eight bytes; a key of several columns has its numbers and the lengths of its texts
first, then these. Keys are equal if their bytes are: NaN equals NaN, −0.0 equals 0.0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...state.keys import exact_hashes_within
from ...transport.compiling import njit
from .common_keys import common_keys

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.column import Column

__all__ = ["KeyBytes", "key_bytes"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyBytes:
    """The keys of n rows.

    Attributes:
        pool: their bytes, uint8.
        ends: where in `pool` those of each row begin, and where the last one's end, int64 (n + 1,);
            (0,) if equal hashes are equal keys, so that none need be compared.
    """

    pool: npt.NDArray[np.uint8]
    ends: Int64s

    def before(self, order: Int64s | None) -> Int64s | None:
        """Return how many bytes stand before each row in an order, and in all: int64 (n + 1,).

        None if no keys need be compared.
        """
        if not self.ends.size:
            return None
        if order is None:
            return self.ends - self.ends[0]
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.diff(self.ends)[order])])


def key_bytes(batch: Batch, columns: Sequence[str]) -> KeyBytes:
    """Return the keys of rows as bytes; a row with a null in its key has some, too."""
    kinds = [batch.schema.field(name).type for name in columns]
    if len(kinds) == 1 and exact_hashes_within(kinds[0]) == math.inf:
        return KeyBytes(np.empty(0, np.uint8), np.empty(0, np.int64))
    texts, numbers = [], []
    for column in common_keys(batch, columns).columns:
        number = _numbers(column)
        if number is None:
            texts.append(_texts(column))
        else:
            numbers.append(number)
    if len(columns) == len(texts) == 1:
        return texts[0]
    numbers += [np.diff(text.ends).view(np.uint64) for text in texts]
    width = 8 * len(numbers)
    head = np.stack(numbers, axis=1).reshape(-1).view(np.uint8)
    made = KeyBytes(head, np.arange(0, width * batch.num_rows + 1, width))
    return _joined([made, *texts]) if texts else made


def _numbers(column: Column) -> npt.NDArray[np.uint64] | None:
    """Return a word for each row, uint64 (n,); None if its values are longer."""
    data = column.data
    if column.offsets is not None or data.dtype.kind not in "fbiu":
        return None
    if data.dtype.kind == "f":
        values = data + 0.0  # turns −0.0 into 0.0
        values[np.isnan(values)] = np.nan
        return values.view(np.uint64)
    return (data if data.dtype.itemsize == 8 else data.astype(np.int64)).view(np.uint64)


def _texts(column: Column) -> KeyBytes:
    """Return texts, or numbers of more than 64 bits."""
    data = column.data
    if column.offsets is not None:
        return KeyBytes(np.require(data, np.uint8, ["C"]), column.offsets.astype(np.int64))
    width = data.dtype.itemsize
    pool = np.frombuffer(np.ascontiguousarray(data).data, np.uint8)
    return KeyBytes(pool, np.arange(0, width * len(data) + 1, width))


def _joined(parts: Sequence[KeyBytes]) -> KeyBytes:
    """Return the bytes of several parts, one behind the other in each row."""
    ends = np.concatenate(
        [np.zeros(1, np.int64), np.cumsum(sum(np.diff(part.ends) for part in parts))]
    )
    pool, places = np.empty(int(ends[-1]), np.uint8), ends[:-1].copy()
    for part in parts:
        _put(part.pool, part.ends, pool, places)
    return KeyBytes(pool, ends)


@njit(cache=True, nogil=True)
def _put(part: Any, ends: Any, pool: Any, places: Any) -> None:
    """Write the bytes of each row at its place, and move the place behind them."""
    for row in range(len(places)):
        begin, place = np.uint64(ends[row]), np.uint64(places[row])
        size = np.uint64(ends[row + 1]) - begin
        for byte in range(size):
            pool[place + byte] = part[begin + byte]
        places[row] = place + size
