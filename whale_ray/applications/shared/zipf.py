"""Ranks drawn from Zipf's distribution, of as many keys as fit an int64, without a table of them.

Rejection-inversion sampling: W. Hörmann and G. Derflinger, "Rejection-inversion to generate
variates from monotone discrete distributions", ACM TOMACS 6(3), 1996.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["ZIPF_MAX", "zipf_ranks"]

Floats = npt.NDArray[np.float64]

ZIPF_MAX = 4.0
"""The greatest exponent that settings allow."""


def zipf_ranks(
    draws: np.random.Generator, count: int, keys: int, exponent: float
) -> npt.NDArray[np.int64]:
    """Return ranks from 0: rank r is drawn in proportion to (r + 1) ** -exponent.

    Args:
        draws: where from.
        count: how many to draw.
        keys: how many ranks there are, at least 1.
        exponent: 0 draws uniformly.

    Returns:
        int64, shape (count,), each at least 0 and below `keys`.
    """
    if exponent == 0:
        return draws.integers(0, keys, count)
    low = _area(np.array([1.5]), exponent)[0] - 1.0
    high = _area(np.array([keys + 0.5]), exponent)[0]
    # Ranks this near to the point that was drawn need no test (s in the paper).
    two = np.array([2.0])
    near = 2.0 - _point(_area(two + 0.5, exponent) - two**-exponent, exponent)[0]
    ranks = np.empty(count, np.int64)
    open_places = np.arange(count)
    while len(open_places):
        areas = high + draws.random(len(open_places)) * (low - high)
        points = _point(areas, exponent)
        drawn = np.clip(np.floor(points + 0.5), 1, keys)
        taken = (drawn - points <= near) | (
            areas >= _area(drawn + 0.5, exponent) - drawn**-exponent
        )
        ranks[open_places[taken]] = drawn[taken].astype(np.int64) - 1
        open_places = open_places[~taken]
    return ranks


def _area(points: Floats, exponent: float) -> Floats:
    """Return the integral of x ** -exponent from 1 to each point."""
    logarithms = np.log(points)
    if exponent == 1:
        return logarithms
    return np.expm1((1 - exponent) * logarithms) / (1 - exponent)


def _point(areas: Floats, exponent: float) -> Floats:
    """Return the points with these areas: the inverse of `_area`."""
    if exponent == 1:
        return np.exp(areas)
    return np.exp(np.log1p((1 - exponent) * areas) / (1 - exponent))
