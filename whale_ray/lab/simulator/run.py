"""Simulates one scenario: the pass over slices, the monitor, and the switches.

When a slice enters the queue, its times on all hosts are computed at once. So the monitor's samples
and switches come between slices: a switch's cut is the next slice to enter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ...configs.units import NS_PER_S
from ...multicast.monitor import Decision, Monitor, Sample
from ...multicast.switch_protocol import SwitchRecord
from ...multicast.switching import change_degree
from ...multicast.trees import Tree, Vertex
from . import kernel
from .arrivals import Seconds
from .control import ParentSwitch, SwitchUnderWay
from .model import Scenario
from .outcome import SimulationOutcome, SwitchSeen


def simulate(
    scenario: Scenario,
    emitted_s: Seconds,
    first_degree: int = 0,
    weights: Seconds | None = None,
) -> SimulationOutcome:
    """Simulate slices scheduled at `emitted_s` (ascending, in seconds from 0).

    A tree that adjusts itself begins with `first_degree`, 0 being that of a binomial tree. A slice
    of weight w costs `scenario.fixed` plus w times the difference of `scenario.costs` to it;
    without weights all have weight 1.
    """
    playing = _Playing(scenario, emitted_s, scenario.tree(first_degree), weights)
    if scenario.adjusts:
        _Adjusting(playing).play()
    else:
        playing.advance(math.inf)
    return playing.outcome


class _Playing:
    """The state of a run."""

    def __init__(
        self, scenario: Scenario, emitted_s: Seconds, tree: Tree, weights: Seconds | None
    ) -> None:
        hosts = scenario.destinations + 1
        self.scenario = scenario
        self.tree = tree
        self.emitted_s = np.ascontiguousarray(emitted_s, np.float64)
        self.next = 0
        """The first slice that is not simulated yet."""
        self.gap_s = 0.0
        """The least time between two slices while the source is throttled."""
        self.switches: list[SwitchSeen] = []
        self.sums = np.zeros(2)
        costs = kernel.as_array(scenario.costs)
        self._fixed = costs if scenario.fixed is None else kernel.as_array(scenario.fixed)
        self._per_weight = costs - self._fixed
        self._weights = np.empty(0) if weights is None else np.asarray(weights, np.float64)
        self.hosts = np.zeros((kernel.STATES, hosts))
        # Before the first slice, all hosts are idle.
        self.hosts[[kernel.FREE, kernel.TURN_BEGAN, kernel.PROCESSED]] = -1.0
        self.released = np.zeros((scenario.queue_slices, hosts))
        self.record = np.zeros((kernel.RECORDED, self.emitted_s.size))
        self._order = np.zeros(hosts, np.int64)
        self._child_from = np.zeros(hosts + 2, np.int64)
        self._children = np.zeros(hosts - 1, np.int64)
        self.plan_unsized(parents_of(tree), siblings_of(tree))

    def plan_unsized(self, parents: kernel.Ints, siblings: kernel.Ints) -> None:
        """Send slices along another tree from now on; see `kernel.plan_unsized`."""
        hosts = self._order.size
        kernel.plan_unsized(parents, siblings, hosts, self._order, self._child_from, self._children)

    def advance(self, until_s: float, stop: int | None = None) -> None:
        """Simulate slices that enter the queue by `until_s`, up to number `stop`, not included."""
        self.next = kernel.forward(
            self.emitted_s[:stop],
            self.next,
            until_s,
            self.gap_s,
            self._order,
            self._child_from,
            self._children,
            self._fixed,
            self._per_weight,
            self._weights,
            self.hosts,
            self.released,
            self.record,
            self.sums,
        )

    @property
    def enters_s(self) -> float:
        """Return when the next slice enters the queue."""
        k = self.next
        at_s = max(self.emitted_s[k], self.released[k % self.scenario.queue_slices, 0])
        last_s = self.record[kernel.ENTERED, k - 1] if k else -1.0
        at_s = max(at_s, last_s + self.gap_s)
        if self.emitted_s[k] > last_s:
            at_s += self._fixed[kernel.WORKER_WAKE]
        weight = self._weights[k] if self._weights.size else 1.0
        per_weight = self._per_weight[kernel.PRODUCE]
        return float(at_s + self._fixed[kernel.PRODUCE] + weight * per_weight)

    @property
    def outcome(self) -> SimulationOutcome:
        """Return the results of the run."""
        assert self.next == self.emitted_s.size, "not all slices were played"
        record = self.record
        return SimulationOutcome(
            self.scenario,
            self.emitted_s,
            record[kernel.ENTERED],
            record[kernel.SENT],
            record[kernel.RECEIVED],
            record[kernel.MEAN_RECEIVED],
            record[kernel.FINISHED],
            tuple(self.switches),
        )


class _Adjusting:
    """Lets the monitor change the tree of a run."""

    def __init__(self, playing: _Playing) -> None:
        self._playing = playing
        self._scenario = playing.scenario
        self._monitor = Monitor(self._scenario.settings, playing.tree.degree, now_ns=0)
        self._record = SwitchRecord(playing.tree)
        self._ends_s = math.inf
        self._degree = playing.tree.degree
        self._sampled_sums = playing.sums.copy()
        self._sampled_arrived = 0

    def play(self) -> None:
        """Simulate the run to its end."""
        playing, now_s = self._playing, 0.0
        while playing.next < playing.emitted_s.size:
            now_s += self._monitor.period_ns / NS_PER_S
            playing.advance(now_s)
            if now_s >= self._ends_s:
                self._monitor.ended(round(now_s * NS_PER_S), self._degree)
                self._ends_s = math.inf
            self._follow(now_s, self._monitor.observe(self._sample(now_s), self._destinations))

    @property
    def _destinations(self) -> int:
        return self._scenario.destinations

    def _sample(self, now_s: float) -> Sample:
        """Return the source's counters since the last sample."""
        playing = self._playing
        record = playing.record[:, : playing.next]
        entered = record[kernel.ENTERED].searchsorted(now_s, side="right")
        sent = record[kernel.SENT].searchsorted(now_s, side="right")
        arrived = int(playing.emitted_s.searchsorted(now_s, side="right"))
        sums = playing.sums - self._sampled_sums
        sends = sums[kernel.SENDS]
        sample = Sample(
            round(now_s * NS_PER_S),
            arrived - self._sampled_arrived,
            float(entered - sent),
            float(self._scenario.queue_slices),
            self._scenario.costs.serialize_s if sends else None,
            float(sums[kernel.SENDING_S] / sends) if sends else None,
        )
        self._sampled_sums, self._sampled_arrived = playing.sums.copy(), arrived
        return sample

    def _follow(self, now_s: float, decision: Decision) -> None:
        """Carry out the monitor's decision."""
        limit = decision.throttle_to_slices_per_s
        self._playing.gap_s = 0.0 if limit is None else 1.0 / limit
        if decision.degree == self._monitor.degree or self._ends_s < math.inf:
            return
        cut = self._playing.next
        if cut <= self._record.last_epoch or cut >= self._playing.emitted_s.size:
            return
        switch = change_degree(self._playing.tree, decision.degree)
        self._monitor.began(round(now_s * NS_PER_S))
        if not switch.moves:
            self._monitor.ended(round(now_s * NS_PER_S), decision.degree)
            self._degree = decision.degree
            return
        control_s = self._scenario.costs.control_s
        under_way = SwitchUnderWay(switch, cut, now_s, control_s, self._record)
        self._ends_s, self._record = under_way.finish(self._pass_cut(under_way))
        playing = self._playing
        playing.switches.append(
            SwitchSeen(
                now_s,
                self._ends_s,
                self._degree,
                decision.degree,
                len(switch.moves),
                decision.reason.value,
            )
        )
        playing.tree, self._degree = switch.after, decision.degree

    def _pass_cut(self, switch: SwitchUnderWay) -> dict[Vertex, ParentSwitch]:
        """Simulate slices from the cut on until every vertex has changed its parent."""
        playing = self._playing
        before, after = parents_of(switch.switch.before), parents_of(switch.switch.after)
        siblings = siblings_of(switch.switch.after)
        at_cut_s = playing.hosts[kernel.HAS].copy()
        waiting = list(switch.moves)
        passages: dict[Vertex, ParentSwitch] = {}
        while waiting and playing.next < playing.emitted_s.size:
            is_late = playing.enters_s >= switch.heard_s
            has_s = playing.hosts[kernel.HAS]
            changing = [v for v in waiting if is_late or has_s[int(v)] >= switch.heard_s]
            for vertex in changing:
                passages[vertex] = _passage(switch, playing.next, has_s, at_cut_s, vertex)
                before[int(vertex)] = after[int(vertex)]
            if changing or playing.next == switch.cut:
                waiting = [v for v in waiting if v not in passages]
                playing.plan_unsized(before, siblings)
            if waiting:
                playing.advance(math.inf, playing.next + 1)
        for vertex in waiting:  # no slice came after they had received it
            has_s = playing.hosts[kernel.HAS]
            passages[vertex] = _passage(switch, playing.next, has_s, at_cut_s, vertex)
        playing.plan_unsized(after, siblings)
        return passages


def _passage(
    switch: SwitchUnderWay, slice_number: int, has_s: Seconds, at_cut_s: Seconds, vertex: Vertex
) -> ParentSwitch:
    at = int(vertex)
    # A vertex handles messages between slices: it first reads the slice that is under way to its
    # end.
    heard_s = switch.heard_s
    if slice_number > switch.cut:
        heard_s = max(heard_s, float(has_s[at]))
    return ParentSwitch(heard_s, slice_number, float(at_cut_s[at]))


def parents_of(tree: Tree) -> kernel.Ints:
    """Return the parent of each host by its number; −1 for the source."""
    parents = np.full(len(tree), -1, np.int64)
    for parent, child in tree.edges:
        parents[int(child)] = int(parent)
    return parents


def siblings_of(tree: Tree) -> kernel.Ints:
    """Return all hosts but the source, siblings in sending order."""
    return _numbers(child for _, child in tree.edges)


def _numbers(vertices: Iterable[Vertex]) -> kernel.Ints:
    return np.fromiter((int(vertex) for vertex in vertices), np.int64)
