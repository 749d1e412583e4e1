"""What a link over verbs takes on one side, and what two sides have agreed on."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from ...configs.errors import ProtocolError
from .device import REQUESTS_WANTED, Buffer, GidEntry
from .letters import LETTER_BYTES, LETTERS
from .library import NoVerbsError
from .queue_pair import QueuePair
from .regions import Regions

SENDS: Final = REQUESTS_WANTED
"""Requests of one queue pair under way: letters, READs or WRITEs."""
SLOTS: Final = 32
"""Letters under way, of one side."""


class Data(enum.Enum):
    """How payloads travel; the numbers are told to the peer."""

    READ = 1
    WRITE = 2
    SEND = 3


@dataclass(frozen=True, slots=True)
class Equipment:
    """A queue pair with its letters' memory."""

    pair: QueuePair
    inbox: Buffer
    outbox: Buffer
    regions: Regions
    """Of its device."""

    @classmethod
    def of(cls, regions: Regions, gid: GidEntry) -> Equipment:
        """Make it, with all receives posted; raises ResourceError if that cannot be."""
        device = regions.device
        made: list[Buffer] = []
        pair = QueuePair(device, gid, SENDS, LETTERS)
        try:
            nbytes = pair.receives_max * LETTER_BYTES
            made.append(Buffer(device, nbytes, device.library.LOCAL_WRITE, "the letters of a link"))
            made.append(Buffer(device, SLOTS * LETTER_BYTES, 0, "the letters of a link"))
            pair.prepare_receives(made[0].region, LETTER_BYTES)
        except BaseException as error:
            pair.close()
            for buffer in made:
                buffer.close()
            if isinstance(error, ProtocolError):
                raise NoVerbsError(str(error)) from error
            raise
        regions.users += 1
        return cls(pair, made[0], made[1], regions)

    def close(self) -> None:
        """Give all back, the queue pair first; once."""
        self.pair.close()
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
