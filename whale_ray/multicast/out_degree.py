"""How many children a sender can afford: the M/D/1 model of its transfer queue.

A sender that serializes a slice in t_s and passes it on in t_d per child serves
μ = 1/(d·t_d + t_s) slices per second (Whale 4; the paper's Eq. 1 is t_s = 0, t_d = t_e). With the
load ρ = λ/μ its queue holds E(L) = ρ + ρ²/(2(1-ρ)) slices on average (Eq. 2), and E(L) ≤ Q gives
ρ ≤ ρ* = Q + 1 - √(Q²+1) (Eqs. 4 and 5). Eq. 3 as printed has the other root of the same quadratic,
which lies beyond ρ = 1, where no queue is stable; with a plus before its root it is ρ* as well.

All numbers count **slices**: where slices are cut, λ, t_s, t_d and Q are per slice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

QUEUE_SLICES_MAX = 1024
"""Capacity of a transfer queue, in slices, however large its ring (the paper's Q)."""
SEND_S_MIN = 1e-9
"""The lowest time per child that counts; a measured time below it is noise."""


@dataclass(frozen=True)
class Costs:
    """What one slice costs its sender, averaged, in seconds."""

    serialize_s: float
    """Once per slice: t_s."""
    send_s: float
    """Once per slice and child: t_d; the paper's t_e where nothing is serialized."""

    def __post_init__(self) -> None:
        """Raise ValueError for a time that no clock measures."""
        if not (math.isfinite(self.serialize_s) and self.serialize_s >= 0):
            msg = f"serialize_s={self.serialize_s}: a time of 0 or more seconds is needed"
            raise ValueError(msg)
        if not (math.isfinite(self.send_s) and self.send_s > 0):
            msg = f"send_s={self.send_s}: a time of more than 0 seconds is needed"
            raise ValueError(msg)

    def per_slice_s(self, degree: int) -> float:
        """Return the time that a slice takes its sender with `degree` children: 1/μ."""
        return degree * self.send_s + self.serialize_s

    def service_slices_per_s(self, degree: int) -> float:
        """Return how many slices a sender with `degree` children serves: μ."""
        return 1.0 / self.per_slice_s(degree)


@dataclass(frozen=True)
class Affordable:
    """The out-degree that a load allows, and whether even one child is too much."""

    degree: int
    """d*, within 1 and what a binomial tree would use."""
    rate_max_slices_per_s: float
    """The maximum affordable input rate M at that degree (Theorem 1)."""
    throttle: bool
    """Whether this rate is too high even for one child: the source must offer less."""


def affordable_load(queue_slices: float) -> float:
    """Return ρ*: the highest load that keeps the mean queue at `queue_slices` (Eqs. 4 and 5).

    Written as Q/(Q/2 + 1/2 + √(Q²+1)/2), which equals Q + 1 - √(Q²+1); it loses no digits for
    large Q, and no Q is too large for it.
    Raises ValueError unless there is room for something.
    """
    if not (math.isfinite(queue_slices) and queue_slices > 0):
        msg = f"a queue of {queue_slices} slices: its length must be finite and above 0"
        raise ValueError(msg)
    half = queue_slices / 2.0
    return queue_slices / (half + 0.5 + math.hypot(half, 0.5))


def binomial_degree(destinations: int) -> int:
    """Return ⌈log₂(n+1)⌉, the source's out-degree in a binomial tree, and at least 1.

    More children than that leave an Algorithm-1 tree as it is. ValueError below 0 destinations.
    """
    if destinations < 0:
        msg = f"{destinations} destinations: there cannot be fewer than 0"
        raise ValueError(msg)
    return max(1, destinations.bit_length())


def affordable_degree(
    rate_slices_per_s: float, costs: Costs, queue_slices: float, destinations: int
) -> Affordable:
    """Return d* = ⌊(ρ*/λ - t_s)/t_d⌋ within [1, ⌈log₂(n+1)⌉].

    With t_s = 0 this is the paper's ⌊ρ*/(λ·t_e)⌋. A rate of 0 affords the binomial degree.
    Raises ValueError for a rate that is negative or not a number.
    """
    if not rate_slices_per_s >= 0:
        msg = f"a rate of {rate_slices_per_s} slices per second: 0 or more is needed"
        raise ValueError(msg)
    highest = binomial_degree(destinations)
    load = affordable_load(queue_slices)
    degree = highest
    if rate_slices_per_s > 0:
        # Bounded as a float: infinite room, to either side, fits into no integer.
        room = (load / rate_slices_per_s - costs.serialize_s) / costs.send_s
        degree = highest if room >= highest else math.floor(max(0.0, room))
    within = max(1, degree)
    return Affordable(within, load * costs.service_slices_per_s(within), throttle=degree < 1)


# --- our units ------------------------------------------------------------------------------


def queue_capacity_slices(ring_bytes: int, mean_slice_bytes: float) -> float:
    """Return Q = min(1024, ring bytes / mean slice bytes); ValueError if not above 0."""
    if not (ring_bytes > 0 and mean_slice_bytes > 0):
        msg = f"a ring of {ring_bytes} bytes for slices of {mean_slice_bytes} has no capacity"
        raise ValueError(msg)
    return min(float(QUEUE_SLICES_MAX), ring_bytes / mean_slice_bytes)
