"""Frames: what two hosts SEND each other over a queue pair, and the credits that bound them.

Pure: bytes and counts. A frame fills one receive buffer of the peer. It begins with the number of
the peer's frames whose buffers were released so far, the credits; items follow, each on a boundary
of 8 bytes::

     0                       8                16
     ┌───────────────────────┬────────┬───────┬──────────────────────┬ ─ ─
     │ frames released       │ kind   │ bytes │ content, padded to 8 │ next item
     └───────────────────────┴────────┴───────┴──────────────────────┴ ─ ─

=======  ==========================================================================================
BYTES    a part of the link's messages (links/link_header.py), in order; a header is never cut
TO_READ  the header of a DATA message whose payload the receiver READs out of the sender's ring
WRITTEN  the header of a DATA message whose payload was written into the receiver's mirror before
MEMORY   the address of the sender's ring or mirror of a stream, and its key
FENCE    answer with FENCED once everything before this is done
FENCED   the answer, with the number of the question
=======  ==========================================================================================

A queue pair keeps the order of frames and WRITEs: a WRITTEN arrives after the bytes that it
announces.

A side without a credit waits: a frame without a receive buffer would break the queue pair. The last
two credits are kept for frames that only return credits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ...configs.errors import CorruptedMessageError, ProtocolError

BYTES: Final = 1
TO_READ: Final = 2
WRITTEN: Final = 3
MEMORY: Final = 4
FENCE: Final = 5
FENCED: Final = 6

FRAME_BYTES: Final = 1 << 15
RECEIVE_BUFFERS: Final = 64
"""Receive buffers of one side."""
FRAME_HEADER_BYTES: Final = 8
ITEM_HEADER_BYTES: Final = 8
ITEMS_MAX: Final = FRAME_BYTES // 16 + 1
"""Items of one frame, its end included."""
ROOM_KEPT: Final = 8
"""Requests of a queue pair that are reserved for frames."""
_CREDITS_KEPT: Final = 2

_COUNT: Final = struct.Struct("<Q")
_ITEM: Final = struct.Struct("<II")
_MEMORY: Final = struct.Struct("<IIQQ")
_NUMBER: Final = struct.Struct("<Q")
_LENGTHS: Final = {
    TO_READ: 32,
    WRITTEN: 32,
    MEMORY: _MEMORY.size,
    FENCE: 8,
    FENCED: 8,
}
_COUNT_MAX: Final = 1 << 62


class RemoteMemory(NamedTuple):
    """The address and key of a stream's ring, or of its mirror, in its owner's process."""

    stream: int
    rkey: int
    address: int
    capacity: int

    def encode(self) -> bytes:
        """Return the content of a MEMORY."""
        return _MEMORY.pack(*self)

    @classmethod
    def decode(cls, content: memoryview) -> RemoteMemory:
        """Read the content of a MEMORY."""
        return cls(*_MEMORY.unpack(content))


def encode_number(number: int) -> bytes:
    """Return the content of a FENCE or FENCED."""
    return _NUMBER.pack(number)


def decode_number(content: memoryview) -> int:
    """Read the content of a FENCE or FENCED."""
    return int(_NUMBER.unpack(content)[0])


def put_header(frame: memoryview, released: int) -> int:
    """Write a frame's header; return the offset of its first item."""
    _COUNT.pack_into(frame, 0, released)
    return FRAME_HEADER_BYTES


def put_item(frame: memoryview, at: int, kind: int, nbytes: int) -> int:
    """Write an item's header; return the offset of its content."""
    _ITEM.pack_into(frame, at, kind, nbytes)
    return at + ITEM_HEADER_BYTES


def padded_end(at: int) -> int:
    """Return the offset of the item after content that ends at `at`."""
    return (at + 7) & -8


def released_by(frame: memoryview) -> int:
    """Return how many frames the sender has released. Raises CorruptedMessageError."""
    if len(frame) < FRAME_HEADER_BYTES:
        msg = f"a frame of {len(frame)} bytes: its header alone takes {FRAME_HEADER_BYTES}"
        raise CorruptedMessageError(msg)
    return int(_COUNT.unpack_from(frame)[0])


def items_of(frame: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield kind and content of each item. Raises CorruptedMessageError for invalid ones."""
    at, end = FRAME_HEADER_BYTES, len(frame)
    while at < end:
        if end - at < ITEM_HEADER_BYTES:
            msg = f"a frame ends {end - at} bytes after its last item"
            raise CorruptedMessageError(msg)
        kind, nbytes = _ITEM.unpack_from(frame, at)
        at += ITEM_HEADER_BYTES
        fixed = _LENGTHS.get(kind)
        right = nbytes >= 1 if kind == BYTES else nbytes == fixed
        if not right or nbytes > end - at:
            msg = f"a frame holds an item of kind {kind} with {nbytes:,} bytes"
            raise CorruptedMessageError(msg)
        yield kind, frame[at : at + nbytes]
        at = padded_end(at + nbytes)


class Credits:
    """Counts of the frames sent and released, by either side."""

    __slots__ = ("_buffers", "_half", "_reported", "released", "returned", "sent")

    def __init__(self, peers_buffers: int, own_buffers: int) -> None:
        """Begin with a credit for each of the peer's buffers."""
        self._buffers = peers_buffers
        self._half = own_buffers // 2
        self._reported = 0
        self.sent = 0
        """Frames sent."""
        self.returned = 0
        """Those of them that the peer has released."""
        self.released = 0
        """Frames of the peer whose buffers are posted again."""

    @property
    def may_send(self) -> bool:
        """Whether a frame with items may be sent."""
        return self.sent - self.returned < self._buffers - _CREDITS_KEPT

    @property
    def should_send_credits(self) -> bool:
        """Whether a frame that only returns credits is due, and may be sent.

        It is due once half of the own buffers are released and not yet reported.
        """
        owed = self.released - self._reported
        return owed >= self._half and self.sent - self.returned < self._buffers

    def frame_sent(self) -> int:
        """Count a frame as sent; return the number of released frames to write into it."""
        self.sent += 1
        self._reported = self.released
        return self.released

    def peer_released(self, released: int) -> None:
        """Take over the count in a frame of the peer. Raises ProtocolError if it is impossible."""
        if not self.returned <= released <= self.sent or released > _COUNT_MAX:
            msg = f"the peer has released {released:,} frames of {self.sent:,} sent"
            raise ProtocolError(msg)
        self.returned = released
