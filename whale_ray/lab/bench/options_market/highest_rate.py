"""The highest rate at which almost no message is missed, by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ....applications.options_market.settings import MISSED_SHARE
from ....configs.errors import SettingsError

__all__ = ["HighestRate", "highest_rate"]


class _Counted(Protocol):
    @property
    def missed_share(self) -> float: ...


class _Run(Protocol):
    @property
    def ingest(self) -> _Counted: ...


_AnyRun = TypeVar("_AnyRun", bound=_Run)


@dataclass(frozen=True)
class HighestRate(Generic[_AnyRun]):
    """The result of a search.

    Attributes:
        rate: messages per second; 0 if even the lowest rate was too high.
        measured: the run at this rate; None if there was none.
        tried: rate → share of messages missed, in the order of the search.
        is_bound: whether a higher rate was tried and found too high.
    """

    rate: float
    measured: _AnyRun | None
    tried: dict[float, float]
    is_bound: bool


def highest_rate(
    measure: Callable[[float], _AnyRun],
    low: float,
    high: float,
    *,
    missed_share: float = MISSED_SHARE,
    precision: float = 0.05,
) -> HighestRate[_AnyRun]:
    """Search between two rates for the highest at which less than `missed_share` is missed.

    ::

        search = highest_rate(
            lambda rate: measure(book, replace(settings, rate=rate), "tcp"), 10_000, 1_000_000
        )

    Args:
        measure: runs at a rate and counts, such as `measuring.measure`.
        low, high: messages per second.
        missed_share: limit, not included.
        precision: the search ends when the next rate would be higher by less than this share.

    Raises:
        SettingsError: the rates or the precision are out of range.
    """
    if not 0 < low <= high:
        msg = f"the search goes from {low:,.0f} to {high:,.0f} messages/s: give 0 < low <= high"
        raise SettingsError(msg)
    if not 0 < precision < 1:
        msg = f"precision is {precision:g}: give more than 0 and less than 1"
        raise SettingsError(msg)
    tried: dict[float, float] = {}
    best_rate, best = 0.0, None

    def carries(rate: float) -> bool:
        nonlocal best_rate, best
        run = measure(rate)
        tried[rate] = run.ingest.missed_share
        if tried[rate] < missed_share:
            best_rate, best = rate, run
            return True
        return False

    if not carries(low):
        return HighestRate(0.0, None, tried, True)
    if high == low or carries(high):
        return HighestRate(best_rate, best, tried, False)
    while high / best_rate > 1 + precision:
        middle = math.sqrt(best_rate * high)
        if not carries(middle):
            high = middle
    return HighestRate(best_rate, best, tried, True)
