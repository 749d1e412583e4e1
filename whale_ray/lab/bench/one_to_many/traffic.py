"""Bytes of a stream on the wire, computed from its frames, to check the measured bytes against.

A host sends each of its children the bytes of the ring: every frame with its length word, rounded
up to 64 bytes, and the padding where a frame would not fit before the end of the ring. Each message
between hosts has 32 bytes before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ....transport.links.messages import DATA_BYTES_MAX
from ....transport.links.messages import HEADER_BYTES as MESSAGE_HEADER_BYTES
from ....transport.ring_layout import FRAME_ALIGNMENT, LENGTH_BYTES

__all__ = ["StreamBytes", "reduction", "stream_of"]


@dataclass(frozen=True)
class StreamBytes:
    """A stream to one child.

    Attributes:
        ring_bytes: positions that it takes in the ring, padding included.
        frames: how many frames it has.
    """

    ring_bytes: int
    frames: int

    def leaves(self, copies: int) -> int:
        """Return how many bytes leave a host that sends it to `copies` children.

        With as few messages as there can be; more cost 32 bytes each.
        """
        messages = max(self.frames, -(-self.ring_bytes // DATA_BYTES_MAX))
        return copies * (self.ring_bytes + MESSAGE_HEADER_BYTES * messages)


def stream_of(frame_bytes: Iterable[int], capacity: int) -> StreamBytes:
    """Return the bytes that frames of those sizes take in a ring of `capacity` bytes of data.

    A size is that of the frame's content: header, columns.
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
