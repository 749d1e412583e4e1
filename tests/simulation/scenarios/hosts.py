"""A host as the simulator runs it: the state machines of transport/ as `TcpEndpoint` joins them.

Handshake, link, streams, reconnection, control messages, push channels, taps and mirrors are the
real ones, over real ring memory; only sockets and clock are the simulator's.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from socket import AddressFamily

from tests.simulation.connections import Arrived, Connected, Connection, Disconnected
from tests.simulation.scenarios.workload import MS, US, Producer, Reader
from tests.simulation.simulator import Action, Actions, Dial, HangUp, Transmit, WakeAt
from whale_ray.configs.errors import ProtocolError
from whale_ray.transport.channel import Outcome
from whale_ray.transport.links.attached import Incoming, Offer, Until
from whale_ray.transport.links.handshake import (
    NONCE_BYTES,
    HandshakeRefusedError,
    Identity,
    Initiator,
    Responder,
)
from whale_ray.transport.links.link import Buffers, Link, LinkBrokenError, LinkTimes, Role
from whale_ray.transport.links.messages import HEADER_BYTES, KIND_NAMES, LinkHeader, decode
from whale_ray.transport.links.neighbours import Neighbours
from whale_ray.transport.links.peer import Peer
from whale_ray.transport.mirror import MirrorRing, RingTap
from whale_ray.transport.retention import Retention
from whale_ray.transport.tcp.reachability import Reachability
from whale_ray.transport.tcp.sockets import Address

SECRET = bytes(range(32))
TIMES = LinkTimes(heartbeat_ns=20 * MS, silence_ns=100 * MS)
HANDSHAKE_NS = 100 * MS
BACKOFF_NS = (5 * MS, 80 * MS)
GRANT_DELAY_NS = 2 * MS
CONTROL_MESSAGES_MAX = 8
TURN_BYTES = 64 << 10
_PARTS = 0.1
"""Probability that a message comes in two parts."""
_POLL_NS = 200 * US
"""How soon a host looks again at a connection without room."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A message on a connection, as a trace shows it."""

    content: bytes

    def __repr__(self) -> str:
        if len(self.content) < HEADER_BYTES or self.content[:4] != b"WHLK":
            return f"handshake, {len(self.content)} bytes"
        header: LinkHeader = decode(self.content)
        fields = f"stream {header.stream} position {header.position} extra {header.extra}"
        return f"{KIND_NAMES[header.kind]} #{header.sequence} {fields} length {header.length}"


class Wiring:
    """One connection with its handshake, and then its link."""

    def __init__(self, connection: Connection, side: Initiator | Responder) -> None:
        """Begin with a handshake."""
        self.connection = connection
        self.side = side
        self.link: Link | None = None
        self.rest: tuple[bytes, tuple[memoryview, ...], int] | None = None
        """A payload that has come in part, where it goes, how much of it is there."""

    @property
    def host(self) -> str:
        """The other end, if this one has dialled it."""
        return self.connection.responder


class ControlTalk:
    """Numbered control messages to one peer, and those that come from it."""

    def __init__(self, to_send: int, chance: random.Random) -> None:
        self._to_send = to_send
        self._chance = chance
        self._sent = 0
        self.received = 0
        self.next_ns: int | None = 0
        """When it goes on."""

    def step(self, peer: Peer, now_ns: int) -> None:
        """Send what is due, take what is there. AssertionError if it is not the next."""
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
        """Tell whether everything was sent and all that the peer sends has come."""
        return self._sent == self._to_send and self.received == expected


class SimulatedHost:
    """A node of the simulator; what `TcpEndpoint` offers, it does as well."""

    def __init__(self, name: str, chance: random.Random) -> None:
        """Make a host without peers; the scenario adds what it shall do, before it starts."""
        self.name = name
        self.producers: list[Producer] = []
        self.readers: list[Reader] = []
        self.talks: dict[str, ControlTalk] = {}
        """Control messages, by peer."""
        self.neighbours = Neighbours(
            CONTROL_MESSAGES_MAX, GRANT_DELAY_NS, lambda: chance.getrandbits(32) | 1
        )
        self.failures: Counter[str] = Counter()
        """Connections that broke, by reason."""
        self.breaks_within = 0.0
        """Probability that a connection breaks within a message."""
        self._identity = Identity("job", 1, 1, name)
        self._chance = chance
        self._reachability = Reachability(self.neighbours, BACKOFF_NS, chance)
        self._under_way: Counter[str] = Counter()  # dials of which nothing was heard yet
        self._given_up: Counter[str] = Counter()
        self._wirings: dict[int, Wiring] = {}
        self._links: dict[tuple[str, Role], Wiring] = {}
        self._actions: list[Action] = []
        self._now_ns = 0

    # --- what it does, as TcpEndpoint ------------------------------------------------------------

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
        offer, refused = self.neighbours.offer(
            stream, tap, children, until=until, dynamic=dynamic, retention=retention
        )
        assert not refused, refused
        return offer

    def subscribe(self, stream: int, mirror: MirrorRing, parent: str | None) -> Incoming:
        """Fill a mirror of this host from `parent`, which is to be dialled."""
        return self.neighbours.subscribe(stream, mirror, parent)

    def move(self, stream: int, parent: str | None) -> None:
        """Read on from another parent, maybe in the middle of a message."""
        former = self.neighbours.incoming[stream].parent
        if former == parent:
            return
        wiring = None if former is None else self._links.get((former, Role.PARENT))
        if wiring is not None and wiring.link is not None and wiring.rest is not None:
            payload, _, start = wiring.rest
            places = wiring.link.divert(stream, len(payload) - start)
            if places is not None:
                wiring.rest = (payload[start:], places, 0)
        self.neighbours.move(stream, parent)

    def dial(self, host: str, address: Address = ("simulated", 0)) -> None:
        """Keep a link to the parent `host` up; with another address its process is another."""
        found = (AddressFamily.AF_UNSPEC, address)
        if self._reachability.is_elsewhere(host, found):
            self._stop_dialling(host)
        self._reachability.dial(host, found, self._now_ns)
        self.neighbours.peer(host)

    def undial(self, host: str) -> None:
        """Close the link to the parent `host`, and dial it no more."""
        assert not self.peer(host).incoming, f"streams are still read from {host}"
        self._stop_dialling(host)

    def forget(self, host: str) -> None:
        """Drop all links to a host whose process has died."""
        self._stop_dialling(host)
        wiring = self._links.get((host, Role.CHILD))
        if wiring is not None:
            self._hang_up(wiring)
        self._reachability.forget(host)
        self.neighbours.died(host)

    def _stop_dialling(self, host: str) -> None:
        if not self._reachability.stop(host):
            return
        self._given_up[host] += self._under_way[host]
        self._under_way[host] = 0
        for wiring in tuple(self._wirings.values()):
            if wiring.connection.initiator == self.name and wiring.host == host:
                self._hang_up(wiring)

    def _hang_up(self, wiring: Wiring) -> None:
        self._actions.append(HangUp(wiring.connection))
        self._drop(wiring)
        if wiring.link is not None:
            wiring.link.ended()

    def _is_given_up(self, connection: Connection) -> bool:
        """Tell whether a connection that comes to stand, or fails, is one that nobody waits for."""
        host = connection.responder
        if connection.initiator != self.name:
            return False
        if self._given_up[host]:
            self._given_up[host] -= 1
            return True
        self._under_way[host] = 0
        return False

    def send_control(self, host: str, message: bytes) -> Outcome:
        """Queue a message for `host`: it arrives once and in order."""
        return self.peer(host).outbox.put(message)

    def receive_control(self) -> tuple[str, bytes] | None:
        """Return the next control message and who sent it; None if there is none."""
        for host, peer in self.neighbours.peers.items():
            message = peer.inbox.take()
            if message is not None:
                return host, message
        return None

    def congested(self, host: str) -> bool:
        """Tell whether the link to the child `host` takes no more bytes for now."""
        wiring = self._links.get((host, Role.CHILD))
        return wiring is not None and wiring.connection.room(self.name) == 0

    def peer(self, host: str) -> Peer:
        """Return what is known of another host."""
        return self.neighbours.peer(host)

    @property
    def delivered(self) -> bool:
        """As `TcpEndpoint.delivered`."""
        return self.neighbours.delivered

    # --- what the simulator calls ----------------------------------------------------------------

    def start(self, now_ns: int) -> Actions:
        """Begin to dial, to send and to read."""
        self._reachability.begin(now_ns)
        return self._go_on(now_ns)

    def tick(self, now_ns: int) -> Actions:
        """Do what is due."""
        for wiring in tuple(self._wirings.values()):
            if wiring.link is not None and wiring.rest is not None:
                try:
                    self._take_rest(wiring, wiring.link)
                except ProtocolError as error:
                    self._break(wiring, error, now_ns)
        return self._go_on(now_ns)

    def receive(self, sender: str, message: object, now_ns: int) -> Actions:
        """Take what happens to a connection."""
        match message:
            case Connected(connection):
                self._begin(connection, now_ns)
            case Disconnected(connection, reason):
                self._lost(connection, reason, now_ns)
            case Arrived(connection, Wire(content)):
                wiring = self._wirings.get(connection.number)
                if wiring is not None:
                    self._take(wiring, content, now_ns)
        return self._go_on(now_ns)

    def _go_on(self, now_ns: int) -> Actions:
        """Do what `TcpEndpoint.poll` does, and what the host's workers do."""
        self._now_ns = now_ns
        for producer in self.producers:
            producer.step(now_ns)
        for reader in self.readers:
            reader.step(now_ns)
        for host, talk in self.talks.items():
            talk.step(self.peer(host), now_ns)
        for host in self._reachability.due(now_ns):
            self._reachability.dialled(host)
            self._under_way[host] = 1
            self._actions.append(Dial(host))
        waits = False
        for wiring in tuple(self._wirings.values()):
            waits |= self._send(wiring, now_ns) or wiring.rest is not None
        self.neighbours.tend()
        self.neighbours.publish()
        self._actions.append(WakeAt(self._next_ns(now_ns, waits)))
        actions, self._actions = self._actions, []
        return actions

    def _next_ns(self, now_ns: int, waits: bool) -> int:
        """Return when there will be something to do; AssertionError if that is never later.

        With `waits`, look again before long for room on a connection.
        """
        times = [producer.next_ns for producer in self.producers]
        times += [reader.wakes_ns for reader in self.readers if not reader.over]
        times += [talk.next_ns for talk in self.talks.values()]
        for wiring in self._wirings.values():
            link = wiring.link
            due_ns = wiring.side.deadline_ns if link is None else link.next_due_ns
            assert waits or due_ns > now_ns, "a link is due again at once: its host never sleeps"
            times.append(due_ns)
        times.append(self._reachability.next_dial_ns)
        earliest = now_ns + (_POLL_NS if waits else 1)
        return max(earliest, min((one for one in times if one is not None), default=earliest + MS))

    # --- connections -----------------------------------------------------------------------------

    def _begin(self, connection: Connection, now_ns: int) -> None:
        nonce = self._chance.randbytes(NONCE_BYTES)
        deadline_ns = now_ns + HANDSHAKE_NS
        side: Initiator | Responder
        if connection.initiator == self.name:
            if self._is_given_up(connection):
                self._actions.append(HangUp(connection))
                return
            side = Initiator(
                self._identity,
                SECRET,
                nonce,
                expects=connection.responder,
                deadline_ns=deadline_ns,
            )
            self._transmit(connection, side.hello)
        else:
            side = Responder(self._identity, SECRET, nonce, deadline_ns=deadline_ns)
        self._wirings[connection.number] = Wiring(connection, side)

    def _transmit(self, connection: Connection, content: bytes) -> None:
        self._actions.append(Transmit(connection, Wire(content), len(content)))

    def _take(self, wiring: Wiring, content: bytes, now_ns: int) -> None:
        try:
            if wiring.link is not None:
                self._take_link_message(wiring, wiring.link, content, now_ns)
                return
            if len(content) > wiring.side.needs:
                msg = f"{len(content)} bytes within the handshake"
                raise LinkBrokenError(msg, "handshake")
            answer = wiring.side.receive(content)
        except ProtocolError as error:
            self._break(wiring, error, now_ns)
            return
        if answer:
            self._transmit(wiring.connection, answer)
        if wiring.side.done:
            self._establish(wiring, now_ns)

    def _take_link_message(self, wiring: Wiring, link: Link, content: bytes, now_ns: int) -> None:
        """Take a message whole, or a part of it now and the rest at the next occasion."""
        self._take_rest(wiring, link)
        link.heard(now_ns)
        length, places = link.begin(content[:HEADER_BYTES])
        assert len(content) == HEADER_BYTES + length
        if not length:
            return
        wiring.rest = (content[HEADER_BYTES:], places, 0)
        if self._chance.random() < self.breaks_within:
            self._take_part(wiring, link)
            msg = "within a message"
            raise LinkBrokenError(msg, msg)
        if self._chance.random() < _PARTS:
            self._take_part(wiring, link)
        else:
            self._take_rest(wiring, link)

    def _take_part(self, wiring: Wiring, link: Link) -> None:
        assert wiring.rest is not None
        payload, places, _ = wiring.rest
        size = self._chance.randrange(len(payload))
        _fill(places, payload[:size], 0)
        wiring.rest = (payload, places, size)
        link.progress(size)

    def _take_rest(self, wiring: Wiring, link: Link) -> None:
        if wiring.rest is not None:
            (payload, places, start), wiring.rest = wiring.rest, None
            _fill(places, payload, start)
            link.end()

    def _establish(self, wiring: Wiring, now_ns: int) -> None:
        host = wiring.side.peer.host
        dialled = wiring.connection.initiator == self.name
        role = Role.PARENT if dialled else Role.CHILD
        before = self._links.get((host, role))
        if before is not None:
            self._break(before, LinkBrokenError("dialled anew", "replaced"), now_ns)
        self._reachability.up(host, role)
        primary = dialled or host not in self._reachability
        wiring.link = Link(self.peer(host), role, TIMES, now_ns, primary=primary)
        self._links[host, role] = wiring

    def _send(self, wiring: Wiring, now_ns: int) -> bool:
        """Send what is due; return whether more may wait for room."""
        link, connection = wiring.link, wiring.connection
        try:
            if link is None:
                wiring.side.check_time(now_ns)
                return False
            link.check_silence(now_ns)
            room = connection.room(self.name)
            while room > 0:
                buffers: Buffers = []
                link.outbound(buffers, min(room, TURN_BYTES), now_ns)
                if not buffers:
                    return False
                for content in _messages(buffers):
                    self._transmit(connection, content)
                    room -= len(content)
        except ProtocolError as error:
            self._break(wiring, error, now_ns)
            return False
        return True

    def _break(self, wiring: Wiring, error: ProtocolError, now_ns: int) -> None:
        """End a connection from this side."""
        if isinstance(error, HandshakeRefusedError):
            reason = error.reason.name.lower()
        else:
            reason = error.reason if isinstance(error, LinkBrokenError) else f"protocol: {error}"
        self._actions.append(HangUp(wiring.connection))
        self._forget(wiring, reason, now_ns)

    def _lost(self, connection: Connection, reason: str, now_ns: int) -> None:
        """Take note that a connection has ended, or did not come to stand."""
        wiring = self._wirings.get(connection.number)
        if wiring is not None:
            self._forget(wiring, reason, now_ns)
        elif connection.initiator == self.name and not self._is_given_up(connection):
            self._reachability.failed(connection.responder, now_ns, reason)

    def _forget(self, wiring: Wiring, reason: str, now_ns: int) -> None:
        self._drop(wiring)
        self.failures[reason] += 1
        link = wiring.link
        if link is not None:
            link.broken(reason)
            self._reachability.broken(link.peer.host, link.role, now_ns, reason)
        elif wiring.connection.initiator == self.name:
            self._reachability.failed(wiring.host, now_ns, reason)

    def _drop(self, wiring: Wiring) -> None:
        del self._wirings[wiring.connection.number]
        if wiring.link is not None:
            del self._links[wiring.link.peer.host, wiring.link.role]


def _messages(buffers: Buffers) -> list[bytes]:
    """Join headers to what follows them, as a socket would carry it."""
    found, parts, missing = [], [], 0
    for buffer in buffers:
        parts.append(bytes(buffer))
        missing += decode(buffer).length if missing == 0 else -len(buffer)
        if missing == 0:
            found.append(b"".join(parts))
            parts = []
    assert not parts, "a payload is shorter than its header says"
    return found


def _fill(places: tuple[memoryview, ...], payload: bytes, start: int) -> None:
    """Put the bytes of a payload from `start` where they belong."""
    offset = 0
    for place in places:
        stop = offset + len(place)
        if start < stop:
            low = max(start, offset)
            part = payload[low:stop]
            place[low - offset : low - offset + len(part)] = part
        offset = stop
