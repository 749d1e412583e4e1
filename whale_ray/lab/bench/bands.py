"""How long a disturbance lasts: a series in short bins against its usual band of values.

The band lies between the 5th and 95th percentile of the bins before the disturbance, so that one
undisturbed bin in ten lies outside by chance. Only a run of several bins that are all outside
counts as a disturbance; the series has recovered at the end of the last such run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["RUN_BINS", "Band", "band_of", "recovery_bins"]

RUN_BINS: Final = 3
"""Bins of such a run; by chance one begins in one bin of a thousand."""

Series = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Band:
    """The usual range of values."""

    low: float
    high: float

    def holds(self, series: Series) -> npt.NDArray[np.bool_]:
        """Return for every value whether it lies in the band; an unknown one (NaN) does."""
        return np.isnan(series) | ((series >= self.low) & (series <= self.high))


def band_of(before: Series) -> Band:
    """Return the band from the 5th to the 95th percentile; ValueError without any value."""
    known = before[~np.isnan(before)]
    if not known.size:
        msg = "there is no value before the moment in question"
        raise ValueError(msg)
    low, high = np.percentile(known, (5, 95))
    return Band(float(low), float(high))


def recovery_bins(after: Series, band: Band) -> int:
    """Return after how many bins the series stays inside the band; 0: it never left.

    Args:
        after: the bins from the disturbance on, shape (bins,).
        band: the usual range.
    """
    outside = ~band.holds(after)
    end = run = 0
    for place, out in enumerate(outside):
        run = run + 1 if out else 0
        if run >= RUN_BINS:
            end = place + 1
    return end
