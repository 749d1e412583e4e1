"""The streams of a link with their memory: positions (streams.py) joined to taps and mirrors.

An `Offer` is one stream of this host: its tap and what is known of each child that reads it (an
`Outgoing`). An `Incoming` is one stream of another host: its mirror and what the parent was told.

What an offer keeps, and for whom::

    held_from          released              a child's position         head
    ────┼── retention ────┼───────── ring ─────────┼──────────────────────┼────

With fixed children every one of them reads the whole stream, and the tap closes when the last one
has gone. Children of a *dynamic* offer come and go: one that is admitted at a position can read
from there on, though it may subscribe much later, or earlier; one that is dismissed holds nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, TypeAlias

from ...configs.errors import ProtocolError
from ..mirror import MirrorRing, RingTap
from ..retention import Retention
from .outgoing import Outgoing
from .streams import Grant, StreamReceiver

Until: TypeAlias = Literal["received", "consumed"]
"""When the tap gives bytes back: once all children have them, or all their readers are done."""

_ANY_BYTES: Final = 1 << 62


class Offer:
    """One stream of this host, and its children."""

    def __init__(
        self,
        stream: int,
        tap: RingTap,
        children: Collection[str] = (),
        until: Until = "received",
        *,
        dynamic: bool = False,
        retention: Retention | None = None,
    ) -> None:
        """Offer `tap` as `stream` to the hosts `children`; ValueError without any, if not dynamic.

        A `retention` keeps bytes that the ring cannot, for `retain_from` and for children that
        read what the ring has given back.
        """
        if not (children or dynamic):
            msg = f"stream {stream} is offered to nobody"
            raise ValueError(msg)
        self.stream: Final = stream
        self.tap: Final = tap
        self.capacity: Final = tap.capacity
        self.dynamic: Final = dynamic
        self.retention: Final = retention
        self._until: Final = until
        self._retain_from = _ANY_BYTES
        self._head_seen = -1
        self.outgoing: Final[dict[str, Outgoing]] = {}
        """By child; of a dynamic offer also those that are not admitted."""
        self.starved: Final[dict[str, int]] = {}
        """By child: where those stand that are admitted and want what is not held any more. They
        are served nothing until they subscribe farther on, and only what they were promised when
        they were admitted is kept for them."""
        # No detour for what is asked for every message.
        self.whole_frames: Final = tap.whole_frames if retention is None else self._whole_frames
        """See `RingTap.whole_frames`; of the bytes in ring and retention."""
        self.pieces: Final = tap.pieces if retention is None else self._pieces
        """See `RingTap.pieces`; the same."""
        for child in children:
            if dynamic:
                self.admit(child, tap.released)
            else:
                self.outgoing[child] = outgoing = Outgoing(self, child)
                if tap.resumed:
                    outgoing.sender.held_from(tap.released)

    # --- children that come and go -------------------------------------------------------------

    def admit(self, child: str, position: int) -> int:
        """Keep every byte from `position` on for `child`; return where what is kept begins.

        That is later if the bytes are gone. A child that has subscribed already is served from
        where it stands, and one that was admitted before keeps what is kept for it.
        """
        outgoing = self.outgoing_to(child)
        sender = outgoing.sender
        position = max(position, self.held_from)
        if sender.subscribed_now:
            # What was sent before a dismissal is on its way; where it continues must still be here.
            sender.astray |= not outgoing.admitted
        elif not outgoing.admitted or position < sender.acknowledged:
            sender.held_from(position)
        if not outgoing.admitted or position < outgoing.promised_from:
            outgoing.promised_from = position
        outgoing.admitted, outgoing.pinned = True, False
        return max(sender.acknowledged, self.held_from)

    def dismiss(self, child: str) -> None:
        """Keep nothing for `child` and send it nothing more, until it is admitted again."""
        outgoing = self.outgoing.get(child)
        if outgoing is not None and outgoing.admitted:
            outgoing.admitted = outgoing.waits = False
            outgoing.pinned = outgoing.sender.subscribed_now
            self.starved.pop(child, None)
            self.release()

    def readmit(self, child: str, position: int) -> None:
        """Keep bytes for `child` from `position` on only; KeyError if it was never admitted.

        Other than `dismiss` and then `admit`, it never releases bytes after `position` in between.
        """
        self.outgoing[child].admitted = False
        self.starved.pop(child, None)
        self.admit(child, position)
        self.release()

    def outgoing_to(self, child: str) -> Outgoing:
        """Return the stream on its way to `child`, of which nothing may be known yet."""
        outgoing = self.outgoing.get(child)
        if outgoing is None:
            outgoing = self.outgoing[child] = Outgoing(self, child, admitted=False)
        return outgoing

    @property
    def children(self) -> tuple[str, ...]:
        """The admitted children that have not left."""
        return tuple(
            child
            for child, outgoing in self.outgoing.items()
            if outgoing.admitted and not outgoing.gone
        )

    def position_of(self, child: str) -> int:
        """Return how far `child` has acknowledged: at first where it was admitted.

        KeyError if it is not admitted.
        """
        outgoing = self.outgoing[child]
        if not outgoing.admitted:
            raise KeyError(child)
        return outgoing.sender.acknowledged

    # --- what is here --------------------------------------------------------------------------

    @property
    def head(self) -> int:
        """The position up to which bytes can be sent."""
        return self.tap.head

    @property
    def held_from(self) -> int:
        """The first byte that can still be sent from here, where a frame begins."""
        retention = self.retention
        return self.tap.released if retention is None or retention.empty else retention.first

    @property
    def finished_at(self) -> int | None:
        """Where the stream ends; None as long as more may come."""
        return self.tap.finished_at

    def _whole_frames(self, start: int, limit: int, max_bytes: int) -> int:
        if start >= self.tap.released:
            return self.tap.whole_frames(start, limit, max_bytes)
        assert self.retention is not None
        return self.retention.whole_frames(start, limit, max_bytes)

    def _pieces(self, start: int, stop: int) -> tuple[memoryview, ...]:
        released = self.tap.released
        if start >= released:
            return self.tap.pieces(start, stop)
        assert self.retention is not None
        pieces = self.retention.pieces(start, min(stop, released))
        return pieces if stop <= released else pieces + self.tap.pieces(released, stop)

    def end_of_frame(self, position: int) -> int | None:
        """Return where the frame ends in which `position` stands; None as long as it is not here.

        `position` itself if a frame begins there, or ends. It must be held.
        """
        if position > self.head:
            return None
        start = self.tap.released
        if position < start:
            assert self.retention is not None
            start = self.retention.frame_before(position)
        start = self.whole_frames(start, position, _ANY_BYTES)
        if start == position:
            return position
        end = self.whole_frames(start, self.head, 1)
        return end if end > position else None

    # --- releasing -----------------------------------------------------------------------------

    def retain_from(self, position: int) -> None:
        """Keep, whatever the children have, everything from `position` on.

        In the ring or, if there is one and the ring gets full, in the retention.
        """
        if position != self._retain_from:
            self._retain_from = position
            self.release()

    def tend(self) -> None:
        """Release what came in and no child will acknowledge, as there may be no child now.

        `LinkManager` calls it after each batch of bytes.
        """
        if self.dynamic and self.tap.head != self._head_seen:
            self._head_seen = self.tap.head
            self.release()

    def release(self) -> None:
        """Release what no child needs any more; close the tap if all fixed children have left."""
        served = [
            one
            for one in self.outgoing.values()
            if (one.admitted or one.pinned) and not (one.gone or one.child in self.starved)
        ]
        if self.dynamic:
            self._release_behind(served)
        elif served:
            self.tap.release(min(map(self._floor_of, served)))
        else:
            self.tap.close()

    def _floor_of(self, outgoing: Outgoing) -> int:
        """Return the first byte that a child may still need."""
        sender = outgoing.sender
        return sender.consumed if self._until == "consumed" else sender.acknowledged

    def _release_behind(self, served: list[Outgoing]) -> None:
        """Release, of a dynamic offer, what is before everything that must be kept.

        That is: what the children `served` need, what carriers are still reading, what starved
        children were promised, and what the owner retains.
        """
        head = self.tap.head
        floors = [self._floor_of(one) for one in served]
        lent = [start for one in self.outgoing.values() if (start := one.lent_from) is not None]
        promised = [
            start for child in self.starved if (start := self.outgoing[child].promised_from)
        ]
        needed = min([*floors, *lent, *promised, self._retain_from, head])
        if self.retention is None:
            self.tap.release(needed)
            return
        # A child that reads from the ring holds its bytes there. One that lags behind what the ring
        # has released does not: it reads from the retention.
        released = self.tap.released
        in_ring = [
            max(floor, released)
            for floor, one in zip(floors, served, strict=True)
            if max(floor, one.sender.sent) >= released
        ]
        in_ring += [max(start, released) for start in lent]
        self._retain(self.retention, needed, min(in_ring, default=head), head)

    def _retain(self, retention: Retention, needed: int, unread: int, head: int) -> None:
        """Release what is before `needed`, and move what the ring cannot keep to `retention`.

        Children read from the ring from `unread` on, at the earliest.
        """
        tap = self.tap
        retention.release(needed)
        if needed > tap.released:
            tap.release(needed)
        # Half of the ring is always free for what is yet to come: for the largest frame.
        if head - tap.released <= self.capacity // 2:
            return
        stop = min(unread, head - self.capacity // 8 * 3)
        start = tap.released
        while start < stop:
            end = tap.whole_frames(start, stop, retention.chunk_bytes)
            if end == start or not retention.append(start, tap.pieces(start, end)):
                break
            start = end
        tap.release(start)

    @property
    def complete(self) -> bool:
        """Whether the stream has ended and every child has all of it."""
        return self.tap.closed or (
            self.tap.finished_at is not None
            and all(child.complete for child in self.outgoing.values() if child.admitted)
        )


class Incoming:
    """One stream that a parent sends: one parent after the other, or none for a time."""

    def __init__(self, stream: int, mirror: MirrorRing, grant_delay_ns: int) -> None:
        """Fill `mirror` with `stream` from where it stands; `Peer.take_over` gives it a parent."""
        self.stream: Final = stream
        self.mirror: Final = mirror
        self.receiver: Final = StreamReceiver(mirror.capacity, grant_delay_ns, mirror.received)
        self.parent: str | None = None
        """The host from which it is read now."""
        self.number = 0
        """Of the present subscription: what was sent for another one is stale."""
        self.subscribed_now = False
        """Whether the parent was told on the present link."""
        self.left = False
        """Whether the parent was told that this host wants no more."""
        self._fences = 0
        self._fenced_at = 0

    def fence(self) -> None:
        """Raise the limit of grants no further until `lift`, as a former parent may still write.

        By RDMA it writes straight into the mirror, at positions that were granted to it: until it
        has, these must not be granted again for the next lap of the ring.
        """
        if not self._fences:
            self._fenced_at = self.receiver.granted.limit
        self._fences += 1

    def lift(self) -> None:
        """Undo one `fence`: what it waited for has been written, or never will be."""
        self._fences -= 1

    def _within_fence(self, limit: int) -> int:
        return min(limit, self._fenced_at) if self._fences else limit

    @property
    def received(self) -> int:
        """Every byte before this position is here."""
        return self.receiver.received

    @property
    def finished_at(self) -> int | None:
        """Where the stream ends, once a parent has said so."""
        return self.receiver.finished_at

    def writable(self, position: int, nbytes: int) -> tuple[memoryview, ...] | None:
        """Return where bytes that arrive belong; None if they are not needed.

        Raises ProtocolError if they are not what is due.
        """
        if not self.expects(position, nbytes):
            return None
        return self.mirror.writable(position, nbytes)

    def expects(self, position: int, nbytes: int) -> bool:
        """Return whether bytes that arrive are the next ones that are needed.

        Raises ProtocolError if they are not what is due.
        """
        return not self.left and self.receiver.check(position, nbytes)

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
        limit = self.mirror.request_wake_up(receiver.wanted_limit - receiver.capacity)
        return receiver.grant_due(self._within_fence(limit), now_ns)

    def subscription(self) -> Grant:
        """Return what to tell the parent on a new link."""
        return self.receiver.subscription(self._within_fence(self.mirror.limit))

    @property
    def leaving(self) -> bool:
        """Whether the parent must be told that all readers of this host have left the stream.

        As `grant_due` has found, or `subscription`.
        """
        return not self.left and self.mirror.abandoned and not self.receiver.complete

    @property
    def complete(self) -> bool:
        """Whether all of the stream was shown to the readers, or all of them have left."""
        return self.left or self.mirror.finished
