"""Connections of a simulated host in place of sockets, as `LinkManager` requests them.

They transport real handshakes and real links. A message may arrive in two parts, with other events
in between, or be cut off.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.simulation.connections import Arrived, Connected, Connection, Disconnected
from tests.simulation.scenarios.workload import MS, US
from tests.simulation.simulator import Action, Dial, HangUp, Transmit
from whale_ray.transport.links.handshake import (
    NONCE_BYTES,
    HandshakeRefusedError,
    Identity,
    Initiator,
    Responder,
)
from whale_ray.transport.links.link import Buffers, Link, LinkBrokenError
from whale_ray.transport.links.link_header import HEADER_BYTES, KIND_NAMES, LinkHeader, decode
from whale_ray.transport.links.reachability import ResolvedAddress

SECRET = bytes(range(32))
HANDSHAKE_NS = 100 * MS
TURN_BYTES = 64 << 10
UNREAD_MAX = 10_000
"""Messages behind one of which only a part has come."""
_PARTS = 0.1
"""Probability that a message comes in two parts."""
_GAPS_NS = (MS, MS, 30 * MS)
"""How much later at most the second one comes: as soon as the kernel has it, or late."""
_POLL_NS = 200 * US
"""How soon a host looks again at a connection without room."""
_HUNG_UP = "the peer hung up"
"""The reason of a connection whose last messages have all arrived."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A message on a connection, as shown in traces."""

    content: bytes

    def __repr__(self) -> str:
        if len(self.content) < HEADER_BYTES or self.content[:4] != b"WHLK":
            return f"handshake, {len(self.content)} bytes"
        header: LinkHeader = decode(self.content)
        fields = f"stream {header.stream} position {header.position} extra {header.extra}"
        return f"{KIND_NAMES[header.kind]} #{header.sequence} {fields} length {header.length}"


class SimulatedConnection:
    """One end of a connection, with its handshake and then its link; see `TcpConnection`."""

    carrier: Final = "simulated"

    def __init__(
        self, connector: SimulatedConnector, side: Initiator | Responder, host: str = ""
    ) -> None:
        """Begin with a handshake; `host` is the host that this one dialled."""
        self.side: Final = side
        self.host: Final = host
        self.dialled: Final = isinstance(side, Initiator)
        self.link: Link | None = None
        self.carrying: Connection | None = None
        """The connection of the simulator, once it is up."""
        self.dropped = False
        """Whether this end has closed it."""
        self.sent_bytes = 0
        """What was sent and the simulator does not know of yet."""
        self._connector = connector
        self._chance = connector.chance
        self._unread: deque[bytes] = deque(maxlen=UNREAD_MAX)
        self._ended = ""  # the reason, once it has ended
        self._rest: tuple[bytes, tuple[memoryview, ...], int] | None = None
        """A payload that has come in part, where it goes, how much of it is there."""
        self._rest_at_ns = 0
        self._more = False  # whether the link may have more to send once there is room

    # --- events from the simulator ----------------------------------------------------------------

    def up(self, connection: Connection) -> None:
        """Note that the connection is up."""
        self.carrying = connection
        if isinstance(self.side, Initiator):
            self._transmit(self.side.hello)

    def arrived(self, content: bytes) -> None:
        """Queue a message that has arrived."""
        assert len(self._unread) < UNREAD_MAX, "a host does not receive what comes"
        self._unread.append(content)

    def ended(self, reason: str) -> None:
        """Note that the connection has ended; what was not received yet may be lost."""
        self._ended = reason
        if reason != _HUNG_UP:
            self._unread.clear()
            self._rest = None

    # --- handshake -------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether both ends are authenticated."""
        return self.side.done

    def prove(self, now_ns: int) -> bool:
        """Continue the handshake; return whether anything happened."""
        side, moved = self.side, False
        side.check_time(now_ns)
        while self._unread and side.needs:
            content = self._unread.popleft()
            if len(content) > side.needs:
                msg = f"{len(content)} bytes within the handshake"
                raise LinkBrokenError(msg, "handshake")
            moved = True
            try:
                answer = side.receive(content)
            except HandshakeRefusedError as refusal:
                self._transmit(refusal.farewell)
                raise
            self._transmit(answer)
        if self._ended and not side.done:
            if self.carrying is not None:
                side.ended()
            raise LinkBrokenError(self._ended, self._ended)
        return moved

    def _transmit(self, content: bytes) -> None:
        if content and self.carrying is not None:
            self._connector.transmit(self.carrying, content)
            self.sent_bytes += len(content)

    # --- the link --------------------------------------------------------------------------------

    @property
    def readable(self) -> bool:
        """Whether there may be a message or the end to receive."""
        return bool(self._unread or self._rest or self._ended)

    @property
    def _room(self) -> int:
        connection = self.carrying
        if connection is None:
            return 0
        return max(0, connection.room(self._connector.name) - self.sent_bytes)

    @property
    def writable(self) -> bool:
        """Whether there is room to send."""
        return self._room > 0

    @property
    def unfinished(self) -> bool:
        """Whether more is to be received, or to be sent once there is room."""
        return self._rest is not None or bool(self._unread) or self._more

    def look_again_ns(self, now_ns: int) -> int | None:
        """Return when to poll for events that the simulator does not report; None if never.

        Such events are the rest of a message, and room to send.
        """
        rest_ns = self._rest_at_ns if self._rest is not None else None
        if not self._more:
            return rest_ns
        room_ns = now_ns + _POLL_NS
        return room_ns if rest_ns is None else min(room_ns, rest_ns)

    def receive(self, link: Link, now_ns: int) -> bool:
        """Pass arrived messages to the link, up to one that has arrived in part."""
        moved = False
        if self._rest is not None and now_ns >= self._rest_at_ns:
            self._take_rest(link)
            moved = True
        while self._unread and self._rest is None:
            link.heard(now_ns)
            self._take(link, self._unread.popleft(), now_ns)
            moved = True
        if self._ended and not self._unread and self._rest is None:
            raise LinkBrokenError(self._ended, self._ended)
        return moved

    def _take(self, link: Link, content: bytes, now_ns: int) -> None:
        """Take a message, or a part of it now and the rest later."""
        length, places = link.begin(content[:HEADER_BYTES])
        assert len(content) == HEADER_BYTES + length
        if not length:
            return
        self._rest = (content[HEADER_BYTES:], places, 0)
        if self._chance.random() < self._connector.breaks_within:
            self._take_part(link)
            msg = "within a message"
            raise LinkBrokenError(msg, msg)
        if self._chance.random() < _PARTS:
            self._take_part(link)
            self._rest_at_ns = now_ns + 1 + self._chance.randrange(self._chance.choice(_GAPS_NS))
        else:
            self._take_rest(link)

    def _take_part(self, link: Link) -> None:
        assert self._rest is not None
        payload, places, _ = self._rest
        size = self._chance.randrange(len(payload))
        _fill(places, payload[:size], 0)
        self._rest = (payload, places, size)
        link.progress(size)

    def _take_rest(self, link: Link) -> None:
        if self._rest is not None:
            (payload, places, start), self._rest = self._rest, None
            _fill(places, payload, start)
            link.end()

    def divert(self, link: Link, stream: int) -> None:
        """Discard the rest of a payload of `stream` that is being received."""
        if self._rest is not None:
            payload, _, start = self._rest
            places = link.divert(stream, len(payload) - start)
            if places is not None:
                self._rest = (payload[start:], places, 0)

    def send(self, link: Link, now_ns: int) -> bool:
        """Send the link's messages as far as there is room."""
        moved = False
        self._more = True
        while (room := self._room) > 0:
            buffers: Buffers = []
            link.outbound(buffers, min(room, TURN_BYTES), now_ns)
            if not buffers:
                self._more = False
                break
            for content in _messages(buffers):
                self._transmit(content)
            moved = True
        return moved

    def send_goodbye(self, link: Link) -> None:
        """Send the peer a goodbye, if there is room for it."""
        if self.writable:
            buffers: Buffers = []
            link.goodbye(buffers)
            for content in _messages(buffers):
                self._transmit(content)


class SimulatedConnector:
    """Opens and closes the connections of one host."""

    def __init__(self, name: str, chance: random.Random) -> None:
        """Begin without connections."""
        self.name: Final = name
        self.chance: Final = chance
        self.breaks_within = 0.0
        """Probability that a connection breaks within a message."""
        self.actions: list[Action] = []
        """What the simulator is to do; whoever hands it on calls `handed_on`."""
        self._identity = Identity("job", 1, 1, name)
        self._up: dict[int, SimulatedConnection] = {}

    # --- events from the simulator ----------------------------------------------------------------

    def take(
        self, message: object, now_ns: int, accept: Callable[[SimulatedConnection], None]
    ) -> None:
        """Handle an event of a connection; `accept` gets those that others have dialled."""
        match message:
            case Connected(connection):
                self._connected(connection, now_ns, accept)
            case Disconnected(connection, reason):
                own = connection.attempt if connection.initiator == self.name else None
                end = self._up.get(connection.number, own)
                if isinstance(end, SimulatedConnection):
                    end.ended(reason)
            case Arrived(connection, Wire(content)):
                if connection.number in self._up:
                    self._up[connection.number].arrived(content)

    def _connected(
        self, connection: Connection, now_ns: int, accept: Callable[[SimulatedConnection], None]
    ) -> None:
        end = connection.attempt
        if connection.initiator != self.name:
            nonce, deadline_ns = self.chance.randbytes(NONCE_BYTES), now_ns + HANDSHAKE_NS
            end = SimulatedConnection(
                self, Responder(self._identity, SECRET, nonce, deadline_ns=deadline_ns)
            )
            accept(end)
        assert isinstance(end, SimulatedConnection)
        if end.dropped:
            self.actions.append(HangUp(connection))
            return
        self._up[connection.number] = end
        end.up(connection)

    def handed_on(self) -> list[Action]:
        """Return the actions since the last call."""
        for end in self._up.values():
            end.sent_bytes = 0
        actions, self.actions = self.actions, []
        return actions

    @property
    def carrying(self) -> list[SimulatedConnection]:
        """The connections whose links are not over."""
        return [end for end in self._up.values() if end.link is not None and not end.link.over]

    def transmit(self, connection: Connection, content: bytes) -> None:
        """Send a message."""
        self.actions.append(Transmit(connection, Wire(content), len(content)))

    # --- calls by `LinkManager` -------------------------------------------------------------

    def connect(self, host: str, address: ResolvedAddress, now_ns: int) -> SimulatedConnection:
        """Begin a connection to `host`, to the process that has its name now."""
        del address
        nonce, deadline_ns = self.chance.randbytes(NONCE_BYTES), now_ns + HANDSHAKE_NS
        side = Initiator(self._identity, SECRET, nonce, expects=host, deadline_ns=deadline_ns)
        end = SimulatedConnection(self, side, host)
        self.actions.append(Dial(host, end))
        return end

    def take_over(self, proved: SimulatedConnection, now_ns: int) -> SimulatedConnection:
        """Use the connection itself as the link's carrier."""
        del now_ns
        return proved

    def establish(
        self, proved: SimulatedConnection, connection: SimulatedConnection, link: Link
    ) -> None:
        """Use `connection` as the carrier of `link` from now on."""
        assert proved is connection
        connection.link = link

    def link_broke(
        self, connection: SimulatedConnection, link: Link, reason: str, now_ns: int
    ) -> None:
        """Do nothing: there is no other carrier to choose."""

    def drop(self, connection: SimulatedConnection) -> None:
        """Hang up; a connection that is not up yet is closed as soon as it is."""
        connection.dropped = True
        if connection.carrying is not None:
            del self._up[connection.carrying.number]
            self.actions.append(HangUp(connection.carrying))


def _messages(buffers: Buffers) -> list[bytes]:
    """Join headers with their payloads, as they follow each other on a socket."""
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
    """Copy the bytes of a payload from `start` to their place."""
    offset = 0
    for place in places:
        stop = offset + len(place)
        if start < stop:
            low = max(start, offset)
            part = payload[low:stop]
            place[low - offset : low - offset + len(part)] = part
        offset = stop
