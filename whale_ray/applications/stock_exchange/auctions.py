"""Call auctions by the exchange's rule, in plain Python: one price of maximum volume.

The preparation of real orders uses this to find out whether the rule reproduces an auction as the
exchange reported it; the matching operator has its own compiled implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Fill", "Resting", "best_first", "uncross"]


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


def best_first(orders: Iterable[Resting], side: int) -> list[Resting]:
    """Return one side's orders by price, then by arrival."""
    return sorted((one for one in orders if one.side == side), key=lambda one: -side * one.price)


def uniform_price(orders: Sequence[Resting]) -> int | None:
    """Return the uniform price of an auction; None if no orders match.

    Of the orders' prices, this is the one with the greatest volume; of several, the one with the
    smallest imbalance; of several, the middle between the lowest and the highest.
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
        symbol: symbol of the fills.
        orders: the resting orders, by arrival; not modified.
    """
    buys, sells = best_first(orders, 1), best_first(orders, -1)
    if not buys or not sells or buys[0].price < sells[0].price:
        return []
    crossing = [one for one in buys if one.price >= sells[0].price]
    crossing += [one for one in sells if one.price <= buys[0].price]
    price = uniform_price(crossing)
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
