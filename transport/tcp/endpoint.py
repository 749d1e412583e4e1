"""One host's end of the links to other hosts, over TCP.

::

    poll:  accept ─► receive into mirrors ─► forward to children ─► publish to local readers
           dial                              grant to parents       heartbeats, timeouts

The child dials its parent. One connection carries all streams from that parent to that child, and
all other messages between the two. Until its peer has proved to belong to the job, a connection
serves nothing but the handshake; the time for that and the number of such connections are bounded.

`LinkManager` (links/manager.py) decides which connection carries what; the endpoint gives it real
sockets and the time. Nothing here blocks: one thread calls `poll`, and sleeps on its doorbell when
that returns False.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from ...configs.settings import TransportSettings
from ...configs.units import NS_PER_MS
from ..channel import Outcome
from ..doorbell import Doorbell
from ..links.attached import Incoming, Offer, Until
from ..links.handshake import Identity
from ..links.link import LinkTimes
from ..links.manager import LinkManager
from ..links.neighbours import Neighbours
from ..links.reachability import Reachability
from ..links.statistics import Declined, LinkStatistics, Unreachable, statistics_of
from ..mirror import MirrorRing, RingTap
from ..retention import Retention
from ..verbs.carriers import Carriers, Load
from .connection import TcpConnection, not_connected
from .connector import TcpConnector
from .descriptors import Connection
from .sockets import Address, resolve
from .watch import SocketWatch


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
        """Begin without links; `doorbell` is the one that `watch` rings by default.

        `hosts` are the names that may dial this one; without it, each process that knows the secret
        may, under any name, and each name is remembered. `load_verbs` finds the library of RDMA
        verbs. Raises ResourceError if the settings insist on verbs, and there are none.
        """
        self.identity: Final = identity
        self._clock_ns = clock_ns
        self._doorbell = doorbell
        self._watch = self.sockets = SocketWatch()  # its `wait` is for loops without doorbell
        self._carriers = Carriers(settings, load_verbs)
        self._connector = TcpConnector(
            identity, secret, settings, hosts, self._carriers, self._watch
        )
        self._acceptor = self._connector.acceptor
        self._descriptors = self._connector.descriptors
        self._neighbours = Neighbours(
            settings.control_queue_messages,
            int(settings.grant_delay_ms * NS_PER_MS),
            lambda: secrets.randbits(32) | 1,
        )
        backoff_ns = (
            settings.reconnect_backoff_ms * NS_PER_MS,
            settings.reconnect_backoff_max_ms * NS_PER_MS,
        )
        self._manager: LinkManager[TcpConnection, Connection] = LinkManager(
            self._connector,
            self._neighbours,
            Reachability(self._neighbours, backoff_ns, chance),
            LinkTimes.of(settings),
        )
        self._links = self._manager.links

    # --- what the host does --------------------------------------------------------------------

    def listen(self, address: str) -> tuple[str, int]:
        """Accept links at `address` of this machine; return it as (numeric address, port).

        The port is the first free one of `port_range_low` to `port_range_high`. Raises
        ResourceError if the address does not resolve or is none of this machine, or all ports are
        taken or not permitted; RuntimeError if this endpoint listens already.
        """
        self._watch.add_listener(self._acceptor.listen(address))
        self._carriers.listens_at = self._acceptor.address[0]
        return self._acceptor.address

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
        return self._manager.offer(
            stream,
            tap,
            children,
            self._clock_ns(),
            until=until,
            dynamic=dynamic,
            retention=retention,
        )

    def subscribe(self, stream: int, mirror: MirrorRing, parent: str | None) -> Incoming:
        """Fill `mirror` with the bytes of `stream` from the host `parent` (also to be dialled).

        From where the mirror stands; it has no parent yet if `parent` is None. Raises ValueError if
        `stream` was subscribed.
        """
        return self._manager.subscribe(stream, mirror, parent)

    def move(self, stream: int, parent: str | None) -> None:
        """Read on from another parent (also to be dialled), or from none if that is None.

        At once, from where the stream stands, maybe within a frame. The former parent is told; what
        it sends meanwhile is dropped, and counted as stale. KeyError for an unknown stream.
        """
        self._manager.move(stream, parent)

    def dial(self, host: str, address: Address) -> None:
        """Keep a link to the parent `host` up from now on.

        If the address has changed, another process has taken the host's place, and the present link
        is dropped at once. Raises ResourceError if the address does not resolve.
        """
        self._manager.dial(host, resolve(host, address), self._clock_ns())

    def undial(self, host: str) -> None:
        """Close the link to the parent `host`, and dial it no more; nothing if it is not dialled.

        ValueError if a stream is still read from there.
        """
        self._manager.undial(host)

    def forget(self, host: str) -> None:
        """Take note that the process of `host` is dead: drop all links to it at once.

        It is not dialled any more, nor expected to dial; control messages for it are
        dropped. Streams that were read from it stay where they are until they `move`, or it is
        dialled again; what is kept for it as a child is kept until it is dismissed.
        """
        self._manager.forget(host)

    def send_control(self, host: str, message: bytes) -> Outcome:
        """Queue a message for `host`: it arrives once, in order, whatever happens to links.

        BACK_PRESSURED while `control_queue_messages` are on their way, TOO_LARGE beyond 64 KiB,
        CLOSED if this endpoint is closed or knows no such host.
        """
        return self._manager.send_control(host, message)

    def receive_control(self) -> tuple[str, bytes] | None:
        """Return the next control message and who sent it; None if there is none."""
        return self._manager.receive_control()

    def reject(self, host: str, why: str) -> None:
        """Break the links to `host`, whose control message the caller cannot read; dial it anew.

        `why` says so in words: "a message of 3 bytes". ValueError if no such host is known.
        """
        self._manager.reject(host, why, self._clock_ns())

    # --- the loop ------------------------------------------------------------------------------

    def poll(self, now_ns: int | None = None) -> bool:
        """Do all that can be done without waiting; return whether anything was done.

        Accept, receive into mirrors, forward to children, publish, grant, heartbeat. Made to be
        the `ready` of the doorbell's `wait`, too. Raises CorruptedMessageError if the memory of a
        tapped ring of this host holds no frames.
        """
        if self._manager.closed:
            return False
        now = self._clock_ns() if now_ns is None else now_ns
        accepted = self._descriptors.collect() and self._accept(now)
        moved = self._manager.turn(now, accepted=accepted)
        for connection in self._links.values():
            self._descriptors.mind_room(connection)
        return moved or not self.arm(now)

    @property
    def unfinished(self) -> bool:
        """Whether `poll` has left something undone, or something was asked for since."""
        return self._manager.unfinished

    def arm(self, now_ns: int) -> bool:
        """Have the doorbell rung when more comes; False if it has come already: poll for it."""
        moved = False
        for connection in self._descriptors.bells:
            if connection.arm():  # something may have come before the descriptor was armed
                moved |= self._manager.receive(connection, now_ns)
        if not moved:
            self._watch.arm()
        self._manager.asked |= moved  # what has come may have to be answered and forwarded
        return not moved

    def _accept(self, now: int) -> bool:
        """Accept connections that wait, a few in a call; return whether there was any."""
        manager = self._manager
        try:
            return self._acceptor.accept(now, self._begin, manager.prove, manager.refuse)
        except OSError as error:
            broken = not_connected(error)
            manager.refused[broken.reason] += 1
            manager.last_refusal = str(broken)
            self._acceptor.listener.turn_away()
            return True

    def _begin(self, accepted: TcpConnection) -> None:
        self._connector.watch(accepted)
        self._manager.accept(accepted)

    # --- what others ask -----------------------------------------------------------------------

    @property
    def next_due_ns(self) -> int:
        """When `poll` has to be called at the latest, on `clock_ns`."""
        return self._manager.next_due_ns(self._clock_ns())

    @property
    def refused(self) -> Counter[str]:
        """How many connections, to here and from here, were refused, by reason."""
        return self._manager.refused

    @property
    def last_refusal(self) -> str:
        """Why a connection was refused or a link broke last, in words."""
        return self._manager.last_refusal

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
        return self._manager.delivered

    def congested(self, host: str) -> bool:
        """Return whether the link to the child `host` takes no more bytes for now."""
        return self._manager.congested(host)

    def unreachable(self, now_ns: int) -> tuple[Unreachable, ...]:
        """Return the hosts without a link that stands, for how long since the first `poll`, why."""
        return self._manager.unreachable(now_ns)

    def statistics(self) -> tuple[LinkStatistics, ...]:
        """Return the counters of every peer, by name."""
        now_ns, declined = self._clock_ns(), self._carriers.declined
        standing: dict[str, list[Connection]] = {}
        for (host, _), connection in tuple(self._links.items()):
            standing.setdefault(host, []).append(connection)
        return tuple(
            statistics_of(peer, standing.get(host, ()), declined.get(host, Declined()), now_ns)
            for host, peer in sorted(self._neighbours.peers.items())
        )

    def close(self) -> None:
        """Say goodbye, close all sockets, end the watching thread. Again does nothing.

        Taps and mirrors stay open: they belong to the caller.
        """
        if self._manager.closed:
            return
        self._manager.close()
        self._acceptor.close()
        self._watch.close()
        self._carriers.close()
