"""The links of one host: which connection carries which, how they come to stand and how they end.

::

    dial ──► connect ─┐
                      ├─► handshake ──► link ──► broken: dialled again after a while
    accept ───────────┘       │           ├────► hung up: this side needs it no more, and says so
                              │           └────► ended: the peer's process is dead
                              └──► refused: dialled again after a while

Pure: no socket, no clock, no randomness. Times are passed in, and connections are made and closed
by a `Connector`: over sockets (tcp/connector.py), or over the network of the simulator, which runs
this very object under its seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final, Generic, Protocol, TypeVar

from ...configs.errors import CorruptedMessageError, ProtocolError
from ..channel import Outcome
from ..mirror import MirrorRing, RingTap
from ..retention import Retention
from .attached import Incoming, Offer, Until
from .handshake import HandshakeRefusedError, Initiator, Responder
from .link import Link, LinkBrokenError, LinkTimes, Role
from .neighbours import Neighbours
from .reachability import Reachability, ResolvedAddress
from .statistics import Unreachable


class Handshaking(Protocol):
    """A connection whose ends have not yet proved to each other who they are."""

    @property
    def dialled(self) -> bool:
        """Whether this host dialled: the peer is a parent."""
        ...

    @property
    def host(self) -> str:
        """Whom this host dialled; empty if it was dialled."""
        ...

    @property
    def side(self) -> Initiator | Responder:
        """This host's side of the handshake."""
        ...

    @property
    def settled(self) -> bool:
        """Whether all that precedes a link is sent and received."""
        ...

    def prove(self, now_ns: int) -> bool:
        """Carry the handshake on; return whether anything happened. Raises ProtocolError."""
        ...


class LinkConnection(Protocol):
    """A connection that carries a link; methods raise ProtocolError once it is of no use."""

    @property
    def link(self) -> Link | None:
        """The link, once it is established."""
        ...

    @property
    def dialled(self) -> bool:
        """Whether this host dialled: the peer is a parent."""
        ...

    @property
    def readable(self) -> bool:
        """Whether there may be something to receive."""
        ...

    @property
    def writable(self) -> bool:
        """Whether there may be room to send."""
        ...

    @property
    def unfinished(self) -> bool:
        """Whether the last `receive` and `send` ended before all was done."""
        ...

    def receive(self, link: Link, now_ns: int) -> bool:
        """Give the link what has come; return whether anything has."""
        ...

    def send(self, link: Link, now_ns: int) -> bool:
        """Send what the link has; return whether anything was sent."""
        ...

    def divert(self, link: Link, stream: int) -> None:
        """Drop what still comes of `stream`, which is about to get another parent."""
        ...

    def send_goodbye(self, link: Link) -> None:
        """Tell the peer that this side closes on purpose, if that can be done at once."""
        ...


H = TypeVar("H", bound=Handshaking)
C = TypeVar("C", bound=LinkConnection)


class Connector(Protocol[H, C]):
    """Makes the connections of a `LinkManager`, and closes them."""

    def connect(self, host: str, address: ResolvedAddress, now_ns: int) -> H:
        """Begin a connection to `host`. Raises LinkBrokenError if that fails at once."""
        ...

    def take_over(self, proved: H, now_ns: int) -> C | None:
        """Return what carries the link between hosts that have proved who they are.

        None as long as they have not agreed on that. Raises ProtocolError if they cannot.
        """
        ...

    def establish(self, proved: H, connection: C, link: Link) -> None:
        """Have `connection` carry `link` from now on, in the place of `proved`."""
        ...

    def link_broke(self, connection: C, link: Link, reason: str, now_ns: int) -> None:
        """Take note why a link broke; its connection was dropped."""
        ...

    def drop(self, connection: H | C) -> None:
        """Close a connection."""
        ...


def reason_of(error: ProtocolError) -> str:
    """Return by what to count the end of a connection: a word or two."""
    if isinstance(error, HandshakeRefusedError):
        return error.reason.words
    return error.reason if isinstance(error, LinkBrokenError) else "protocol"


def explanation_of(error: ProtocolError) -> str:
    """Return in words why a connection ended, as a reason that a host is not reached."""
    return error.explanation if isinstance(error, HandshakeRefusedError) else str(error)


class LinkManager(Generic[H, C]):
    """All links of one host.

    A peer that this host dialled is a parent, one that dialled it a child; between two hosts there
    may be one link of each kind.
    """

    def __init__(
        self,
        connector: Connector[H, C],
        neighbours: Neighbours,
        reachability: Reachability,
        times: LinkTimes,
    ) -> None:
        """Have no link yet."""
        self.neighbours: Final = neighbours
        self.links: Final[dict[tuple[str, Role], C]] = {}
        """The connections that carry links, by the peer and its role."""
        self.handshaking: Final[dict[H, None]] = {}
        """The connections that do not carry a link yet, oldest first."""
        self.refused: Final[Counter[str]] = Counter()
        """Connections, to here and from here, that did not get through their handshake, by
        reason."""
        self.last_refusal = ""
        """Why a connection was refused or a link broke last, in words."""
        self.asked = False
        """Whether something may be left for `turn` that no connection knows of."""
        self.closed = False
        self._connector = connector
        self._reachability = reachability
        self._times = times

    # --- what the host does --------------------------------------------------------------------

    def offer(
        self,
        stream: int,
        tap: RingTap,
        children: Collection[str],
        now_ns: int,
        *,
        until: Until = "received",
        dynamic: bool = False,
        retention: Retention | None = None,
    ) -> Offer:
        """Offer a stream; see `TcpEndpoint.offer`. ValueError if `stream` was offered."""
        offer, refused = self.neighbours.offer(
            stream, tap, children, until=until, dynamic=dynamic, retention=retention
        )
        for child in dict.fromkeys((*children, *refused)):
            connection = self.links.get((child, Role.CHILD))
            if connection is None:
                self._reachability.awaited(child, now_ns)
            elif child in refused:
                self._break(connection, refused[child], now_ns)
        self.asked = True
        return offer

    def subscribe(self, stream: int, mirror: MirrorRing, parent: str | None) -> Incoming:
        """Fill `mirror` with a stream; see `TcpEndpoint.subscribe`."""
        self.asked = True
        return self.neighbours.subscribe(stream, mirror, parent)

    def move(self, stream: int, parent: str | None) -> None:
        """Read on from another parent; see `TcpEndpoint.move`. KeyError for an unknown stream."""
        former = self.neighbours.incoming[stream].parent
        connection = self.links.get((former or "", Role.PARENT))
        if connection is not None and connection.link is not None and former != parent:
            connection.divert(connection.link, stream)
        self.neighbours.move(stream, parent)
        self.asked = True

    def dial(self, host: str, address: ResolvedAddress, now_ns: int) -> None:
        """Keep a link to the parent `host` up; under another address its process is another."""
        if self._reachability.is_elsewhere(host, address):
            self._stop_dialling(host)
        self._reachability.dial(host, address, now_ns)
        self.asked = True

    def undial(self, host: str) -> None:
        """Close the link to the parent `host`, and dial it no more; nothing if it is not dialled.

        ValueError if a stream is still read from there.
        """
        peer = self.neighbours.peers.get(host)
        if peer is not None and peer.incoming:
            msg = f"streams {sorted(peer.incoming)} are still read from host {host!r}"
            raise ValueError(msg)
        self._stop_dialling(host)

    def forget(self, host: str) -> None:
        """Take note that the process that stood for `host` is dead; see `TcpEndpoint.forget`."""
        for role in Role:
            connection = self.links.get((host, role))
            if connection is not None:
                self._end(connection)
        self._stop_dialling(host)
        self._reachability.forget(host)
        self.neighbours.died(host)

    def _stop_dialling(self, host: str) -> None:
        if not self._reachability.stop(host):
            return
        connection = self.links.get((host, Role.PARENT))
        if connection is not None:
            self._hang_up(connection)
        for handshaking in tuple(self.handshaking):
            if handshaking.dialled and handshaking.host == host:
                del self.handshaking[handshaking]
                self._connector.drop(handshaking)

    def send_control(self, host: str, message: bytes) -> Outcome:
        """Queue a message for `host`; see `TcpEndpoint.send_control`."""
        peer = self.neighbours.peers.get(host)
        if self.closed or peer is None:
            return Outcome.CLOSED
        self.asked = True
        return peer.outbox.put(message)

    def receive_control(self) -> tuple[str, bytes] | None:
        """Return the next control message and who sent it; None if there is none."""
        return self.neighbours.receive_control()

    def reject(self, host: str, why: str, now_ns: int) -> None:
        """Break the links to `host`, whose control message makes no sense; dial it anew.

        ValueError if no such host is known.
        """
        if host not in self.neighbours.peers:
            msg = f"host {host!r} is not known here"
            raise ValueError(msg)
        error = LinkBrokenError(f"host {host!r} sent nonsense: {why}", "rejected")
        connections = [self.links[host, role] for role in Role if (host, role) in self.links]
        if not connections:
            self.neighbours.peers[host].failed(error.reason, str(error))
        for connection in connections:
            self._break(connection, error, now_ns)

    def close(self) -> None:
        """Say goodbye to all peers, and close all connections."""
        self.closed = True
        for connection in tuple(self.links.values()):
            self._hang_up(connection)
        for handshaking in tuple(self.handshaking):
            del self.handshaking[handshaking]
            self._connector.drop(handshaking)

    # --- the loop ------------------------------------------------------------------------------

    def turn(self, now_ns: int, *, accepted: bool = False) -> bool:
        """Do all that can be done without waiting; return whether anything was done.

        Dial, carry handshakes on, receive, send, publish. `accepted`: whether a connection was
        accepted just now. Raises CorruptedMessageError if the memory of a tapped ring holds no
        frames.
        """
        self._reachability.begin(now_ns)
        moved = accepted
        for host in self._reachability.due(now_ns):
            self._connect(host, now_ns)
            moved = True
        for handshaking in tuple(self.handshaking):
            moved |= self.prove(handshaking, now_ns)
        self.asked = moved
        connections = tuple(self.links.values())
        for connection in connections:
            if connection.readable:
                moved |= self.receive(connection, now_ns)
        for connection in connections:
            moved |= self._send(connection, now_ns)
        self.neighbours.tend()
        return self.neighbours.publish() or moved

    def _connect(self, host: str, now_ns: int) -> None:
        address = self._reachability.dialled(host)
        try:
            self.handshaking[self._connector.connect(host, address, now_ns)] = None
        except LinkBrokenError as error:
            self._dial_failed(host, error, now_ns)

    def accept(self, connection: H) -> None:
        """Begin the handshake on a connection that another host has dialled."""
        self.handshaking[connection] = None

    def prove(self, handshaking: H, now_ns: int) -> bool:
        """Carry a handshake on; return whether anything happened."""
        try:
            moved = handshaking.prove(now_ns)
            if not handshaking.settled:
                return moved
            connection = self._connector.take_over(handshaking, now_ns)
        except ProtocolError as error:
            self.refuse(handshaking, error, now_ns)
            return True
        if connection is not None:
            self._established(handshaking, connection, now_ns)
        return True

    def refuse(self, handshaking: H, error: ProtocolError, now_ns: int) -> None:
        """Close a connection that did not get through its handshake."""
        del self.handshaking[handshaking]
        self._connector.drop(handshaking)
        if handshaking.dialled:
            self._dial_failed(handshaking.host, error, now_ns)
        else:
            self._reachability.last_turned_away = explanation_of(error)
        self.refused[reason_of(error)] += 1
        self.last_refusal = str(error)

    def _dial_failed(self, host: str, error: ProtocolError, now_ns: int) -> None:
        self._reachability.failed(host, now_ns, reason_of(error))
        self.neighbours.peers[host].failed(reason_of(error), explanation_of(error))

    def _established(self, proved: H, connection: C, now_ns: int) -> None:
        del self.handshaking[proved]
        host = proved.side.peer.host
        role = Role.PARENT if connection.dialled else Role.CHILD
        before = self.links.get((host, role))
        if before is not None:
            # The peer knows better: it would not dial if it still had the other one.
            self._break(before, LinkBrokenError(f"host {host!r} dialled anew", "replaced"), now_ns)
        self._reachability.up(host, role)
        primary = role is Role.PARENT or host not in self._reachability
        link = Link(self.neighbours.peer(host), role, self._times, now_ns, primary=primary)
        self._connector.establish(proved, connection, link)
        self.links[host, role] = connection

    def receive(self, connection: C, now_ns: int) -> bool:
        """Take what has come over a connection; return whether anything has."""
        link = connection.link
        if link is None or link.over:
            return False
        try:
            return connection.receive(link, now_ns)
        except ProtocolError as error:
            self._break(connection, error, now_ns)
            return True

    def _send(self, connection: C, now_ns: int) -> bool:
        link = connection.link
        if link is None or link.over:
            return False
        try:
            link.check_silence(now_ns)
        except LinkBrokenError as error:
            self._break(connection, error, now_ns)
            return True
        if not connection.writable:
            return False
        try:
            return connection.send(link, now_ns)
        except CorruptedMessageError:
            raise
        except ProtocolError as error:
            self._break(connection, error, now_ns)
            return True

    # --- the end of links ----------------------------------------------------------------------

    def _break(self, connection: C, error: ProtocolError, now_ns: int) -> None:
        """Close a link that cannot continue; what was under way continues with the next one."""
        link = self._close(connection)
        reason = reason_of(error)
        link.broken(reason)
        self._connector.link_broke(connection, link, reason, now_ns)
        link.peer.counters.last_failure = self.last_refusal = str(error)
        self._reachability.broken(link.peer.host, link.role, now_ns, reason)
        self.asked = True

    def _hang_up(self, connection: C) -> None:
        """Close a link on purpose, and tell the peer."""
        link = connection.link
        assert link is not None, "only links are hung up"
        connection.send_goodbye(link)
        self._end(connection)

    def _end(self, connection: C) -> None:
        """Close a link of which nothing more is expected, without a word."""
        self._close(connection).ended()

    def _close(self, connection: C) -> Link:
        link = connection.link
        assert link is not None, "it has carried a link"
        self._connector.drop(connection)
        del self.links[link.peer.host, link.role]
        return link

    # --- what others ask -----------------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        """Whether `turn` has left something undone, or something was asked for since."""
        return self.asked or any(connection.unfinished for connection in self.links.values())

    def next_due_ns(self, now_ns: int) -> int:
        """Return when `turn` has to be called at the latest."""
        due_ns = min(now_ns + self._times.heartbeat_ns, self._reachability.next_dial_ns)
        for connection in self.links.values():
            link = connection.link
            if link is not None:
                # What is due to be sent waits for a full connection, not for a time.
                due = link.next_due_ns if connection.writable else link.silent_at_ns
                due_ns = min(due_ns, due)
        return min((due_ns, *(one.side.deadline_ns for one in self.handshaking)))

    @property
    def delivered(self) -> bool:
        """Whether all offered streams have ended and are acknowledged, and all mirrors finished."""
        return self.neighbours.delivered

    def congested(self, host: str) -> bool:
        """Return whether the link to the child `host` takes no more bytes for now."""
        connection = self.links.get((host, Role.CHILD))
        return connection is not None and not connection.writable

    def unreachable(self, now_ns: int) -> tuple[Unreachable, ...]:
        """Return the hosts without a link that stands, for how long since the first `turn`, why."""
        return self._reachability.unreachable(now_ns, self.links)
