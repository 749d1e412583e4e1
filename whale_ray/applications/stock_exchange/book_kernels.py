"""Compiled limit order books: adding, matching and cancelling orders, and auctions.

All books of a worker share three pools, in which records are linked by number: orders, levels (all
orders of one side at one price, first come first) and books. A pool grows by doubling, which moves
its records but changes no number; freed records are used again. A side's levels are both a list
from best to worst and a search tree (a treap whose priorities are mixed from the price), so finding
the best level is O(1) and any other O(log levels); an order is found by its number in a hash index
and leaves its level in O(1).

Prices are compared as *ranks*, price × −1 for buys and × 1 for sells: the lower, the better.

numba keeps compiled functions from run to run, and looks for changes only in the file that a
function is in. So all that is compiled into one lies in its own module, constants included. Nothing
here makes an array, so no references are counted (`_nrt=False`): that took more than half the time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit
from .records import Books, Int32s, Int64s, OrderRows, Records

__all__ = ["reindex_books", "reindex_orders", "take_rows"]

NONE = -1
BUY, SELL = 0, 1

#: Actions; the numbers are those of `schemas.Action`.
ADD, CANCEL, FILL_ONE, COLLECT, AUCTION, TRADE, EXPIRE = 1, 2, 3, 4, 5, 6, 7
#: Phases of a book: whether an order that could trade is matched.
TRADING, COLLECTING, UNCROSSING = 0, 1, 2
#: What caused a fill; indexes of `schemas.AGGRESSORS`, of which 0 and 1 are `BUY` and `SELL`.
BY_AUCTION, APPLIED = 2, 3
#: Why `take_rows` returned.
DONE, FULL, NO_ROOM, REPEATED, UNKNOWN = 0, 1, 2, 3, 4
#: Entries of `Books.counts`.
BOOKS, ID_BYTES, ORDERS, FREE_ORDER, LEVELS, FREE_LEVEL = 0, 1, 2, 3, 4, 5

_MIXER = np.uint64(0xBF58476D1CE4E5B9)
_OTHER_MIXER = np.uint64(0x94D049BB133111EB)


@njit(cache=True, nogil=True, _nrt=False)
def take_rows(
    of: Books, owned: npt.NDArray[np.bool_], rows: OrderRows, cursor: Int64s, fills: Records
) -> int:
    """Process the rows of owned books from `cursor` on, until done or a result below applies.

    Args:
        of: the books, changed in place.
        owned: True for each virtual node whose books are kept here; a power of two of them.
        rows: of all symbols; hash × nodes ÷ 2⁶⁴ is the virtual node of one.
        cursor: shape (3,): the next row; what is left of its order (0: not begun); fills made.
            Moved on in place.
        fills: filled from its beginning.

    Returns:
        DONE; FULL if `fills` is; NO_ROOM if a pool is; REPEATED if the row at the cursor adds an
        order that is in the book already; UNKNOWN if it fills an order that is not there.
    """
    hashes, offsets = rows.hashes, rows.offsets
    nodes = np.uint64(len(owned))
    shift = np.uint64(32)
    row, cursor[2] = cursor[0], 0
    while row < len(hashes):
        hashed = hashes[row]
        if not owned[((hashed >> shift) * nodes) >> shift]:
            row += 1
            continue
        cursor[0] = row
        book = _book_of(of, hashed, rows.pool, offsets[row], offsets[row + 1])
        if book == NONE or not _has_room(of):
            return NO_ROOM
        action = rows.actions[row]
        outcome = DONE
        if action == ADD:
            outcome = _add(of, book, rows, cursor, fills)
        elif action == CANCEL:
            _cancel(of, book, rows.numbers[row], rows.qtys[row])
        elif action == FILL_ONE:
            outcome = _apply(of, book, rows, cursor, fills)
        elif action == AUCTION:
            outcome = _auction(of, book, cursor, fills)
        elif action == EXPIRE:
            _expire(of, book)
        else:
            of.books[book].phase = COLLECTING if action == COLLECT else TRADING
        if outcome != DONE:
            return outcome
        row += 1
    cursor[0] = row
    return DONE


@njit(cache=True, nogil=True, _nrt=False)
def reindex_books(of: Books) -> None:
    """Fill an empty index from the books."""
    for book in range(of.counts[BOOKS]):
        _enter(of.books_by_hash, of.books[book].hash, book)


@njit(cache=True, nogil=True, _nrt=False)
def reindex_orders(of: Books) -> None:
    """Fill an empty index from the orders."""
    for order in range(of.counts[ORDERS]):
        here = of.orders[order]
        if here.book != NONE:
            _enter(of.orders_by_hash, _order_hash(here.book, here.number), order)


@njit(cache=True, nogil=True, _nrt=False)
def _add(of: Books, book: int, rows: OrderRows, cursor: Int64s, fills: Records) -> int:
    """Let an order trade with the other side's best as far as it may; the rest enters the book."""
    row = cursor[0]
    side = BUY if rows.sides[row] > 0 else SELL
    price, qty, number = rows.prices[row], rows.qtys[row], rows.numbers[row]
    if cursor[1] > 0:
        qty = cursor[1]
    elif _find(of, book, number) != NONE:
        return REPEATED
    other = 1 - side
    limit = -price if other == BUY else price
    while qty > 0 and of.books[book].phase == TRADING:
        best = of.books[book].best[other]
        if best == NONE or of.levels[best].rank > limit:
            break
        if cursor[2] == len(fills):
            cursor[1] = qty
            return FULL
        order = of.levels[best].first
        resting = of.orders[order]
        traded = min(qty, resting.qty)
        at = -of.levels[best].rank if other == BUY else of.levels[best].rank
        buy, sell = (number, resting.number) if side == BUY else (resting.number, number)
        _note(of, book, side, (at, traded, buy, sell), cursor, fills)
        _reduce(of, order, traded)
        qty -= traded
    if qty > 0:
        _rest(of, book, side, -price if side == BUY else price, qty, number)
    cursor[1] = 0
    return DONE


@njit(cache=True, nogil=True, _nrt=False)
def _cancel(of: Books, book: int, number: int, qty: int) -> None:
    """Withdraw so much of an order, at most what is left; an order that was filled has no more."""
    order = _find(of, book, number)
    if order != NONE:
        _reduce(of, order, min(qty, of.orders[order].qty))


@njit(cache=True, nogil=True, _nrt=False)
def _apply(of: Books, book: int, rows: OrderRows, cursor: Int64s, fills: Records) -> int:
    """Carry out a fill that was decided elsewhere: the buyer's row, and then the seller's."""
    row = cursor[0]
    price, qty, number = rows.prices[row], rows.qtys[row], rows.numbers[row]
    order = _find(of, book, number)
    if order == NONE or of.orders[order].qty < qty:
        return UNKNOWN
    if rows.sides[row] > 0:
        of.books[book].buyer = number
        return DONE
    buyer = _find(of, book, of.books[book].buyer)
    if buyer == NONE or of.orders[buyer].qty < qty:
        return UNKNOWN
    if cursor[2] == len(fills):
        return FULL
    _note(of, book, APPLIED, (price, qty, of.books[book].buyer, number), cursor, fills)
    _reduce(of, buyer, qty)
    _reduce(of, order, qty)
    return DONE


@njit(cache=True, nogil=True, _nrt=False)
def _auction(of: Books, book: int, cursor: Int64s, fills: Records) -> int:
    """Let all that can trade at one price do so, best price first and then first come; trade on."""
    here = of.books[book]
    if here.phase != UNCROSSING:
        here.auction_price = _uniform_price(of, book)
        here.phase = UNCROSSING
    price = here.auction_price
    while True:
        bid, ask = here.best[BUY], here.best[SELL]
        if min(bid, ask) == NONE:
            break
        if -of.levels[bid].rank < price or of.levels[ask].rank > price:
            break
        if cursor[2] == len(fills):
            return FULL
        buy, sell = of.levels[bid].first, of.levels[ask].first
        traded = min(of.orders[buy].qty, of.orders[sell].qty)
        trade = (price, traded, of.orders[buy].number, of.orders[sell].number)
        _note(of, book, BY_AUCTION, trade, cursor, fills)
        _reduce(of, buy, traded)
        _reduce(of, sell, traded)
    here.phase = TRADING
    return DONE


@njit(cache=True, nogil=True, _nrt=False)
def _uniform_price(of: Books, book: int) -> int:
    """Return the price at which most is traded, then least is left over, then the middle one.

    Walks the levels of both sides that cross, from the lowest price up. Without any the price does
    not matter: nothing is traded.
    """
    levels = of.levels
    bid, ask = of.books[book].best[BUY], of.books[book].best[SELL]
    if min(bid, ask) == NONE:
        return 0
    lowest = levels[ask].rank
    bids = asks = 0
    lowest_bid = NONE
    while bid != NONE and -levels[bid].rank >= lowest:
        bids += levels[bid].qty
        lowest_bid = bid
        bid = levels[bid].worse
    bid = lowest_bid
    most = least_left = first = last = 0
    while bid != NONE:
        price = -levels[bid].rank
        if ask != NONE and levels[ask].rank < price:
            price = levels[ask].rank
        if ask != NONE and levels[ask].rank == price:
            asks += levels[ask].qty
            ask = levels[ask].worse
        traded, left = min(bids, asks), abs(bids - asks)
        if traded > most or (traded == most and left < least_left):
            most, least_left, first, last = traded, left, price, price
        elif traded == most and left == least_left:
            last = price
        if -levels[bid].rank == price:
            bids -= levels[bid].qty
            bid = levels[bid].better
    return (first + last) // 2


@njit(cache=True, nogil=True, _nrt=False)
def _expire(of: Books, book: int) -> None:
    """Remove all orders of a book."""
    for side in range(2):
        while of.books[book].best[side] != NONE:
            order = of.levels[of.books[book].best[side]].first
            _reduce(of, order, of.orders[order].qty)


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def _note(
    of: Books, book: int, aggressor: int, trade: tuple[int, ...], cursor: Int64s, fills: Records
) -> None:
    """Write down a fill: price, quantity, numbers of the buying and of the selling order."""
    of.books[book].fills += 1
    fill = fills[cursor[2]]
    fill.row, fill.number, fill.aggressor = cursor[0], of.books[book].fills, aggressor
    fill.price, fill.qty, fill.buy, fill.sell = trade
    cursor[2] += 1


@njit(cache=True, nogil=True, _nrt=False)
def _rest(of: Books, book: int, side: int, rank: int, qty: int, number: int) -> None:
    """Put an order at the end of its level."""
    level = _level_at(of, book, side, rank)
    order = of.counts[FREE_ORDER]
    if order != NONE:
        of.counts[FREE_ORDER] = of.orders[order].after
    else:
        order = of.counts[ORDERS]
        of.counts[ORDERS] += 1
    last = of.levels[level].last
    new = of.orders[order]
    new.number, new.qty, new.book, new.level = number, qty, book, level
    new.before, new.after = last, NONE
    if last == NONE:
        of.levels[level].first = order
    else:
        of.orders[last].after = order
    of.levels[level].last = order
    of.levels[level].qty += qty
    _enter(of.orders_by_hash, _order_hash(book, number), order)


@njit(cache=True, nogil=True, _nrt=False)
def _reduce(of: Books, order: int, qty: int) -> None:
    """Take so much from an order; if nothing is left remove it, and its level if that is empty."""
    gone = of.orders[order]
    level = of.levels[gone.level]
    gone.qty -= qty
    level.qty -= qty
    if gone.qty > 0:
        return
    _forget(of, order)
    before, after, book = gone.before, gone.after, gone.book
    if before == NONE:
        level.first = after
    else:
        of.orders[before].after = after
    if after == NONE:
        level.last = before
    else:
        of.orders[after].before = before
    if level.first == NONE:
        _remove_level(of, book, gone.level)
    gone.book = NONE
    gone.after = of.counts[FREE_ORDER]
    of.counts[FREE_ORDER] = order


@njit(cache=True, nogil=True, _nrt=False)
def _level_at(of: Books, book: int, side: int, rank: int) -> int:
    """Return the level of a rank, a new one if there is none."""
    levels = of.levels
    best = of.books[book].best[side]
    if best != NONE and levels[best].rank == rank:
        return best
    node, up, better, worse = of.books[book].root[side], NONE, NONE, NONE
    while node != NONE:
        if levels[node].rank == rank:
            return node
        up = node
        if rank < levels[node].rank:
            worse, node = node, levels[node].left
        else:
            better, node = node, levels[node].right
    new = of.counts[FREE_LEVEL]
    if new != NONE:
        of.counts[FREE_LEVEL] = levels[new].worse
    else:
        new = of.counts[LEVELS]
        of.counts[LEVELS] += 1
    level = levels[new]
    level.rank, level.side, level.qty, level.first, level.last = rank, side, 0, NONE, NONE
    level.left, level.right, level.up, level.better, level.worse = NONE, NONE, up, better, worse
    level.priority = np.uint32(_mix(np.uint64(rank)) >> np.uint64(32))
    if better == NONE:
        of.books[book].best[side] = new
    else:
        levels[better].worse = new
    if worse != NONE:
        levels[worse].better = new
    if up == NONE:
        of.books[book].root[side] = new
    elif rank < levels[up].rank:
        levels[up].left = new
    else:
        levels[up].right = new
    while level.up != NONE and levels[level.up].priority < level.priority:
        _rotate(of, book, side, new)
    return new


@njit(cache=True, nogil=True, _nrt=False)
def _remove_level(of: Books, book: int, gone: int) -> None:
    """Take an empty level out of list and tree, and free it."""
    levels = of.levels
    level = levels[gone]
    side = level.side
    if level.better == NONE:
        of.books[book].best[side] = level.worse
    else:
        levels[level.better].worse = level.worse
    if level.worse != NONE:
        levels[level.worse].better = level.better
    while min(level.left, level.right) != NONE:
        upper = level.left
        if levels[level.right].priority > levels[upper].priority:
            upper = level.right
        _rotate(of, book, side, upper)
    child = level.left if level.left != NONE else level.right
    _replace(of, book, side, gone, level.up, child)
    level.worse = of.counts[FREE_LEVEL]
    of.counts[FREE_LEVEL] = gone


@njit(cache=True, nogil=True, _nrt=False)
def _rotate(of: Books, book: int, side: int, node: int) -> None:
    """Put a node of the tree above the one that it hangs from."""
    levels = of.levels
    up = levels[node].up
    _replace(of, book, side, up, levels[up].up, node)
    if levels[up].left == node:
        child = levels[node].right
        levels[node].right, levels[up].left = up, child
    else:
        child = levels[node].left
        levels[node].left, levels[up].right = up, child
    levels[up].up = node
    if child != NONE:
        levels[child].up = up


@njit(cache=True, nogil=True, _nrt=False)
def _replace(of: Books, book: int, side: int, old: int, up: int, new: int) -> None:
    """Hang `new`, which may be nothing, where `old` hung below `up`."""
    if up == NONE:
        of.books[book].root[side] = new
    elif of.levels[up].left == old:
        of.levels[up].left = new
    else:
        of.levels[up].right = new
    if new != NONE:
        of.levels[new].up = up


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def _mix(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> np.uint64(30))) * _MIXER
    value = (value ^ (value >> np.uint64(27))) * _OTHER_MIXER
    return value ^ (value >> np.uint64(31))


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def _order_hash(book: int, number: int) -> np.uint64:
    return _mix(np.uint64(number) ^ (np.uint64(book) << np.uint64(40)))


@njit(cache=True, nogil=True, _nrt=False)
def _enter(index: Int32s, hashed: np.uint64, record: int) -> None:
    """Insert a record into an index that does not contain it."""
    mask = np.uint64(len(index) - 1)
    entry = hashed & mask
    while index[entry] != 0:
        entry = (entry + np.uint64(1)) & mask
    index[entry] = record + 1


@njit(cache=True, nogil=True, _nrt=False)
def _find(of: Books, book: int, number: int) -> int:
    """Return the order of that number in a book, or −1."""
    index = of.orders_by_hash
    mask = np.uint64(len(index) - 1)
    entry = _order_hash(book, number) & mask
    while index[entry] != 0:
        order = index[entry] - 1
        if of.orders[order].number == number and of.orders[order].book == book:
            return order
        entry = (entry + np.uint64(1)) & mask
    return NONE


@njit(cache=True, nogil=True, _nrt=False)
def _forget(of: Books, order: int) -> None:
    """Take an order out of the index; later entries of its run move up."""
    index = of.orders_by_hash
    mask, one = np.uint64(len(index) - 1), np.uint64(1)
    hole = _order_hash(of.orders[order].book, of.orders[order].number) & mask
    while index[hole] != order + 1:
        hole = (hole + one) & mask
    entry = (hole + one) & mask
    while index[entry] != 0:
        moved = of.orders[index[entry] - 1]
        home = _order_hash(moved.book, moved.number) & mask
        if ((entry - home) & mask) >= ((entry - hole) & mask):
            index[hole] = index[entry]
            hole = entry
        entry = (entry + one) & mask
    index[hole] = 0


@njit(cache=True, nogil=True, _nrt=False)
def _book_of(
    of: Books, hashed: np.uint64, pool: npt.NDArray[np.uint8], start: int, stop: int
) -> int:
    """Return a symbol's book, a new one if there is none; −1 if there is no room for it."""
    mask = np.uint64(len(of.books_by_hash) - 1)
    entry = hashed & mask
    while of.books_by_hash[entry] != 0:
        book = of.books_by_hash[entry] - 1
        here = of.books[book]
        if here.hash == hashed and here.id_stop - here.id_start == stop - start:
            same = True
            for step in range(stop - start):
                same = same and of.ids[here.id_start + step] == pool[start + step]
            if same:
                return book
        entry = (entry + np.uint64(1)) & mask
    book, used = of.counts[BOOKS], of.counts[ID_BYTES]
    if book == len(of.books) or used + stop - start > len(of.ids):
        return NONE
    of.counts[BOOKS] += 1
    of.counts[ID_BYTES] += stop - start
    of.books_by_hash[entry] = book + 1
    for step in range(stop - start):
        of.ids[used + step] = pool[start + step]
    new = of.books[book]
    new.hash, new.id_start, new.id_stop = hashed, used, used + stop - start
    new.fills, new.phase, new.buyer = 0, TRADING, 0
    new.best[BUY] = new.best[SELL] = new.root[BUY] = new.root[SELL] = NONE
    return book


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def _has_room(of: Books) -> bool:
    """Return whether there is room for one more order and level."""
    return (of.counts[FREE_ORDER] != NONE or of.counts[ORDERS] < len(of.orders)) and (
        of.counts[FREE_LEVEL] != NONE or of.counts[LEVELS] < len(of.levels)
    )
