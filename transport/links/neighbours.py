"""The peers of a host and the streams to and from them, whichever connections there are.

Pure but for rings and mirrors; `LinkManager` has the connections. A stream has at most one parent
here at a time, and children that may come and go (attached.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from ...configs.errors import ProtocolError
from ..mirror import MirrorRing, RingTap
from ..retention import Retention
from .attached import Incoming, Offer, Until
from .outgoing import Outgoing
from .peer import Peer


class Neighbours:
    """All peers of a host, by name, its offers and what it subscribes."""

    def __init__(
        self, control_messages_max: int, grant_delay_ns: int, new_mark: Callable[[], int]
    ) -> None:
        """Have no peers yet.

        `new_mark` draws the random number that tells this process, as a sender of control messages,
        from a predecessor. For the other arguments see `Peer` and `Incoming`.
        """
        self.peers: Final[dict[str, Peer]] = {}
        """Every host that was ever named here, by name."""
        self.offers: Final[dict[int, Offer]] = {}
        """By stream."""
        self.incoming: Final[dict[int, Incoming]] = {}
        """By stream; also those that have no parent now."""
        self._control_messages_max = control_messages_max
        self._grant_delay_ns = grant_delay_ns
        self._new_mark = new_mark

    def peer(self, host: str) -> Peer:
        """Return the peer `host`, made if it was not named before."""
        peer = self.peers.get(host)
        if peer is None:
            messages_max = self._control_messages_max
            self.peers[host] = peer = Peer(host, self._new_mark(), messages_max, self.offers)
        return peer

    def offer(
        self,
        stream: int,
        tap: RingTap,
        children: Collection[str],
        *,
        until: Until = "received",
        dynamic: bool = False,
        retention: Retention | None = None,
    ) -> tuple[Offer, dict[str, ProtocolError]]:
        """Offer a stream; see `TcpEndpoint.offer`.

        Returns the offer, and of the hosts that have subscribed before those that cannot be
        served, and why. ValueError if the stream was offered.
        """
        if stream in self.offers:
            msg = f"stream {stream} is offered already"
            raise ValueError(msg)
        self.offers[stream] = offer = Offer(
            stream, tap, children, until, dynamic=dynamic, retention=retention
        )
        asking = {host for host, peer in self.peers.items() if dynamic and peer.asks_for(stream)}
        refused = {}
        for host in sorted({*children, *asking}):
            try:
                self.peer(host).offered(offer.outgoing_to(host))
            except ProtocolError as error:
                refused[host] = error
        return offer, refused

    def subscribe(self, stream: int, mirror: MirrorRing, parent: str | None) -> Incoming:
        """Fill `mirror` with a stream; it has no parent yet if `parent` is None.

        ValueError if the stream was subscribed.
        """
        if stream in self.incoming:
            msg = f"stream {stream} is subscribed already"
            raise ValueError(msg)
        self.incoming[stream] = incoming = Incoming(stream, mirror, self._grant_delay_ns)
        if parent is not None:
            self.peer(parent).take_over(incoming)
        return incoming

    def move(self, stream: int, parent: str | None) -> None:
        """Read a stream from `parent` from now on; it has no parent if that is None.

        To be preceded by `Link.divert` on the former parent's link. KeyError for a stream that is
        not subscribed.
        """
        incoming = self.incoming[stream]
        if incoming.parent == parent:
            return
        if incoming.parent is not None:
            self.peers[incoming.parent].release_stream(stream)
        if parent is not None:
            self.peer(parent).take_over(incoming)

    def died(self, host: str) -> None:
        """Take note that the process that stood for `host` has ended; see `Peer.died`."""
        if host in self.peers:
            self.peers[host].died(self._new_mark())

    def receive_control(self) -> tuple[str, bytes] | None:
        """Return the next control message and who sent it; None if there is none."""
        for host, peer in self.peers.items():
            message = peer.inbox.take()
            if message is not None:
                return host, message
        return None

    def admitted(self) -> set[str]:
        """Return the children of dynamic offers, whether or not they have subscribed."""
        return {
            child
            for offer in self.offers.values()
            for child in (offer.children if offer.dynamic else ())
        }

    def serves(self, host: str) -> bool:
        """Return whether `host` is a child here."""
        return any(outgoing.admitted for outgoing in self._children_at(host))

    def dismissed(self, host: str) -> bool:
        """Return whether `host` was a child here, and is one no more."""
        return bool(self._children_at(host)) and not self.serves(host)

    def _children_at(self, host: str) -> list[Outgoing]:
        return [offer.outgoing[host] for offer in self.offers.values() if host in offer.outgoing]

    def tend(self) -> None:
        """Release bytes that no child needs; to be called after each batch of bytes."""
        for offer in self.offers.values():
            offer.tend()

    def publish(self) -> bool:
        """Show local readers what has arrived; return whether there was anything."""
        moved = False
        for peer in self.peers.values():
            if peer.changed:
                moved = True
                for incoming in peer.changed.values():
                    incoming.publish()
                peer.changed.clear()
        return moved

    @property
    def delivered(self) -> bool:
        """Whether all offered streams have ended and are acknowledged, and all mirrors finished."""
        return all(offer.complete for offer in self.offers.values()) and all(
            incoming.complete for incoming in self.incoming.values()
        )
