"""The interface and contract of every channel, over whatever transport.

A channel moves frames, which are sequences of bytes, from one sender to one or more receivers,
each of which gets every frame, whole, once and in the order of sending. Calls never block: sending
returns an `Outcome`. After BACK_PRESSURED a sender, and without a frame a receiver, sleeps on its
doorbell (doorbell.py), which the other side rings.

One object is one end; it is used by one thread at a time.

The lifetime of received bytes: `get` returns a `Frame` whose `data` is memory of the channel,
read-only. `release_buffer` ends the frame's own claim to it, but as long as any array or buffer
made from `data` is alive, the memory stays unchanged: the sender can reuse neither it nor anything
after it. Such held memory is limited: beyond `held_fraction` of the capacity `get` raises
HeldViewsError, since the channel would otherwise come to a stop. Views must not outlive `close`.
"""

from __future__ import annotations

import enum
import gc
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
    """The outcome of an attempt to send."""

    SENT = "sent"
    """The frame was sent (`put`), or would be (`ready_to_send`)."""
    BACK_PRESSURED = "back-pressured"
    """A receiver is too slow: nothing was sent; the sender's doorbell rings when there is room."""
    CLOSED = "closed"
    """This end is closed, or every receiver has closed: nothing can be sent any more."""
    TOO_LARGE = "too large"
    """The frame can never fit: it must be split."""


class Frame:
    """One received frame, valid until it is passed to `release_buffer`."""

    __slots__ = ("data", "end", "position", "view")

    def __init__(self, data: Bytes, position: int, end: int) -> None:
        """Wrap the bytes of a frame; only for channels."""
        self.data = data
        """The payload: read-only uint8 (n,). Every view of it refers to this same array; the
        attribute is deleted when the frame is released."""
        self.position = position
        """The end of the frame before, in bytes since the channel was opened."""
        self.end = end
        """The end of this frame; it claims everything in between, skipped bytes included."""
        self.view: weakref.ref[Bytes] | None = None
        """After the release: the array, as long as any view keeps it alive; only for channels."""

    @property
    def size(self) -> int:
        """Bytes that the frame claims in the channel."""
        return self.end - self.position

    def release(self) -> None:
        """End the frame's claim; called by the channel, once: ValueError after that."""
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
    back_pressured: int
    """Times a frame found no room (sender)."""
    capacity_bytes: int
    """Size of the channel's memory, 0 if it has none of its own."""
    lag_bytes: tuple[int | None, ...]
    """Bytes sent but not released: of each receiver in order, None if it has closed (sender); of
    this receiver alone (receiver)."""
    held_bytes: int
    """Bytes that were released but are still held by living views (receiver)."""


class Channel(ABC):
    """One end of a channel. See the module for the contract of all implementations."""

    @abstractmethod
    def open(self) -> None:
        """Open the end, before any other call. A second call does nothing."""

    @abstractmethod
    def ready_to_send(self, nbytes: int) -> Outcome:
        """Return the outcome that `put` would have for `nbytes`; SENT if there is room.

        After BACK_PRESSURED the sender's doorbell rings when there is room.
        """

    @abstractmethod
    def put(self, nbytes: int, encode: Encode) -> Outcome:
        """Reserve `nbytes`, let `encode` write into them, and send as many as it returns.

        `encode` is called only if there is room; if it raises, nothing is sent and the channel
        is as before. It must not keep the array. Raises ValueError if it returns more than
        `nbytes`.
        """

    def lift_limit(self) -> None:
        """Let frames take all the room that there is, until a limit is set again, if there is any.

        What must not wait for a reader is put after that.
        """

    @abstractmethod
    def available(self) -> bool:
        """Return whether `get` would find a frame. Also releases memory whose views are gone."""

    @abstractmethod
    def get(self) -> Frame | None:
        """Return the next frame, None if there is none now (or any more).

        Raises HeldViewsError if too much of the channel's memory is held by views, and
        CorruptedMessageError if the memory does not hold frames.
        """

    @abstractmethod
    def release_buffer(self, frame: Frame) -> None:
        """Release a frame, in any order, once; views of it keep its memory (see the module)."""

    @abstractmethod
    def statistics(self) -> ChannelStatistics:
        """Return the counters; also after `close`."""

    @abstractmethod
    def close(self) -> None:
        """Close this end: receivers still get every frame sent. A second call does nothing."""

    @property
    @abstractmethod
    def closed_by_peer(self) -> bool:
        """Whether the other side has ended.

        Sender: every receiver has closed. Receiver: the sender has closed, or is known to be
        dead, and every frame has been received.
        """


def check_held_views(
    reclaim: Callable[[], int], limit_bytes: int, capacity_bytes: int, memory: str
) -> None:
    """Refuse views of received batches that hold too much of a channel's memory.

    Objects in a cycle keep their views until Python's collector finds them. Compiling leaves such
    cycles: an exception that numba catches refers to the frames of all callers, so to their batch.
    So they are collected before anything is refused.

    Args:
        reclaim: frees what no view refers to any more; returns how many bytes are held.
        limit_bytes: how many may be.
        capacity_bytes: of the memory.
        memory: its name.

    Raises:
        HeldViewsError: more is held.
    """
    if reclaim() <= limit_bytes:
        return
    gc.collect()
    held_bytes = reclaim()
    if held_bytes > limit_bytes:
        msg = (
            f"keeps views of received batches, {held_bytes:,} of the {capacity_bytes:,} bytes of "
            f"their {memory}; copy them (batch.copy())"
        )
        raise HeldViewsError(msg)


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
