"""The results of a simulated run: rates, latencies, the queue over time, the switches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from .arrivals import Seconds
from .model import Scenario

WARM_UP = 0.1
"""Share of the first slices that latencies leave out (warm-up)."""


@dataclass(frozen=True)
class SwitchSeen:
    """One change of the tree."""

    began_s: float
    """When the monitor decided on it."""
    ended_s: float
    """When every vertex that moved reads from its new parent, and the coordinator knows."""
    degree_before: int
    degree_after: int
    moved_edges: int
    reason: str

    @property
    def duration_s(self) -> float:
        """How long it took; slices flow meanwhile."""
        return self.ended_s - self.began_s


@dataclass(frozen=True)
class SliceLatency:
    """Of slices, in seconds, from the scheduled emission."""

    mean_s: float
    p50_s: float
    p99_s: float

    @classmethod
    def of(cls, latencies_s: Seconds) -> SliceLatency:
        """Return the mean and percentiles of some latencies; NaN if there are none."""
        if not latencies_s.size:
            return cls(math.nan, math.nan, math.nan)
        p50, p99 = np.percentile(latencies_s, (50, 99))
        return cls(float(latencies_s.mean()), float(p50), float(p99))


@dataclass(frozen=True)
class SimulationOutcome:
    """One run. Arrays have an entry per slice, moments in seconds."""

    scenario: Scenario
    emitted_s: Seconds
    """When each slice was scheduled."""
    entered_s: Seconds
    """When it entered the source's queue: later than scheduled where that was full or throttled."""
    sent_s: Seconds
    """When the source had sent it to its last child."""
    received_s: Seconds
    """When the last destination received it."""
    mean_received_s: Seconds
    """When the destinations received it, on average."""
    processed_s: Seconds
    """When the last destination's worker had processed it."""
    switches: tuple[SwitchSeen, ...] = field(default=())

    @property
    def slices(self) -> int:
        """How many there were."""
        return int(self.emitted_s.size)

    @property
    def offered_per_s(self) -> float:
        """The mean rate of the schedule."""
        span_s = float(self.emitted_s[-1] - self.emitted_s[0])
        return (self.slices - 1) / span_s if span_s > 0 else math.inf

    @property
    def throughput_per_s(self) -> float:
        """Slices per second processed by all destinations, over the run's second half."""
        done_s = np.maximum(self.received_s, self.processed_s)
        half = self.slices // 2
        span_s = float(done_s[-1] - done_s[half])
        return (self.slices - 1 - half) / span_s if span_s > 0 else math.inf

    @property
    def carried(self) -> float:
        """The share of the offered rate that was delivered, over the run's second half.

        About 1 where the tree keeps up.
        """
        half = self.slices // 2
        offered_s = float(self.emitted_s[-1] - self.emitted_s[half])
        done_s = np.maximum(self.received_s, self.processed_s)
        return min(1.0, offered_s / float(done_s[-1] - done_s[half]))

    @property
    def multicast(self) -> SliceLatency:
        """From the scheduled emission until the last destination has a slice."""
        return SliceLatency.of(self._warm(self.received_s - self.emitted_s))

    @property
    def processing(self) -> SliceLatency:
        """From the scheduled emission until the last destination's worker is done with it."""
        return SliceLatency.of(self._warm(self.processed_s - self.emitted_s))

    @property
    def held_back_s(self) -> float:
        """Total time for which slices waited outside the full or throttled queue."""
        return float((self.entered_s - self.emitted_s).sum())

    def queue_slices(self, at_s: Seconds) -> Seconds:
        """Return how many slices the source's queue held at some moments."""
        entered = self.entered_s.searchsorted(at_s, side="right")
        return (entered - self.sent_s.searchsorted(at_s, side="right")).astype(np.float64)

    def mean_queue_slices(self) -> float:
        """Return the queue's mean length over the time in which slices were emitted."""
        end_s = float(self.emitted_s[-1])
        inside = np.minimum(self.sent_s, end_s) - np.minimum(self.entered_s, end_s)
        return float(inside.sum()) / end_s if end_s > 0 else math.nan

    def rate_per_s(self, edges_s: Seconds) -> Seconds:
        """Return the rate at which slices reached all destinations, between each two moments."""
        counts = np.histogram(self.received_s, edges_s)[0]
        return counts / np.diff(edges_s)

    def latency_s(self, edges_s: Seconds) -> Seconds:
        """Return the mean multicast latency of the slices received between each two moments."""
        latencies_s = self.received_s - self.emitted_s
        counts = np.histogram(self.received_s, edges_s)[0]
        sums = np.histogram(self.received_s, edges_s, weights=latencies_s)[0]
        with np.errstate(invalid="ignore"):
            return np.where(counts > 0, sums / counts, np.nan)

    def _warm(self, values: Seconds) -> Seconds:
        return values[int(WARM_UP * self.slices) :]
