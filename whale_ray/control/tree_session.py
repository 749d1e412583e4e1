"""Joins a job's tree keeper to its supervisor: who is told what, and when it is written down.

A keeper lives as long as an attempt runs. Before anything is said that a successor of this
controller must know, `write` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..configs.settings import MulticastSettings
from ..multicast.tree_messages import Relocated, TreeNews
from ..multicast.tree_state import (
    Goal,
    SwitchReport,
    TreeState,
)
from ..multicast.trees import Tree
from ..plan.streams import StreamPlan
from ..worker.offers import RingOffer
from .controller_events import RelayBack
from .fleet import MemberMessage
from .tree_controller import (
    Orders,
    TreeController,
)

Call = Callable[[int, int, str, tuple[object, ...]], None]
"""`Fleet.call`: member, attempt, method, arguments."""


class TreeSession:
    """The multicast trees of a job over all its attempts.

    `trees`, `switches` and `throttled` serve other threads, too: a keeper that they have found may
    be gone at their next look.
    """

    def __init__(
        self,
        plan: StreamPlan,
        settings: MulticastSettings,
        call: Call,
        write: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._call = call
        self._write = write
        self._term = 1
        self._attempt = -1
        self._relocated: dict[int, Relocated] = {}
        self._keeper: TreeController | None = None
        self._written: Mapping[int, TreeState] = {}
        self._goal: Goal | None = None
        self._past: tuple[SwitchReport, ...] = ()
        self._last_trees: Mapping[int, Tree] = {}
        self._inherited: Mapping[int, TreeState] | None = None

    @property
    def states(self) -> Mapping[int, TreeState]:
        """What a successor must know, by stream."""
        return (self._inherited or {}) if self._keeper is None else self._keeper.states

    @property
    def trees(self) -> Mapping[int, Tree]:
        """The trees in force, or last in force, by stream; those that never began are left out."""
        keeper = self._keeper
        return self._last_trees if keeper is None else keeper.trees

    @property
    def switches(self) -> tuple[SwitchReport, ...]:
        """The last switches, oldest first."""
        keeper = self._keeper
        return self._past if keeper is None else keeper.switches

    @property
    def throttled(self) -> Mapping[int, float]:
        """Streams that no out-degree carries: what can be, in slices per second."""
        keeper = self._keeper
        return {} if keeper is None else keeper.throttled

    @property
    def failure(self) -> str:
        """Why the attempt is lost, "" if it is not."""
        return "" if self._keeper is None else self._keeper.failure

    @property
    def next_due_ns(self) -> int | None:
        """When `turn` has something to do at the latest; None: nothing."""
        return None if self._keeper is None else self._keeper.next_due_ns

    def inherit(self, term: int, states: Mapping[int, TreeState]) -> None:
        """Go on for a controller that died."""
        self._term = term
        self._inherited = states

    def run(self, attempt: int, now_ns: int) -> None:
        """Begin with an attempt that runs; again does nothing."""
        if attempt == self._attempt or not self._plan.relays:
            return
        self._attempt = attempt
        self._relocated.clear()
        self._keeper = TreeController(
            self._plan, self._settings, now_ns, self._term, self._inherited
        )
        self._inherited = None
        if self._goal is not None:
            self._keeper.set_goal(self._goal)

    def end(self) -> None:
        """Take note that the attempt does not run any more."""
        self._past, self._last_trees = self.switches, self.trees
        self._keeper, self._attempt, self._inherited = None, -1, None

    def set_goal(self, goal: Goal, now_ns: int) -> None:
        """Want another shape for all trees, also in later attempts."""
        self._goal = goal
        if self._keeper is not None:
            self._keeper.set_goal(goal)
            self.turn(now_ns)

    def lost(self, relay: int, now_ns: int) -> None:
        """Take note that a relay has died."""
        if self._keeper is not None:
            self._tell(self._keeper.lost(self._plan.host_of(relay), now_ns))

    def back(self, event: RelayBack, now_ns: int) -> None:
        """Take note that a new relay is there; tell the others where it listens.

        It is told the same of the other new ones: where those listen that came back while it
        rejoined is not in what it was given to begin with.
        """
        if self._keeper is None:
            return
        assert isinstance(event.result, RingOffer)
        assert event.result.address is not None, "every relay listens"
        host = self._plan.host_of(event.worker)
        moved = Relocated(host, event.result.address)
        for other in range(self._plan.hosts.count):
            if other != host:
                self._call(self._plan.relay_of(other), self._attempt, "tell", (moved,))
        self._relocated.pop(host, None)
        for other_moved in self._relocated.values():
            self._call(event.worker, self._attempt, "tell", (other_moved,))
        self._relocated[host] = moved
        self._tell(self._keeper.back(host, now_ns))

    def take(self, told: MemberMessage, now_ns: int) -> None:
        """Take what a relay says."""
        if self._keeper is None or told.attempt != self._attempt:
            return
        assert isinstance(told.content, TreeNews)
        for stream, message in told.content.answers:
            self._tell(self._keeper.answered(stream, message, now_ns))
        for load in told.content.loads:
            self._tell(self._keeper.loaded(load, now_ns))

    def turn(self, now_ns: int) -> None:
        """Do what is due."""
        if self._keeper is not None:
            self._tell(self._keeper.turn(now_ns))

    def _tell(self, orders: Orders) -> None:
        assert self._keeper is not None
        if self._keeper.states != self._written:
            self._written = self._keeper.states
            self._write()
        for host, told in orders:
            self._call(self._plan.relay_of(host), self._attempt, "tell", (told,))
