"""What a link over verbs takes on one side, and what two sides have agreed on."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from ...configs.errors import ProtocolError
from .device import REQUESTS_WANTED, Buffer, GidEntry
from .frames import LETTER_BYTES, LETTERS
from .library import NoVerbsError
from .queue_pair import Card, QueuePair
from .regions import Regions

SENDS: Final = REQUESTS_WANTED
"""Letters and WRITEs under way."""
READS: Final = REQUESTS_WANTED - LETTERS
"""READs that may wait for their turn at the device, those under way included."""
SLOTS: Final = 32
"""Letters under way, of one side."""


class Data(enum.Enum):
    """How payloads travel; the numbers are told to the peer."""

    READ = 1
    WRITE = 2
    SEND = 3


@dataclass(frozen=True, slots=True)
class Equipment:
    """Two queue pairs, and the memory of letters.

    READs have one of their own. On the way of letters, these would wait for as many READs as a
    device carries at a time; and where a device does its work on the processor of whoever posts,
    as soft-RoCE, an acknowledgement overtakes bytes that were read before, which are then read
    again.
    """

    pair: QueuePair
    """Of letters and WRITEs, which are in one order. It polls for both."""
    reads: QueuePair
    inbox: Buffer
    outbox: Buffer
    regions: Regions
    """Of its device."""

    @classmethod
    def of(cls, regions: Regions, gid: GidEntry) -> Equipment:
        """Make it, with all receives posted; raises ResourceError if that cannot be."""
        device = regions.device
        made: list[Buffer] = []
        pair = QueuePair(device, gid, SENDS, LETTERS, besides=READS)
        reads = None
        try:
            reads = QueuePair(device, gid, READS, 1, beside=pair)
            nbytes = pair.receives_max * LETTER_BYTES
            made.append(Buffer(device, nbytes, device.library.LOCAL_WRITE, "the letters of a link"))
            made.append(Buffer(device, SLOTS * LETTER_BYTES, 0, "the letters of a link"))
            pair.prepare_receives(made[0].region, LETTER_BYTES)
        except BaseException as error:
            if reads is not None:
                reads.close()
            pair.close()
            for buffer in made:
                buffer.close()
            if isinstance(error, ProtocolError):
                raise NoVerbsError(str(error)) from error
            raise
        regions.users += 1
        return cls(pair, reads, made[0], made[1], regions)

    @property
    def cards(self) -> tuple[bytes, bytes]:
        """What the peer must know of both queue pairs."""
        return self.pair.card.encode(), self.reads.card.encode()

    def connect(self, pair: bytes, reads: bytes) -> None:
        """Connect both to the peer's, of which these are the cards. Raises NoVerbsError."""
        self.pair.connect(Card.decode(pair))
        self.reads.connect(Card.decode(reads))

    def hang_up(self) -> None:
        """Destroy the queue pairs, so that nothing is read or written here any more."""
        self.reads.close()
        self.pair.close()

    def close(self) -> None:
        """Give all back, the queue pairs first; once."""
        self.hang_up()
        self.inbox.close()
        self.outbox.close()
        self.regions.users -= 1


@dataclass(frozen=True, slots=True)
class Agreed:
    """What two hosts have made ready."""

    equipment: Equipment
    sends_data: Data
    """How this host's payloads go."""
    takes_data: Data
    """How the peer's come."""
    peers_buffers: int
