"""Matching over plain arrays: calls the compiled loop, and grows its memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ...configs.errors import BadRowError
from .book_kernels import (
    DONE,
    FREE_LEVEL,
    FREE_ORDER,
    ID_BYTES,
    LEVELS,
    NO_ROOM,
    ORDERS,
    REPEATED,
    UNKNOWN,
    reindex_books,
    reindex_orders,
    take_rows,
)
from .records import BOOK, FILL, LEVEL, ORDER, Books, OrderRows, Records

__all__ = ["MatchingEngine", "nothing_incoming"]

_BOOKS_AT_START = 64
_ID_BYTES_AT_START = 16 * _BOOKS_AT_START
_LEVELS_AT_START = 4_096
_ORDERS_AT_START = 4_096
_FILLS = 8_192


class MatchingEngine:
    """The order books of the instances that one operator object serves.

    Memory: 32 bytes an order and 8 to 16 for its index entry, 56 a price level, about 100 a book.
    """

    def __init__(self, owned: npt.NDArray[np.bool_]) -> None:
        """Start without books.

        Args:
            owned: True for each virtual node that it owns; their number is a power of two.
        """
        self._owned = owned
        self._books = Books(
            counts=np.array([0, 0, 0, -1, 0, -1], np.int64),
            books_by_hash=np.zeros(2 * _BOOKS_AT_START, np.int32),
            orders_by_hash=np.zeros(2 * _ORDERS_AT_START, np.int32),
            books=np.zeros(_BOOKS_AT_START, BOOK),
            levels=np.zeros(_LEVELS_AT_START, LEVEL),
            orders=np.zeros(_ORDERS_AT_START, ORDER),
            ids=np.zeros(_ID_BYTES_AT_START, np.uint8),
        )
        self._fills = np.empty(_FILLS, FILL)

    @property
    def books(self) -> Books:
        """The records."""
        return self._books

    def warm_up(self) -> None:
        """Load or compile the loops, without a row."""
        list(self.take(nothing_incoming()))
        self._grow(0, force=True)

    def take(self, rows: OrderRows) -> Iterator[Records]:
        """Process rows in the exchange's sequence and yield the fills that they cause.

        Yields:
            `FILL` records; a view, valid until the next step.

        Raises:
            BadRowError: an order is added twice, or a fill names an order that is not in the book.
        """
        cursor = np.zeros(3, np.int64)
        while True:
            outcome = take_rows(self._books, self._owned, rows, cursor, self._fills)
            if cursor[2]:
                yield self._fills[: cursor[2]]
            if outcome == DONE:
                return
            row = int(cursor[0])
            if outcome == NO_ROOM:
                self._grow(int(rows.offsets[row + 1]) - int(rows.offsets[row]))
            elif outcome in {REPEATED, UNKNOWN}:
                raise BadRowError(_complaint(rows, row, repeated=outcome == REPEATED))

    def _grow(self, id_bytes: int, *, force: bool = False) -> None:
        """Double the arrays that are full; the next symbol needs `id_bytes`."""
        of = self._books
        books, ids = of.books, of.ids
        while int(of.counts[ID_BYTES]) + id_bytes > len(ids):
            ids = np.concatenate([ids, np.zeros_like(ids)])
        if int(of.counts[0]) == len(books):
            books = np.concatenate([books, np.zeros_like(books)])
        levels, orders = of.levels, of.orders
        if of.counts[FREE_LEVEL] < 0 and int(of.counts[LEVELS]) == len(levels):
            levels = np.concatenate([levels, np.zeros_like(levels)])
        if of.counts[FREE_ORDER] < 0 and int(of.counts[ORDERS]) == len(orders):
            orders = np.concatenate([orders, np.zeros_like(orders)])
        by_hash = [of.books_by_hash, of.orders_by_hash]
        if force or len(books) > len(of.books):
            by_hash[0] = np.zeros(2 * len(books), np.int32)
        if force or len(orders) > len(of.orders):
            by_hash[1] = np.zeros(2 * len(orders), np.int32)
        self._books = Books(of.counts, by_hash[0], by_hash[1], books, levels, orders, ids)
        if by_hash[0] is not of.books_by_hash:
            reindex_books(self._books)
        if by_hash[1] is not of.orders_by_hash:
            reindex_orders(self._books)


def nothing_incoming() -> OrderRows:
    """Return an input without rows: read-only arrays of the right types."""
    kinds = ("u1", "i4", "u8", "i1", "i1", "i8", "i8", "i8")
    arrays = [np.zeros(1 if kind == "i4" else 0, kind) for kind in kinds]
    for array in arrays:
        array.flags.writeable = False
    return OrderRows(*arrays)


def _complaint(rows: OrderRows, row: int, *, repeated: bool) -> str:
    symbol = bytes(rows.pool[rows.offsets[row] : rows.offsets[row + 1]]).decode(errors="replace")
    number = int(rows.numbers[row])
    if repeated:
        return (
            f"orders: {symbol} adds order {number} while an order of that number is in its book:"
            " give each order of a symbol a number of its own"
        )
    return (
        f"orders: a fill of {symbol} takes {int(rows.qtys[row]):,} from order {number}, which has"
        " less in the book: apply fills after the orders that they fill"
    )
