"""`OrderMatcher`: keeps the order books of the symbols that its instances own, matches orders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...configs.units import NS_PER_MS
from ...operators.process import InstanceContext, Output, Process
from ...state.keys import virtual_node_of
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import Schema
from ..shared.columns import check_columns, event_times, types_of
from .matching import MatchingEngine
from .records import OrderRows, Records
from .resting import books_of, put_books, put_orders, resting_orders
from .schemas import AGGRESSORS, BOOKS, FILLS, ROUTED
from .texts import frozen, pick_texts

__all__ = ["OrderMatcher"]


class OrderMatcher(Process):
    """Reads all valid orders in the exchange's sequence; emits the fills in the order of execution.

    Every row is broadcast, and one instance owns the virtual node of the row's symbol; the others
    skip the row by its hash. Orders are matched in price-time priority: an order trades with the
    best price of the other side, at equal prices with the oldest order, and at the price of the
    resting order. The remainder stays in the book. Between COLLECT and AUCTION, orders rest without
    being matched.

    One object serves all instances of a worker. Its output for a symbol depends only on the rows
    of that symbol and their order.
    """

    per_worker: ClassVar[bool] = True
    schema: Schema | None = FILLS

    def open(self, context: InstanceContext) -> None:
        """Start without books, and load the compiled loops before the first row arrives."""
        owned = np.zeros(context.virtual_nodes, np.bool_)
        owned[context.owned_nodes] = True
        self._virtual_nodes = context.virtual_nodes
        self._checked: set[Schema] = set()
        self._matching = MatchingEngine(owned)
        self._matching.warm_up()
        pick_texts(*_AGGRESSOR_TEXTS, np.empty(0, np.int64))

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Match the orders for the symbols that this worker's instances own."""
        if batch.schema not in self._checked:
            check_columns("orders", batch, types_of(ROUTED))
            self._checked.add(batch.schema)
        times = event_times("orders", batch)
        incoming = _incoming(batch)
        for fills in self._matching.take(incoming):
            out.emit(_batch_of(fills, incoming, times, batch.origin_ns))

    def dump(self, nodes: npt.NDArray[np.int64]) -> Iterable[Batch]:
        """Return the books of symbols, rows of `BOOKS`, and their orders, rows of `RESTING`."""
        of = self._matching.books
        hashes = np.ascontiguousarray(of.books["hash"][: of.counts[0]])
        mine = virtual_node_of(hashes, self._virtual_nodes)
        books = np.flatnonzero(np.isin(mine, nodes))
        yield books_of(of, books)
        yield resting_orders(of, books)

    def load(self, batch: Batch) -> None:
        """See `Process.load`."""
        if batch.schema == BOOKS:
            put_books(self._matching, batch)
        else:
            put_orders(self._matching, batch)


def _incoming(batch: Batch) -> OrderRows:
    symbols = batch.column("symbol")
    assert symbols.offsets is not None
    return OrderRows(
        frozen(symbols.data),
        frozen(symbols.offsets),
        frozen(batch.column("book").data),
        frozen(batch.column("action").data),
        frozen(batch.column("side").data),
        frozen(batch.column("price_milli").data),
        frozen(batch.column("qty").data),
        frozen(batch.column("order_no").data),
    )


def _batch_of(
    fills: Records, incoming: OrderRows, times: npt.NDArray[np.int64], origin_ns: int
) -> Batch:
    """Return fills as rows of `FILLS`, with the event times of the rows that caused them."""
    rows = np.ascontiguousarray(fills["row"])
    fill_times = times[rows]
    texts = (
        pick_texts(incoming.pool, incoming.offsets, rows),
        pick_texts(*_AGGRESSOR_TEXTS, np.ascontiguousarray(fills["aggressor"])),
    )
    types = [field.type for field in FILLS]
    symbols, aggressors = (
        Column(kind, pool, offsets)
        for kind, (pool, offsets) in zip((types[1], types[3]), texts, strict=True)
    )
    columns = [Column(types[0], fill_times // NS_PER_MS), symbols]
    columns.append(Column(types[2], fills["number"].copy()))
    columns.append(aggressors)
    for kind, name in zip(types[4:], ("price", "qty", "buy", "sell"), strict=True):
        columns.append(Column(kind, fills[name].copy()))
    return Batch(FILLS, columns, len(rows), fill_times, origin_ns)


def _texts(*words: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    pool = np.frombuffer("".join(words).encode(), np.uint8)
    offsets = np.cumsum([0, *(len(word) for word in words)], dtype=np.int32)
    return frozen(pool), frozen(offsets)


_AGGRESSOR_TEXTS = _texts(*AGGRESSORS)
