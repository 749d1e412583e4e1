"""One host's end of the links to other hosts, over TCP.

::

    poll:  accept ─► receive into mirrors ─► forward to children ─► publish to local readers
           dial                              grant to parents       heartbeats, timeouts

The child dials its parent. One connection carries all streams from that parent to that child, and
everything else that the two have to say. Whoever has not proved to belong to the job is served
nothing but the handshake, for a limited time, and only so many at once.

Nothing here waits; one thread calls `poll`, and sleeps on its doorbell when that returns False.
"""

from __future__ import annotations

import random
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from ..configs.errors import ProtocolError
from ..configs.settings import TransportSettings
from .channel import Outcome
from .doorbell import Doorbell
from .handshake import (
    NONCE_BYTES,
    HandshakeRefusedError,
    Identity,
    Initiator,
    Responder,
)
from .link import Link, LinkBrokenError, LinkTimes, Role
from .link_statistics import LinkStatistics, statistics_of
from .link_streams import Incoming, Offer, Until
from .mirror import MirrorRing, RingTap
from .peer import Peer, PushSink, PushSource
from .reconnection import LinkState, Reconnection
from .tcp_connection import TcpConnection, broken_by
from .tcp_sockets import Address, Listener, dialling_socket, prepare, resolve
from .tcp_watch import ENDED, READABLE, WRITABLE, SocketWatch

_MS: Final = 1_000_000
_ACCEPTS_MAX: Final = 64
"""Connections accepted in one poll, so that a flood of them does not stop the links."""


class _Dial:
    """A parent that is to be dialled."""

    def __init__(
        self, family: socket.AddressFamily, address: Address, reconnection: Reconnection
    ) -> None:
        self.family: Final = family
        self.address: Final = address
        self.reconnection: Final = reconnection


class TcpEndpoint:
    """One host's sockets. One thread uses it; no call waits, but `dial` and `listen` may resolve.

    A peer that we dialled is a parent, one that dialled us a child; between two hosts there may be
    one link of each kind.
    """

    def __init__(
        self,
        identity: Identity,
        secret: bytes,
        settings: TransportSettings,
        clock_ns: Callable[[], int],
        chance: random.Random,
        doorbell: Doorbell | None = None,
    ) -> None:
        """Know who we are; `doorbell` is the one that `watch` rings by default."""
        self.identity: Final = identity
        self._secret = secret
        self._settings = settings
        self._clock_ns = clock_ns
        self._chance = chance
        self._doorbell = doorbell
        self._times = LinkTimes.of(settings)
        self._watch = SocketWatch()
        self._listener: Listener | None = None
        self._by_fd: dict[int, TcpConnection] = {}
        self._proving: dict[int, TcpConnection] = {}
        self._half_open = 0  # of those, how many dialled us
        self._links: dict[tuple[str, Role], TcpConnection] = {}
        self._peers: dict[str, Peer] = {}
        self._offers: dict[int, Offer] = {}
        self._dials: dict[str, _Dial] = {}
        self._child_lost_ns: dict[str, int] = {}
        self._somebody_waits = False
        self._closed = False
        self.refused: Counter[str] = Counter()
        """Connections, to here and from here, that did not get through their handshake, by
        reason."""
        self.last_refusal = ""
        """Why a connection was refused or a link broke last, in words."""

    # --- what the host does --------------------------------------------------------------------

    def listen(self, address: str) -> tuple[str, int]:
        """Accept links at `address` of this machine; return it as (numeric address, port).

        The port is the first free one of `port_range_low` to `port_range_high`. Raises
        ResourceError if the address does not resolve or is none of this machine, or all ports are
        taken; RuntimeError if this endpoint listens already.
        """
        if self._listener is not None:
            msg = "this endpoint listens already"
            raise RuntimeError(msg)
        low, high = self._settings.port_range_low, self._settings.port_range_high
        self._listener = Listener(address, low, high)
        self._watch.add_listener(self._listener.fileno())
        return self._listener.address

    def offer(
        self, stream: int, tap: RingTap, children: Collection[str], *, until: Until = "received"
    ) -> Offer:
        """Send the bytes of `tap` to each of the hosts `children` that subscribes to `stream`.

        The tap is released up to what all children have received; with until="consumed" up to what
        all readers of all children have given back. A child that has subscribed already and cannot
        be served loses its link. Raises ValueError if `stream` was offered.
        """
        if stream in self._offers:
            msg = f"stream {stream} is offered already"
            raise ValueError(msg)
        self._offers[stream] = offer = Offer(stream, tap, children, until)
        for child, outgoing in offer.outgoing.items():
            connection = self._links.get((child, Role.CHILD))
            try:
                self._peer(child).offered(outgoing)
            except ProtocolError as error:
                if connection is not None:
                    self._break(connection, error, self._clock_ns())
            if connection is None:
                self._child_lost_ns.setdefault(child, self._clock_ns())
        return offer

    def subscribe(self, stream: int, mirror: MirrorRing, parent: str) -> None:
        """Fill `mirror` with the bytes of `stream` from the host `parent` (also to be dialled).

        Raises ValueError if `stream` was subscribed.
        """
        if any(stream in peer.incoming for peer in self._peers.values()):
            msg = f"stream {stream} is subscribed already"
            raise ValueError(msg)
        delay_ns = int(self._settings.grant_delay_ms * _MS)
        self._peer(parent).incoming[stream] = Incoming(stream, mirror, delay_ns)

    def dial(self, host: str, address: Address) -> None:
        """Keep a link to the parent `host` up from now on, or under another address than before.

        Raises ResourceError if the address does not resolve.
        """
        family, numeric = resolve(host, address)
        settings = self._settings
        before = self._dials.get(host)
        self._dials[host] = _Dial(
            family,
            numeric,
            before.reconnection
            if before is not None
            else Reconnection(
                self._clock_ns(),
                settings.reconnect_backoff_ms * _MS,
                settings.reconnect_backoff_max_ms * _MS,
            ),
        )
        self._peer(host)

    def push_source(self, host: str, channel: int, source: PushSource) -> None:
        """Send what `source` has to the push channel `channel` of `host`."""
        self._peer(host).push_sources[channel] = source

    def push_sink(self, host: str, channel: int, sink: PushSink) -> None:
        """Take what `host` sends to the push channel `channel`."""
        self._peer(host).push_sinks[channel] = sink

    def send_control(self, host: str, message: bytes) -> Outcome:
        """Queue a message for `host`: it arrives once, in order, whatever happens to the link.

        BACK_PRESSURED while `control_queue_messages` are on their way, TOO_LARGE beyond 64 KiB,
        CLOSED if this endpoint is closed or knows no such host.
        """
        peer = self._peers.get(host)
        if self._closed or peer is None:
            return Outcome.CLOSED
        return peer.outbox.put(message)

    def receive_control(self) -> tuple[str, bytes] | None:
        """Return the next control message and who sent it; None if there is none."""
        for host, peer in self._peers.items():
            message = peer.inbox.take()
            if message is not None:
                return host, message
        return None

    def _peer(self, host: str) -> Peer:
        peer = self._peers.get(host)
        if peer is None:
            mark = secrets.randbits(32) | 1
            messages_max = self._settings.control_queue_messages
            self._peers[host] = peer = Peer(host, mark, messages_max, self._offers)
        return peer

    # --- the loop ------------------------------------------------------------------------------

    def poll(self, now_ns: int | None = None) -> bool:
        """Do all that can be done without waiting; return whether anything was done.

        Accept, receive into mirrors, forward to children, publish, grant, heartbeat. Made to be
        the `ready` of the doorbell's `wait`, too. Raises CorruptedMessageError if the memory of a
        tapped ring of this host holds no frames.
        """
        if self._closed:
            return False
        now = self._clock_ns() if now_ns is None else now_ns
        self._collect()
        moved = self._accept(now) if self._somebody_waits else False
        for dial_host, dial in self._dials.items():
            if dial.reconnection.due(now):
                self._dial_now(dial_host, dial, now)
                moved = True
        for connection in tuple(self._proving.values()):
            moved |= self._prove(connection, now)
        links = tuple(self._links.values())
        for connection in links:
            if connection.readable:
                moved |= self._receive(connection, now)
        for connection in links:
            moved |= self._send(connection, now)
        if self._publish() or moved:
            return True
        self._watch.arm()
        return False

    def _collect(self) -> None:
        """Note which sockets have become ready."""
        for fd, events in self._watch.ready():
            connection = self._by_fd.get(fd)
            if connection is None:
                self._somebody_waits = True
                continue
            if events & READABLE:
                connection.readable = True
            if events & WRITABLE:
                connection.writable = True
            if events & ENDED:
                connection.ended = True

    def _accept(self, now: int) -> bool:
        listener = self._listener
        assert listener is not None, "only the listener is no connection"
        self._somebody_waits = False
        for accepted in range(_ACCEPTS_MAX):
            try:
                sock = listener.accept()
            except OSError as error:
                self._refuse(broken_by(error).reason, str(error))
                listener.turn_away()
                return True
            if sock is None:
                return accepted > 0
            if self._half_open >= self._settings.half_open_max:
                sock.close()
                self._refuse("too many at once", "too many connections wait for their proof")
                continue
            self._half_open += 1
            deadline_ns = now + self._settings.handshake_timeout_ms * _MS
            side = Responder(
                self.identity,
                self._secret,
                secrets.token_bytes(NONCE_BYTES),
                deadline_ns=deadline_ns,
            )
            self._begin(TcpConnection(sock, side))
        return True

    def _dial_now(self, host: str, dial: _Dial, now: int) -> None:
        dial.reconnection.dialled()
        side = Initiator(
            self.identity,
            self._secret,
            secrets.token_bytes(NONCE_BYTES),
            expects=host,
            deadline_ns=now + self._settings.handshake_timeout_ms * _MS,
        )
        try:
            sock = dialling_socket(dial.family, dial.address)
        except OSError as error:
            broken = broken_by(error)
            self._dial_failed(host, broken.reason, str(broken), now)
            return
        self._begin(TcpConnection(sock, side, host))

    def _begin(self, connection: TcpConnection) -> None:
        prepare(connection.sock, self._settings.silence_timeout_ms)
        self._by_fd[connection.fd] = connection
        self._proving[connection.fd] = connection
        self._watch.add(connection.fd)

    def _prove(self, connection: TcpConnection, now: int) -> bool:
        try:
            moved = connection.prove(now)
        except ProtocolError as error:
            self._refused(connection, error, now)
            return True
        if connection.side.done and not connection.unsent:
            self._established(connection, now)
            return True
        return moved

    def _established(self, connection: TcpConnection, now: int) -> None:
        self._forget_proving(connection)
        host = connection.side.peer.host
        role = Role.PARENT if connection.dialled else Role.CHILD
        before = self._links.get((host, role))
        if before is not None:
            # The peer knows better: it would not dial if it still had the other one.
            self._break(before, LinkBrokenError(f"host {host!r} dialled anew", "replaced"), now)
        if role is Role.PARENT:
            self._dials[host].reconnection.up()
        self._child_lost_ns.pop(host, None)
        primary = role is Role.PARENT or host not in self._dials
        link = Link(self._peer(host), role, self._times, now, primary=primary)
        connection.establish(link)
        self._links[host, role] = connection

    def _receive(self, connection: TcpConnection, now: int) -> bool:
        link = connection.link
        if link is None or connection.fd not in self._by_fd:
            return False
        try:
            return connection.receive(link, now)
        except ProtocolError as error:
            self._break(connection, error, now)
            return True

    def _send(self, connection: TcpConnection, now: int) -> bool:
        link = connection.link
        if link is None or connection.fd not in self._by_fd:
            return False
        try:
            link.check_silence(now)
        except LinkBrokenError as error:
            self._break(connection, error, now)
            return True
        if not connection.writable:
            return False
        try:
            return connection.send(link, now)
        except LinkBrokenError as error:
            self._break(connection, error, now)
            return True

    def _publish(self) -> bool:
        """Show local readers what children were sent before."""
        moved = False
        for peer in self._peers.values():
            if peer.changed:
                moved = True
                for incoming in peer.changed.values():
                    incoming.publish()
                peer.changed.clear()
        return moved

    # --- the end of connections ----------------------------------------------------------------

    def _forget_proving(self, connection: TcpConnection) -> None:
        del self._proving[connection.fd]
        if not connection.dialled:
            self._half_open -= 1

    def _refused(self, connection: TcpConnection, error: ProtocolError, now: int) -> None:
        """Close a connection that did not get through its handshake."""
        self._forget_proving(connection)
        self._drop(connection)
        if isinstance(error, HandshakeRefusedError):
            reason = error.reason.name.lower().replace("_", " ")
        else:
            reason = error.reason if isinstance(error, LinkBrokenError) else "protocol"
        if connection.dialled:
            self._dial_failed(connection.host, reason, str(error), now)
        self._refuse(reason, str(error))

    def _refuse(self, reason: str, explanation: str) -> None:
        self.refused[reason] += 1
        self.last_refusal = explanation

    def _break(self, connection: TcpConnection, error: ProtocolError, now: int) -> None:
        """Close a link; what was under way goes on with the next one."""
        link = connection.link
        assert link is not None, "only links break"
        self._drop(connection)
        host = link.peer.host
        del self._links[host, link.role]
        reason = error.reason if isinstance(error, LinkBrokenError) else "protocol"
        link.broken(reason)
        link.peer.counters.last_failure = self.last_refusal = str(error)
        if link.role is Role.CHILD:
            self._child_lost_ns[host] = now
        elif host in self._dials:
            self._dials[host].reconnection.failed(now, reason, self._chance.random())

    def _dial_failed(self, host: str, reason: str, explanation: str, now: int) -> None:
        self._dials[host].reconnection.failed(now, reason, self._chance.random())
        counters = self._peer(host).counters
        counters.failures[reason] += 1
        counters.last_failure = explanation

    def _drop(self, connection: TcpConnection) -> None:
        del self._by_fd[connection.fd]
        self._watch.remove(connection.fd)
        connection.close()

    # --- what others ask -----------------------------------------------------------------------

    @property
    def next_due_ns(self) -> int:
        """When `poll` has to be called at the latest, on `clock_ns`."""
        due_ns = self._clock_ns() + self._times.heartbeat_ns
        for connection in self._links.values():
            link = connection.link
            if link is not None:
                # What is due to be sent waits for a full socket, not for a time.
                due = link.next_due_ns if connection.writable else link.silent_at_ns
                due_ns = min(due_ns, due)
        for proving in self._proving.values():
            due_ns = min(due_ns, proving.side.deadline_ns)
        for dial in self._dials.values():
            if dial.reconnection.state is LinkState.WAITING:
                due_ns = min(due_ns, dial.reconnection.next_dial_ns)
        return due_ns

    def watch(self, ring: Callable[[], None] | None = None) -> None:
        """Start a thread that calls `ring` (the doorbell's by default) when a socket is ready.

        `close` ends it. ValueError if there is nothing to ring.
        """
        if ring is None:
            if self._doorbell is None:
                msg = "there is no doorbell to ring"
                raise ValueError(msg)
            ring = self._doorbell.ring
        self._watch.start(ring)

    @property
    def delivered(self) -> bool:
        """Whether all offered streams have ended and are acknowledged, and all mirrors finished."""
        return all(offer.complete for offer in self._offers.values()) and all(
            peer.delivered for peer in self._peers.values()
        )

    def unreachable(self, now_ns: int) -> tuple[tuple[str, int], ...]:
        """Return the hosts without a link that stands, and for how long, in ns; by name."""
        since = dict(self._child_lost_ns)
        for host, dial in self._dials.items():
            lost_ns = dial.reconnection.unreachable_since_ns
            if lost_ns is not None:
                since[host] = min(lost_ns, since.get(host, lost_ns))
        return tuple(sorted((host, max(0, now_ns - lost)) for host, lost in since.items()))

    def statistics(self) -> tuple[LinkStatistics, ...]:
        """Return the counters of every peer, by name."""
        return tuple(
            statistics_of(
                peer, any((host, role) in self._links for role in (Role.PARENT, Role.CHILD))
            )
            for host, peer in sorted(self._peers.items())
        )

    def close(self) -> None:
        """Say goodbye, close all sockets, end the watching thread. Again does nothing.

        Taps and mirrors belong to whoever made them.
        """
        if self._closed:
            return
        self._closed = True
        for connection in self._links.values():
            if connection.link is not None:
                connection.say_goodbye(connection.link)
        for connection in tuple(self._by_fd.values()):
            self._drop(connection)
        self._links.clear()
        self._proving.clear()
        if self._listener is not None:
            self._watch.remove(self._listener.fileno())
            self._listener.close()
        self._watch.close()
