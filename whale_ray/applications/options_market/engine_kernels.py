"""The compiled loop of a decision engine.

numba keeps compiled functions from run to run, and looks for changes only in the file that a
function is in. So all that is compiled into one lies in its own module, constants included.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit

__all__ = ["CONTRACT", "decide"]

_WHOLE = 10_000

#: State of a contract in an engine: right and strike from the book, the rest from its trades.
#: 90 million trades of the highest quantity and price that a message may have keep `value` < 2⁶³.
CONTRACT = np.dtype(
    [
        ("right", np.int64),  # 1: a call, −1: a put
        ("strike_milli", np.int64),
        ("quantity", np.int64),  # in lots, of all its trades
        ("value", np.int64),  # the sum of price × quantity
        ("signal", np.int64),  # of the last trade; at first 0
    ],
    align=True,
)

#: Shape (n,), a structured dtype.
Records: TypeAlias = npt.NDArray[Any]


@njit(cache=True, nogil=True)
def decide(
    contracts: Records,
    numbers: npt.NDArray[np.int32],
    trades: Records,
    threshold_bp: int,
    in_ns: int,
    decisions: Records,
) -> int:
    """Process trades in sequence; write those that change their contract's signal to `decisions`.

    A contract is to be bought (1) if its price lies below what exercising it would bring at once,
    or by the threshold or more below the average price of its trades so far, this one included
    (weighted by quantity, rounded down); sold (−1) if it lies as far above; else neither (0).

    Args:
        contracts: shape (contracts,), dtype `CONTRACT`; changed in place.
        numbers, trades: contracts traded, and how (dtype `schemas.TRADE`).
        threshold_bp: in 1/10,000 of the average.
        in_ns: when the trades arrived.
        decisions: receives the changes, dtype `schemas.DECISION`; as long as there are trades.

    Returns:
        The number of changes.
    """
    filled = 0
    for row in range(len(numbers)):
        contract, trade = contracts[numbers[row]], trades[row]
        price = trade.price_milli
        contract.quantity += trade.quantity
        contract.value += price * trade.quantity
        average = contract.value // contract.quantity
        exercised = (trade.underlying_milli - contract.strike_milli) * contract.right
        signal = 0
        if price < exercised or price * _WHOLE <= average * (_WHOLE - threshold_bp):
            signal = 1
        elif price * _WHOLE >= average * (_WHOLE + threshold_bp):
            signal = -1
        if signal == contract.signal:
            continue
        contract.signal = signal
        made = decisions[filled]
        made.contract, made.line, made.sequence = numbers[row], trade.line, trade.sequence
        made.price_milli, made.average_milli, made.signal = price, average, signal
        made.due_ns = trade.due_ns
        made.handler_in_ns, made.handler_out_ns = trade.handler_in_ns, trade.handler_out_ns
        made.engine_in_ns, made.engine_out_ns, made.collector_in_ns = in_ns, 0, 0
        filled += 1
    return filled
