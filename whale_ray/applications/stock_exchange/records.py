"""The records of order books, and the arrays that hold them.

Records are linked by their index in their array; −1 means none.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["BOOK", "FILL", "LEVEL", "ORDER", "Books", "Int32s", "Int64s", "OrderRows", "Records"]

#: Shape (n,), a structured dtype.
Records: TypeAlias = npt.NDArray[Any]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]

ORDER = np.dtype(
    [
        ("number", np.int64),
        ("qty", np.int64),  # open quantity
        ("book", np.int32),  # −1: free
        ("level", np.int32),
        ("before", np.int32),  # in its level
        ("after", np.int32),  # the same; of a free order, the next free one
    ],
    align=True,
)

LEVEL = np.dtype(
    [
        ("rank", np.int64),
        ("qty", np.int64),  # of all its orders
        ("first", np.int32),
        ("last", np.int32),
        ("better", np.int32),
        ("worse", np.int32),  # of a free level, the next free one
        ("left", np.int32),
        ("right", np.int32),
        ("up", np.int32),
        ("side", np.int32),
        ("priority", np.uint32),
    ],
    align=True,
)

BOOK = np.dtype(
    [
        ("hash", np.uint64),  # of the symbol
        ("id_start", np.int64),  # the symbol is ids[id_start:id_stop]
        ("id_stop", np.int64),
        ("fills", np.int64),  # so far
        ("auction_price", np.int64),
        ("buyer", np.int64),  # order number of an applied fill whose sell row has not arrived yet
        ("phase", np.int64),
        ("best", np.int32, (2,)),
        ("root", np.int32, (2,)),
    ],
    align=True,
)

FILL = np.dtype(
    [
        ("row", np.int64),  # input row that caused the fill
        ("number", np.int64),  # of the book's fills, from 1
        ("price", np.int64),
        ("qty", np.int64),
        ("buy", np.int64),  # order numbers
        ("sell", np.int64),
        ("aggressor", np.int64),
    ],
    align=True,
)


class Books(NamedTuple):
    """The arrays of one `MatchingEngine`, changed in place by the kernels."""

    counts: Int64s
    """Shape (7,): how much of the others is in use, see `BOOKS` … in `book_kernels`."""
    books_by_hash: Int32s
    """Hash of symbol → book + 1, or 0; linear probing, at most half full."""
    orders_by_hash: Int32s
    """Hash of book and order number → order + 1, or 0; likewise."""
    books: Records
    levels: Records
    orders: Records
    ids: npt.NDArray[np.uint8]
    """The bytes of all symbols, one after another."""


class OrderRows(NamedTuple):
    """Rows of the orders stream, in the exchange's sequence; shapes (rows,) except `offsets`."""

    pool: npt.NDArray[np.uint8]
    """Symbol i is `pool[offsets[i] : offsets[i + 1]]`."""
    offsets: Int32s
    hashes: npt.NDArray[np.uint64]
    """Of the symbols."""
    actions: npt.NDArray[np.int8]
    sides: npt.NDArray[np.int8]
    prices: Int64s
    qtys: Int64s
    numbers: Int64s
