"""Throughput and latency over time, in bins, from the control block of a measurement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .bands import band_of, recovery_bins

if TYPE_CHECKING:
    from .one_to_many.control_block import ControlBlock

__all__ = ["Recovery", "Series", "mean_in_bins", "recovery", "series_of"]

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """Throughput and latency, bin by bin.

    Attributes:
        begin_ns: start of the first bin, monotonic ns.
        bin_ns: length of a bin.
        offered: rows per second that the source emitted.
        delivered: rows per second that reached the instances, as a mean over them.
        latency_ms: mean processing latency of the rows processed in the bin; NaN without any.
    """

    begin_ns: int
    bin_ns: int
    offered: Values
    delivered: Values
    latency_ms: Values

    def place(self, at_ns: int) -> int:
        """Return the bin of a time."""
        return (at_ns - self.begin_ns) // self.bin_ns


@dataclass(frozen=True)
class Recovery:
    """Time from a switch until a series was back in its band, in ms.

    Attributes:
        throughput_ms: of throughput.
        latency_ms: of latency; values below the band, so better than before, count as inside.
        settled_ms: of latency, where values that are usual later count as inside, too, since a
            deeper tree has a higher latency for good.
    """

    throughput_ms: float
    latency_ms: float
    settled_ms: float


def series_of(control_block: ControlBlock, begin_ns: int, bin_ns: int, bins: int) -> Series:
    """Return the first `bins` bins of a control block."""
    seconds = bin_ns / 1e9
    rows = control_block.bins[:, :bins].astype(np.float64)
    scheduled = control_block.scheduled[None, :]
    done = control_block.done
    known = (done > 0) & (scheduled > 0)
    latencies_ms = ((done - scheduled)[known]) / 1e6
    places = (done[known] - begin_ns) // bin_ns
    return Series(
        begin_ns,
        bin_ns,
        offered=rows[0] / seconds,
        delivered=rows[1:].sum(axis=0) / control_block.shape.instances / seconds,
        latency_ms=mean_in_bins(places, latencies_ms, bins),
    )


def mean_in_bins(places: npt.NDArray[np.int64], values: Values, bins: int) -> Values:
    """Return the mean of the values in each bin, NaN for a bin without any.

    `places` and `values` are equally long; places outside 0 … bins − 1 are left out.
    """
    inside = (places >= 0) & (places < bins)
    counts = np.bincount(places[inside], minlength=bins)
    sums = np.bincount(places[inside], weights=values[inside], minlength=bins)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def recovery(
    series: Series, decided_ns: int, until_ns: int, around_ns: int = 2 * 10**9
) -> Recovery:
    """Return how long the disturbance by a switch decided at `decided_ns` lasts.

    Args:
        series: throughput and latency.
        decided_ns: when a switch was decided.
        until_ns: where to stop looking.
        around_ns: length of the spans before the first and after the second that define the usual
            values.

    Raises:
        ValueError: there is no value before the switch.
    """
    first, last = series.place(decided_ns), series.place(until_ns) + 1
    span = around_ns // series.bin_ns
    before, after = slice(max(0, first - span), first), slice(last, last + span)
    bin_ms = series.bin_ns / 1e6
    delivered = recovery_bins(series.delivered[first:last], band_of(series.delivered[before]))
    latencies = series.latency_ms[first:last]
    usual = replace(band_of(series.latency_ms[before]), low=-np.inf)
    known_later = not np.isnan(series.latency_ms[after]).all()
    later = band_of(series.latency_ms[after]).high if known_later else usual.high
    settled = replace(usual, high=max(usual.high, later))
    return Recovery(
        delivered * bin_ms,
        recovery_bins(latencies, usual) * bin_ms,
        recovery_bins(latencies, settled) * bin_ms,
    )
