"""The streams of a link with their memory: positions (streams.py) joined to taps and mirrors.

An `Offer` is one stream of this host: its tap and what is known of each child that reads it. An
`Incoming` is one stream of another host: its mirror and what the parent was told.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, TypeAlias

from ...configs.errors import ProtocolError
from ..mirror import MirrorRing, RingTap
from .streams import Grant, StreamReceiver, StreamSender

Until: TypeAlias = Literal["received", "consumed"]
"""When the tap gives bytes back: once all children have them, or all their readers are done."""


class Outgoing:
    """One stream on its way to one child."""

    __slots__ = ("back_pressured", "gone", "offer", "sender", "stream", "waits")

    def __init__(self, offer: Offer) -> None:
        """Begin at the start of the stream; `Offer` makes them."""
        self.offer = offer
        self.stream: Final = offer.stream
        self.sender = StreamSender(offer.tap.capacity)
        self.gone = False
        """Whether the child wants no more: nobody waits for it."""
        self.waits = False
        """Whether bytes wait for a grant now."""
        self.back_pressured = 0
        """Times that bytes began to wait for a grant."""

    def next_range(self, max_bytes: int) -> tuple[int, int] | None:
        """Return the next positions to send, at most `max_bytes`; None if none may be sent."""
        sender = self.sender
        tap = self.offer.tap
        if self.gone or tap.head == sender.sent:
            self.waits = False
            return None
        found = sender.next_range(tap.whole_frames, max_bytes)
        waits = found is None and sender.subscribed_now
        if waits and not self.waits:
            self.back_pressured += 1
        self.waits = waits
        return found

    @property
    def end_due(self) -> int | None:
        """The stream's end if the child must be told now; None otherwise."""
        sender = self.sender
        if self.gone or sender.told_end or not sender.subscribed_now:
            return None
        end = self.offer.tap.finished_at
        return end if end == sender.sent else None

    @property
    def complete(self) -> bool:
        """Whether the child has the whole stream and was told so, or wants none of it."""
        sender = self.sender
        return self.gone or (sender.told_end and sender.acknowledged == self.offer.tap.finished_at)

    def leave(self) -> None:
        """Take note that the child wants no more; the last one to go closes the tap."""
        self.gone = True
        self.offer.release()


class Offer:
    """One stream of this host, and its children."""

    def __init__(
        self, stream: int, tap: RingTap, children: Collection[str], until: Until = "received"
    ) -> None:
        """Offer `tap` as `stream` to the hosts `children`. ValueError without any child."""
        if not children:
            msg = f"stream {stream} is offered to nobody"
            raise ValueError(msg)
        self.stream: Final = stream
        self.tap: Final = tap
        self._until: Final = until
        self.outgoing: Final = {child: Outgoing(self) for child in children}
        """By child."""

    def release(self) -> None:
        """Give back what no child needs any more; close the tap if there is none left."""
        consumed = self._until == "consumed"
        floors = [
            child.sender.consumed if consumed else child.sender.acknowledged
            for child in self.outgoing.values()
            if not child.gone
        ]
        if floors:
            self.tap.release(min(floors))
        else:
            self.tap.close()

    @property
    def complete(self) -> bool:
        """Whether the stream has ended and every child has all of it."""
        return self.tap.closed or (
            self.tap.finished_at is not None
            and all(child.complete for child in self.outgoing.values())
        )


class Incoming:
    """One stream that a parent sends."""

    def __init__(self, stream: int, mirror: MirrorRing, grant_delay_ns: int) -> None:
        """Fill `mirror` with `stream` from its start."""
        self.stream: Final = stream
        self.mirror: Final = mirror
        self.receiver: Final = StreamReceiver(mirror.capacity, grant_delay_ns)
        self.subscribed_now = False
        """Whether the parent was told on the present link."""
        self.left = False
        """Whether the parent was told that this host wants no more."""

    def writable(self, position: int, nbytes: int) -> tuple[memoryview, ...] | None:
        """Return where bytes that arrive belong; None if they are not needed.

        Raises ProtocolError if they are not what is due.
        """
        if self.left or not self.receiver.check(position, nbytes):
            return None
        return self.mirror.writable(position, nbytes)

    def arrived(self, nbytes: int) -> None:
        """Count bytes that are in their place. Raises ProtocolError if they hold no frames."""
        self.mirror.advance(nbytes)
        self.receiver.arrived(nbytes)
        if self.receiver.finished_at is not None:
            self._check_end()

    def finished(self, position: int) -> None:
        """Take note of the end. Raises ProtocolError if it contradicts what is known."""
        if self.left:
            return
        self.receiver.finished(position)
        self.mirror.finished_at = position
        self._check_end()

    def _check_end(self) -> None:
        if self.receiver.complete and not self.mirror.whole:
            msg = f"stream {self.stream} ends at {self.receiver.received:,}, within a frame"
            raise ProtocolError(msg)

    def publish(self) -> None:
        """Show the readers what has arrived, and that nothing follows if so."""
        self.mirror.publish()
        if self.receiver.complete:
            self.mirror.finish()

    @property
    def _settled(self) -> bool:
        """Whether there is nothing left to tell the parent."""
        receiver = self.receiver
        return self.left or (receiver.complete and receiver.granted.received == receiver.received)

    @property
    def due_ns(self) -> int | None:
        """When a grant that waits will be due; None if none waits."""
        return None if self._settled else self.receiver.due_ns

    def grant_due(self, now_ns: int) -> Grant | None:
        """Return what to tell the parent now, if it is worth a message.

        Asks the readers to ring when it will be.
        """
        receiver = self.receiver
        if self._settled:
            return None
        limit = self.mirror.ask_to_be_rung(receiver.wanted_limit - receiver.capacity)
        return receiver.grant_due(limit, now_ns)

    def subscription(self) -> Grant:
        """Return what to tell the parent on a new link."""
        return self.receiver.subscription(self.mirror.limit)

    @property
    def leaving(self) -> bool:
        """Whether the parent must be told that nobody here reads the stream any more.

        As `grant_due` has found, or `subscription`.
        """
        return not self.left and self.mirror.abandoned and not self.receiver.complete

    @property
    def complete(self) -> bool:
        """Whether all of the stream was shown to the readers, or nobody wants it."""
        return self.left or self.mirror.finished
