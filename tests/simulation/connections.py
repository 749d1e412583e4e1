"""Connections over the simulated network, which lose nothing, keep the order, and can break.

A node dials another; both then get `Connected`, messages as `Arrived`, and at the end, unless they
hang up themselves, `Disconnected`. `CutEffect` defines the effect of a cut of the link. With
`faulty` the link's loss, duplication and reordering affect messages as well, which TCP would hide:
for protocols that must detect even that.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from dataclasses import dataclass

from tests.simulation.network import Hand, Link, Network, Record
from whale_ray.lab.simulator.clock import EventQueue, Timer


class CutEffect(enum.Enum):
    """The effect of a cut of the link, in either direction, on a connection."""

    RESET = "reset"
    """It breaks; messages in flight are lost, and both ends are notified at once."""
    SILENT = "silent"
    """The same, but the ends are notified `silence_ns` later, even if the link heals before."""
    STALL = "stall"
    """Messages in flight wait until the link heals; after `silence_ns` the connection breaks."""


@dataclass(frozen=True, slots=True)
class ConnectionModel:
    """How connections behave."""

    effect: CutEffect = CutEffect.STALL
    silence_ns: int = 1_000_000_000
    """Nanoseconds without an answer after which an end is notified of a broken connection."""
    window_bytes: int = 1 << 20
    """Bytes that may be under way in one direction; see `Connection.room`."""
    faulty: bool = False
    """Whether the link's loss, duplication and reordering reach the messages."""


class Connection:
    """A connection between two nodes; both hold this object."""

    __slots__ = (
        "attempt",
        "initiator",
        "live",
        "number",
        "pipes",
        "responder",
        "stalled",
        "window_bytes",
    )

    def __init__(
        self, number: int, forth: Link, back: Link, window_bytes: int, attempt: object
    ) -> None:
        """Create a connection that is not up yet; only `Connections` does so."""
        self.number = number
        self.attempt = attempt
        """What the initiator knows this connection by, before it is up."""
        self.initiator = forth.source
        self.responder = forth.target
        self.pipes = {forth.source: Pipe(self, forth), forth.target: Pipe(self, back)}
        """By sender."""
        self.live = False
        """Whether messages pass, or will once the link heals."""
        self.stalled: Timer | None = None
        self.window_bytes = window_bytes

    def __repr__(self) -> str:
        return f"#{self.number}"

    def peer_of(self, name: str) -> str:
        """Return the other end's node."""
        return self.responder if name == self.initiator else self.initiator

    def room(self, name: str) -> int:
        """Return how many bytes the node `name` should send at most now, 0 when it should wait."""
        return max(0, self.window_bytes - self.pipes[name].pending_bytes)


class Pipe:
    """One direction of a connection."""

    __slots__ = (
        "arrived",
        "closed",
        "connection",
        "expected",
        "held",
        "link",
        "pending_bytes",
        "sent",
    )

    def __init__(self, connection: Connection, link: Link) -> None:
        self.connection = connection
        self.link = link
        self.sent = 0
        """Messages sent."""
        self.expected = 0
        """Messages delivered, in order."""
        self.arrived: dict[int, _Parcel] = {}
        """What overtook the message that is expected."""
        self.held: list[_Parcel] = []
        """What waits for the link to heal."""
        self.pending_bytes = 0
        """Bytes sent and neither delivered nor lost."""
        self.closed = False
        """Whether the sender has hung up."""


@dataclass(frozen=True, slots=True)
class _Parcel:
    number: int
    message: object
    nbytes: int


@dataclass(frozen=True, slots=True)
class Connected:
    """A node's connection is up."""

    connection: Connection


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message arrived over a connection."""

    connection: Connection
    message: object


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection has ended; for the node that dialled, possibly before it was up."""

    connection: Connection
    reason: str


@dataclass(slots=True)
class ConnectionCounts:
    """Counts of connections and their messages."""

    dialled: int = 0
    """Attempts to connect."""
    broken: int = 0
    """Connections, and attempts, that ended otherwise than by hanging up."""
    messages: int = 0
    """Messages sent."""
    delivered: int = 0
    """Messages, duplicates included, that arrived."""
    lost: int = 0
    """Messages that went into a broken or ended connection, or were in it when it broke, or were
    lost at random (`faulty`)."""
    duplicated: int = 0
    """Messages that were duplicated (`faulty`)."""


_HANG_UP = object()
"""The last message of a direction."""


def _is_control(message: object) -> bool:
    """Return whether it is a connection's own message: not counted, and never lost at random."""
    return message is _HANG_UP or isinstance(message, Connected)


class Connections:
    """All connections of a network."""

    def __init__(
        self,
        network: Network,
        events: EventQueue,
        chance: random.Random,
        model: ConnectionModel,
        hand: Hand,
        record: Record,
    ) -> None:
        self._network = network
        self._events = events
        self._clock = events.clock
        self._draw = chance.random
        self.model = model
        """How connections behave from now on."""
        self._hand = hand
        self._record = record
        self._known: dict[int, Connection] = {}  # connections being dialled, and those that are up
        self._untold: Counter[Connection] = Counter()  # ends that nodes have still to learn of
        self._number = 0
        self.counts = ConnectionCounts()
        network.watch(self._link_changed)

    # --- beginning and end ----------------------------------------------------------------------

    def dial(self, initiator: str, responder: str, attempt: object = None) -> Connection:
        """Begin a connection; both ends learn of it, or the initiator learns that it failed."""
        self.counts.dialled += 1
        self._number += 1
        forth = self._network.link(initiator, responder)
        back = self._network.link(responder, initiator)
        connection = Connection(self._number, forth, back, self.model.window_bytes, attempt)
        self._known[connection.number] = connection
        if forth.open and back.open:
            epochs = (forth.epoch, back.epoch)
            arrival_ns = self._network.arrival_ns(forth, self._clock.now_ns)
            self._events.post(arrival_ns, self._knock, connection, epochs)
        else:
            self._fail(connection, "no answer", self.model.silence_ns)
        return connection

    def _knock(self, connection: Connection, epochs: tuple[int, int]) -> None:
        forth, back = (pipe.link for pipe in connection.pipes.values())
        if connection.pipes[connection.initiator].closed:
            self._end(connection)  # the initiator died, or has hung up meanwhile
            return
        if (forth.epoch, back.epoch) != epochs:
            self._fail(connection, "no answer", self.model.silence_ns)
            return
        connection.live = True
        # Sent before the responder learns of it: it may answer at once, and this must arrive first.
        self._send(connection.pipes[connection.responder], Connected(connection), 0)
        if not self._hand(connection.responder, connection.initiator, Connected(connection)):
            self._end(connection)
            self._fail(connection, "refused", back.model.delay_ns)

    def _fail(self, connection: Connection, reason: str, delay_ns: int) -> None:
        self.counts.broken += 1
        self._tell_later(connection, connection.initiator, reason, delay_ns)

    def open(self) -> tuple[Connection, ...]:
        """Return the connections that are up, oldest first."""
        return tuple(one for one in self._known.values() if one.live)

    def hang_up(self, connection: Connection, name: str) -> None:
        """End a connection for node `name`; the peer learns of it after the messages under way."""
        pipe = connection.pipes[name]
        if connection.live and not pipe.closed:
            self._send(pipe, _HANG_UP, 0)
        pipe.closed = True
        if all(one.closed for one in connection.pipes.values()):
            self._end(connection)

    def crashed(self, name: str, *, loud: bool) -> None:
        """End all connections of a node that died; peers are notified at once only if `loud`."""
        for connection in dict.fromkeys((*self._known.values(), *self._untold)):
            if name in connection.pipes:
                connection.pipes[name].closed = True
                if not connection.live:
                    continue  # being dialled: the target or the initiator is dead; or ended already
                peer = connection.peer_of(name)
                self._break(connection)
                delay_ns = connection.pipes[name].link.model.delay_ns
                delay_ns = delay_ns if loud else self.model.silence_ns
                self._tell_later(connection, peer, "the peer crashed", delay_ns)

    def _tell_later(self, connection: Connection, name: str, reason: str, delay_ns: int) -> None:
        self._untold[connection] += 1
        self._events.post(self._clock.now_ns + delay_ns, self._tell, connection, name, reason)

    def _tell(self, connection: Connection, name: str, reason: str) -> None:
        if not connection.live:
            self._known.pop(connection.number, None)
        self._untold[connection] -= 1
        if not self._untold[connection]:
            del self._untold[connection]
        if not connection.pipes[name].closed:
            connection.pipes[name].closed = True
            self._hand(name, connection.peer_of(name), Disconnected(connection, reason))

    def _break(self, connection: Connection) -> None:
        self.counts.broken += 1
        self._record("break", connection.initiator, connection.responder, connection)
        self._end(connection)

    def _end(self, connection: Connection) -> None:
        connection.live = False
        self._known.pop(connection.number, None)
        if connection.stalled is not None:
            connection.stalled.cancel()
        for pipe in connection.pipes.values():
            for parcel in (*pipe.held, *pipe.arrived.values()):
                self._lose(parcel)
            pipe.held.clear()
            pipe.arrived.clear()

    # --- messages -------------------------------------------------------------------------------

    def send(self, connection: Connection, name: str, message: object, nbytes: int) -> None:
        """Send a message from node `name` to the other end; if the connection broke, it is lost."""
        pipe = connection.pipes[name]
        self.counts.messages += 1
        if not connection.live or pipe.closed:
            self.counts.lost += 1
            return
        self._send(pipe, message, nbytes)

    def _send(self, pipe: Pipe, message: object, nbytes: int) -> None:
        parcel = _Parcel(pipe.sent, message, nbytes)
        pipe.sent += 1
        pipe.pending_bytes += nbytes
        if pipe.link.open:
            self._launch(pipe, parcel)
        else:
            pipe.held.append(parcel)

    def _launch(self, pipe: Pipe, parcel: _Parcel) -> None:
        link, model = pipe.link, pipe.link.model
        link.free_ns = departure_ns = self._network.departure_ns(link, parcel.nbytes)
        faulty = self.model.faulty and not _is_control(parcel.message)
        if faulty and model.loss and self._draw() < model.loss:
            self._lose(parcel)
            pipe.pending_bytes -= parcel.nbytes
            self._record("lost", link.source, link.target, parcel.message)
            return
        arrival_ns = self._network.arrival_ns(link, departure_ns)
        self._events.post(arrival_ns, self._arrive, pipe, parcel)
        if faulty and model.duplication and self._draw() < model.duplication:
            self.counts.duplicated += 1
            self._record("duplicate", link.source, link.target, parcel.message)
            arrival_ns = self._network.arrival_ns(link, departure_ns)
            copy = _Parcel(parcel.number, parcel.message, 0)  # its bytes are counted already
            self._events.post(arrival_ns, self._arrive, pipe, copy)

    def _lose(self, parcel: _Parcel) -> None:
        if not _is_control(parcel.message):
            self.counts.lost += 1

    def _arrive(self, pipe: Pipe, parcel: _Parcel) -> None:
        if not pipe.connection.live:
            self._lose(parcel)
            self._record("cut off", pipe.link.source, pipe.link.target, parcel.message)
        elif not pipe.link.open:
            pipe.held.append(parcel)
        elif self.model.faulty:
            pipe.pending_bytes -= parcel.nbytes
            self._deliver(pipe, parcel)
        else:
            pipe.arrived[parcel.number] = parcel
            while pipe.expected in pipe.arrived:
                ready = pipe.arrived.pop(pipe.expected)
                pipe.expected += 1
                pipe.pending_bytes -= ready.nbytes
                self._deliver(pipe, ready)

    def _deliver(self, pipe: Pipe, parcel: _Parcel) -> None:
        connection, link, message = pipe.connection, pipe.link, parcel.message
        if message is _HANG_UP:
            self._tell(connection, link.target, "the peer hung up")
            self._end(connection)
        elif isinstance(message, Connected):
            if not connection.pipes[link.target].closed:
                self._hand(link.target, link.source, message)
        elif connection.pipes[link.target].closed:
            self.counts.lost += 1  # the receiver has hung up meanwhile
        else:
            self.counts.delivered += 1
            self._hand(link.target, link.source, Arrived(connection, message))

    # --- cuts -----------------------------------------------------------------------------------

    def _link_changed(self, link: Link) -> None:
        for connection in tuple(self._known.values()):
            if not connection.live or connection.pipes.keys() != {link.source, link.target}:
                continue
            if not link.open:
                self._was_cut(connection)
            elif all(pipe.link.open for pipe in connection.pipes.values()):
                self._healed(connection)

    def _was_cut(self, connection: Connection) -> None:
        if self.model.effect is not CutEffect.STALL:
            self._break(connection)
            is_told = self.model.effect is CutEffect.RESET
            self._tell_both(connection, 0 if is_told else self.model.silence_ns)
        elif connection.stalled is None:
            give_up_ns = self._clock.now_ns + self.model.silence_ns
            connection.stalled = self._events.timer(give_up_ns, self._give_up, connection)

    def _give_up(self, connection: Connection) -> None:
        self._break(connection)
        self._tell_both(connection, 0)

    def _tell_both(self, connection: Connection, delay_ns: int) -> None:
        for name in connection.pipes:
            self._tell_later(connection, name, "the link is cut", delay_ns)

    def _healed(self, connection: Connection) -> None:
        if connection.stalled is not None:
            connection.stalled.cancel()
            connection.stalled = None
        for pipe in connection.pipes.values():
            held, pipe.held = sorted(pipe.held, key=lambda parcel: parcel.number), []
            for parcel in held:
                self._launch(pipe, parcel)
