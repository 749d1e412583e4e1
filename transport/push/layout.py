"""The memory layout of a push channel (Slash 4.5.3, Figure 4.5).

The receiver owns c slots of m bytes; one sender writes into them: a sender of this host that maps
the memory, or a sender of another host whose slots a link copies over (wire.py), by TCP or RDMA::

    byte 0      segment header                                        see segment.py
       128      "PUSH", layout version | slots c | slot bytes m | data offset  constant
       256      returned | receiver state                       written by the receiver
       384      wanted | closed at | sender state                 written by the sender
       ...      zero up to the next page
    data offset slot 0, slot 1, … slot c - 1

Words are little-endian int64. Slots are used in turn: *use* u, counted from 0, takes slot u mod c.
*Returned* counts the uses whose slots the receiver has released, always the oldest: the sender has
c - (uses sent - returned) credits.

One slot. The payload stands against the footer, so that both are one contiguous write, and starts
on a multiple of 64 bytes::

              start: 64-byte aligned                           m - 32   m - 24  m - 16  m - 8   m
    +- - - - -+--------------------------------------+- - - - -+--------+-------+-------+-------+
    | unused  | payload: length bytes                | < 64 B  | use    | start,| left  | 0 … 0 |
    |         |                                      | or more |        | length|       | , lap |
    +- - - - -+--------------------------------------+- - - - -+--------+-------+-------+-------+

- *start, length*: 4 bytes each. *Left*: how many slots of the same message follow; a message that
  does not fit one slot is cut into as few as possible, all but the last of them full.
- *lap*, the slot's **last byte**, is what the receiver polls: u div c mod 255 + 1, so it differs
  from the value of the use before, and from 0. It is written last, by a release store of the last
  word, as an RDMA WRITE fills memory from low to high addresses. A message is complete when all its
  slots are: a sender that dies in between has sent nothing.

- *wanted*: 0, or the count of returned uses that a waiting sender needs; a receiver that reaches it
  rings the sender's doorbell.
- *closed at*: 0, or one more than the uses sent when the sender closed.
- *receiver state*, *sender state*: 0 expected, 1 open, 2 closed, as in ring_layout.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...configs.errors import ResourceError
from ..ring_layout import OPEN, PAGE_BYTES
from ..segment import Segment

CONSTANTS: Final = 128
RETURNED: Final = 256
RECEIVER_STATE: Final = 264
WANTED: Final = 384
CLOSED_AT: Final = 392
SENDER_STATE: Final = 400
DATA_OFFSET: Final = PAGE_BYTES

PAYLOAD_ALIGNMENT: Final = 64
FOOTER_BYTES: Final = 32
# Of the footer's words, from the end of the slot back.
USE_BACK: Final = 32
EXTENT_BACK: Final = 24
LEFT_BACK: Final = 16
LAP_BACK: Final = 8

SLOTS_MIN: Final = 2
SLOTS_MAX: Final = 4096
SLOT_BYTES_MIN: Final = 128
SLOT_BYTES_MAX: Final = 1 << 20
_LAYOUT_VERSION: Final = 1
_MARK: Final = int.from_bytes(b"PUSH" + _LAYOUT_VERSION.to_bytes(4, "little"), "little")


@dataclass(frozen=True, slots=True)
class PushLayout:
    """The sizes from which all offsets follow."""

    slots: int
    """c, the credits that a sender begins with."""
    slot_bytes: int
    """m, footer included; a multiple of 64."""

    def __post_init__(self) -> None:
        """Refuse sizes that the layout cannot hold; ValueError."""
        if not SLOTS_MIN <= self.slots <= SLOTS_MAX:
            msg = f"a push channel of {self.slots} slots: from {SLOTS_MIN} to {SLOTS_MAX} may be"
            raise ValueError(msg)
        aligned = self.slot_bytes % PAYLOAD_ALIGNMENT == 0
        if not (aligned and SLOT_BYTES_MIN <= self.slot_bytes <= SLOT_BYTES_MAX):
            msg = (
                f"slots of {self.slot_bytes} bytes: it must be a multiple of {PAYLOAD_ALIGNMENT} "
                f"from {SLOT_BYTES_MIN} to {SLOT_BYTES_MAX}"
            )
            raise ValueError(msg)

    @property
    def capacity(self) -> int:
        """Bytes of all slots."""
        return self.slots * self.slot_bytes

    @property
    def total_bytes(self) -> int:
        """Size of the whole segment."""
        return DATA_OFFSET + self.capacity

    @property
    def room(self) -> int:
        """Payload bytes of one slot."""
        return self.slot_bytes - FOOTER_BYTES

    @property
    def fragments_max(self) -> int:
        """Slots that one message may take.

        Half of them, so that there is room for it while views hold the other half.
        """
        return self.slots // 2

    @property
    def max_frame_bytes(self) -> int:
        """The largest message."""
        return self.fragments_max * self.room

    def write(self, segment: Segment) -> None:
        """Initialise a zeroed segment as a push channel, with its receiver open."""
        words = segment.words(CONSTANTS, CONSTANTS + 32)
        words[:] = (_MARK, self.slots, self.slot_bytes, DATA_OFFSET)
        segment.words(RECEIVER_STATE, RECEIVER_STATE + 8)[0] = OPEN

    @classmethod
    def read(cls, segment: Segment) -> PushLayout:
        """Return the layout of an attached channel; ResourceError if it is not of this version."""
        mark, slots, slot_bytes, data_offset = (
            int(word) for word in segment.words(CONSTANTS, CONSTANTS + 32)
        )
        if (mark, data_offset) == (_MARK, DATA_OFFSET):
            layout = cls(slots, slot_bytes)
            if layout.total_bytes == segment.handle.size:
                return layout
        msg = (
            f"segment {segment.handle.path!r} holds no push channel of layout version "
            f"{_LAYOUT_VERSION}: all workers of a job must run the same version of whale-ray"
        )
        raise ResourceError(msg)
