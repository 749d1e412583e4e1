"""Runs nodes in virtual time: delivers messages and ticks to them, executes their actions.

A node is an object without I/O, clock or randomness of its own. A factory creates it, again after
every crash, so that its state is lost unless the factory passes it on. All randomness comes from
the seed; two runs of one seed have the same `fingerprint`.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from tests.simulation.connections import Connection, ConnectionModel, Connections
from tests.simulation.network import LinkModel, Network
from whale_ray.lab.simulator.clock import EventQueue, SimulatedClock, Timer

EVENTS_MAX = 1_000_000
TRACE_EVENTS = 200
_SHOWN = 110
"""Characters of a message in a trace."""
_MASK = (1 << 64) - 1
_PRIME = 0x100000001B3
_NEVER_NS = 1 << 62


class Send(NamedTuple):
    """Action: send a message of `nbytes` to the node `target`; it may be lost."""

    target: str
    message: object
    nbytes: int = 0


class WakeAt(NamedTuple):
    """Action: call `tick` at that time, or now if it has passed; replaces any earlier `WakeAt`."""

    time_ns: int


class Dial(NamedTuple):
    """Action: begin a connection to the node `target`; see connections.py for what follows."""

    target: str
    attempt: object = None
    """Identifies this attempt among those of the same node: `Connection.attempt`."""


class Transmit(NamedTuple):
    """Action: send a message of `nbytes` over a connection."""

    connection: Connection
    message: object
    nbytes: int = 0


class HangUp(NamedTuple):
    """Action: end a connection."""

    connection: Connection


Action: TypeAlias = Send | WakeAt | Dial | Transmit | HangUp
Actions: TypeAlias = Iterable[Action]


class Node(Protocol):
    """A participant of the simulation. Each call returns, or yields, actions."""

    def start(self, now_ns: int) -> Actions:
        """Begin; the first call."""
        ...

    def receive(self, sender: str, message: object, now_ns: int) -> Actions:
        """Handle a message, or a change of a connection, from the node `sender`."""
        ...

    def tick(self, now_ns: int) -> Actions:
        """Continue at the time requested by `WakeAt`."""
        ...


class SimulationError(AssertionError):
    """A run did not end, or did not reach its goal."""


class TraceEntry(NamedTuple):
    """One event of a run."""

    time_ns: int
    kind: str
    source: str
    target: str
    message: object

    def __str__(self) -> str:
        where = self.source if self.source == self.target else f"{self.source} → {self.target}"
        what = "" if self.message is None else repr(self.message)
        what = what if len(what) <= _SHOWN else f"{what[: _SHOWN - 1]}…"
        return f"{self.time_ns / 1e6:14.6f} ms  {where:<16} {self.kind:<10} {what}".rstrip()


@dataclass(slots=True)
class _Seat:
    """The state of a node that the simulator keeps when the node dies."""

    name: str
    number: int
    factory: Callable[[], Node]
    node: Node | None = None
    wake: Timer | None = None
    wake_ns: int = 0


class Simulator:
    """One run of a seed. The scenario injects faults into `network` and `connections`."""

    def __init__(
        self,
        seed: int,
        *,
        link: LinkModel | None = None,
        connection: ConnectionModel | None = None,
        events_max: int = EVENTS_MAX,
        trace_events: int = TRACE_EVENTS,
    ) -> None:
        """Begin at time 0 without nodes.

        More than `events_max` events count as a livelock, which is a failure. The last
        `trace_events` are kept.
        """
        self.seed = seed
        self.chance = random.Random(f"{seed}/scenario")
        """For the scenario's own choices; the network's are independent of them."""
        self.clock = SimulatedClock()
        self.events = EventQueue(self.clock)
        of_network = random.Random(f"{seed}/network")
        self.network = Network(
            self.events, of_network, link or LinkModel(), self._hand, self._record
        )
        self.connections = Connections(
            self.network,
            self.events,
            of_network,
            connection or ConnectionModel(),
            self._hand,
            self._record,
        )
        self._entries: deque[tuple[int, str, str, str, object]] = deque(maxlen=trace_events)
        self.fingerprint = 0
        """Hash of all events so far, with their times and nodes."""
        self.events_done = 0
        self.events_max = events_max
        self._seats: dict[str, _Seat] = {}

    # --- nodes ----------------------------------------------------------------------------------

    def add(self, name: str, factory: Callable[[], Node], *, start_ns: int | None = None) -> None:
        """Add a node that `factory` creates, now or at `start_ns`."""
        if name in self._seats:
            msg = f"there is a node {name!r} already"
            raise ValueError(msg)
        self._seats[name] = _Seat(name, len(self._seats) + 1, factory)
        self.events.post(self.clock.now_ns if start_ns is None else start_ns, self.restart, name)

    def node(self, name: str) -> Node | None:
        """Return the live node of that name; None while it is dead."""
        return self._seats[name].node

    def crash(self, name: str, *, loud: bool = True) -> None:
        """Kill a node: its state is lost, and so are messages that arrive while it is dead.

        `loud`: its peers learn that its connections have ended, as a kernel reports it for a
        process. Else they learn nothing before their silence time-out, as with a host without
        power.
        """
        seat = self._seats[name]
        if seat.node is None:
            return
        seat.node = None
        if seat.wake is not None:
            seat.wake.cancel()
            seat.wake = None
        self._record("crash", name, name, None)
        self.connections.crashed(name, loud=loud)

    def restart(self, name: str) -> None:
        """Restart a dead node; does nothing if it is alive."""
        seat = self._seats[name]
        if seat.node is None:
            seat.node = seat.factory()
            self._record("start", name, name, None)
            self._carry_out(seat, seat.node.start(self.clock.now_ns))

    def crash_for(self, name: str, duration_ns: int, *, loud: bool = True) -> None:
        """Kill a node, and restart it after a time."""
        self.crash(name, loud=loud)
        self.events.post(self.clock.now_ns + duration_ns, self.restart, name)

    # --- the run --------------------------------------------------------------------------------

    def run(self, *, until_ns: int | None = None, done: Callable[[], bool] | None = None) -> None:
        """Run events until there are none left, until `until_ns`, or until `done`.

        Raises SimulationError if the run ends without being done, and after `events_max` events,
        which count as a livelock. Errors of nodes pass through.
        """
        last_ns = _NEVER_NS if until_ns is None else until_ns
        left = self.events_max - self.events_done
        # Objects of a run are freed by reference counts. Collecting cycles among all links and
        # messages of a large network would take a third of the time.
        collects = gc.isenabled()
        gc.disable()
        try:
            self.events_done += self.events.run(last_ns, left, done)
        finally:
            if collects:
                gc.enable()
        if done is not None and done():
            return
        due_ns = self.events.next_ns
        if due_ns is not None and due_ns <= last_ns:
            msg = f"no end after {self.events_done:,} events: a livelock"
            raise SimulationError(msg)
        if until_ns is not None:
            self.events.advance_to(until_ns)
        if done is not None:
            why = "nothing is left to happen" if due_ns is None else "the time is over"
            msg = f"not done after {self.clock.now_ns / 1e6:,.3f} ms: {why}"
            raise SimulationError(msg)

    def _hand(self, name: str, sender: str, message: object) -> bool:
        seat = self._seats.get(name)
        if seat is None or seat.node is None:
            return False
        now_ns = self.clock.now_ns
        # Inlined from `_record`, since nothing else is called so often.
        self._entries.append((now_ns, "receive", sender, name, message))
        self.fingerprint = (self.fingerprint * _PRIME + now_ns + seat.number) & _MASK
        actions = seat.node.receive(sender, message, now_ns)
        if actions:
            self._carry_out(seat, actions)
        return True

    def _tick(self, seat: _Seat) -> None:
        seat.wake = None
        if seat.node is not None:
            self._record("tick", seat.name, seat.name, None)
            self._carry_out(seat, seat.node.tick(self.clock.now_ns))

    def _carry_out(self, seat: _Seat, actions: Actions) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.network.send(seat.name, action.target, action.message, action.nbytes)
            elif isinstance(action, WakeAt):
                self._wake_at(seat, max(action.time_ns, self.clock.now_ns))
            elif isinstance(action, Transmit):
                self.connections.send(action.connection, seat.name, action.message, action.nbytes)
            elif isinstance(action, Dial):
                self.connections.dial(seat.name, action.target, action.attempt)
            elif isinstance(action, HangUp):
                self.connections.hang_up(action.connection, seat.name)
            else:
                msg = f"node {seat.name!r} asks for {action!r}, which is no action"
                raise TypeError(msg)

    def _wake_at(self, seat: _Seat, time_ns: int) -> None:
        if seat.wake is not None:
            if seat.wake_ns == time_ns:
                return
            seat.wake.cancel()
        seat.wake_ns = time_ns
        seat.wake = self.events.timer(time_ns, self._tick, seat)

    # --- the trace ------------------------------------------------------------------------------

    def _record(self, kind: str, source: str, target: str, message: object) -> None:
        now_ns = self.clock.now_ns
        self._entries.append((now_ns, kind, source, target, message))
        seat = self._seats.get(target)
        number = 0 if seat is None else seat.number
        self.fingerprint = (self.fingerprint * _PRIME + now_ns + number + len(kind)) & _MASK

    @property
    def trace(self) -> tuple[TraceEntry, ...]:
        """The last events, oldest first."""
        return tuple(TraceEntry(*entry) for entry in self._entries)

    def trace_text(self) -> str:
        """Return the last events, a line each."""
        entries = self.trace
        before = self.events_done - len(entries)
        lines = [f"the last {len(entries)} events of {self.events_done:,}:"] if before > 0 else []
        return "\n".join([*lines, *map(str, entries)])
