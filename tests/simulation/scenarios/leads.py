"""The controller of a multicast scenario, its journal, and the fleet that replaces dead relays."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tests.simulation.scenarios.relays import CONTROLLER, STREAM, Addresses, Relay
from tests.simulation.scenarios.workload import MS
from tests.simulation.simulator import Actions, Send, Simulator, WakeAt
from whale_ray.configs.settings import MulticastSettings
from whale_ray.control.tree_controller import (
    Orders,
    TreeController,
)
from whale_ray.multicast.switch_protocol import SwitchPhase
from whale_ray.multicast.tree_messages import TreeReport
from whale_ray.multicast.tree_state import (
    Goal,
    TreeState,
)
from whale_ray.multicast.trees import (
    Route,
)
from whale_ray.plan.hosts import (
    host_name,
)
from whale_ray.plan.streams import StreamPlan

_ORDER_BYTES = 500
_LOOK_NS = 2 * MS
"""How often the controller looks at the fleet."""
ROUTES: tuple[Route, ...] = ("star", "chain", "binomial", "non-blocking")


@dataclass
class Journal:
    """State that survives a controller's death."""

    term: int = 0
    states: Mapping[int, TreeState] | None = None
    lost: dict[int, int] = field(default_factory=dict)
    """Number of deaths of each host's relay that the trees have taken into account."""
    away: set[int] = field(default_factory=set)
    """Hosts whose new relay the trees do not include yet."""
    failure: str = ""
    phases: Counter[SwitchPhase] = field(default_factory=Counter)
    """How often the tree came to each."""
    doomed: list[SwitchPhase] = field(default_factory=list)
    """In these phases a controller dies, soon after it has written them down."""


class Fleet:
    """The live relays; kills them, and restarts them at the controller's command."""

    def __init__(
        self,
        simulation: Simulator,
        hosts: int,
        make: Callable[[int, Addresses, TreeState | None], Relay],
        chance: random.Random,
    ) -> None:
        """Begin with `hosts` relays, created by `make`."""
        self._simulation = simulation
        self._make = make
        self._chance = chance
        self.hosts = hosts
        self.deaths = dict.fromkeys(range(hosts), 0)
        self.alive = dict.fromkeys(range(hosts), True)
        self.lost_retention = False
        """Whether a relay died that retained bytes beyond its ring."""
        self._states: dict[int, TreeState | None] = dict.fromkeys(range(hosts))
        for host in range(hosts):
            simulation.add(host_name(host), partial(self._new, host))

    @property
    def addresses(self) -> Addresses:
        """The addresses of the relays."""
        return {host: (host_name(host), deaths) for host, deaths in self.deaths.items()}

    def _new(self, host: int) -> Relay:
        return self._make(host, self.addresses, self._states[host])

    def kill(self, host: int, loud: bool) -> None:
        """Kill a relay, unless it is dead."""
        if self.alive[host]:
            self.alive[host] = False
            self.deaths[host] += 1
            relay = self._simulation.node(host_name(host))
            if isinstance(relay, Relay):
                retention = relay.stream.offer.retention
                self.lost_retention |= retention is not None and not retention.empty
            self._simulation.crash(host_name(host), loud=loud)

    def doom(self, name: str) -> None:
        """Kill a node shortly, and restart it later."""
        now_ns = self._simulation.clock.now_ns
        kill_ns = now_ns + self._chance.randrange(3 * MS)
        away_ns = 1 + self._chance.randrange(40 * MS)
        self._simulation.events.post(kill_ns, self._simulation.crash_for, name, away_ns)

    def replace(self, host: int, state: TreeState) -> None:
        """Start a new relay shortly, which gets the present trees."""
        delay_ns = 1 + self._chance.randrange(30 * MS)
        now_ns = self._simulation.clock.now_ns
        death = self.deaths[host]
        self._simulation.events.post(now_ns + delay_ns, self._start, host, death, state)

    def _start(self, host: int, death: int, state: TreeState) -> None:
        # The state that was sent for one failure is out of date at the next.
        if not self.alive[host] and death == self.deaths[host]:
            self._states[host] = state
            self.alive[host] = True
            self._simulation.restart(host_name(host))

    def tell_all(self, host: int) -> None:
        """Send the address of a host's new relay to all others."""
        for other in range(self.hosts):
            relay = self._simulation.node(host_name(other))
            if other != host and isinstance(relay, Relay):
                relay.relocated(host, self.addresses[host])


class Lead:
    """One controller; manages the stream's tree, starting from its predecessor's journal."""

    def __init__(
        self,
        plan: StreamPlan,
        settings: MulticastSettings,
        fleet: Fleet,
        journal: Journal,
        chance: random.Random,
        changes_until_ns: int,
    ) -> None:
        """Begin a new term; change the goal from time to time, until `changes_until_ns`."""
        journal.term += 1
        self._plan = plan
        self._settings = settings
        self._fleet = fleet
        self._journal = journal
        self._chance = chance
        self._changes_until_ns = changes_until_ns
        self._change_ns = 0
        self._trees: TreeController | None = None
        self._reported_lost: set[int] = set()

    @property
    def trees(self) -> TreeController:
        """The tree controller; exists from the start on."""
        assert self._trees is not None
        return self._trees

    def start(self, now_ns: int) -> Actions:
        """Take over."""
        journal = self._journal
        self._trees = TreeController(
            self._plan, self._settings, now_ns, journal.term, journal.states
        )
        return self.tick(now_ns)

    def receive(self, sender: str, message: object, now_ns: int) -> Actions:
        """Handle a relay's message."""
        assert isinstance(message, TreeReport)
        for stream, answer in message.answers:
            yield from self._say(self.trees.answered(stream, answer, now_ns))
        for load in message.loads:
            yield from self._say(self.trees.loaded(load, now_ns))

    def tick(self, now_ns: int) -> Actions:
        """Check the fleet, possibly change the goal, and repeat messages that are due."""
        yield from self._look(now_ns)
        if self._change_ns <= now_ns < self._changes_until_ns:
            self._change_ns = now_ns + self._chance.randrange(60 * MS)
            degree = self._chance.choice((0, 1, 2, 3))
            self.trees.set_goal(Goal(self._chance.choice(ROUTES), degree))
        yield from self._say(self.trees.turn(now_ns))
        yield WakeAt(now_ns + _LOOK_NS)

    def _look(self, now_ns: int) -> Actions:
        journal, fleet, trees = self._journal, self._fleet, self.trees
        for host in range(fleet.hosts):
            is_news = fleet.deaths[host] > journal.lost.get(host, 0)
            if is_news or (host in journal.away and host not in self._reported_lost):
                journal.lost[host] = fleet.deaths[host]
                journal.away.add(host)
                self._reported_lost.add(host)
                yield from self._say(trees.lost(host, now_ns))
                fleet.replace(host, trees.states[STREAM])
            elif host in journal.away and fleet.alive[host]:
                journal.away.discard(host)
                self._reported_lost.discard(host)
                fleet.tell_all(host)
                yield from self._say(trees.back(host, now_ns))

    def _say(self, orders: Orders) -> Actions:
        """Write the journal first, then send."""
        self._journal.failure = self._journal.failure or self.trees.failure
        if self.trees.states != self._journal.states:
            before, self._journal.states = self._journal.states, self.trees.states
            phase = self.trees.states[STREAM].record.phase
            if before is None or before[STREAM].record.phase is not phase:
                self._journal.phases[phase] += 1
            doomed = self._journal.doomed
            if doomed and phase is doomed[-1]:
                doomed.pop()
                self._fleet.doom(CONTROLLER)
        for host, order in orders:
            yield Send(host_name(host), order, _ORDER_BYTES)
