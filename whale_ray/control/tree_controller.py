"""Adjusts the multicast trees of a job to the load, and repairs them around failed relays.

A pure state machine in the controller: events and times in, orders out. Each stream has one tree; a
`SwitchCoordinator` (whale_ray/multicast/) leads it from epoch to epoch. The reasons for a switch,
the most urgent first::

    a relay has failed  ─► its children get other parents    (leave)
    a relay is replaced ─► its host joins again              (join)
    the user asks for another shape                          (reshape)
    the load asks for another out-degree (Whale 3.3)         (change_degree)

`states` must be written down before the orders are sent: a successor continues from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..configs.settings import MulticastSettings
from ..multicast.monitor import Monitor, Reason
from ..multicast.out_degree import binomial_degree
from ..multicast.switch_messages import AddressedMessage, Message
from ..multicast.switch_protocol import SwitchCoordinator, SwitchPhase, SwitchRecord
from ..multicast.switching import Switch, change_degree, join, leave, reshape
from ..multicast.tree_messages import StreamLoad, TreeOrders
from ..multicast.tree_state import Goal, SwitchReport, TreeLoad, TreeState
from ..multicast.trees import Tree, Vertex
from ..plan.hosts import host_name, shape_tree
from ..plan.streams import RingSpec, StreamPlan
from ..relay.stream_load import SampleClock

TICK_NS = 50_000_000
"""How often unanswered messages are repeated."""

_SWITCHES_KEPT = 256


class _Caps:
    """The out-degrees of hosts that can serve fewer children than the source.

    Each relay has a monitor, as the source has, with the same rules.
    """

    def __init__(self, settings: MulticastSettings) -> None:
        self._settings = settings
        self._monitors: dict[Vertex, tuple[Monitor, SampleClock]] = {}
        self.of: dict[Vertex, int] = {}

    def loaded(self, load: StreamLoad, now_ns: int, tree: Tree) -> None:
        """Take the load of a host that is not the root."""
        children = len(tree.children.get(load.host, ()))
        if not children:
            return
        if load.host not in self._monitors:
            monitor = Monitor(self._settings, children, now_ns)
            self._monitors[load.host] = (monitor, SampleClock(now_ns))
        monitor, clock = self._monitors[load.host]
        sample = clock.sample(load, now_ns)
        if sample is None:
            return
        destinations = len(tree.joined)
        decision = monitor.observe(sample, destinations)
        if decision.reason in (Reason.SCALE_DOWN, Reason.SCALE_UP):
            monitor.began(sample.now_ns)
            monitor.ended(sample.now_ns, decision.degree)
            self.of[load.host] = decision.degree
            if decision.degree >= binomial_degree(destinations):
                del self.of[load.host]


Orders = list[tuple[int, TreeOrders]]
"""The host of a relay, and what it is sent."""


class TreeController:
    """Leads the trees of all multicast streams of one attempt."""

    def __init__(
        self,
        plan: StreamPlan,
        settings: MulticastSettings,
        now_ns: int,
        term: int = 1,
        states: Mapping[int, TreeState] | None = None,
    ) -> None:
        """Begin with the plan's trees, or continue from what a predecessor wrote down."""
        self._streams = {
            ring.id: _Stream(ring, plan, settings, now_ns, term, (states or {}).get(ring.id))
            for ring in plan.rings
            if plan.is_multicast(ring)
        }
        self._tick_ns = now_ns + TICK_NS

    @property
    def states(self) -> dict[int, TreeState]:
        """What a successor needs, by stream."""
        return {number: stream.state for number, stream in self._streams.items()}

    @property
    def switches(self) -> tuple[SwitchReport, ...]:
        """The last switches, oldest first."""
        found = [one for stream in self._streams.values() for one in tuple(stream.switches)]
        return tuple(sorted(found, key=lambda one: one.decided_ns))

    @property
    def trees(self) -> dict[int, Tree]:
        """The tree of each stream."""
        return {number: stream.coordinator.tree for number, stream in self._streams.items()}

    @property
    def throttled(self) -> dict[int, float]:
        """The highest rates of streams that no out-degree carries, in slices per second."""
        return {n: s.throttle for n, s in self._streams.items() if s.throttle is not None}

    @property
    def loads(self) -> dict[int, TreeLoad]:
        """What decides on the out-degree of each stream, once its source has reported."""
        return {n: s.load for n, s in self._streams.items() if s.load is not None}

    @property
    def failure(self) -> str:
        """Why the attempt is lost: bytes that a host needs are held nowhere. "" if it is not."""
        failures = (stream.coordinator.failure for stream in self._streams.values())
        return next(filter(None, failures), "")

    @property
    def next_due_ns(self) -> int:
        """The latest time for the next `turn`."""
        return self._tick_ns

    def set_goal(self, goal: Goal) -> None:
        """Change the shape that is wanted for all trees."""
        for stream in self._streams.values():
            stream.goal = goal

    def lost(self, host: int, now_ns: int) -> Orders:
        """Take the failure of a host's relay."""
        return self._from_all((n, s.lost(host, now_ns)) for n, s in self._streams.items())

    def back(self, host: int, now_ns: int) -> Orders:
        """Take the return of a host whose relay was replaced."""
        return self._from_all((n, s.back(host, now_ns)) for n, s in self._streams.items())

    def answered(self, stream: int, message: Message, now_ns: int) -> Orders:
        """Take a vertex's answer."""
        return self._from_all([(stream, self._streams[stream].answered(message, now_ns))])

    def loaded(self, load: StreamLoad, now_ns: int) -> Orders:
        """Take the load of a stream at a host."""
        return self._from_all([(load.stream, self._streams[load.stream].loaded(load, now_ns))])

    def turn(self, now_ns: int) -> Orders:
        """Begin the switches that are due; repeat what was not answered."""
        ticks = now_ns >= self._tick_ns
        if ticks:
            self._tick_ns = now_ns + TICK_NS
        return self._from_all((n, s.turn(now_ns, ticks)) for n, s in self._streams.items())

    @staticmethod
    def _from_all(by_stream: Iterable[tuple[int, list[AddressedMessage]]]) -> Orders:
        """Group the streams' messages by the host that they go to."""
        by_host: dict[int, list[tuple[int, Message]]] = {}
        for stream, messages in by_stream:
            for one in messages:
                assert one.to is not None, "coordinators send to vertices"
                by_host.setdefault(int(one.to), []).append((stream, one.message))
        return [(host, TreeOrders(tuple(messages))) for host, messages in by_host.items()]


def _name(vertex: Vertex) -> str:
    return host_name(int(vertex))


class _Stream:
    """One stream's tree: its coordinator, and the monitor of its source."""

    def __init__(
        self,
        ring: RingSpec,
        plan: StreamPlan,
        settings: MulticastSettings,
        now_ns: int,
        term: int,
        state: TreeState | None,
    ) -> None:
        if state is None:
            goal = Goal(plan.hosts.route, settings.out_degree)
            state = TreeState(goal, SwitchRecord(plan.tree_of(ring)))
        record = state.record
        self.goal = state.goal
        self.switches: deque[SwitchReport] = deque(maxlen=_SWITCHES_KEPT)
        self.throttle: float | None = None
        self.load: TreeLoad | None = None
        patience = max(1, -(-settings.patience_ms * 1_000_000 // TICK_NS))
        self.coordinator = SwitchCoordinator(term, record, patience, _name)
        self._stream = ring.id
        self._monitor = Monitor(settings, max(1, record.tree.degree), now_ns)
        self._wanted_degree = self._monitor.degree
        self._load_asks = False
        self._clock = SampleClock(now_ns)
        self._caps = _Caps(settings)
        self._root_away = False
        self._away: set[Vertex] = set()
        # Hosts that failed in a former term were replaced, or their failure is reported again.
        self._returning: set[Vertex] = set(record.gone)
        self._report: SwitchReport | None = None

    @property
    def state(self) -> TreeState:
        return TreeState(self.goal, self.coordinator.record)

    @property
    def _root(self) -> Vertex:
        return self.coordinator.tree.root

    # --- events ---------------------------------------------------------------------------------

    def lost(self, host: int, now_ns: int) -> list[AddressedMessage]:
        if host == self._root:
            self._root_away = True
            return []
        record = self.coordinator.record
        concerned = {*record.tree.vertices, *record.concerned, *record.leaving, *record.gone}
        if record.next_tree is not None:
            concerned |= set(record.next_tree.vertices)
        if host not in concerned:
            return []
        self._away.add(host)
        self._returning.discard(host)
        out = self.coordinator.lost(host)
        self._note_phase(now_ns)
        return [*out, *self._begin_if_due(now_ns)]

    def back(self, host: int, now_ns: int) -> list[AddressedMessage]:
        if host == self._root:
            self._root_away = False
            out = self.coordinator.root_restarted()
            self._note_phase(now_ns)
            return [*out, *self._begin_if_due(now_ns)]
        if host in self._away:
            self._away.discard(host)
            self._returning.add(host)
        return self._begin_if_due(now_ns)

    def answered(self, message: Message, now_ns: int) -> list[AddressedMessage]:
        out = self.coordinator.receive(message)
        self._note_phase(now_ns)
        return [*out, *self._begin_if_due(now_ns)]

    def loaded(self, load: StreamLoad, now_ns: int) -> list[AddressedMessage]:
        if load.host != self._root:
            self._caps.loaded(load, now_ns, self.coordinator.tree)
            return self._begin_if_due(now_ns)
        sample = self._clock.sample(load, now_ns)
        if sample is not None:
            destinations = len(self.coordinator.tree.joined)
            decision = self._monitor.observe(sample, destinations)
            if decision.reason in (Reason.SCALE_DOWN, Reason.SCALE_UP):
                self._wanted_degree = decision.degree
                self._load_asks = True
            self.throttle = decision.throttle_to_slices_per_s
            costs = self._monitor.costs
            self.load = TreeLoad(
                self._monitor.rate_slices_per_s,
                self._wanted_degree,
                sample.queue_slices,
                sample.capacity_slices,
                None if costs is None else costs.send_s,
                decision.reason.value,
            )
        return self._begin_if_due(now_ns)

    def turn(self, now_ns: int, ticks: bool) -> list[AddressedMessage]:
        out = self.coordinator.tick() if ticks else []
        self._note_phase(now_ns)
        return [*out, *self._begin_if_due(now_ns)]

    # --- switches -------------------------------------------------------------------------------

    def _begin_if_due(self, now_ns: int) -> list[AddressedMessage]:
        if self.coordinator.phase is not SwitchPhase.STABLE or self._root_away:
            return []
        found = self._next_switch()
        if found is None:
            return []
        why, switch, orphans = found
        self._load_asks = False
        before = self.coordinator.tree
        out = self.coordinator.begin(switch, 0, dict.fromkeys(orphans, 0))
        self._monitor.began(now_ns)
        epoch = self.coordinator.record.last_epoch
        self._report = SwitchReport(
            self._stream,
            why,
            before,
            switch.after,
            len(switch.moves),
            epoch,
            now_ns,
            load=self.load,
        )
        self._note_phase(now_ns)
        return out

    def _next_switch(self) -> tuple[str, Switch, set[Vertex]] | None:
        """Return the reason of a switch, the switch, and the vertices without a former parent."""
        coordinator = self.coordinator
        tree, gone = coordinator.tree, coordinator.record.gone
        failed = [vertex for vertex in tree.joined if vertex in gone]
        if failed:
            switch = leave(tree, failed, self._degree(tree), self._caps_now)
            orphans = {child for one in failed for child in tree.children[one]} - set(failed)
            return "repair", switch, orphans
        ready = sorted(self._returning - set(tree.vertices) - coordinator.record.leaving, key=str)
        if ready and not coordinator.uninformed:
            return "return", join(tree, ready[0], self._degree(tree), self._caps_now), {ready[0]}
        if self._away or self._returning or gone:
            return None
        wanted = self._wanted_switch(tree)
        return None if wanted is None or not wanted[1].moves else (*wanted, set())

    def _wanted_switch(self, tree: Tree) -> tuple[str, Switch] | None:
        """Return the switch that the user's goal or the load asks for, with its reason."""
        goal, hosts = self.goal, tuple(map(int, tree.joined))
        if goal.route != "non-blocking":
            shape = shape_tree(goal.route, 0, int(tree.root), hosts)
            return "reshape", reshape(tree, shape)
        if not goal.degree:  # a wider tree, as a star was, is no faster
            self._wanted_degree = min(self._wanted_degree, binomial_degree(len(hosts)))
        degree = goal.degree or self._wanted_degree
        switch = change_degree(tree, degree, self._caps_now)
        if goal.degree or not self._load_asks:
            return "reshape", switch
        return ("scale-up" if degree > tree.degree else "scale-down"), switch

    @property
    def _caps_now(self) -> Mapping[Vertex, int]:
        """The caps of single hosts, while the load decides on out-degrees."""
        adjusts = self.goal == Goal("non-blocking")
        return self._caps.of if adjusts else {}

    def _degree(self, tree: Tree) -> int:
        """Return the highest out-degree when hosts leave and join."""
        if self.goal.route == "star":
            return max(1, len(tree.joined) + 1)
        if self.goal.route == "chain":
            return 1
        if self.goal.route == "binomial":
            return binomial_degree(len(tree.joined) + 1)
        return max(1, self.goal.degree or self._wanted_degree)

    def _note_phase(self, now_ns: int) -> None:
        """Keep the report of the switch under way up to date."""
        report, phase = self._report, self.coordinator.phase
        if report is None:
            return
        committed = self.coordinator.record.epoch == report.epoch
        if committed and report.committed_ns is None:
            report = replace(report, committed_ns=now_ns)
        self._report = report
        if phase is not SwitchPhase.STABLE:
            return
        self._report = None
        tree = self.coordinator.tree
        # A host that failed in the tree has to leave it before it can join again.
        self._returning -= set(tree.vertices) - self.coordinator.record.gone
        if not committed:
            reason = self.coordinator.aborts[-1] if self.coordinator.aborts else "aborted"
            report = replace(report, aborted=reason)
        self.switches.append(replace(report, ended_ns=now_ns))
        self._monitor.ended(now_ns, self._wanted_degree if committed else max(1, tree.degree))
