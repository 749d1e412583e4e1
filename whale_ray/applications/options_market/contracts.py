"""The contracts that are traded, with their prices and numbers of trades."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...configs.errors import InputError
from .messages import PRICE_MILLI_MAX

__all__ = ["CONTRACTS_MAX", "LISTED", "ContractBook", "check_lines", "deal_out"]

CONTRACTS_MAX = 1_000_000

#: A contract as the market lists it. Prices in thousandths of the currency.
LISTED = np.dtype(
    [
        ("right", np.int64),  # 1: a call, −1: a put
        ("strike_milli", np.int64),
        ("tick_milli", np.int64),  # the least step of its price
        ("underlying", np.int64),  # number of the underlying
        ("underlying_milli", np.int64),
        ("time_value_milli", np.float64),  # price minus intrinsic value
        ("trades", np.float64),  # number of trades, relative to the other contracts
    ],
    align=True,
)

#: Shape (contracts,), dtype `LISTED`.
Listed: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class ContractBook:
    """Contracts, sorted by trades, the most first; a contract's number is its index.

    Raises:
        InputError: there are no contracts or too many, or a price does not fit into a message.
    """

    names: tuple[str, ...]
    listed: Listed
    trades_per_s: float
    """Real rate over all contracts, averaged over the hours of trading."""
    origin: str
    """Description of their origin, for the report."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.names) <= CONTRACTS_MAX or len(self.names) != len(self.listed):
            msg = f"{len(self.names):,} contracts: there must be 1 to {CONTRACTS_MAX:,}"
            raise InputError(msg)
        for name in ("strike_milli", "underlying_milli"):
            wrong = (self.listed[name] < 1) | (self.listed[name] > PRICE_MILLI_MAX)
            if wrong.any():
                place = int(np.argmax(wrong))
                msg = (
                    f"{self.names[place]}: {name} is {self.listed[name][place]:,}, "
                    f"where a message holds 1 to {PRICE_MILLI_MAX:,}: leave it out"
                )
                raise InputError(msg)

    def __len__(self) -> int:
        return len(self.names)

    @staticmethod
    def busiest_first(
        names: Sequence[str], listed: Listed, limit: int | None, trades_per_s: float, origin: str
    ) -> ContractBook:
        """Return the `limit` contracts with the most trades, ties by name; None takes all."""
        order = sorted(range(len(names)), key=lambda at: (-listed["trades"][at], names[at]))[:limit]
        all_trades = float(listed["trades"].sum())
        chosen = listed[order]
        share = float(chosen["trades"].sum()) / all_trades if all_trades else 0.0
        return ContractBook(tuple(names[at] for at in order), chosen, trades_per_s * share, origin)


def check_lines(contracts: int, lines: int) -> None:
    """Refuse more lines than contracts; raises InputError."""
    if lines > contracts:
        msg = f"{lines} feed lines for {contracts} contracts: give every line one or more"
        raise InputError(msg)


def deal_out(trades: npt.NDArray[np.float64], lines: int) -> list[npt.NDArray[np.int64]]:
    """Assign contracts to lines so that all lines have about the same number of trades.

    Each contract in turn is assigned to the line with the fewest trades so far, which is how
    exchanges divide their symbols.

    Args:
        trades: number of trades of each contract, the most first.
        lines: number of lines.

    Returns:
        The contracts of each line, ascending.

    Raises:
        InputError: there are more lines than contracts.
    """
    check_lines(len(trades), lines)
    loads = [(0.0, line) for line in range(lines)]
    dealt: list[list[int]] = [[] for _ in range(lines)]
    for contract, count in enumerate(trades.tolist()):
        load, line = heapq.heappop(loads)
        dealt[line].append(contract)
        heapq.heappush(loads, (load + count, line))
    return [np.array(contracts, np.int64) for contracts in dealt]
