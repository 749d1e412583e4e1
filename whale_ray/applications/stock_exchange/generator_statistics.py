"""What the generator is calibrated on: statistics of one day of five stocks in Shanghai.

2023-07-11: 149,359 order messages and 109,616 trades, put together to 207,974 orders and cancels.
How symbols differ in volume comes from 30 stocks of the same exchange on 2021-12-01. Only counts
and quantiles are kept here, no row of the data.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = [
    "AGGRESSIVE_SHARE",
    "BUY_SHARE",
    "CANCEL_SHARE",
    "TABLE_SIZE",
    "offsets_in_ticks",
    "opening_prices_in_ticks",
    "quantities",
    "seconds_of_a_day",
    "shares_of_symbols",
    "weights_of_seconds",
]

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

TABLE_SIZE = 4096

#: Of orders and cancels.
CANCEL_SHARE = 0.190
#: Of orders.
BUY_SHARE = 0.507
#: Of orders in continuous trading: those that trade at once.
AGGRESSIVE_SHARE = 0.389

_PERCENT = (0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.9, 100)
#: Shares per order; aggressive ones and others hardly differ.
_QUANTITY = (
    10, 100, 100, 100, 100, 200, 200, 300, 500, 800, 1200, 2600, 5000, 10000, 15285, 64978, 250000,
)  # fmt: skip
#: Ticks by which a passive order's price is worse than the best of its side; below 0: better.
_OFFSET = (-14, -2, -1, 0, 0, 0, 0, 0, 1, 2, 6, 25, 65, 159, 286, 545, 584)

#: Standard deviation of the logarithm of a symbol's volume, 30 stocks.
_VOLUME_SIGMA = 1.35
#: Median in ticks and deviation of the logarithm of the price, the same stocks.
_PRICE_TICKS, _PRICE_SIGMA = 1_288, 1.1
_PRICE_TICKS_LEAST, _PRICE_TICKS_MOST = 200, 200_000

#: First second of each session in UTC, seconds, and messages of each fifteen minutes of it (the
#: last piece is shorter).
_SESSIONS = (
    (4_500, 600, (4_815,)),
    (5_400, 7_200, (40_506, 20_144, 19_920, 13_890, 13_707, 9_190, 7_773, 7_116)),
    (18_000, 7_020, (9_537, 6_590, 7_070, 7_007, 6_941, 8_317, 10_640, 13_585)),
    (25_020, 180, (1_226,)),
)
_PIECE_S = 900
#: Standard deviation of the logarithm of a second's messages against its quarter's mean.
_SECOND_SIGMA = 0.57


def quantities() -> Int64s:
    """Return quantities that are equally likely, whole hundreds, shape (TABLE_SIZE,)."""
    drawn = np.exp(np.interp(_probabilities(), _PERCENT, np.log(_QUANTITY)))
    return np.maximum(np.round(drawn / 100).astype(np.int64), 1) * 100


def offsets_in_ticks() -> Int64s:
    """Return offsets of passive orders that are equally likely, shape (TABLE_SIZE,)."""
    return np.round(np.interp(_probabilities(), _PERCENT, _OFFSET)).astype(np.int64)


def shares_of_symbols(symbols: int) -> Floats:
    """Return each symbol's share of all messages, largest first, shape (symbols,)."""
    shares = np.exp(_VOLUME_SIGMA * _normal_quantiles(symbols)[::-1])
    return np.asarray(shares / shares.sum(), np.float64)


def opening_prices_in_ticks(symbols: int, random: np.random.Generator) -> Int64s:
    """Return where each symbol starts, shape (symbols,)."""
    prices = _PRICE_TICKS * np.exp(_PRICE_SIGMA * random.standard_normal(symbols))
    return np.clip(prices, _PRICE_TICKS_LEAST, _PRICE_TICKS_MOST).astype(np.int64)


def seconds_of_a_day() -> tuple[Int64s, Int64s]:
    """Return the seconds in which messages come, since midnight, and each one's session, 0 … 3."""
    starts = [first + np.arange(length) for first, length, _ in _SESSIONS]
    numbers = [np.full(length, number) for number, (_, length, _) in enumerate(_SESSIONS)]
    return np.concatenate(starts).astype(np.int64), np.concatenate(numbers).astype(np.int64)


def weights_of_seconds(random: np.random.Generator) -> Floats:
    """Return the share of a day's messages in each of `seconds_of_a_day`."""
    means = []
    for _, length, counts in _SESSIONS:
        pieces = np.arange(length) // _PIECE_S
        lengths = np.bincount(pieces)
        means.append((np.array(counts) / lengths)[pieces])
    weights = np.concatenate(means)
    weights *= np.exp(_SECOND_SIGMA * random.standard_normal(len(weights)))
    return np.asarray(weights / weights.sum(), np.float64)


def _probabilities() -> Floats:
    return np.asarray((np.arange(TABLE_SIZE) + 0.5) * (100.0 / TABLE_SIZE), np.float64)


def _normal_quantiles(count: int) -> Floats:
    """Return what `count` normally distributed values are expected to be, ascending."""
    from statistics import NormalDist

    normal = NormalDist()
    return np.array([normal.inv_cdf((place + 0.5) / count) for place in range(count)])
