"""A host as the simulator runs it: the `LinkManager` of transport/ over the simulated network.

Handshake, link, streams, reconnection, control messages, taps and mirrors, and what
joins them, are the real ones, over real ring memory; only connections and clock are the
simulator's.
"""

from __future__ import annotations

import random
from socket import AddressFamily
from typing import Protocol

from tests.simulation.scenarios.connector import SimulatedConnection, SimulatedConnector
from tests.simulation.scenarios.workload import MS, Producer, Reader
from tests.simulation.simulator import Actions, WakeAt
from whale_ray.transport.channel import Outcome
from whale_ray.transport.links.attached import Incoming, Offer, Until
from whale_ray.transport.links.link import LinkTimes
from whale_ray.transport.links.manager import LinkManager
from whale_ray.transport.links.neighbours import Neighbours
from whale_ray.transport.links.peer import Peer
from whale_ray.transport.links.reachability import Reachability
from whale_ray.transport.links.statistics import Unreachable
from whale_ray.transport.mirror import MirrorRing, RingTap
from whale_ray.transport.retention import Retention

TIMES = LinkTimes(heartbeat_ns=20 * MS, silence_ns=100 * MS)
BACKOFF_NS = (5 * MS, 80 * MS)
GRANT_DELAY_NS = 2 * MS
CONTROL_MESSAGES_MAX = 8


class ControlTalk:
    """Numbered control messages to one peer, and those received from it."""

    def __init__(self, to_send: int, chance: random.Random) -> None:
        self._to_send = to_send
        self._chance = chance
        self._sent = 0
        self.received = 0
        self.next_ns: int | None = 0
        """When it goes on."""

    def step(self, peer: Peer, now_ns: int) -> None:
        """Send due messages, and receive. AssertionError if a message is not the next one."""
        if self.next_ns is None or now_ns < self.next_ns:
            return
        while (message := peer.inbox.take()) is not None:
            assert message == b"control %d" % self.received, (
                f"{message!r} from {peer.host} where control message {self.received} is due"
            )
            self.received += 1
        for _ in range(self._chance.randrange(4)):
            if self._sent < self._to_send:
                outcome = peer.outbox.put(b"control %d" % self._sent)
                self._sent += outcome is Outcome.SENT
        self.next_ns = now_ns + 1 + self._chance.randrange(10 * MS)

    def over(self, expected: int) -> bool:
        """Return whether all messages were sent, and all of the peer's have arrived."""
        return self._sent == self._to_send and self.received == expected


class Errand(Protocol):
    """A task of a host between two turns of its links."""

    next_ns: int | None
    """When it goes on; None once it is over."""

    def step(self, now_ns: int) -> None:
        """Do all work that is due."""
        ...


class SimulatedHost:
    """A node of the simulator, with the methods of `TcpEndpoint`; both drive a `LinkManager`."""

    def __init__(self, name: str, chance: random.Random) -> None:
        """Create a host without peers; the scenario adds its tasks before it starts."""
        self.name = name
        self.producers: list[Producer] = []
        self.readers: list[Reader] = []
        self.talks: dict[str, ControlTalk] = {}
        """Control messages, by peer."""
        self.errands: list[Errand] = []
        self.neighbours = Neighbours(
            CONTROL_MESSAGES_MAX, GRANT_DELAY_NS, lambda: chance.getrandbits(32) | 1
        )
        self.connector = SimulatedConnector(name, chance)
        self.manager: LinkManager[SimulatedConnection, SimulatedConnection] = LinkManager(
            self.connector,
            self.neighbours,
            Reachability(self.neighbours, BACKOFF_NS, chance),
            TIMES,
        )
        self._now_ns = 0

    # --- methods of TcpEndpoint ------------------------------------------------------------

    def offer(
        self,
        stream: int,
        tap: RingTap,
        children: tuple[str, ...] = (),
        *,
        until: Until = "received",
        dynamic: bool = False,
        retention: Retention | None = None,
    ) -> Offer:
        """Let `children` read a ring or mirror of this host."""
        return self.manager.offer(
            stream, tap, children, self._now_ns, until=until, dynamic=dynamic, retention=retention
        )

    def subscribe(self, stream: int, mirror: MirrorRing, parent: str | None) -> Incoming:
        """Fill a mirror of this host from `parent`, which must be dialled."""
        return self.manager.subscribe(stream, mirror, parent)

    def move(self, stream: int, parent: str | None) -> None:
        """Continue reading from another parent, possibly in the middle of a message."""
        self.manager.move(stream, parent)

    def dial(self, host: str, address: tuple[str, int] = ("simulated", 0)) -> None:
        """Keep a link to the parent `host` up; another address means another process."""
        self.manager.dial(host, (AddressFamily.AF_UNSPEC, address), self._now_ns)

    def undial(self, host: str) -> None:
        """Close the link to the parent `host`, and stop dialling it."""
        self.manager.undial(host)

    def forget(self, host: str) -> None:
        """Drop all links to a host whose process has died."""
        self.manager.forget(host)

    def send_control(self, host: str, message: bytes) -> Outcome:
        """Queue a message for `host`, which arrives once and in order."""
        return self.manager.send_control(host, message)

    def receive_control(self) -> tuple[str, bytes] | None:
        """Return the next control message and who sent it; None if there is none."""
        return self.manager.receive_control()

    def reject(self, host: str, why: str) -> None:
        """Break the links to `host` after an invalid message, and dial it again."""
        self.manager.reject(host, why, self._now_ns)

    def congested(self, host: str) -> bool:
        """Return whether the link to the child `host` accepts no more bytes for now."""
        return self.manager.congested(host)

    def peer(self, host: str) -> Peer:
        """Return the state of another host."""
        return self.neighbours.peer(host)

    def poll(self, now_ns: int) -> bool:
        """Do all that can be done without waiting; return whether anything was done."""
        return self.manager.turn(now_ns)

    def arm(self, now_ns: int) -> bool:
        """Do nothing: whatever comes calls `receive`."""
        del now_ns
        return True

    @property
    def unfinished(self) -> bool:
        """Whether `poll` has left something undone, or something was asked for since."""
        return self.manager.unfinished

    @property
    def next_due_ns(self) -> int:
        """When `poll` has to be called; AssertionError if it has just been and is due again."""
        now_ns = self._now_ns
        waits = [one.look_again_ns(now_ns) for one in self.manager.links.values()]
        times = [one for one in waits if one is not None]
        due_ns = self.manager.next_due_ns(now_ns)
        if due_ns > now_ns:
            times.append(due_ns)
        assert times, "a link is due again at once: its host never sleeps"
        return min(times)

    def unreachable(self, now_ns: int) -> tuple[Unreachable, ...]:
        """Return the hosts without a link that stands, for how long, and why."""
        return self.manager.unreachable(now_ns)

    @property
    def linked(self) -> bool:
        """Whether every link is up that should be."""
        return not self.unreachable(self._now_ns)

    @property
    def delivered(self) -> bool:
        """As `TcpEndpoint.delivered`."""
        return self.manager.delivered

    # --- calls by the simulator ----------------------------------------------------------------

    def start(self, now_ns: int) -> Actions:
        """Begin to dial, to send and to read."""
        return self.tick(now_ns)

    def receive(self, _sender: str, message: object, now_ns: int) -> Actions:
        """Handle an event of a connection."""
        self.connector.take(message, now_ns, self.manager.accept)
        return self.tick(now_ns)

    def tick(self, now_ns: int) -> Actions:
        """Do what is due, as `Relay` and the workers of a host do."""
        self._now_ns = now_ns
        for producer in self.producers:
            producer.step(now_ns)
        for reader in self.readers:
            reader.step(now_ns)
        for host, talk in self.talks.items():
            talk.step(self.peer(host), now_ns)
        times: list[int | None] = [now_ns + self.turn(now_ns)]
        times += [one.next_ns for one in self.producers]
        times += [reader.wakes_ns for reader in self.readers if not reader.over]
        times += [talk.next_ns for talk in self.talks.values()]
        wake_ns = min(at_ns for at_ns in times if at_ns is not None)
        return [*self.connector.handed_on(), WakeAt(max(now_ns + 1, wake_ns))]

    def turn(self, now_ns: int) -> int:
        """Do what a host without trees does, as `RelayLoop.turn`; return how long it may sleep."""
        self.poll(now_ns)
        for errand in self.errands:
            errand.step(now_ns)
        if self.unfinished and self.poll(now_ns):
            return 0
        times = [errand.next_ns for errand in self.errands]
        return min(at_ns for at_ns in (self.next_due_ns, *times) if at_ns is not None) - now_ns
