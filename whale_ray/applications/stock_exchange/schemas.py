"""The columns of the application's streams, by name and type, and the codes in them."""

from __future__ import annotations

from enum import IntEnum

from ...transport.wire.types import Schema

__all__ = [
    "AGGRESSORS",
    "BOOKS",
    "FILLS",
    "ORDERS",
    "RESTING",
    "ROUTED",
    "VOLUMES",
    "Action",
]


class Action(IntEnum):
    """The action that a row of the orders stream requests."""

    ADD = 1
    """Match an order; the remainder rests in the book."""
    CANCEL = 2
    """Withdraw `qty` of order `order_no`."""
    FILL = 3
    """Apply a given fill: one row for the buying order, then one for the selling order."""
    COLLECT = 4
    """Begin a call phase: the symbol's orders rest without being matched."""
    AUCTION = 5
    """Execute at the uniform price of maximum volume, then begin continuous trading."""
    TRADE = 6
    """Begin continuous trading."""
    EXPIRE = 7
    """Withdraw all orders of the symbol."""


#: What caused a fill, by the numbers in the compiled loop: the side of the order that arrived last,
#: an auction that was computed, or an auction's fill that was applied as the exchange reported it.
AGGRESSORS = ("BUY", "SELL", "AUCTION", "APPLIED")

_TIME = "timestamp[ms, tz=UTC]"

#: The orders stream as a source reads it, in the exchange's sequence. `side` is 1 for buys, −1 for
#: sells, 0 for actions without a side; price and quantity are 0 for actions without them.
ORDERS = Schema.of(
    event_time=_TIME,
    symbol="string",
    action="int8",
    side="int8",
    price_milli="int64",
    qty="int64",
    order_no="int64",
)
#: The orders as they are broadcast; the event time is not a column, since every row has one.
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
#: What a matcher keeps of a book when its state is moved: fields of `records.BOOK`.
BOOKS = Schema.of(
    symbol="string", fills="int64", auction_price="int64", buyer="int64", phase="int64"
)
#: The orders in its books, level by level from the best, first come first.
RESTING = Schema.of(
    symbol="string", side="int8", price_milli="int64", qty="int64", order_no="int64"
)
