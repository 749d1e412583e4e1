"""The queue pairs and memory of a link over verbs on one side, and what two sides agreed on."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from ...configs.errors import ProtocolError
from .device import REQUESTS_WANTED, Buffer, GidEntry
from .frames import FRAME_BYTES, RECEIVE_BUFFERS
from .library import NoVerbsError
from .queue_pair import QueuePair, QueuePairAddress
from .regions import Regions

SENDS: Final = REQUESTS_WANTED
"""Frames and WRITEs that may be posted and not completed."""
READS: Final = REQUESTS_WANTED - RECEIVE_BUFFERS
"""READs that may be posted and not completed: the device starts only some of them at a time."""
SLOTS: Final = 32
"""Frames of one side that may be posted and not completed."""


class Data(enum.Enum):
    """How payloads are sent; the numbers are part of the negotiation."""

    READ = 1
    WRITE = 2
    SEND = 3


@dataclass(frozen=True, slots=True)
class LinkResources:
    """Two queue pairs, and the memory of frames.

    READs have a queue pair of their own. In the queue of frames, a frame would wait for the READs
    before it. And with soft-RoCE, which works on the processor of the thread that posts, an
    acknowledgement would overtake bytes read before it, which would then be read again.
    """

    pair: QueuePair
    """Of frames and WRITEs, which it keeps in order. It polls the completions of both."""
    reads: QueuePair
    inbox: Buffer
    outbox: Buffer
    regions: Regions
    """Of its device."""

    @classmethod
    def of(cls, regions: Regions, gid: GidEntry) -> LinkResources:
        """Create them, with all receives posted; raises ResourceError if the device refuses."""
        device = regions.device
        made: list[Buffer] = []
        pair = QueuePair(device, gid, SENDS, RECEIVE_BUFFERS, extra_completions=READS)
        reads = None
        try:
            reads = QueuePair(device, gid, READS, 1, shares_queue_of=pair)
            nbytes = pair.receives_max * FRAME_BYTES
            made.append(Buffer(device, nbytes, device.library.LOCAL_WRITE, "the frames of a link"))
            made.append(Buffer(device, SLOTS * FRAME_BYTES, 0, "the frames of a link"))
            pair.prepare_receives(made[0].region, FRAME_BYTES)
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
    def addresses(self) -> tuple[bytes, bytes]:
        """The encoded addresses of both queue pairs, for the peer."""
        return self.pair.own_address.encode(), self.reads.own_address.encode()

    def connect(self, pair: bytes, reads: bytes) -> None:
        """Connect both to the peer's, by their addresses. Raises NoVerbsError."""
        self.pair.connect(QueuePairAddress.decode(pair))
        self.reads.connect(QueuePairAddress.decode(reads))

    def destroy_queue_pairs(self) -> None:
        """Destroy the queue pairs, so that the peer can neither read nor write here any more."""
        self.reads.close()
        self.pair.close()

    def close(self) -> None:
        """Release everything, the queue pairs first; call it once."""
        self.destroy_queue_pairs()
        self.inbox.close()
        self.outbox.close()
        self.regions.users -= 1


@dataclass(frozen=True, slots=True)
class Agreement:
    """The outcome of a negotiation on one side."""

    resources: LinkResources
    sends_data: Data
    """How this host sends payloads."""
    takes_data: Data
    """How the peer sends them."""
    peers_buffers: int
