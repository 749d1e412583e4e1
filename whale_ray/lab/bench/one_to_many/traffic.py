"""Bytes of a stream on the wire, computed from its frames, to check the measured bytes.

A host sends each of its children the bytes of the ring: every frame with its length word, rounded
up to 64 bytes, and the padding where a frame would not fit before the end of the ring. Each message
between hosts has 32 bytes before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ....transport.links.link_header import DATA_BYTES_MAX
from ....transport.links.link_header import HEADER_BYTES as MESSAGE_HEADER_BYTES
from ....transport.ring_layout import FRAME_ALIGNMENT, LENGTH_BYTES

__all__ = ["StreamBytes", "reduction", "stream_of"]


@dataclass(frozen=True)
class StreamBytes:
    """A stream to one child.

    Attributes:
        ring_bytes: bytes of the stream in the ring, padding included.
        frames: number of its frames.
    """

    ring_bytes: int
    frames: int

    def leaves(self, copies: int) -> int:
        """Return how many bytes a host sends to `copies` children.

        Assumes the least possible number of messages; each more costs 32 bytes.
        """
        messages = max(self.frames, -(-self.ring_bytes // DATA_BYTES_MAX))
        return copies * (self.ring_bytes + MESSAGE_HEADER_BYTES * messages)


def stream_of(frame_bytes: Iterable[int], capacity: int) -> StreamBytes:
    """Return the bytes of frames of the given sizes in a ring of `capacity` bytes of data.

    A size is that of the frame's content (header and columns).
    """
    position = frames = 0
    for size in frame_bytes:
        whole = -(-(size + LENGTH_BYTES) // FRAME_ALIGNMENT) * FRAME_ALIGNMENT
        left = capacity - position % capacity
        if whole > left:
            position += left
        position += whole
        frames += 1
    return StreamBytes(position, frames)


def reduction(ours: float, theirs: float) -> float:
    """Return the relative difference of `ours` to `theirs`: −0.98 means a fiftieth of it."""
    return ours / theirs - 1.0
