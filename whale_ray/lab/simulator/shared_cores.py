"""The same model with all hosts on one machine of a few cores, simulated event by event.

Every host has a relay and every destination a worker, which are processes: they wait for slices,
for room in a child's ring, for the link and for a core. Cores are assigned first come, first
served, and kept until a step is done. With a core for each process the times equal those of
`kernel.forward`. Used to validate the model on one machine: tens of hosts, thousands of slices.

A link serves one child after the other, as in the paper; or, as with TCP, all children that wait
share it, a segment of each in turn, while the relay continues with the next slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from ...configs.errors import UsageError
from ...configs.units import NS_PER_S
from ...multicast.trees import Tree
from .arrivals import Seconds
from .clock import EventQueue
from .kernel import FREE, HAS, PROCESSED
from .model import SOURCE, Scenario
from .outcome import SimulationOutcome

_EVENTS_MAX = 1 << 40
_FOR_EVER_NS = 1 << 62


@dataclass(frozen=True)
class _Compute:
    """A process needs a core for this time."""

    ns: int


@dataclass(frozen=True)
class _Sleep:
    """A process waits until a moment."""

    until_ns: int


_Wish: TypeAlias = "_Compute | _Sleep | Callable[[], bool]"
"""What a process waits for; for a function, until it returns True."""
_Process: TypeAlias = Generator[_Wish, None, None]


def simulate_shared(
    scenario: Scenario, emitted_s: Seconds, cores: int, segment_s: float = 0.0
) -> SimulationOutcome:
    """Simulate scheduled slices with `cores` cores for all hosts and a fixed tree.

    With `segment_s` above 0 the children of a host share its link, in turns of that length. Raises
    UsageError for a tree that adjusts itself, and if there is no core.
    """
    if scenario.adjusts:
        msg = "shared cores are simulated for trees of a fixed out-degree: give --degree"
        raise UsageError(msg)
    if cores < 1:
        msg = f"{cores} cores: 1 or more are needed"
        raise UsageError(msg)
    machine = _Machine(scenario, emitted_s, cores, segment_s)
    machine.play()
    return machine.outcome()


class _Machine:
    """The cores, and the processes that wait."""

    def __init__(
        self, scenario: Scenario, emitted_s: Seconds, cores: int, segment_s: float
    ) -> None:
        self._scenario = scenario
        self._tree: Tree = scenario.tree()
        self._emitted_ns = np.round(emitted_s * NS_PER_S).astype(np.int64)
        self._queue = EventQueue()
        self._idle_cores = cores
        asking_max = 4 * (scenario.destinations + 1)
        self._asking: deque[tuple[_Process, int]] = deque(maxlen=asking_max)
        self._blocked: list[tuple[_Process, Callable[[], bool]]] = []
        self._will_look = False
        hosts, slices = scenario.destinations + 1, self._emitted_ns.size
        self._arrived = [0] * hosts
        self._has = [0] * hosts
        self._moments = {row: np.zeros((hosts, slices), np.int64) for row in (HAS, FREE, PROCESSED)}
        self._arrivals = np.zeros((hosts, slices), np.int64)
        self._entered = np.zeros(slices, np.int64)
        self._released = [0] * hosts
        self._finished = np.zeros((hosts, 2), np.int64)
        self._shares_link = segment_s > 0 and scenario.costs.occupancy_s > 0
        self._segment_ns = max(1, _ns(segment_s))
        # Numbers of the slices that the link has still to send to each child.
        self._flows: list[dict[int, deque[int]]] = [
            {int(child): deque(maxlen=slices) for child in self._tree.children[host]}
            for host in range(hosts)
        ]

    def play(self) -> None:
        """Run all processes to their end."""
        self._resume(self._source())
        for host in range(self._scenario.destinations + 1):
            self._resume(self._relay(host))
            if self._shares_link:
                self._resume(self._link(host))
            if host != SOURCE:
                self._resume(self._worker(host))
        self._queue.run(_FOR_EVER_NS, _EVENTS_MAX)

    def outcome(self) -> SimulationOutcome:
        """Return what happened."""
        has = self._moments[HAS][1:]
        return SimulationOutcome(
            self._scenario,
            self._emitted_ns / NS_PER_S,
            self._entered / NS_PER_S,
            self._moments[FREE][SOURCE] / NS_PER_S,
            has.max(axis=0) / NS_PER_S,
            has.mean(axis=0) / NS_PER_S,
            self._moments[PROCESSED][1:].max(axis=0) / NS_PER_S,
        )

    # --- processes and what they wait for ---------------------------------------------------

    @property
    def _now_ns(self) -> int:
        return self._queue.clock.now_ns

    def _resume(self, process: _Process) -> None:
        """Run a process until it must wait."""
        for wish in process:
            if isinstance(wish, _Compute):
                if wish.ns <= 0:
                    continue
                if not self._idle_cores:
                    self._asking.append((process, wish.ns))
                    return
                self._idle_cores -= 1
                self._queue.post(self._now_ns + wish.ns, self._computed, process)
                return
            if isinstance(wish, _Sleep):
                if wish.until_ns <= self._now_ns:
                    continue
                self._queue.post(wish.until_ns, self._resume, process)
                return
            if not wish():
                self._blocked.append((process, wish))
                return

    def _computed(self, process: _Process) -> None:
        """Give the core of a finished step to the longest waiting process, then resume this one."""
        self._idle_cores += 1
        while self._asking and self._idle_cores:
            other, ns = self._asking.popleft()
            self._idle_cores -= 1
            self._queue.post(self._now_ns + ns, self._computed, other)
        self._resume(process)

    def _stir(self) -> None:
        """After all events of this time, resume the processes whose condition holds."""
        if not self._will_look:
            self._will_look = True
            self._queue.post(self._now_ns, self._look)

    def _look(self) -> None:
        self._will_look = False
        waiting, self._blocked = self._blocked, []
        for process, wish in waiting:
            if wish():
                self._resume(process)
            else:
                self._blocked.append((process, wish))

    def _has_room(self, host: int, k: int) -> bool:
        """Return whether a host's ring has room for slice k."""
        return k - self._released[host] < self._scenario.queue_slices

    @staticmethod
    def _is_beyond(counts: list[int], host: int, k: int) -> bool:
        """Return whether a host has counted slice k."""
        return counts[host] > k

    # --- what the processes do ---------------------------------------------------------------

    def _source(self) -> _Process:
        """Put slices into the queue when they are due and there is room."""
        worker_wake_ns, last_ns = _ns(self._scenario.costs.worker_wake_s), -1
        for k, due_ns in enumerate(self._emitted_ns.tolist()):
            yield _Sleep(due_ns)
            if not self._has_room(SOURCE, k):
                yield partial(self._has_room, SOURCE, k)
            wake_ns = worker_wake_ns if due_ns > last_ns else 0
            yield _Compute(_ns(self._scenario.costs.produce_s) + wake_ns)
            last_ns = self._now_ns
            self._entered[k] = self._now_ns
            self._arrive(SOURCE, k)

    def _arrive(self, host: int, k: int) -> None:
        self._arrivals[host, k] = self._now_ns
        self._arrived[host] = k + 1
        self._stir()

    def _relay(self, host: int) -> _Process:
        """Receive (or serialize) each slice and send it to the children, one after another."""
        costs = self._scenario.costs
        children = [int(child) for child in self._tree.children[host]]
        own_ns = _ns(costs.serialize_s if host == SOURCE else costs.receive_s)
        free_ns = turn_ns = -1
        link_ns = 0
        for k in range(self._emitted_ns.size):
            if self._arrived[host] <= k:
                yield partial(self._is_beyond, self._arrived, host, k)
            came_ns = int(self._arrivals[host, k])
            was_idle = came_ns > free_ns
            wake_ns = _ns(costs.wake_s) if was_idle else 0
            per_child_ns = _ns(costs.send_s)
            if came_ns > turn_ns:
                turn_ns = self._now_ns
                per_child_ns += _ns(costs.turn_s)
            yield _Compute(own_ns + wake_ns)
            self._moments[HAS][host, k] = self._now_ns
            self._has[host] = k + 1
            self._stir()
            for child in children:
                if not self._has_room(child, k):
                    yield partial(self._has_room, child, k)
                if self._shares_link:
                    yield _Compute(per_child_ns)
                    self._flows[host][child].append(k)
                    self._stir()
                    continue
                link_ns = max(link_ns, self._now_ns) + _ns(costs.occupancy_s)
                yield _Compute(per_child_ns)
                if costs.occupancy_s > 0:
                    yield _Sleep(link_ns - _ns(costs.burst_s))
                self._queue.post(self._now_ns + _ns(costs.delay_s), self._arrive, child, k)
            if was_idle:
                yield _Compute(_ns(costs.settle_s))
            free_ns = self._now_ns
            if not (children and self._shares_link):
                self._moments[FREE][host, k] = free_ns
                self._part_done(host, 0, k)

    def _link(self, host: int) -> _Process:
        """Send a segment to each waiting child in turn."""
        costs, flows = self._scenario.costs, self._flows[host]
        burst_ns, delay_ns = _ns(costs.burst_s), _ns(costs.delay_s)
        left = dict.fromkeys(flows, _ns(costs.occupancy_s))
        carried = dict.fromkeys(flows, 0)
        link_ns = 0
        slices = self._emitted_ns.size
        while flows and min(carried.values()) < slices:
            if not any(flows.values()):
                yield partial(_any_waits, flows)
            for child in [child for child, waiting in flows.items() if waiting]:
                segment_ns = min(self._segment_ns, left[child])
                link_ns = max(link_ns, self._now_ns) + segment_ns
                left[child] -= segment_ns
                yield _Sleep(link_ns - burst_ns)
                if left[child] == 0:
                    left[child] = _ns(costs.occupancy_s)
                    k = flows[child].popleft()
                    carried[child] = k + 1
                    self._queue.post(self._now_ns + delay_ns, self._arrive, child, k)
                    if min(carried.values()) == k + 1:
                        self._moments[FREE][host, k] = self._now_ns
                        self._part_done(host, 0, k)

    def _worker(self, host: int) -> _Process:
        """Process each slice once it has arrived."""
        worker_wake_ns, last_ns = _ns(self._scenario.costs.worker_wake_s), -1
        for k in range(self._emitted_ns.size):
            if self._has[host] <= k:
                yield partial(self._is_beyond, self._has, host, k)
            wake_ns = worker_wake_ns if self._moments[HAS][host, k] > last_ns else 0
            yield _Compute(_ns(self._scenario.costs.process_s) + wake_ns)
            last_ns = self._now_ns
            self._moments[PROCESSED][host, k] = self._now_ns
            self._part_done(host, 1, k)

    def _part_done(self, host: int, part: int, k: int) -> None:
        """Release a slot once the relay (part 0) and the worker (1) are done with it."""
        self._finished[host, part] = k + 1
        if host == SOURCE:
            self._finished[host, 1] = k + 1
        released = int(self._finished[host].min())
        delay_ns = _ns(self._scenario.costs.delay_s) if host != SOURCE else 0
        self._queue.post(self._now_ns + delay_ns, self._give_back, host, released)

    def _give_back(self, host: int, released: int) -> None:
        if released > self._released[host]:
            self._released[host] = released
            self._stir()


def _any_waits(flows: dict[int, deque[int]]) -> bool:
    return any(flows.values())


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)
