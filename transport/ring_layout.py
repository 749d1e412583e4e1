"""The memory layout of a ring: fixed offsets, the same for local and for remote readers.

One process writes, every reader reads every frame. The same structure serves readers that map it
(this host) and readers that fetch it with one-sided RDMA and write their tail back (others)::

    byte 0      segment header                                   see segment.py
       128      layout version | capacity | readers | data offset          constant
       192      received                                         of a mirror, by its writer
       256      head                                             written by the producer only
       384      wanted tail | producer closed | closings         all three rarely written
       512      reader 0: tail | state | position                written by reader 0
       640      reader 1: tail | state | position
       ...      zero up to the next page
    data offset capacity bytes of frames, capacity being a power of two

Words are little-endian int64; each line has 128 bytes, so that no two processes write the same
pair of cache lines. Head and tails are positions: they count bytes since the ring was created and
never wrap; position & (capacity - 1) is the offset in the data. The bytes from the lowest tail of
an open reader up to the head belong to the readers, the others to the producer.

A frame is 64-byte aligned and contiguous::

    +--------------+---------------------------------------+- - - - - - - - - - - - +
    | length: 8 B  | payload: length bytes                 | up to a multiple of 64 |
    +--------------+---------------------------------------+- - - - - - - - - - - - +

Where a frame would not fit before the end of the data, the rest is a padding frame, whose length
word is minus its whole size. Padding is committed together with the frame after it, so a ring
never holds padding alone. Frames become visible when the head moves past them.

- *received*: the position up to which a mirror (mirror.py) has received, where another writer goes
  on if this one dies; 0 in a ring that its producer fills.
- *wanted tail*: 0, or the position that the lowest tail must reach before a waiting producer can
  continue; a reader that reaches it rings the producer's doorbell.
- *producer closed*: 1 once no frame will follow.
- *closings*: counts changes of reader states, so that the producer reads these only then.
- *state*: 0 expected (not attached yet, but counted, so that it misses nothing), 1 open, 2 closed.
- *position*: up to where the reader has taken frames, which it may hold longer; a tap, which reads
  bytes, leaves it at 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..configs.errors import ResourceError
from .segment import Segment

LINE_BYTES: Final = 128
PAGE_BYTES: Final = 4096
FRAME_ALIGNMENT: Final = 64
LENGTH_BYTES: Final = 8

POISON: Final = 0xDB
"""What tests have released bytes overwritten with: in a ring and its mirrors the same."""

CONSTANTS: Final = 128
RECEIVED: Final = 192
HEAD: Final = 256
WANTED_TAIL: Final = 384
PRODUCER_CLOSED: Final = 392
CLOSINGS: Final = 400
READERS: Final = 512
READER_STATE: Final = 8
"""Offset of a reader's state from its tail."""
READER_POSITION: Final = 16
"""Offset of a reader's position from its tail."""

EXPECTED: Final = 0
OPEN: Final = 1
CLOSED: Final = 2

RING_BYTES_MIN: Final = 1 << 12
RING_BYTES_MAX: Final = 1 << 30
READERS_MAX: Final = 4096
_LAYOUT_VERSION: Final = 2


def max_frame_bytes_of(capacity: int) -> int:
    """Return the largest payload in a ring of that size, see `RingLayout.max_frame_bytes`."""
    return capacity // 4 - LENGTH_BYTES


def capacity_for(nbytes: int) -> int:
    """Return the smallest capacity, a power of two, whose ring takes a payload of `nbytes`."""
    return 1 << (4 * (nbytes + LENGTH_BYTES) - 1).bit_length()


@dataclass(frozen=True, slots=True)
class RingLayout:
    """The sizes from which all offsets follow."""

    capacity: int
    """Bytes of data; a power of two."""
    readers: int
    """Number of readers, all of which exist from the start."""

    def __post_init__(self) -> None:
        """Refuse sizes that the layout cannot hold."""
        power_of_two = self.capacity & (self.capacity - 1) == 0
        if not (power_of_two and RING_BYTES_MIN <= self.capacity <= RING_BYTES_MAX):
            msg = (
                f"a ring of {self.capacity} bytes: it must be a power of two "
                f"from {RING_BYTES_MIN} to {RING_BYTES_MAX}"
            )
            raise ValueError(msg)
        if not 1 <= self.readers <= READERS_MAX:
            msg = f"a ring with {self.readers} readers: from 1 to {READERS_MAX} are possible"
            raise ValueError(msg)

    @property
    def data_offset(self) -> int:
        """Offset of the data, on a page of its own."""
        end = READERS + self.readers * LINE_BYTES
        return -(-end // PAGE_BYTES) * PAGE_BYTES

    @property
    def total_bytes(self) -> int:
        """Size of the whole segment."""
        return self.data_offset + self.capacity

    @property
    def max_frame_bytes(self) -> int:
        """The largest payload: with its length word it takes a quarter of the ring.

        Such a frame, its padding included, always fits while the readers hold half of the ring.
        """
        return max_frame_bytes_of(self.capacity)

    def reader_offset(self, reader: int) -> int:
        """Return the offset of a reader's line."""
        if not 0 <= reader < self.readers:
            msg = f"reader {reader}: the ring has readers 0 to {self.readers - 1}"
            raise IndexError(msg)
        return READERS + reader * LINE_BYTES

    def write(self, segment: Segment) -> None:
        """Make a zeroed segment an empty ring."""
        words = segment.words(CONSTANTS, CONSTANTS + 32)
        words[:] = (_LAYOUT_VERSION, self.capacity, self.readers, self.data_offset)

    @classmethod
    def read(cls, segment: Segment) -> RingLayout:
        """Return the layout of an attached ring; ResourceError if it is not of this version."""
        version, capacity, readers, data_offset = (
            int(word) for word in segment.words(CONSTANTS, CONSTANTS + 32)
        )
        if version == _LAYOUT_VERSION:
            layout = cls(capacity, readers)
            if (layout.data_offset, layout.total_bytes) == (data_offset, segment.handle.size):
                return layout
        msg = (
            f"segment {segment.handle.path!r} holds no ring of layout version {_LAYOUT_VERSION}: "
            "all workers of a job must run the same version of whale-ray"
        )
        raise ResourceError(msg)
