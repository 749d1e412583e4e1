"""Trading volume per symbol and second, compiled.

numba keeps compiled functions from run to run, and looks for changes only in the file that a
function is in. So all that is compiled into one lies in its own module, constants included.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit

__all__ = ["VOLUME", "add_fills", "close_seconds", "reindex_volumes"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
#: Shape (n,), a structured dtype.
Records: TypeAlias = npt.NDArray[Any]

NONE = -1
NO_SECOND = np.iinfo(np.int64).min
#: Entries of `counts`.
SYMBOLS, ID_BYTES = 0, 1

#: A symbol's volume; of `second` as long as that is open.
VOLUME = np.dtype(
    [
        ("hash", np.uint64),
        ("id_start", np.int64),  # the symbol is ids[id_start:id_stop]
        ("id_stop", np.int64),
        ("second", np.int64),  # since the epoch; NO_SECOND: none is open
        ("fills", np.int64),
        ("qty", np.int64),
        ("value", np.int64),
        ("last_price", np.int64),
        ("total_qty", np.int64),  # up to the end of the second
        ("symbol", np.int64),  # its own number
    ],
    align=True,
)


@njit(cache=True, nogil=True)
def add_fills(
    counts: Int64s,
    index: Int32s,
    volumes: Records,
    ids: Bytes,
    pool: Bytes,
    offsets: Int32s,
    hashes: npt.NDArray[np.uint64],
    seconds: Int64s,
    prices: Int64s,
    qtys: Int64s,
    first: int,
    closed: Records,
) -> tuple[int, int]:
    """Add fills from row `first` on; a fill of a later second closes its symbol's open one.

    Args:
        counts, index, volumes, ids: what is kept, changed in place.
        pool, offsets, hashes: symbols of the fills.
        seconds: in which they happened; never less than before for the same symbol.
        prices, qtys: of the fills.
        first: row to begin at.
        closed: room for as many records as there are rows; filled from its beginning.

    Returns:
        The first row whose symbol finds no room (all rows if none); how many seconds were closed.
    """
    filled = 0
    for row in range(first, len(hashes)):
        symbol = _symbol_of(
            counts, index, volumes, ids, hashes[row], pool, offsets[row], offsets[row + 1]
        )
        if symbol == NONE:
            return row, filled
        volume = volumes[symbol]
        if volume.second != seconds[row]:
            if volume.second != NO_SECOND:
                closed[filled] = volumes[symbol]
                filled += 1
            volume.second = seconds[row]
            volume.fills = volume.qty = volume.value = 0
        volume.fills += 1
        volume.qty += qtys[row]
        volume.value += qtys[row] * prices[row]
        volume.last_price = prices[row]
        volume.total_qty += qtys[row]
    return len(hashes), filled


@njit(cache=True, nogil=True)
def close_seconds(counts: Int64s, volumes: Records, before: int, closed: Records) -> int:
    """Write down all open seconds less than `before`, by symbol; return how many there were."""
    filled = 0
    for symbol in range(counts[SYMBOLS]):
        second = volumes[symbol].second
        if NO_SECOND < second < before:
            closed[filled] = volumes[symbol]
            filled += 1
            volumes[symbol].second = NO_SECOND
    return filled


@njit(cache=True, nogil=True)
def reindex_volumes(counts: Int64s, index: Int32s, volumes: Records) -> None:
    """Fill an empty index from the symbols."""
    mask = np.uint64(len(index) - 1)
    for symbol in range(counts[SYMBOLS]):
        entry = volumes[symbol].hash & mask
        while index[entry] != 0:
            entry = (entry + np.uint64(1)) & mask
        index[entry] = symbol + 1


@njit(cache=True, nogil=True)
def _symbol_of(
    counts: Int64s,
    index: Int32s,
    volumes: Records,
    ids: Bytes,
    hashed: np.uint64,
    pool: Bytes,
    start: int,
    stop: int,
) -> int:
    """Return a symbol's number, a new one if it has none; −1 if there is no room for it."""
    mask = np.uint64(len(index) - 1)
    entry = hashed & mask
    while index[entry] != 0:
        symbol = index[entry] - 1
        volume = volumes[symbol]
        if volume.hash == hashed and volume.id_stop - volume.id_start == stop - start:
            same = True
            for step in range(stop - start):
                same = same and ids[volume.id_start + step] == pool[start + step]
            if same:
                return symbol
        entry = (entry + np.uint64(1)) & mask
    symbol, used = counts[SYMBOLS], counts[ID_BYTES]
    if symbol == len(volumes) or used + stop - start > len(ids):
        return NONE
    counts[SYMBOLS] += 1
    counts[ID_BYTES] += stop - start
    index[entry] = symbol + 1
    for step in range(stop - start):
        ids[used + step] = pool[start + step]
    new = volumes[symbol]
    new.hash, new.id_start, new.id_stop, new.symbol = hashed, used, used + stop - start, symbol
    new.second, new.total_qty = NO_SECOND, 0
    return symbol
