"""When the tree changes its out-degree, and to which: the monitor, the rules, the theorems.

Every Δt the caller passes in what it counted. λ is smoothed, λ(t) = α·λ(t-1) + (1-α)·N(t), and so
are t_s and t_d (Whale 4). The rules on the queue's length (Whale 3.3) decide *when* to change the
degree; the model (out_degree.py) decides *to which*, for a mean queue well below the waterline.
With E(L) = Q the queue would stand above the waterline, and the degree would oscillate.
Four rules prevent that:

- a wider tree must also be affordable at λ·(1 + hysteresis); a narrower one is taken at λ itself;
- below the waterline there is a least time between two switches;
- a scale-up must make up for its own delay (Theorem 5);
- a queue that is long although the model affords the degree changes nothing: it is caused by
  back-pressure of the children.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from ..configs.settings import MulticastSettings
from ..configs.units import NS_PER_S
from .out_degree import SEND_S_MIN, Costs, affordable_degree
from .trees import least_depth

PERIOD_MIN_NS = 1_000_000
PERIOD_MAX_NS = 200_000_000


class Reason(enum.Enum):
    """Why the degree and the offered rate are what a decision says."""

    RATE_UNKNOWN = "nothing has arrived yet"
    SWITCHING = "a switch is under way"
    QUIET = "no rule asks for a change"
    AFFORDABLE = "the degree is what the rate affords"
    DWELL = "the last switch is too recent"
    DOES_NOT_PAY = "a wider tree would not make up for the switch"
    SCALE_DOWN = "negative scale-down"
    SCALE_UP = "active scale-up"


@dataclass(frozen=True)
class Sample:
    """What one sender counted since its last sample; all in slices."""

    now_ns: int
    arrived_slices: float
    """Offered to the transfer queue, including those that a throttle held back: N(t)."""
    queue_slices: float
    """Waiting now: l."""
    capacity_slices: float
    """Q."""
    serialize_s: float | None = None
    """Mean per slice; None if none was serialized."""
    send_s: float | None = None
    """Mean per slice and child; None if none was sent."""


@dataclass(frozen=True)
class Decision:
    """The out-degree and the rate of a sender until its next decision."""

    degree: int
    """The wanted out-degree; if it is not the present one, a switch is due."""
    reason: Reason
    throttle_to_slices_per_s: float | None = None
    """Offer no more than this; None: no limit."""


# --- rules and theorems ---------------------------------------------------------------------


def asks_for_scale_down(
    before_slices: float, now_slices: float, waterline_slices: float, threshold: float
) -> bool:
    """Negative scale-down: ΔL/(l_w - l) ≥ T_down, and always once l ≥ l_w (Whale 3.3).

    A queue that does not grow below the waterline never asks.
    """
    if now_slices >= waterline_slices:
        return True
    growth = now_slices - before_slices
    return growth > 0 and growth >= threshold * (waterline_slices - now_slices)


def asks_for_scale_up(before_slices: float, now_slices: float, threshold: float) -> bool:
    """Active scale-up: ΔL/l' ≥ T_up with ΔL = l' - l, or l = l' = 0 (Whale 3.3)."""
    if before_slices <= 0:
        return now_slices <= 0
    return before_slices - now_slices >= threshold * before_slices


def scale_down_fits(
    capacity_slices: float,
    queue_slices: float,
    rate_in_slices_per_s: float,
    rate_out_slices_per_s: float,
    switch_s: float,
) -> bool:
    """Theorem 4: T_switch < (Q - q)/(v_in - v_out), as the old tree flows until the cut.

    The paper's form has v_in alone below: there the output stops during a switch. A queue that does
    not grow always fits, unless it is full already.
    """
    room = capacity_slices - queue_slices
    growth = rate_in_slices_per_s - rate_out_slices_per_s
    return room > 0 and (growth <= 0 or switch_s * growth < room)


def multicast_rate_per_s(destinations: int, degree: int, costs: Costs) -> float:
    """Return γ: how many destinations per second one multicast reaches (Definition 5).

    It takes t_s, then t_d per layer of the tree that Algorithm 1 makes.
    """
    layers = least_depth(destinations, degree)
    return destinations / (costs.serialize_s + layers * costs.send_s) if destinations else 0.0


def scale_up_pays(
    rate_before_per_s: float, rate_after_per_s: float, switch_s: float, dwell_s: float
) -> bool:
    """Theorem 5: X > γ·γ'·T_switch/(γ - γ'), with X = γ · planned dwell deliveries."""
    gain = rate_after_per_s - rate_before_per_s
    if gain <= 0:
        return False
    deliveries = rate_after_per_s * dwell_s
    return deliveries * gain > rate_after_per_s * rate_before_per_s * switch_s


def period_ns(capacity_slices: float, rate_slices_per_s: float) -> int:
    """Return Δt ≤ Q/(4λ), within 1 and 200 ms: a queue cannot fill unseen."""
    if rate_slices_per_s <= 0:
        return PERIOD_MAX_NS
    longest_ns = capacity_slices * NS_PER_S / (4.0 * rate_slices_per_s)
    return PERIOD_MAX_NS if longest_ns >= PERIOD_MAX_NS else max(PERIOD_MIN_NS, int(longest_ns))


# --- the monitor ----------------------------------------------------------------------------


class Monitor:
    """Decides on the out-degree of one sender; every relay has its own monitor."""

    def __init__(self, settings: MulticastSettings, degree: int, now_ns: int) -> None:
        """Start with a tree of out-degree `degree`. ValueError if that is below 1."""
        if degree < 1:
            msg = f"an out-degree of {degree}: it must be 1 or more"
            raise ValueError(msg)
        self.degree = degree
        """The cap of the present tree."""
        self.rate_slices_per_s: float | None = None
        """λ, smoothed; None until something has arrived."""
        self.switch_s = settings.switch_prior_ms / 1e3
        """T_switch: the last switch's duration, or the smoothed one if that is longer."""
        self.switches = 0
        self._settings = settings
        self._serialize_s = 0.0
        self._send_s: float | None = None
        self._queue_slices: float | None = None
        self._sampled_ns = now_ns
        self._settled_ns: int | None = None
        self._capacity_slices = 1.0
        self._began_ns: int | None = None

    @property
    def period_ns(self) -> int:
        """The time to the next sample: Δt."""
        return period_ns(self._capacity_slices, self.rate_slices_per_s or 0.0)

    @property
    def costs(self) -> Costs | None:
        """The mean costs of a slice; None until one was sent."""
        if self._send_s is None:
            return None
        return Costs(self._serialize_s, max(SEND_S_MIN, self._send_s))

    def began(self, now_ns: int) -> None:
        """Record that a switch has begun; no other is decided until it ends."""
        self._began_ns = now_ns

    def ended(self, now_ns: int, degree: int) -> None:
        """Record that the switch ended with a tree of that degree, the old one if it was aborted.

        Does nothing if no switch is under way (a repeated message).
        """
        if self._began_ns is None:
            return
        if degree != self.degree:
            took_s = (now_ns - self._began_ns) / NS_PER_S
            self.switch_s = max(took_s, (self.switch_s + took_s) / 2)
            self.switches += 1
        self.degree = degree
        self._began_ns = None
        self._settled_ns = now_ns

    def observe(self, sample: Sample, destinations: int) -> Decision:
        """Take a sample and decide. ValueError for one that is no later than the last, or negative.

        A sample in the same nanosecond has no rate, so there is none.
        """
        before = self._take(sample)
        rate, costs = self.rate_slices_per_s, self.costs
        if rate is None or costs is None:
            return Decision(self.degree, Reason.RATE_UNKNOWN)
        target_slices = self._settings.queue_target_fraction * sample.capacity_slices
        affordable = affordable_degree(rate, costs, target_slices, destinations)
        limit = affordable.rate_max_slices_per_s if affordable.throttle else None
        if self._began_ns is not None:
            return Decision(self.degree, Reason.SWITCHING, limit)
        waterline = self._settings.waterline_fraction * sample.capacity_slices
        now = sample.queue_slices
        if asks_for_scale_down(before, now, waterline, self._settings.threshold_down):
            is_urgent = now >= waterline
            return self._narrower(sample, affordable.degree, rate, costs, limit, is_urgent)
        if asks_for_scale_up(before, now, self._settings.threshold_up):
            with_margin = rate * (1.0 + self._settings.rate_hysteresis)
            wider = affordable_degree(with_margin, costs, target_slices, destinations).degree
            return self._wider(sample.now_ns, wider, costs, destinations, limit)
        return Decision(self.degree, Reason.QUIET, limit)

    def _take(self, sample: Sample) -> float:
        """Bring the averages up to date; return the queue's length at the sample before."""
        counts = (sample.arrived_slices, sample.queue_slices, sample.capacity_slices)
        if sample.now_ns <= self._sampled_ns or not all(0 <= one < math.inf for one in counts):
            msg = f"not a sample after {self._sampled_ns} ns: {sample}"
            raise ValueError(msg)
        elapsed_s = (sample.now_ns - self._sampled_ns) / NS_PER_S
        measured = sample.arrived_slices / elapsed_s
        if self.rate_slices_per_s is not None:
            self.rate_slices_per_s = self._smooth(self.rate_slices_per_s, measured)
        elif measured > 0:
            self.rate_slices_per_s = measured
        if sample.serialize_s is not None:
            # Before the first slice was sent there is no past value to smooth with.
            past = self._serialize_s if self._send_s is not None else sample.serialize_s
            self._serialize_s = self._smooth(past, sample.serialize_s)
        if sample.send_s is not None:
            past = sample.send_s if self._send_s is None else self._send_s
            self._send_s = self._smooth(past, sample.send_s)
        before = sample.queue_slices if self._queue_slices is None else self._queue_slices
        self._queue_slices = sample.queue_slices
        self._capacity_slices = max(1.0, sample.capacity_slices)
        self._sampled_ns = sample.now_ns
        return before

    def _smooth(self, past: float, measured: float) -> float:
        weight = self._settings.rate_smoothing
        return past if past == measured else weight * past + (1.0 - weight) * measured

    def _dwells(self, now_ns: int) -> bool:
        if self._settled_ns is None:
            return False
        return now_ns - self._settled_ns < self._settings.dwell_min_ms * 1_000_000

    def _narrower(
        self,
        sample: Sample,
        target: int,
        rate_in: float,
        costs: Costs,
        limit: float | None,
        is_urgent: bool,
    ) -> Decision:
        if target >= self.degree:
            return Decision(self.degree, Reason.AFFORDABLE, limit)
        if not is_urgent and self._dwells(sample.now_ns):
            return Decision(self.degree, Reason.DWELL, limit)
        room, rate_out = sample.capacity_slices, costs.service_slices_per_s(self.degree)
        if not scale_down_fits(room, sample.queue_slices, rate_in, rate_out, self.switch_s):
            # Until the cut, offer what the old tree serves and half of what fits the queue.
            spare = max(0.0, sample.capacity_slices - sample.queue_slices) / self.switch_s
            limit = min(limit or math.inf, rate_out + spare / 2)
        return Decision(target, Reason.SCALE_DOWN, limit)

    def _wider(
        self, now_ns: int, target: int, costs: Costs, destinations: int, limit: float | None
    ) -> Decision:
        if target <= self.degree:
            return Decision(self.degree, Reason.AFFORDABLE, limit)
        if self._dwells(now_ns):
            return Decision(self.degree, Reason.DWELL, limit)
        before = multicast_rate_per_s(destinations, self.degree, costs)
        after = multicast_rate_per_s(destinations, target, costs)
        dwell_s = max(self.switch_s, self._settings.dwell_min_ms / 1e3)
        if not scale_up_pays(before, after, self.switch_s, dwell_s):
            return Decision(self.degree, Reason.DOES_NOT_PAY, limit)
        return Decision(target, Reason.SCALE_UP, limit)
