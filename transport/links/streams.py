"""What two hosts know of one stream between them: how far it was sent, received, and may continue.

Pure: positions in, positions out; no memory, no clock, no I/O. Positions count bytes since the
stream began. One message says it all, for acknowledgement, flow control and reconnection: "I have
every byte before `received`, and you may send up to `limit`"::

                      acknowledged          sent              limit
    the parent's  ────────┼──────────────────┼──────────────────┼────
                          │ · · · on the way · · ·│
    the child's   ────────┼───────────────────────┼──────────────────
                       granted                 received

After a broken link the child says it again, and the parent continues at `received`: what was on the
way is sent anew, what had arrived is not. Both numbers only grow.

A child may also say it to another parent, as positions are the same everywhere: that one continues
in the middle of a stream, maybe in the middle of a frame, if it still holds the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ...configs.errors import ProtocolError

WholeFrames = Callable[[int, int, int], int]
"""`RingTap.whole_frames`: from start, not beyond limit, about max_bytes: where frames end."""


class Grant(NamedTuple):
    """What a child tells its parent."""

    received: int
    limit: int


class StreamSender:
    """The parent's knowledge of one stream and one child."""

    def __init__(self, capacity: int) -> None:
        """Begin at position 0; nothing may be sent before the child subscribes.

        `capacity`: bytes of the ring, and of the child's mirror.
        """
        self.capacity: Final = capacity
        self.sent = 0
        """Every byte before this position was sent on the present link, or acknowledged."""
        self.acknowledged = 0
        """The child has every byte before this position."""
        self.limit = 0
        """Nothing may be sent beyond this position."""
        self.subscribed_now = False
        """Whether the child takes data on the present link."""
        self.told_end = False
        """Whether the child was told on the present link where the stream ends."""
        self.astray = False
        """Whether it is unknown where the frame ends in which `sent` stands; see `aligned`."""
        self._begun = 0
        self._furthest = 0
        self._whole = 0  # bytes before it are whole frames

    @property
    def consumed(self) -> int:
        """The child's readers have given back every byte before this position."""
        return max(self._begun, self.limit - self.capacity)

    def subscribed(self, received: int, limit: int) -> None:
        """Take up sending at `received`: the child's first word on a new link.

        Raises ProtocolError for what it cannot have, or what may be gone here.
        """
        self._check(received, limit, self._furthest)
        self.acknowledged = self.sent = received
        self.limit = limit
        # The child may stand within a frame that was cut in pieces; it is still all here, as the
        # walk over frames has passed its end and nothing after `received` was given back.
        self._whole = max(received, self._whole)
        self.subscribed_now = True
        self.told_end = False

    def taken_up(self, received: int, limit: int) -> None:
        """Take up sending wherever the child stands, which may have had another parent.

        Raises ProtocolError for a grant that makes no sense. Whether the bytes are here is for
        the caller to find out, and where their frames end (`aligned`).
        """
        self._check_limit(received, received, limit)
        self.acknowledged = self.sent = self._furthest = received
        self._begun = 0
        self.limit = limit
        self.astray = True
        self.subscribed_now = True
        self.told_end = False

    def held_from(self, position: int) -> None:
        """Take note, while the child is not subscribed, that bytes are held for it from here on."""
        self._begun = self.acknowledged = self.sent = self._furthest = position
        self.limit = 0
        self.astray = True

    def aligned(self, whole: int) -> None:
        """Take note that the frame in which `sent` stands, if it does, ends at `whole`."""
        self._whole = whole
        self.astray = False

    def granted(self, received: int, limit: int) -> None:
        """Take note of a grant. Raises ProtocolError for one that makes no sense."""
        if not self.subscribed_now:
            msg = "a grant for a stream that was not subscribed on this link"
            raise ProtocolError(msg)
        self._check(received, limit, self.sent)
        self.acknowledged = received
        self.limit = limit

    def _check(self, received: int, limit: int, sent: int) -> None:
        if not self.acknowledged <= received <= sent:
            msg = (
                f"the child says that it has {received:,} bytes of a stream, of which "
                f"{self.acknowledged:,} were acknowledged and {sent:,} sent"
            )
            raise ProtocolError(msg)
        self._check_limit(max(self.limit, received), received, limit)

    def _check_limit(self, least: int, received: int, limit: int) -> None:
        if not least <= limit <= received + self.capacity:
            msg = (
                f"the child grants a stream up to {limit:,} after {self.limit:,}, with "
                f"{received:,} received and a mirror of {self.capacity:,} bytes"
            )
            raise ProtocolError(msg)

    def disconnected(self) -> None:
        """Take note that the link broke: nothing more is sent until the child subscribes."""
        self.subscribed_now = False

    def next_range(self, whole_frames: WholeFrames, max_bytes: int) -> tuple[int, int] | None:
        """Return (start, stop) to send now, at most `max_bytes`; None if nothing can be sent.

        Counts it as sent. `max_bytes` is a multiple of 64; a larger frame goes out in pieces.
        Not to be asked while `astray`.
        """
        start = self.sent
        if start == self._whole:
            if start >= self.limit or not self.subscribed_now:
                return None
            self._whole = whole_frames(start, self.limit, max_bytes)
            if self._whole == start:
                return None
        elif not self.subscribed_now:
            return None
        # Behind a reconnection `_whole` may lie beyond a limit that is as it was: both only grow.
        self.sent = stop = min(self._whole, start + max_bytes)
        self._furthest = max(self._furthest, stop)
        return start, stop


class StreamReceiver:
    """The child's knowledge of one stream from its parent."""

    def __init__(self, capacity: int, delay_ns: int, received: int = 0) -> None:
        """Begin at `received`; a grant too small to be sent at once waits up to `delay_ns`."""
        self.capacity: Final = capacity
        self.received = received
        """Every byte before this position is here."""
        self.granted = Grant(received, received)
        """What the parent was told last."""
        self.finished_at: int | None = None
        """Where the stream ends, once the parent said so."""
        self._delay_ns = delay_ns
        self._due_ns: int | None = None

    @property
    def complete(self) -> bool:
        """Whether the stream has ended and every byte of it is here."""
        return self.received == self.finished_at

    def check(self, position: int, nbytes: int) -> bool:
        """Return whether data for `position` is the next; False if it is here already.

        Raises ProtocolError for a gap, for more than was granted, and for bytes after the end.
        """
        if position < self.received:
            return False
        stop = position + nbytes
        if position > self.received:
            msg = f"data for position {position:,}, but {self.received:,} is next: some is lost"
            raise ProtocolError(msg)
        if stop > self.granted.limit:
            msg = f"data up to position {stop:,}, but only {self.granted.limit:,} was granted"
            raise ProtocolError(msg)
        if self.finished_at is not None and stop > self.finished_at:
            msg = f"data up to position {stop:,} of a stream that ended at {self.finished_at:,}"
            raise ProtocolError(msg)
        return True

    def arrived(self, nbytes: int) -> None:
        """Count `nbytes` that `check` let pass and that are here now."""
        self.received += nbytes

    def finished(self, position: int) -> None:
        """Take note of the stream's end. Raises ProtocolError if it contradicts what is known."""
        if position < self.received or self.finished_at not in {None, position}:
            msg = (
                f"a stream ends at {position:,}, of which {self.received:,} bytes are here and "
                f"whose end was {self.finished_at}"
            )
            raise ProtocolError(msg)
        self.finished_at = position

    def subscription(self, limit: int) -> Grant:
        """Return what to tell the parent on a new link; `limit` is the mirror's."""
        return self._grant(limit)

    def grant_due(self, limit: int, now_ns: int) -> Grant | None:
        """Return a grant if it is worth a message now; `limit` is the mirror's.

        At once if either number has moved by a quarter of the capacity, if the parent can send
        the largest frame with it and could not without (half: a quarter for the frame, another
        for its padding), or if the stream is complete. Else after the delay.
        """
        last = self.granted
        received = self.received
        if received == last.received and limit == last.limit:
            self._due_ns = None
            return None
        quarter = self.capacity // 4
        if (
            received - last.received >= quarter
            or limit - last.limit >= quarter
            or last.limit < received + 2 * quarter <= limit
            or (received != last.received and received == self.finished_at)
        ):
            return self._grant(limit)
        if self._due_ns is None:
            self._due_ns = now_ns + self._delay_ns
        return self._grant(limit) if now_ns >= self._due_ns else None

    def _grant(self, limit: int) -> Grant:
        self._due_ns = None
        self.granted = Grant(self.received, limit)
        return self.granted

    @property
    def due_ns(self) -> int | None:
        """When a grant that waits will be due; None if none waits."""
        return self._due_ns

    @property
    def wanted_limit(self) -> int:
        """The mirror's limit at which a grant will be due at once: the readers ring there."""
        quarter = self.capacity // 4
        wanted = self.granted.limit + quarter
        enough = self.received + 2 * quarter
        return min(wanted, enough) if self.granted.limit < enough else wanted
