"""Order books as rows, and out of rows again: how their state is saved and moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...transport.compiling import njit
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from .book_kernels import COLLECTING, ID_BYTES
from .records import Books, Int64s, OrderRows
from .schemas import BOOKS, RESTING, Action
from .texts import frozen, pick_texts

if TYPE_CHECKING:
    from .matching import MatchingEngine

__all__ = ["books_of", "put_books", "put_orders", "resting_orders"]

_FIELDS = BOOKS.names[1:]


def books_of(of: Books, books: Int64s) -> Batch:
    """Return some books without their orders, rows of `BOOKS`."""
    kept = of.books[books]
    columns = [_symbols(of, books)]
    columns += [Column(BOOKS.field(one).type, np.ascontiguousarray(kept[one])) for one in _FIELDS]
    return Batch(BOOKS, columns, len(books))


def resting_orders(of: Books, books: Int64s) -> Batch:
    """Return the orders of some books, rows of `RESTING`, in their priority."""
    orders = np.empty(int((of.orders["book"] >= 0).sum()), np.int64)
    orders = orders[: _in_priority(of, books, orders)]
    kept = of.orders[orders]
    levels = of.levels[kept["level"]]
    is_buy = levels["side"] == 0
    data = (
        np.where(is_buy, 1, -1).astype(np.int8),
        np.where(is_buy, -levels["rank"], levels["rank"]),
        np.ascontiguousarray(kept["qty"]),
        np.ascontiguousarray(kept["number"]),
    )
    columns = [_symbols(of, kept["book"].astype(np.int64))]
    fields = RESTING.fields[1:]
    columns += [Column(field.type, one) for field, one in zip(fields, data, strict=True)]
    return Batch(RESTING, columns, len(orders))


def put_books(engine: MatchingEngine, batch: Batch) -> None:
    """Make the books of rows of `BOOKS`, which are not there yet."""
    _take(engine, batch, Action.COLLECT)  # makes a book, whatever its phase is then
    books = _books(engine.books, batch)
    for name in _FIELDS:
        engine.books.books[name][books] = batch[name]


def put_orders(engine: MatchingEngine, batch: Batch) -> None:
    """Put rows of `RESTING` into their books."""
    books = np.unique(_books(engine.books, batch))
    phases = engine.books.books["phase"][books]
    engine.books.books["phase"][books] = COLLECTING  # so that none is matched
    _take(engine, batch, Action.ADD)
    engine.books.books["phase"][books] = phases


def _take(engine: MatchingEngine, batch: Batch, action: Action) -> None:
    symbols, hashes = batch.column("symbol"), hash_keys(batch, ("symbol",))[0]
    assert symbols.offsets is not None
    nothing = np.zeros(batch.num_rows, np.int64)
    names = ("side", "price_milli", "qty", "order_no")
    numbers = [batch[name] if name in batch.schema else nothing for name in names]
    numbers[0] = numbers[0].astype(np.int8)
    actions = np.full(batch.num_rows, action, np.int8)
    rows = (symbols.data, symbols.offsets, hashes, actions, *numbers)
    fills = list(engine.take(OrderRows(*(frozen(one) for one in rows))))
    assert not fills  # none is matched while its book collects orders


def _books(of: Books, batch: Batch) -> Int64s:
    """Return the number of each row's book."""
    ids, known = bytes(of.ids[: of.counts[ID_BYTES]]), of.books[: of.counts[0]]
    bounds = zip(known["id_start"].tolist(), known["id_stop"].tolist(), strict=True)
    numbers = {ids[start:stop].decode(): book for book, (start, stop) in enumerate(bounds)}
    return np.array([numbers[symbol] for symbol in batch["symbol"].to_pylist()], np.int64)


def _symbols(of: Books, books: Int64s) -> Column:
    known = int(of.counts[0])
    offsets = np.append(of.books["id_start"][:known], of.counts[ID_BYTES]).astype(np.int32)
    texts = pick_texts(frozen(of.ids), frozen(offsets), np.ascontiguousarray(books))
    return Column(BOOKS.field("symbol").type, *texts)


@njit(cache=True, nogil=True)
def _in_priority(of: Books, books: Int64s, found: npt.NDArray[np.int64]) -> int:
    """Write the orders of books into `found`, best level first and first come first; count them."""
    count = 0
    for number in range(len(books)):
        book = of.books[books[number]]
        for side in range(2):
            level = book.best[side]
            while level != -1:
                order = of.levels[level].first
                while order != -1:
                    found[count] = order
                    count += 1
                    order = of.orders[order].after
                level = of.levels[level].worse
    return count
