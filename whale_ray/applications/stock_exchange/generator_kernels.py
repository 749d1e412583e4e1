"""The generator's compiled simulation of a market, row by row, from one random sequence.

Every symbol has a best bid and ask, each with an estimate of the quantity resting there. Passive
orders are placed at some distance from the best price of their side; aggressive ones take from the
other side's best price, which moves when its quantity is used up. The generator keeps no order
books and does not know which orders trade. Cancels name one of the symbol's latest resting orders,
which may have been filled.

numba keeps compiled functions from run to run, and looks for changes only in the file that a
function is in. So all that is compiled into one lies in its own module, constants included.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...configs.units import DAY_MS
from ...transport.compiling import njit

__all__ = ["MARKET", "RECENT", "STOCK", "Made", "OrderStatistics", "make_rows"]

Int64s: TypeAlias = npt.NDArray[np.int64]
#: Shape (n,), a structured dtype.
Records: TypeAlias = npt.NDArray[Any]

#: Orders of a symbol that may still be cancelled; a power of two.
RECENT = 256

ADD, CANCEL, COLLECT, AUCTION, EXPIRE = 1, 2, 4, 5, 7
OPENING, MORNING, AFTERNOON, CLOSING = 0, 1, 2, 3
#: What comes next: messages, or one row for each symbol that needs it.
MESSAGES, OPEN_ALL, CLOSE_ALL, EXPIRE_ALL = 0, 1, 2, 3

_TICK_MILLI = 10
_WIDEST_TICKS = 2
_LEAST_TICKS = 100
_DEPTH_SHARES = 1_500.0
_CANCEL_TRIES = 4
#: A cancel withdraws all that is left of its order.
_CANCEL_ALL = 1_000_000_000
_OPENING_MS = 5_100_000
_CLOSING_MS = 25_200_000

#: One symbol.
STOCK = np.dtype(
    [
        ("bid", np.int64),  # ticks
        ("ask", np.int64),
        ("bid_qty", np.int64),  # guessed
        ("ask_qty", np.int64),
        ("resting", np.int64),  # orders that came to rest so far
        ("collects", np.bool_),
        ("active", np.bool_),  # has had an order today
    ],
    align=True,
)

#: Where the whole stands; one record.
MARKET = np.dtype(
    [
        ("random", np.uint64),
        ("order_no", np.int64),
        ("day_ms", np.int64),  # midnight
        ("message", np.int64),  # of the day, next
        ("second", np.int64),  # its index
        ("first", np.int64),  # the first message of that second
        ("sweep", np.int64),  # MESSAGES …
        ("symbol", np.int64),  # next one of a sweep
    ],
    align=True,
)


class OrderStatistics(NamedTuple):
    """The statistics that the simulation reproduces, see `generator_statistics`."""

    seconds: Int64s
    """The seconds of the day in which there are messages, since midnight."""
    sessions: Int64s
    """The session of each of these seconds: `OPENING` …"""
    ends: Int64s
    """Number of the day's messages up to the end of each second."""
    alias: Int64s
    """Shape (symbols,), see `chances`."""
    chances: npt.NDArray[np.float64]
    """Shape (symbols,): probability of keeping a drawn symbol rather than taking its alias."""
    qtys: Int64s
    """Equally likely quantities; their number is a power of two."""
    offsets: Int64s
    """Equally likely offsets in ticks; their number is a power of two."""
    cancel_share: float
    buy_share: float
    aggressive_share: float


class Made(NamedTuple):
    """Rows to fill; shapes (rows,)."""

    times_ms: Int64s
    symbols: Int64s
    actions: npt.NDArray[np.int8]
    sides: npt.NDArray[np.int8]
    prices: Int64s
    qtys: Int64s
    order_nos: Int64s


@njit(cache=True, nogil=True, _nrt=False)
def make_rows(
    market: Records, stocks: Records, recent: Records, parameters: OrderStatistics, made: Made
) -> tuple[int, bool]:
    """Make rows until there is no room, or the day has ended.

    Args:
        market: one `MARKET` record, changed in place.
        stocks: `STOCK` records, changed in place.
        recent: numbers of the last orders that came to rest, negative for sells, 0 for none, shape
            (symbols, RECENT); changed in place.
        habits: the statistics.
        made: filled from its beginning.

    Returns:
        How many rows were made, and whether the day has ended.
    """
    now = market[0]
    row = 0
    while row < len(made.symbols):
        if now.sweep != MESSAGES:
            symbol = _next_of_sweep(now, stocks)
            if symbol >= 0:
                _phase(now, stocks, symbol, made, row)
                row += 1
            elif now.sweep == EXPIRE_ALL:
                now.sweep = MESSAGES
                return row, True
            else:
                now.sweep = MESSAGES if now.sweep == OPEN_ALL else EXPIRE_ALL
                now.symbol = 0
            continue
        if now.message == parameters.ends[-1]:
            now.sweep, now.symbol = CLOSE_ALL, 0
            continue
        session = parameters.sessions[now.second]
        while now.message == parameters.ends[now.second]:
            now.first = now.message
            now.second += 1
        if parameters.sessions[now.second] != session and session == OPENING:
            now.sweep, now.symbol = OPEN_ALL, 0
            continue
        row = _message(now, stocks, recent, parameters, made, row)
    return row, False


@njit(cache=True, nogil=True, _nrt=False)
def _next_of_sweep(now: Any, stocks: Records) -> int:
    """Return the next symbol that the sweep is about; −1 after the last one."""
    while now.symbol < len(stocks):
        symbol = now.symbol
        now.symbol += 1
        if stocks[symbol].active if now.sweep == EXPIRE_ALL else stocks[symbol].collects:
            return symbol
    return -1


@njit(cache=True, nogil=True, _nrt=False)
def _phase(now: Any, stocks: Records, symbol: int, made: Made, row: int) -> None:
    """Write the row of a sweep."""
    if now.sweep == EXPIRE_ALL:
        stocks[symbol].active = False
        time_ms, action = now.day_ms + DAY_MS - 1, EXPIRE
    else:
        stocks[symbol].collects = False
        opens = now.sweep == OPEN_ALL
        time_ms, action = now.day_ms + (_OPENING_MS if opens else _CLOSING_MS), AUCTION
    _write(made, row, time_ms, symbol, action, 0, 0, 0, 0)


@njit(cache=True, nogil=True, _nrt=False)
def _message(
    now: Any, stocks: Records, recent: Records, parameters: OrderStatistics, made: Made, row: int
) -> int:
    """Write the next message; or, if its symbol must collect first, that. Return the next row."""
    # What was drawn is drawn again if only the phase is written: so rows do not depend on room.
    before = now.random
    symbol = np.int64(_uniform(now) * len(stocks))
    if _uniform(now) >= parameters.chances[symbol]:
        symbol = parameters.alias[symbol]
    stock = stocks[symbol]
    length = parameters.ends[now.second] - now.first
    ticks = (now.message - now.first) * 100 // length
    time_ms = now.day_ms + parameters.seconds[now.second] * 1000 + ticks * 10
    session = parameters.sessions[now.second]
    calls = session in (OPENING, CLOSING)
    if calls and not stock.collects:
        now.random = before
        stock.collects = True
        _write(made, row, time_ms, symbol, COLLECT, 0, 0, 0, 0)
        return row + 1
    now.message += 1
    stock.active = True
    if session != CLOSING and _uniform(now) < parameters.cancel_share:
        number = _recent_order(now, stock, recent[symbol])
        if number != 0:
            side = 1 if number > 0 else -1
            _write(made, row, time_ms, symbol, CANCEL, side, 0, _CANCEL_ALL, abs(number))
            return row + 1
    side = 1 if _uniform(now) < parameters.buy_share else -1
    qty = parameters.qtys[np.int64(_uniform(now) * len(parameters.qtys))]
    now.order_no += 1
    if not calls and _uniform(now) < parameters.aggressive_share:
        price = _take(now, stock, side, qty)
    else:
        price = _offer(now, stock, side, qty, parameters.offsets)
        recent[symbol, stock.resting & (RECENT - 1)] = side * now.order_no
        stock.resting += 1
    _write(made, row, time_ms, symbol, ADD, side, price * _TICK_MILLI, qty, now.order_no)
    return row + 1


@njit(cache=True, nogil=True, _nrt=False)
def _recent_order(now: Any, stock: Any, recent: Int64s) -> int:
    """Take one of the last orders, rather a late one, out of them; 0 if there is none."""
    kept = min(stock.resting, RECENT)
    for _ in range(_CANCEL_TRIES):
        share = _uniform(now)
        age = np.int64(share * share * kept)
        slot = (stock.resting - 1 - age) & (RECENT - 1)
        if kept > 0 and recent[slot] != 0:
            number = recent[slot]
            recent[slot] = 0
            return number
    return 0


@njit(cache=True, nogil=True, _nrt=False)
def _take(now: Any, stock: Any, side: int, qty: int) -> int:
    """Return the price of an aggressive order, and move the market if it takes all there is."""
    if side > 0:
        price = stock.ask
        stock.ask_qty -= qty
        if stock.ask_qty <= 0:
            stock.ask += 1
            stock.ask_qty = _depth(now)
            if stock.ask - stock.bid > _WIDEST_TICKS:
                stock.bid, stock.bid_qty = stock.bid + 1, _depth(now)
    else:
        price = stock.bid
        stock.bid_qty -= qty
        if stock.bid_qty <= 0 and stock.bid > _LEAST_TICKS:
            stock.bid -= 1
            stock.bid_qty = _depth(now)
            if stock.ask - stock.bid > _WIDEST_TICKS:
                stock.ask, stock.ask_qty = stock.ask - 1, _depth(now)
    return price


@njit(cache=True, nogil=True, _nrt=False)
def _offer(now: Any, stock: Any, side: int, qty: int, offsets: Int64s) -> int:
    """Return the price of a passive order: somewhere after its side's best, or just before it."""
    offset = offsets[np.int64(_uniform(now) * len(offsets))]
    offset = max(min(offset, stock.bid // 10), stock.bid - stock.ask + 1)
    if side > 0:
        price = stock.bid - offset
        if offset == 0:
            stock.bid_qty += qty
        elif offset < 0:
            stock.bid, stock.bid_qty = price, qty
    else:
        price = stock.ask + offset
        if offset == 0:
            stock.ask_qty += qty
        elif offset < 0:
            stock.ask, stock.ask_qty = price, qty
    return price


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def _depth(now: Any) -> np.int64:
    """Return how much rests at a price that has become the best."""
    return np.int64(-np.log(1.0 - _uniform(now)) * _DEPTH_SHARES) + 100


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def _write(
    made: Made,
    row: int,
    time_ms: int,
    symbol: int,
    action: int,
    side: int,
    price: int,
    qty: int,
    order_no: int,
) -> None:
    """Write one row."""
    made.times_ms[row], made.symbols[row] = time_ms, symbol
    made.actions[row], made.sides[row] = action, side
    made.prices[row], made.qtys[row], made.order_nos[row] = price, qty, order_no


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def _uniform(now: Any) -> float:
    """Return the next random number in [0, 1)."""
    now.random = now.random + np.uint64(0x9E3779B97F4A7C15)
    mixed = now.random
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return np.float64(mixed >> np.uint64(11)) * (1.0 / 9007199254740992.0)
