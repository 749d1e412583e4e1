"""The highest rate at which almost no message is missed, by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

from ....applications.options_market.settings import MISSED_SHARE
from ....configs.errors import SettingsError

__all__ = ["highest_rate"]


class _Counted(Protocol):
    @property
    def missed_share(self) -> float: ...


class _Run(Protocol):
    @property
    def ingest(self) -> _Counted: ...


_AnyRun = TypeVar("_AnyRun", bound=_Run)


def highest_rate(
    measure: Callable[[float], _AnyRun],
    low: float,
    high: float,
    *,
    precision: float = 0.05,
) -> tuple[float, _AnyRun] | None:
    """Search between two rates for the highest at which less than `MISSED_SHARE` is missed.

    ::

        search = highest_rate(
            lambda rate: measure(book, replace(settings, rate=rate), "tcp"), 10_000, 1_000_000
        )

    Args:
        measure: runs at a rate and counts, such as `measuring.measure`.
        low, high: messages per second.
        precision: the search ends when the next rate would be higher by less than this share.

    Returns: this rate and its run; None if even `low` was too high.

    Raises:
        SettingsError: the rates or the precision are out of range.
    """
    if not 0 < low <= high:
        msg = f"the search goes from {low:,.0f} to {high:,.0f} messages/s: give 0 < low <= high"
        raise SettingsError(msg)
    if not 0 < precision < 1:
        msg = f"precision is {precision:g}: give more than 0 and less than 1"
        raise SettingsError(msg)

    def carried(rate: float) -> tuple[float, _AnyRun] | None:
        run = measure(rate)
        return (rate, run) if run.ingest.missed_share < MISSED_SHARE else None

    best = carried(low)
    if best is None or high == low:
        return best
    if found := carried(high):
        return found
    while high / best[0] > 1 + precision:
        middle = math.sqrt(best[0] * high)
        if found := carried(middle):
            best = found
        else:
            high = middle
    return best
