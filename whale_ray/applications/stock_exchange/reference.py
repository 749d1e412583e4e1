"""The exchange in plain Python: slow, obvious, and written apart from the compiled books.

An oracle for generated orders, and what the preparation of real ones takes to find out whether an
auction comes out as the exchange reported it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .schemas import Action

__all__ = ["Fill", "OrderRow", "ReferenceExchange", "Resting", "uncross"]


class OrderRow(NamedTuple):
    """One row of the orders stream; see `schemas.ORDERS`."""

    symbol: str
    action: int
    side: int
    price: int
    qty: int
    order_no: int


class Fill(NamedTuple):
    """One fill; see `schemas.FILLS`."""

    symbol: str
    aggressor: str
    price: int
    qty: int
    buy: int
    sell: int


@dataclass
class Resting:
    """An order in the book."""

    order_no: int
    side: int
    price: int
    qty: int


@dataclass
class _Book:
    orders: list[Resting] = field(default_factory=list)
    """First come, first."""
    collects: bool = False
    buyer: int = 0


def _best_first(orders: Iterable[Resting], side: int) -> list[Resting]:
    """Return one side's orders by price, then as they came."""
    return sorted((one for one in orders if one.side == side), key=lambda one: -side * one.price)


def _uniform_price(orders: Sequence[Resting]) -> int | None:
    """Return where most can be traded, then least is left over, then the middle; None if nothing.

    Asks of every price that an order names.
    """
    judged = []
    for price in {one.price for one in orders}:
        bought = sum(one.qty for one in orders if one.side > 0 and one.price >= price)
        sold = sum(one.qty for one in orders if one.side < 0 and one.price <= price)
        judged.append((-min(bought, sold), abs(bought - sold), price))
    best = min(judged, default=(0, 0, 0))
    if best[0] == 0:
        return None
    equally_good = [price for *figures, price in judged if tuple(figures) == best[:2]]
    return (min(equally_good) + max(equally_good)) // 2


def uncross(symbol: str, orders: Sequence[Resting]) -> list[Fill]:
    """Return the fills of an auction.

    Args:
        symbol: of the fills.
        orders: what rests, first come first; left as it is.
    """
    buys, sells = _best_first(orders, 1), _best_first(orders, -1)
    if not buys or not sells or buys[0].price < sells[0].price:
        return []
    crossing = [one for one in buys if one.price >= sells[0].price]
    crossing += [one for one in sells if one.price <= buys[0].price]
    price = _uniform_price(crossing)
    if price is None:
        return []
    left = {id(one): one.qty for one in crossing}
    buys = [one for one in buys if one.price >= price]
    sells = [one for one in sells if one.price <= price]
    fills = []
    while buys and sells:
        buy, sell = buys[0], sells[0]
        qty = min(left[id(buy)], left[id(sell)])
        fills.append(Fill(symbol, "AUCTION", price, qty, buy.order_no, sell.order_no))
        for one, queue in ((buy, buys), (sell, sells)):
            left[id(one)] -= qty
            if left[id(one)] == 0:
                queue.pop(0)
    return fills


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
        for one in [] if book.collects else _best_first(book.orders, -row.side):
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
