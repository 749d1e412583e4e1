"""The exchange in plain Python, the oracle of the compiled books: slow, obvious, written apart.

Its auctions are those of the preparation (`auctions.uncross`), which real auctions confirm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from whale_ray.applications.stock_exchange.auctions import Fill, Resting, best_first, uncross
from whale_ray.applications.stock_exchange.schemas import Action


class OrderRow(NamedTuple):
    """One row of the orders stream; see `schemas.ORDERS`."""

    symbol: str
    action: int
    side: int
    price: int
    qty: int
    order_no: int


@dataclass
class _Book:
    orders: list[Resting] = field(default_factory=list)
    """First come, first."""
    collects: bool = False
    buyer: int = 0


class ReferenceExchange:
    """All books; every step looks at every order."""

    def __init__(self) -> None:
        self._books: dict[str, _Book] = {}

    def orders(self, symbol: str) -> list[Resting]:
        """Return what rests, first come first."""
        return self._books[symbol].orders if symbol in self._books else []

    def take(self, row: OrderRow) -> list[Fill]:
        """Take the next row; return the fills that it makes happen, in order."""
        book = self._books.setdefault(row.symbol, _Book())
        fills: list[Fill] = []
        match row.action:
            case Action.ADD:
                fills = self._add(book, row)
            case Action.CANCEL:
                for one in book.orders:
                    one.qty -= min(one.qty, row.qty) if one.order_no == row.order_no else 0
            case Action.FILL:
                fills = self._apply(book, row)
            case Action.AUCTION:
                fills = uncross(row.symbol, book.orders)
                for fill in fills:
                    for one in book.orders:
                        one.qty -= fill.qty if one.order_no in {fill.buy, fill.sell} else 0
                book.collects = False
            case Action.EXPIRE:
                book.orders.clear()
            case _:
                book.collects = row.action == Action.COLLECT
        book.orders[:] = [one for one in book.orders if one.qty > 0]
        return fills

    def _add(self, book: _Book, row: OrderRow) -> list[Fill]:
        fills: list[Fill] = []
        left = row.qty
        for one in [] if book.collects else best_first(book.orders, -row.side):
            if left == 0 or row.side * (row.price - one.price) < 0:
                break
            qty = min(left, one.qty)
            one.qty -= qty
            left -= qty
            buy, sell = (row.order_no, one.order_no)[:: row.side]
            aggressor = "BUY" if row.side > 0 else "SELL"
            fills.append(Fill(row.symbol, aggressor, one.price, qty, buy, sell))
        book.orders.append(Resting(row.order_no, row.side, row.price, left))
        return fills

    def _apply(self, book: _Book, row: OrderRow) -> list[Fill]:
        if row.side > 0:
            book.buyer = row.order_no
            return []
        for one in book.orders:
            one.qty -= row.qty if one.order_no in {book.buyer, row.order_no} else 0
        return [Fill(row.symbol, "APPLIED", row.price, row.qty, book.buyer, row.order_no)]
