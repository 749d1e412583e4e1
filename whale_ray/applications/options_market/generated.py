"""Generated contracts, for runs without data.

Calibrated on five days of an exchange, 2026-03-20 to 2026-03-27: 361 million trades in 30,552
contracts on 211 underlyings. This module contains only counts, no row of the data.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...configs.errors import SettingsError
from .contracts import CONTRACTS_MAX, LISTED, ContractBook

__all__ = ["CONTRACTS", "TRADES_PER_S", "generated_contracts", "trades_of_ranks"]

#: Number of contracts with at least one trade.
CONTRACTS = 30_552
#: Averaged over the 6.25 hours of trading of five days.
TRADES_PER_S = 361_464_000 / (5 * 22_500)
SECONDS_A_DAY = 22_500

#: Trades in five days of the contract of each rank.
_RANKS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000)
_TRADES = (
    *(11_290_431, 10_004_428, 8_833_961, 8_236_482, 6_617_816, 4_450_568, 1_688_178, 611_462),
    *(160_497, 36_097, 14_670, 6_376, 1_739, 405, 32, 1),
)
#: Share of all trades of the underlying of each rank; the first is an index.
_UNDERLYING_RANKS = (1, 2, 3, 4, 5, 10, 20, 50, 100, 150, 211)
_UNDERLYING_SHARES = (
    *(0.8552, 0.0447, 0.00646, 0.00513, 0.00483, 0.00204, 0.00106, 0.000613, 0.000262),
    *(0.00015, 0.000002),
)
_UNDERLYINGS = 211
_INDEX_MILLI = 22_912_400
_PRICE_SIGMA, _PRICE_MEDIAN_MILLI = 1.2, 1_200_000
_TICK_MILLI = 50
#: Deviation of the logarithm of strike ÷ underlying, and time value at the money ÷ underlying.
_STRIKE_SIGMA, _TIME_VALUE = 0.05, 0.012


def trades_of_ranks(count: int) -> npt.NDArray[np.float64]:
    """Return the numbers of trades of the contracts of rank 1, 2, … `count`, shape (count,)."""
    ranks = np.arange(1, count + 1)
    logarithms = np.interp(np.log(ranks), np.log(_RANKS), np.log(_TRADES))
    return np.asarray(np.exp(logarithms), np.float64)


def generated_contracts(count: int = CONTRACTS, seed: int = 1) -> ContractBook:
    """Return contracts with the same distribution of trades as the real ones.

    Raises:
        SettingsError: `count` lies outside its range.
    """
    if not 1 <= count <= CONTRACTS_MAX:
        msg = f"contracts is {count}: give 1 to {CONTRACTS_MAX:,}"
        raise SettingsError(msg)
    draws = np.random.default_rng([seed, 2])
    listed = np.zeros(count, LISTED)
    prices = _PRICE_MEDIAN_MILLI * np.exp(_PRICE_SIGMA * draws.standard_normal(_UNDERLYINGS))
    prices = np.clip(prices, 50_000, 60_000_000)
    prices[0] = _INDEX_MILLI
    underlyings = draws.choice(_UNDERLYINGS, count, p=_underlying_shares())
    listed["underlying"] = underlyings
    listed["underlying_milli"] = prices[underlyings]
    listed["right"] = draws.choice((-1, 1), count)
    distance = _STRIKE_SIGMA * draws.standard_normal(count)
    steps = np.maximum(np.round(listed["underlying_milli"] * 0.002 / 1_000), 1).astype(np.int64)
    strikes = np.round(listed["underlying_milli"] * np.exp(distance) / (1_000 * steps))
    listed["strike_milli"] = np.maximum(strikes, 1).astype(np.int64) * steps * 1_000
    listed["tick_milli"] = _TICK_MILLI
    listed["time_value_milli"] = (
        listed["underlying_milli"] * _TIME_VALUE * np.exp(-np.abs(distance) / 0.02) + _TICK_MILLI
    )
    listed["trades"] = trades_of_ranks(count)
    letters = np.where(listed["right"] > 0, "C", "P").tolist()
    parts = zip(underlyings.tolist(), letters, listed["strike_milli"].tolist(), strict=True)
    names = tuple(
        f"U{number:03} {letter} {strike / 1_000:g} {place}"
        for place, (number, letter, strike) in enumerate(parts)
    )
    share = float(listed["trades"].sum() / trades_of_ranks(CONTRACTS).sum())
    return ContractBook(names, listed, TRADES_PER_S * min(share, 1.0), "generated")


def _underlying_shares() -> npt.NDArray[np.float64]:
    ranks = np.log(np.arange(1, _UNDERLYINGS + 1))
    shares = np.exp(np.interp(ranks, np.log(_UNDERLYING_RANKS), np.log(_UNDERLYING_SHARES)))
    return np.asarray(shares / shares.sum(), np.float64)
