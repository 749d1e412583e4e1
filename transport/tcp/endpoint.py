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
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from ...configs.errors import CorruptedMessageError, ProtocolError
from ...configs.settings import TransportSettings
from ..channel import Outcome
from ..doorbell import Doorbell
from ..links.attached import Incoming, Offer, Until
from ..links.handshake import Identity
from ..links.link import Link, LinkBrokenError, LinkTimes, Role
from ..links.neighbours import Neighbours
from ..links.peer import PushSink, PushSource
from ..links.statistics import Declined, LinkStatistics, Unreachable, statistics_of
from ..mirror import MirrorRing, RingTap
from ..retention import Retention
from ..verbs.carriers import Carriers, Load
from .connection import TcpConnection, in_words, not_connected, reason_of
from .descriptors import Connection, Descriptors
from .door import Door
from .knocking import Knocker
from .reachability import Reachability
from .sockets import Address, prepare, resolve, within_machine_bytes
from .watch import SocketWatch

_MS: Final = 1_000_000


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
        *,
        hosts: Collection[str] | None = None,
        load_verbs: Load | None = None,
    ) -> None:
        """Know who we are; `doorbell` is the one that `watch` rings by default.

        `hosts` are the names of those who may dial us; without it, whoever knows the secret may,
        under any name, and each name is remembered. `load_verbs` finds the library of RDMA verbs.
        Raises ResourceError if the settings insist on verbs, and there are none.
        """
        self.identity: Final = identity
        self._settings = settings
        self._clock_ns = clock_ns
        self._doorbell = doorbell
        self._times = LinkTimes.of(settings)
        self._watch = self.sockets = SocketWatch()  # its `wait` is for loops without doorbell
        self._carriers = Carriers(settings, load_verbs)
        self._knocker = Knocker(identity, secret, settings)
        self._door = Door(identity, secret, settings, hosts, self._carriers.offered)
        self._buffer_bytes = within_machine_bytes(settings.link_buffer_bytes, len(hosts or ()))
        self._descriptors = Descriptors(self._watch)
        self._proving: dict[int, TcpConnection] = {}
        self._links: dict[tuple[str, Role], Connection] = {}
        self._neighbours = Neighbours(
            settings.control_queue_messages,
            int(settings.grant_delay_ms * _MS),
            lambda: secrets.randbits(32) | 1,
        )
        self._peers = self._neighbours.peers
        backoff_ns = (settings.reconnect_backoff_ms * _MS, settings.reconnect_backoff_max_ms * _MS)
        self._reachability = Reachability(self._neighbours, backoff_ns, chance)
        self._asked = False  # whether something may be left for `poll` that no link knows of
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
        taken or not permitted; RuntimeError if this endpoint listens already.
        """
        self._watch.add_listener(self._door.listen(address))
        self._carriers.listens_at = self._door.address[0]
        return self._door.address

    def offer(
        self,
        stream: int,
        tap: RingTap,
        children: Collection[str] = (),
        *,
        until: Until = "received",
        dynamic: bool = False,
        retention: Retention | None = None,
    ) -> Offer:
        """Send the bytes of `tap` to each of the hosts `children` that subscribes to `stream`.

        The tap is released up to what all children have received; with until="consumed" up to what
        all readers of all children have given back. With `dynamic` children come and go (`Offer`).
        A child that has subscribed already and cannot be served loses its link. Raises ValueError
        if `stream` was offered.
        """
        offer, refused = self._neighbours.offer(
            stream, tap, children, until=until, dynamic=dynamic, retention=retention
        )
        now_ns = self._clock_ns()
        for child in {*children, *refused}:
            connection = self._links.get((child, Role.CHILD))
            if connection is None:
                self._reachability.awaited(child, now_ns)
            elif child in refused:
                self._break(connection, refused[child], now_ns)
        return offer

    def subscribe(self, stream: int, mirror: MirrorRing, parent: str | None) -> Incoming:
        """Fill `mirror` with the bytes of `stream` from the host `parent` (also to be dialled).

        From where the mirror stands; from nobody yet if `parent` is None. Raises ValueError if
        `stream` was subscribed.
        """
        return self._neighbours.subscribe(stream, mirror, parent)

    def move(self, stream: int, parent: str | None) -> None:
        """Read on from another parent (also to be dialled), or from nobody if that is None.

        At once, from where the stream stands, maybe within a frame. The former parent is told; what
        it sends meanwhile is dropped, and counted as stale. KeyError for an unknown stream.
        """
        former = self._neighbours.incoming[stream].parent
        connection = self._links.get((former or "", Role.PARENT))
        if connection is not None and connection.link is not None and former != parent:
            connection.divert(connection.link, stream)
        self._neighbours.move(stream, parent)
        self._asked = True

    def dial(self, host: str, address: Address) -> None:
        """Keep a link to the parent `host` up from now on.

        Under another address than before the present link is dropped at once: another process
        stands for the host. Raises ResourceError if the address does not resolve.
        """
        found = resolve(host, address)
        if self._reachability.is_elsewhere(host, found):
            self._stop_dialling(host)
        self._reachability.dial(host, found, self._clock_ns())

    def undial(self, host: str) -> None:
        """Close the link to the parent `host`, and dial it no more; nothing if it is not dialled.

        ValueError if a stream is still read from there.
        """
        peer = self._peers.get(host)
        if peer is not None and peer.incoming:
            msg = f"streams {sorted(peer.incoming)} are still read from host {host!r}"
            raise ValueError(msg)
        self._stop_dialling(host)

    def forget(self, host: str) -> None:
        """Take note that the process that stood for `host` is dead: drop all links to it at once.

        It is not dialled any more, and nobody waits for it to dial; control messages for it are
        dropped. Streams that were read from it stay where they are until they `move`, or it is
        dialled again; what is kept for it as a child is kept until it is dismissed.
        """
        for role in Role:
            if (host, role) in self._links:
                self._end(self._links[host, role])
        self._stop_dialling(host)
        self._reachability.forget(host)
        self._neighbours.died(host)

    def _stop_dialling(self, host: str) -> None:
        if not self._reachability.stop(host):
            return
        if (host, Role.PARENT) in self._links:
            self._hang_up(self._links[host, Role.PARENT])
        for connection in tuple(self._proving.values()):
            if connection.dialled and connection.host == host:
                self._forget_proving(connection)
                self._drop(connection)

    def push_source(self, host: str, channel: int, source: PushSource) -> None:
        """Send what `source` has to the push channel `channel` of `host`."""
        self._neighbours.peer(host).push_sources[channel] = source

    def push_sink(self, host: str, channel: int, sink: PushSink) -> None:
        """Take what `host` sends to the push channel `channel`."""
        self._neighbours.peer(host).push_sinks[channel] = sink

    def send_control(self, host: str, message: bytes) -> Outcome:
        """Queue a message for `host`: it arrives once, in order, whatever happens to links.

        BACK_PRESSURED while `control_queue_messages` are on their way, TOO_LARGE beyond 64 KiB,
        CLOSED if this endpoint is closed or knows no such host.
        """
        peer = self._peers.get(host)
        if self._closed or peer is None:
            return Outcome.CLOSED
        self._asked = True
        return peer.outbox.put(message)

    def receive_control(self) -> tuple[str, bytes] | None:
        """Return the next control message and who sent it; None if there is none."""
        return self._neighbours.receive_control()

    def reject(self, host: str, why: str) -> None:
        """Break the links to `host`, which said what makes no sense to the caller; dial it anew.

        `why` is told in words: "a message of 3 bytes". ValueError if no such host is known.
        """
        if host not in self._peers:
            msg = f"host {host!r} is not known here"
            raise ValueError(msg)
        error = LinkBrokenError(f"host {host!r} sent nonsense: {why}", "rejected")
        links = [self._links[host, role] for role in Role if (host, role) in self._links]
        if not links:
            self._peers[host].failed(error.reason, str(error))
        for connection in links:
            self._break(connection, error, self._clock_ns())

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
        self._reachability.begin(now)
        moved = self._descriptors.collect() and self._accept(now)
        for host in self._reachability.due(now):
            self._dial_now(host, now)
            moved = True
        for proving in tuple(self._proving.values()):
            moved |= self._prove(proving, now)
        self._asked = moved
        links = tuple(self._links.values())
        for connection in links:
            if connection.readable:
                moved |= self._receive(connection, now)
        for connection in links:
            moved |= self._send(connection, now)
            self._descriptors.mind_room(connection)
        self._neighbours.tend()
        if self._neighbours.publish() or moved:
            return True
        return not self.arm(now)

    @property
    def unfinished(self) -> bool:
        """Whether `poll` has left something undone, or something was asked for since."""
        return self._asked or any(connection.unfinished for connection in self._links.values())

    def arm(self, now_ns: int) -> bool:
        """Have the doorbell rung when more comes; False if it has come already: poll for it."""
        moved = False
        for connection in self._descriptors.bells:
            if connection.arm():  # something may have come before the descriptor was asked to tell
                moved |= self._receive(connection, now_ns)
        if not moved:
            self._watch.arm()
        self._asked |= moved  # what has come may have to be answered, and passed on
        return not moved

    def _accept(self, now: int) -> bool:
        try:
            return self._door.let_in(now, self._begin, self._prove, self._refused)
        except OSError as error:
            broken = not_connected(error)
            self.refused[broken.reason] += 1
            self.last_refusal = str(broken)
            self._door.listener.turn_away()
            return True

    def _dial_now(self, host: str, now: int) -> None:
        at, carriers = self._reachability.dialled(host), self._carriers.offered_to(host, now)
        try:
            self._begin(self._knocker.knock(host, at, carriers, now))
        except LinkBrokenError as error:
            self._dial_failed(host, error, now)

    def _begin(self, connection: TcpConnection) -> None:
        prepare(connection.sock, self._settings.silence_timeout_ms)
        self._proving[connection.fd] = connection
        self._descriptors.add(connection)

    def _prove(self, connection: TcpConnection, now: int) -> bool:
        try:
            moved = connection.prove(now)
            if not connection.settled:
                return moved
            carried = self._carriers.take_over(connection, now)
        except ProtocolError as error:
            self._refused(connection, error, now)
            return True
        if carried is not None:
            self._established(connection, carried, now)
        return True

    def _established(self, proved: TcpConnection, connection: Connection, now: int) -> None:
        self._forget_proving(proved)
        host = proved.side.peer.host
        role = Role.PARENT if connection.dialled else Role.CHILD
        before = self._links.get((host, role))
        if before is not None:
            # The peer knows better: it would not dial if it still had the other one.
            self._break(before, LinkBrokenError(f"host {host!r} dialled anew", "replaced"), now)
        self._reachability.up(host, role)
        primary = role is Role.PARENT or host not in self._reachability
        link = Link(self._neighbours.peer(host), role, self._times, now, primary=primary)
        connection.establish(link, self._buffer_bytes)
        self._links[host, role] = connection
        self._descriptors.taken_over(connection)

    def _receive(self, connection: Connection, now: int) -> bool:
        link = connection.link
        if link is None or connection not in self._descriptors:
            return False
        try:
            return connection.receive(link, now)
        except ProtocolError as error:
            self._break(connection, error, now)
            return True

    def _send(self, connection: Connection, now: int) -> bool:
        link = connection.link
        if link is None or connection not in self._descriptors:
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
        except CorruptedMessageError:
            raise
        except ProtocolError as error:
            self._break(connection, error, now)
            return True

    # --- the end of connections ----------------------------------------------------------------

    def _forget_proving(self, connection: TcpConnection) -> None:
        del self._proving[connection.fd]
        self._door.leave(connection)

    def _refused(self, connection: TcpConnection, error: ProtocolError, now: int) -> None:
        """Close a connection that did not get through its handshake."""
        self._forget_proving(connection)
        self._drop(connection)
        if connection.dialled:
            self._dial_failed(connection.host, error, now)
        else:
            self._reachability.last_turned_away = in_words(error)
        self.refused[reason_of(error)] += 1
        self.last_refusal = str(error)

    def _break(self, connection: Connection, error: ProtocolError, now: int) -> None:
        """Close a link; what was under way goes on with the next one."""
        link = connection.link
        assert link is not None, "only links break"
        self._drop(connection)
        host = link.peer.host
        del self._links[host, link.role]
        link.broken(reason := reason_of(error))
        if connection.carrier == "verbs":
            self._carriers.broken(host, reason, now)
        link.peer.counters.last_failure = self.last_refusal = str(error)
        self._reachability.broken(host, link.role, now, reason)
        self._asked = True

    def _hang_up(self, connection: Connection) -> None:
        """Close a link on purpose."""
        link = connection.link
        assert link is not None, "only links are hung up"
        connection.say_goodbye(link)
        self._end(connection)

    def _end(self, connection: Connection) -> None:
        """Close a link of which nothing more is expected, and nothing said."""
        link = connection.link
        assert link is not None, "only links end"
        self._drop(connection)
        del self._links[link.peer.host, link.role]
        link.ended()

    def _dial_failed(self, host: str, error: ProtocolError, now: int) -> None:
        self._reachability.failed(host, now, reason_of(error))
        self._peers[host].failed(reason_of(error), in_words(error))

    def _drop(self, connection: Connection) -> None:
        self._descriptors.drop(connection)
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
        deadlines = (proving.side.deadline_ns for proving in self._proving.values())
        return min(due_ns, self._reachability.next_dial_ns, *deadlines)

    def watch(self, doorbell: Doorbell | None = None) -> None:
        """Start a thread that rings `doorbell` (the endpoint's by default) when a socket is ready.

        `close` ends it. ValueError if there is nothing to ring.
        """
        doorbell = doorbell or self._doorbell
        if doorbell is None:
            msg = "there is no doorbell to ring"
            raise ValueError(msg)
        self._watch.start(doorbell)

    @property
    def delivered(self) -> bool:
        """Whether all offered streams have ended and are acknowledged, and all mirrors finished."""
        return self._neighbours.delivered

    def congested(self, host: str) -> bool:
        """Return whether the link to the child `host` takes no more bytes for now."""
        connection = self._links.get((host, Role.CHILD))
        return connection is not None and not connection.writable

    def unreachable(self, now_ns: int) -> tuple[Unreachable, ...]:
        """Return the hosts without a link that stands, for how long since the first `poll`, why."""
        return self._reachability.unreachable(now_ns, self._links)

    def statistics(self) -> tuple[LinkStatistics, ...]:
        """Return the counters of every peer, by name."""
        now_ns, declined = self._clock_ns(), self._carriers.declined
        standing: dict[str, list[Connection]] = {}
        for (host, _), connection in tuple(self._links.items()):
            standing.setdefault(host, []).append(connection)
        return tuple(
            statistics_of(peer, standing.get(host, ()), declined.get(host, Declined()), now_ns)
            for host, peer in sorted(self._peers.items())
        )

    def close(self) -> None:
        """Say goodbye, close all sockets, end the watching thread. Again does nothing.

        Taps and mirrors belong to whoever made them.
        """
        if self._closed:
            return
        self._closed = True
        for connection in tuple(self._links.values()):
            self._hang_up(connection)
        for connection in self._descriptors:
            self._drop(connection)
        self._proving.clear()
        self._door.close()
        self._watch.close()
        self._carriers.close()
