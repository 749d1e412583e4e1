"""The contract of every channel, whatever carries its bytes.

A channel moves frames, which are sequences of bytes, from one sender to one or more receivers,
each of which gets every frame, whole, once and in the order of sending. Calls never wait and
never hide that they could not: they answer with an `Outcome`. A sender that was told
BACK_PRESSURED, and a receiver that found nothing, sleep on their doorbell (doorbell.py), which
the other side rings.

One object is one end; it is used by one thread at a time.

The lifetime of received bytes: `get` hands out a `Frame` whose `data` is memory of the channel,
read-only. `release_buffer` gives up the channel's own claim to it, but as long as any array or
buffer made from `data` lives, the memory stays as it is: the sender cannot reuse it, nor anything
behind it. Such held memory is limited: beyond `held_fraction` of the capacity `get` raises
HeldViewsError, since the channel would come to a stop. Views must not outlive `close`.
"""

from __future__ import annotations

import enum
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from ..configs.errors import HeldViewsError
from .segment import Bytes

Encode: TypeAlias = Callable[[Bytes], int]
"""Writes a message into the given writable bytes and returns how many of them it used."""


class Outcome(enum.Enum):
    """What became of an attempt to send."""

    SENT = "sent"
    """The frame is on its way (`put`), or would be (`ready_to_send`)."""
    BACK_PRESSURED = "back-pressured"
    """A receiver is too slow: nothing was sent; the sender's doorbell rings when there is room."""
    CLOSED = "closed"
    """This end is closed, or every receiver has closed: nothing can be sent any more."""
    TOO_LARGE = "too large"
    """The frame can never fit: it must be split."""


class Frame:
    """One received frame, valid until it is given to `release_buffer`."""

    __slots__ = ("data", "end", "position", "view")

    def __init__(self, data: Bytes, position: int, end: int) -> None:
        """Wrap the bytes of a frame; only channels do so."""
        self.data = data
        """The payload: read-only uint8 (n,). Every view of it refers to this very array; the
        attribute is gone once the frame has been released."""
        self.position = position
        """Where the frame before it ended, in bytes since the channel was opened."""
        self.end = end
        """Where this frame ends; it claims everything in between, skipped bytes included."""
        self.view: weakref.ref[Bytes] | None = None
        """After the release: the array, as long as any view keeps it alive; only for channels."""

    @property
    def size(self) -> int:
        """Bytes that the frame claims in the channel."""
        return self.end - self.position

    @property
    def released(self) -> bool:
        """Whether the frame was given back; views of it may still be alive."""
        return self.view is not None

    def release(self) -> None:
        """Give up the channel's claim; called by the channel, once: ValueError after that."""
        if self.view is not None:
            msg = f"the frame at position {self.position} was already released"
            raise ValueError(msg)
        self.view = weakref.ref(self.data)
        del self.data


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """The counters of one end of a channel."""

    frames: int
    """Frames sent, or received."""
    payload_bytes: int
    """Bytes of their payloads."""
    padding_bytes: int
    """Bytes skipped because a frame would not fit before the end of the memory (sender)."""
    back_pressured: int
    """Times a frame found no room (sender)."""
    capacity_bytes: int
    """Size of the channel's memory, 0 if it has none of its own."""
    lag_bytes: tuple[int | None, ...]
    """Bytes sent but not given back: of each receiver in order, None if it has closed (sender);
    this receiver's alone (receiver)."""
    held_bytes: int
    """Bytes that were released but are still pinned by living views (receiver)."""

    @property
    def slowest(self) -> int | None:
        """Index of the receiver that lags most; None if all have closed."""
        lags = [(lag, index) for index, lag in enumerate(self.lag_bytes) if lag is not None]
        return max(lags, key=lambda entry: entry[0])[1] if lags else None


class Channel(ABC):
    """One end of a channel. See the module for what all implementations promise."""

    @abstractmethod
    def open(self) -> None:
        """Get ready; must precede everything else. A second call does nothing."""

    @abstractmethod
    def ready_to_send(self, nbytes: int) -> Outcome:
        """Return what `put` would answer for `nbytes`; SENT means that it would be sent.

        After BACK_PRESSURED the sender's doorbell rings when there is room.
        """

    @abstractmethod
    def put(self, nbytes: int, encode: Encode) -> Outcome:
        """Reserve `nbytes`, let `encode` write into them, and send what it says it used.

        `encode` is called only if there is room; if it raises, nothing is sent and the channel
        is as before. It must not keep the array. Raises ValueError if it returns more than
        `nbytes`.
        """

    @abstractmethod
    def available(self) -> bool:
        """Return whether `get` would find a frame. Also gives back what views have let go."""

    @abstractmethod
    def get(self) -> Frame | None:
        """Return the next frame, None if there is none now (or any more).

        Raises HeldViewsError if too much of the channel's memory is pinned by views, and
        CorruptedMessageError if the memory does not hold frames.
        """

    @abstractmethod
    def release_buffer(self, frame: Frame) -> None:
        """Give a frame back, in any order, once; views of it keep its memory (see the module)."""

    @abstractmethod
    def statistics(self) -> ChannelStatistics:
        """Return the counters; also after `close`."""

    @abstractmethod
    def close(self) -> None:
        """End this side: receivers still get every frame sent. A second call does nothing."""

    @property
    @abstractmethod
    def closed_by_peer(self) -> bool:
        """Whether the other side is over.

        Sender: every receiver has closed. Receiver: the sender has closed, or is known to be
        dead, and every frame has been received.
        """


def held_views_error(held_bytes: int, capacity_bytes: int, memory: str) -> HeldViewsError:
    """Return the error for views that hold too much of a channel's memory, called so."""
    msg = (
        f"keeps views of received batches, {held_bytes:,} of the {capacity_bytes:,} bytes of "
        f"their {memory}; copy them (batch.copy())"
    )
    return HeldViewsError(msg)


class SendingEnd(Channel):
    """An end that only sends."""

    def available(self) -> bool:
        """Refuse: this end sends."""
        _wrong_end("the sending end of a channel cannot receive")

    def get(self) -> Frame | None:
        """Refuse: this end sends."""
        _wrong_end("the sending end of a channel cannot receive")

    def release_buffer(self, frame: Frame) -> None:
        """Refuse: this end sends."""
        _wrong_end("the sending end of a channel has no frames to release")


class ReceivingEnd(Channel):
    """An end that only receives."""

    def ready_to_send(self, nbytes: int) -> Outcome:
        """Refuse: this end receives."""
        _wrong_end("the receiving end of a channel cannot send")

    def put(self, nbytes: int, encode: Encode) -> Outcome:
        """Refuse: this end receives."""
        _wrong_end("the receiving end of a channel cannot send")


def _wrong_end(message: str) -> NoReturn:
    raise TypeError(message)
