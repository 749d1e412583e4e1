"""The work per order before it is broadcast: checking the trading rules, and choosing the book.

Whale's topology splits valid records into a stream of buys and one of sells. Here both stay in one
stream, with the column `side`: for two orders of the same instant their sequence decides which one
trades, and two streams would lose that sequence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...transport.compiling import njit
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ..shared.columns import check_columns, types_of
from .schemas import ORDERS, ROUTED
from .texts import frozen

__all__ = ["PRICE_MILLI_MAX", "QTY_MAX", "is_valid", "split"]

#: These limits keep the value of a day's trading in one symbol far below 2⁶³.
PRICE_MILLI_MAX = 10**10
QTY_MAX = 10**9

_ADD, _CANCEL, _FILL, _COLLECT, _EXPIRE = 1, 2, 3, 4, 7
#: The source has turned event_time, of whatever unit, into the rows' event times.
_CHECKED = types_of(ORDERS.drop(("event_time",)))
_ROUTED_FROM_ORDERS = ("action", "side", "price_milli", "qty", "order_no")


def is_valid(batch: Batch) -> npt.NDArray[np.bool_]:
    """Return which rows keep the trading rules, shape (num_rows,).

    A valid row has no nulls, and its symbol is not empty. Orders and fills need a side, a price, a
    quantity and an order number; cancels need a quantity and an order number; actions for a whole
    symbol need none of these.

    Raises:
        InputError: a column is missing, or of another type.
    """
    check_columns("orders", batch, _CHECKED)
    offsets = batch.column("symbol").offsets
    assert offsets is not None
    columns = [frozen(batch.column(name).data) for name in _ROUTED_FROM_ORDERS]
    keeps: npt.NDArray[np.bool_] = _keeps_rules(frozen(offsets), *columns)
    for column in batch.columns:
        if column.validity is not None:
            keeps &= column.validity
    return keeps


def split(batch: Batch) -> Batch:
    """Return the columns that matching needs, and the symbol's hash, which selects the book."""
    hashes, _ = hash_keys(batch, ("symbol",))
    columns = [_without_nulls(batch.column("symbol"))]
    columns.append(Column(ROUTED.field("book").type, hashes))
    columns += [_without_nulls(batch.column(name)) for name in _ROUTED_FROM_ORDERS]
    return Batch(ROUTED, columns, batch.num_rows, batch.times, batch.origin_ns)


def _without_nulls(column: Column) -> Column:
    """Return the column without its validity mask; no value may be null."""
    if column.validity is None:
        return column
    return Column(column.type, column.data, column.offsets)


@njit(cache=True, nogil=True)
def _keeps_rules(
    offsets: Any, actions: Any, sides: Any, prices: Any, qtys: Any, order_nos: Any
) -> Any:
    keeps = np.empty(len(actions), np.bool_)
    for row in range(len(actions)):
        action = actions[row]
        whole = _COLLECT <= action <= _EXPIRE
        sized = 1 <= qtys[row] <= QTY_MAX and order_nos[row] >= 1
        priced = abs(sides[row]) == 1 and 1 <= prices[row] <= PRICE_MILLI_MAX
        trades = action in (_ADD, _FILL) and sized and priced
        cancels = action == _CANCEL and sized
        keeps[row] = offsets[row + 1] > offsets[row] and (whole or trades or cancels)
    return keeps
