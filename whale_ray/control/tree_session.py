"""Joins the tree controllers of a job's attempts to its supervisor.

Each attempt that runs has a tree controller of its own. `write` is called before any order is sent
that a successor of this controller must know of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..configs.settings import MulticastSettings
from ..multicast.tree_messages import HostUnreachable, Relocated, TreeReport
from ..multicast.tree_state import Goal, SwitchReport, TreeLoad, TreeState
from ..multicast.trees import Tree
from ..plan.streams import StreamPlan
from ..worker.offers import RingOffer
from .controller_events import AttemptLost, RelayBack
from .fleet import MemberMessage
from .tree_controller import Orders, TreeController

FleetCall = Callable[[int, int, str, tuple[object, ...]], None]
"""`Fleet.call`: member, attempt, method, arguments."""


class TreeSession:
    """The multicast trees of a job over all its attempts.

    `trees`, `switches` and `throttled` may be read from any thread, while an attempt ends in
    another: they read `_controller` once.
    """

    def __init__(
        self,
        plan: StreamPlan,
        settings: MulticastSettings,
        call: FleetCall,
        write: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._call = call
        self._write = write
        self._term = 1
        self._attempt = -1
        self._relocated: dict[int, Relocated] = {}
        self._controller: TreeController | None = None
        self._written: Mapping[int, TreeState] = {}
        self._goal: Goal | None = None
        self._past: tuple[SwitchReport, ...] = ()
        self._last_trees: Mapping[int, Tree] = {}
        self._inherited: Mapping[int, TreeState] | None = None

    @property
    def states(self) -> Mapping[int, TreeState]:
        """What a successor needs, by stream."""
        return (self._inherited or {}) if self._controller is None else self._controller.states

    @property
    def trees(self) -> Mapping[int, Tree]:
        """The trees in force, or last in force, by stream."""
        controller = self._controller
        return self._last_trees if controller is None else controller.trees

    @property
    def switches(self) -> tuple[SwitchReport, ...]:
        """The last switches, oldest first."""
        controller = self._controller
        return self._past if controller is None else controller.switches

    @property
    def throttled(self) -> Mapping[int, float]:
        """The highest rates of streams that no out-degree carries, in slices per second."""
        controller = self._controller
        return {} if controller is None else controller.throttled

    @property
    def loads(self) -> Mapping[int, TreeLoad]:
        """What decides on the out-degrees of streams."""
        controller = self._controller
        return {} if controller is None else controller.loads

    @property
    def next_due_ns(self) -> int | None:
        """The latest time for the next `turn`; None while no attempt runs."""
        return None if self._controller is None else self._controller.next_due_ns

    def inherit(self, term: int, states: Mapping[int, TreeState]) -> None:
        """Continue for a controller that failed, in a new term."""
        self._term = term
        self._inherited = states

    def run(self, attempt: int, now_ns: int) -> None:
        """Begin with an attempt that runs; a second call does nothing."""
        if attempt == self._attempt or not self._plan.relays:
            return
        self._attempt = attempt
        self._relocated.clear()
        self._controller = TreeController(
            self._plan, self._settings, now_ns, self._term, self._inherited
        )
        self._inherited = None
        if self._goal is not None:
            self._controller.set_goal(self._goal)

    def end(self) -> None:
        """Record that no attempt runs."""
        self._past, self._last_trees = self.switches, self.trees
        self._controller, self._attempt, self._inherited = None, -1, None

    def set_goal(self, goal: Goal, now_ns: int) -> None:
        """Change the shape of all trees, also in later attempts."""
        self._goal = goal
        if self._controller is not None:
            self._controller.set_goal(goal)
            self.turn(now_ns)

    def lost(self, relay: int, now_ns: int) -> None:
        """Reroute streams around a relay that has failed."""
        if self._controller is not None:
            self._send(self._controller.lost(self._plan.host_of(relay), now_ns))

    def back(self, event: RelayBack, now_ns: int) -> None:
        """Let streams flow through a new relay; send its address to the others.

        It gets the addresses of other new relays: those that came back while it rejoined are not
        among the offers that it was given.
        """
        if self._controller is None:
            return
        assert isinstance(event.offer, RingOffer)
        assert event.offer.address is not None, "every relay listens"
        host = self._plan.host_of(event.relay)
        moved = Relocated(host, event.offer.address)
        for other in range(self._plan.hosts.count):
            if other != host:
                self._call(self._plan.relay_of(other), self._attempt, "tell", (moved,))
        self._relocated.pop(host, None)
        for other_moved in self._relocated.values():
            self._call(event.relay, self._attempt, "tell", (other_moved,))
        self._relocated[host] = moved
        self._send(self._controller.back(host, now_ns))

    def take(self, message: MemberMessage, now_ns: int) -> AttemptLost | None:
        """Take a relay's answers and loads; return AttemptLost if the attempt cannot continue."""
        if self._controller is None or message.attempt != self._attempt:
            return None
        content = message.content
        if isinstance(content, HostUnreachable):
            relay = self._plan.relay_of(content.host)
            return AttemptLost(message.attempt, content.reason, unreachable=relay)
        assert isinstance(content, TreeReport)
        for stream, answer in content.answers:
            self._send(self._controller.answered(stream, answer, now_ns))
        for load in content.loads:
            self._send(self._controller.loaded(load, now_ns))
        failure = self._controller.failure
        return AttemptLost(message.attempt, failure) if failure else None

    def turn(self, now_ns: int) -> None:
        """Begin the switches that are due, and repeat what was not answered."""
        if self._controller is not None:
            self._send(self._controller.turn(now_ns))

    def _send(self, orders: Orders) -> None:
        """Write down what a successor needs, then send orders to relays."""
        assert self._controller is not None
        if self._controller.states != self._written:
            self._written = self._controller.states
            self._write()
        for host, order in orders:
            self._call(self._plan.relay_of(host), self._attempt, "tell", (order,))
