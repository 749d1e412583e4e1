"""A stream on its way to one child: positions (streams.py) joined to what is held of the stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ...configs.errors import ProtocolError
from ..mirror import RingTap
from .streams import StreamSender, WholeFrames

UNSUBSCRIBED: Final = -1
"""No number of a subscription."""


class Offered(Protocol):
    """What an `Outgoing` knows of its `Offer`."""

    @property
    def stream(self) -> int:
        """Its number."""
        ...

    @property
    def tap(self) -> RingTap:
        """What reads the ring."""
        ...

    @property
    def capacity(self) -> int:
        """Bytes of the ring."""
        ...

    @property
    def dynamic(self) -> bool:
        """Whether children come and go."""
        ...

    @property
    def starved(self) -> dict[str, int]:
        """Who wants what is not held any more, and from where on."""
        ...

    @property
    def whole_frames(self) -> WholeFrames:
        """Where whole frames end, as of `RingTap.whole_frames`."""
        ...

    @property
    def head(self) -> int:
        """The position up to which bytes can be sent."""
        ...

    @property
    def held_from(self) -> int:
        """The first byte that can still be sent."""
        ...

    @property
    def finished_at(self) -> int | None:
        """Where the stream ends; None as long as more may come."""
        ...

    def end_of_frame(self, position: int) -> int | None:
        """Return where the frame ends in which `position` stands; None as long as it is not here.

        `position` itself if a frame begins there, or ends.
        """
        ...

    @property
    def pieces(self) -> Callable[[int, int], tuple[memoryview, ...]]:
        """The memory of [start, stop), as of `RingTap.pieces`."""
        ...

    def release(self) -> None:
        """Give back what no child needs any more."""
        ...


class Outgoing:
    """One stream on its way to one child."""

    __slots__ = (
        "admitted",
        "back_pressured",
        "child",
        "fetched_to",
        "gone",
        "number",
        "offer",
        "pinned",
        "promised_from",
        "sender",
        "stream",
        "waits",
        "written_from",
    )

    def __init__(self, offer: Offered, child: str, *, admitted: bool = True) -> None:
        """Begin at the start of the stream; `Offer` makes them."""
        self.offer: Final = offer
        self.child: Final = child
        self.stream: Final = offer.stream
        self.sender: Final = StreamSender(offer.capacity)
        self.admitted = admitted
        """Whether bytes are kept for the child, and sent to it."""
        self.pinned = False
        """Whether bytes are still kept for a child that was dismissed: the connection may not have
        sent yet what it was given."""
        self.promised_from = 0
        """Where the child was admitted, until it subscribes from there on: kept even while it wants
        what is before and gone. That may be the subscription of a process that has died unheard."""
        self.number = UNSUBSCRIBED
        """Of the child's subscription; its data bear it."""
        self.gone = False
        """Whether the child has left for good: nothing is kept for it."""
        self.waits = False
        """Whether bytes wait for a grant now."""
        self.back_pressured = 0
        """Times that bytes began to wait for a grant."""
        self.fetched_to = 0
        """Up to here the child fetches bytes out of the ring by itself."""
        self.written_from: int | None = None
        """From here on bytes are being written from the ring into the child's memory; None if
        none are."""

    def next_range(self, max_bytes: int) -> tuple[int, int] | None:
        """Return the next positions to send, at most `max_bytes`; None if none may be sent.

        Everything that was returned by an earlier turn of the link must have been sent by now.
        """
        sender = self.sender
        offer = self.offer
        if not self.admitted:
            self._unpin()
            return None
        if self.gone or offer.head <= sender.sent or (sender.astray and not self._align()):
            self.waits = False
            return None
        found = sender.next_range(offer.whole_frames, max_bytes)
        waits = found is None and sender.subscribed_now
        if waits and not self.waits:
            self.back_pressured += 1
        self.waits = waits
        return found

    def _align(self) -> bool:
        """Find the end of the frame in which the child stands; whether it is known."""
        sender = self.sender
        if not (sender.subscribed_now and self._is_held(sender.sent)):
            return False
        end = self.offer.end_of_frame(sender.sent)
        if end is not None:
            sender.aligned(end)
        return end is not None

    def _is_held(self, position: int) -> bool:
        """Return whether all bytes from `position` on can still be sent.

        If not, the child is starved, until another host serves it. No other host can serve a fixed
        child: ProtocolError.
        """
        offer, held_from = self.offer, self.offer.held_from
        if position >= held_from:
            offer.starved.pop(self.child, None)
            return True
        offer.starved[self.child] = position
        if offer.dynamic:
            return False
        msg = f"stream {self.stream} from {position:,}, but only from {held_from:,} is held here"
        raise ProtocolError(msg)

    @property
    def lent_from(self) -> int | None:
        """The first byte of the ring that the carrier may still read; None if there is none.

        Unlike bytes that were copied into a socket, they must stay as they are, even if the child
        is no child any more.
        """
        sender = self.sender
        if self.written_from is not None:
            return self.written_from
        if sender.subscribed_now and sender.acknowledged < self.fetched_to:
            return sender.acknowledged
        return None

    @property
    def end_due(self) -> int | None:
        """The stream's end if the child must be told now; None otherwise."""
        sender = self.sender
        if self.gone or sender.told_end or not (sender.subscribed_now and self.admitted):
            return None
        end = self.offer.finished_at
        return end if end == sender.sent else None

    @property
    def complete(self) -> bool:
        """Whether the child has the whole stream and was told so, or wants none of it."""
        sender = self.sender
        return self.gone or (sender.told_end and sender.acknowledged == self.offer.finished_at)

    def subscribed(self, received: int, limit: int, number: int) -> None:
        """Take note of a subscription. Raises ProtocolError for one that is not permitted.

        A child that is not admitted yet is served nothing until it is.
        """
        if self.gone:
            return
        self.number = number
        self.fetched_to = 0
        if received >= self.promised_from:
            self.promised_from = 0
        if self.offer.dynamic or self.sender.astray:
            if self.admitted:
                self._is_held(received)
            self.sender.taken_up(received, limit)
        else:
            self.sender.subscribed(received, limit)
        self.offer.release()

    def granted(self, received: int, limit: int) -> None:
        """Take note of a grant. Raises ProtocolError for one that makes no sense."""
        if not self.gone:
            self.sender.granted(received, limit)
            self.offer.release()

    def leave(self) -> None:
        """Take note that the child has left: of a stream with fixed children, for ever.

        A child of a dynamic offer may come back: what is held for it stays until it is dismissed.
        """
        if self.offer.dynamic:
            self.disconnected()
            return
        self.gone = True
        self.offer.release()

    def disconnected(self) -> None:
        """Take note that nothing more is to be sent until the child subscribes again."""
        self.sender.disconnected()
        self.number = UNSUBSCRIBED
        self.pinned = False
        self.offer.release()  # also what a connection that has broken was still reading

    def _unpin(self) -> None:
        if self.pinned:
            self.pinned = False
            self.offer.release()
