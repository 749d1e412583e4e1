"""What a host knows of a peer, whichever links to it come and go.

A link (link.py) lives as long as its connection; streams, control messages and counters outlive it,
and are found here by the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...configs.errors import ProtocolError
from .attached import Incoming, Offer
from .control import ControlInbox, ControlOutbox
from .link_header import NUMBER_MASK
from .outgoing import Outgoing

EARLY_MAX: Final = 4096
"""Subscriptions to streams that are not offered yet, of one child."""


@dataclass(slots=True)
class Traffic:
    """What one carrier has carried between this host and a peer; headers included."""

    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0


@dataclass(slots=True)
class LinkCounters:
    """What is counted of one peer; only grows, but for the time there and back."""

    traffic: dict[str, Traffic] = field(default_factory=dict)
    """By carrier."""
    connections: int = 0
    duplicates: int = 0
    stale: int = 0
    """Messages of streams that are read from another host by now, or of an earlier subscription."""
    socket_full: int = 0
    """Times that a socket took less than there was to send."""
    rtt_ns: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    last_failure: str = ""

    def carried_by(self, carrier: str) -> Traffic:
        """Return where to count what `carrier` carries."""
        return self.traffic.setdefault(carrier, Traffic())


class Peer:
    """Another host."""

    def __init__(
        self, host: str, mark: int, control_messages_max: int, offers: Mapping[int, Offer]
    ) -> None:
        """Begin without streams; `mark` as of `ControlOutbox`, `offers` are all of this host's."""
        self.host: Final = host
        self.outgoing: Final[dict[int, Outgoing]] = {}
        """Streams of this host that it may subscribe, as a child."""
        self.incoming: Final[dict[int, Incoming]] = {}
        """Streams that this host reads from it, as its parent."""
        self.outbox: Final = ControlOutbox(mark, control_messages_max)
        self.inbox: Final = ControlInbox(control_messages_max)
        self.counters: Final = LinkCounters()
        self.changed: Final[dict[int, Incoming]] = {}
        """Incoming streams with something to publish; `Neighbours.publish` clears it."""
        self.farewells: Final[dict[int, None]] = {}
        """Streams that it still sends on the present link, and must be told to stop."""
        self.speaker: object = None
        """The link that control messages go by, if any does."""
        self._former: set[int] = set()
        self._early: dict[int, tuple[int, int, int, int]] = {}
        self._offers = offers

    def died(self, new_mark: int) -> None:
        """Drop what was to be said to the peer: its process has ended.

        What it sends and reads continues where it was, with another process of its name.
        """
        self.outbox.forget(new_mark)
        self._early.clear()

    def failed(self, reason: str, explanation: str) -> None:
        """Count that something went wrong with the peer, and remember it in words."""
        self.counters.failures[reason] += 1
        self.counters.last_failure = explanation

    def offered(self, outgoing: Outgoing) -> None:
        """Let the peer subscribe a stream; if it has asked before, begin."""
        self.outgoing[outgoing.stream] = outgoing
        asked = self._early.pop(outgoing.stream, None)
        if asked is not None:
            self.subscribed(outgoing.stream, *asked)

    def asks_for(self, stream: int) -> bool:
        """Return whether the peer has subscribed a stream that is not offered yet."""
        return stream in self._early

    def subscribed(
        self, stream: int, received: int, limit: int, capacity: int, number: int = 0
    ) -> None:
        """Take note of a subscription. Raises ProtocolError for one that is not permitted."""
        outgoing = self.outgoing.get(stream) or self._wanted(stream)
        if outgoing is None:
            if len(self._early) >= EARLY_MAX:
                msg = f"host {self.host!r} subscribes to too many streams that nobody offers"
                raise ProtocolError(msg)
            self._early[stream] = (received, limit, capacity, number)
            return
        if capacity != outgoing.sender.capacity:
            msg = (
                f"the mirror of stream {stream} has {capacity:,} bytes, "
                f"its ring {outgoing.sender.capacity:,}"
            )
            raise ProtocolError(msg)
        outgoing.subscribed(received, limit, number)

    def _wanted(self, stream: int) -> Outgoing | None:
        """Return the stream of a first subscription; None if it is not offered yet."""
        offer = self._offers.get(stream)
        if offer is None:
            return None
        if not offer.dynamic:
            msg = f"host {self.host!r} is no child of stream {stream}"
            raise ProtocolError(msg)
        self.outgoing[stream] = outgoing = offer.outgoing_to(self.host)
        return outgoing

    def granted(self, stream: int, received: int, limit: int) -> None:
        """Take note of a grant. Raises ProtocolError for one that makes no sense."""
        outgoing = self.outgoing.get(stream)
        if outgoing is not None:
            outgoing.granted(received, limit)
        elif stream in self._early:
            self._early[stream] = (received, limit, *self._early[stream][2:])
        else:
            msg = f"host {self.host!r} grants stream {stream}, which it has not subscribed"
            raise ProtocolError(msg)

    def left(self, stream: int) -> None:
        """Take note that the peer wants no more of a stream."""
        self._early.pop(stream, None)
        if stream in self.outgoing:
            self.outgoing[stream].leave()

    def child_disconnected(self) -> None:
        """Take note that the link on which the peer is the child has broken."""
        self._early.clear()
        for outgoing in self.outgoing.values():
            outgoing.disconnected()

    def parent_disconnected(self) -> None:
        """Take note that the link on which the peer is the parent has broken."""
        self.farewells.clear()
        for incoming in self.incoming.values():
            incoming.subscribed_now = False

    # --- streams that change their parent ------------------------------------------------------

    def take_over(self, incoming: Incoming) -> None:
        """Read a stream that has no parent from this peer, from where it stands.

        ValueError if it has a parent: that must `release_stream` it first.
        """
        if incoming.parent is not None:
            msg = f"stream {incoming.stream} is read from {incoming.parent!r}"
            raise ValueError(msg)
        incoming.parent = self.host
        incoming.subscribed_now = False
        self.incoming[incoming.stream] = incoming

    def release_stream(self, stream: int) -> Incoming:
        """Read `stream` from this peer no more; return it, without a parent.

        What the peer still sends of it is dropped. A message that is half received must not be
        completed in its place: `Link.divert` says where the rest of it goes instead. KeyError if
        the stream is not read from this peer.
        """
        incoming = self.incoming.pop(stream)
        self._former.add(stream)
        if incoming.subscribed_now and not incoming.left:
            self.farewells[stream] = None
        incoming.parent = None
        incoming.subscribed_now = False
        incoming.number = (incoming.number + 1) & NUMBER_MASK
        return incoming

    def has_sent(self, stream: int) -> bool:
        """Return whether `stream` is read from this peer, or was."""
        return stream in self.incoming or stream in self._former

    def sends(self, stream: int, number: int) -> Incoming | None:
        """Return the stream of which something comes that answers subscription `number`.

        None, and counted, if it answers one that was given up.
        """
        incoming = self.incoming.get(stream)
        if incoming is not None and incoming.number == number:
            return incoming
        self.counters.stale += 1
        return None

    @property
    def delivered(self) -> bool:
        """Whether every stream from the peer was shown to its readers."""
        return all(incoming.complete for incoming in self.incoming.values())
