"""The columns of the application's streams, by name and type, and the codes in them."""

from __future__ import annotations

from enum import IntEnum

from ...transport.wire.types import Schema

__all__ = [
    "AGGRESSORS",
    "FILLS",
    "ORDERS",
    "ROUTED",
    "VOLUMES",
    "Action",
]


class Action(IntEnum):
    """What a row of the orders stream asks for."""

    ADD = 1
    """Trade, and what is left stays in the book."""
    CANCEL = 2
    """Withdraw `qty` of order `order_no`."""
    FILL = 3
    """A fill decided elsewhere: one row for the buying order, then one for the selling order."""
    COLLECT = 4
    """From here on the symbol's orders only collect."""
    AUCTION = 5
    """Trade what can trade at the uniform price of maximum volume; then trading is continuous."""
    TRADE = 6
    """From here on trading is continuous."""
    EXPIRE = 7
    """Withdraw all orders of the symbol."""


#: Who made a fill happen, by the numbers that the compiled loop uses: the order that came last, an
#: auction computed here, or an auction's fill that was applied as the exchange reported it.
AGGRESSORS = ("BUY", "SELL", "AUCTION", "APPLIED")

_TIME = "timestamp[ms, tz=UTC]"

#: The orders stream as a source gives it, in the order of the exchange. `side` is 1 for buys, −1
#: for sells and 0 where there is none; prices and quantities are 0 where there is none.
ORDERS = Schema.of(
    event_time=_TIME,
    symbol="string",
    action="int8",
    side="int8",
    price_milli="int64",
    qty="int64",
    order_no="int64",
)
#: As it goes to all matching instances; the event time travels with every row anyway.
ROUTED = Schema.of(
    symbol="string",
    book="uint64",
    action="int8",
    side="int8",
    price_milli="int64",
    qty="int64",
    order_no="int64",
)
#: `fill_no` counts the fills of a symbol from 1, in the order in which they happened.
FILLS = Schema.of(
    event_time=_TIME,
    symbol="string",
    fill_no="int64",
    aggressor="string",
    price_milli="int64",
    qty="int64",
    buy_order_no="int64",
    sell_order_no="int64",
)
#: One row per symbol and second in which it was traded; `day_qty` is the volume up to its end.
VOLUMES = Schema.of(
    second=_TIME,
    symbol="string",
    fills="int64",
    qty="int64",
    value_milli="int64",
    last_price_milli="int64",
    total_qty="int64",
)
