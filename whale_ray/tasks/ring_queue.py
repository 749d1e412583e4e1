"""What waits for one ring of an edge: rows, watermarks and markers, not encoded yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..state.watermarks import WATERMARK_END
from ..transport.channel import Channel
from ..transport.wire.batch import Batch

Destinations = npt.NDArray[np.uint32]
"""For whom the rows of a message are: (instance, row end) of each run of rows, shape (runs, 2)."""


@dataclass
class OutRing:
    """A ring that this worker writes; the producers of one edge share it.

    Attributes:
        stream: its number, in the header of every frame.
        channel: the producer's end.
        instances: the target's instances that read it, ascending.
        max_frame_bytes: what it takes at most in one frame.
        per_instance: whether it is for instance-oriented messages of a broadcast edge.
        schemas_sent: ids of the schemas that its readers know.
    """

    stream: int
    channel: Channel
    instances: tuple[int, ...]
    max_frame_bytes: int
    per_instance: bool = False
    schemas_sent: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Piece:
    """Rows for one frame: `batch[indices]`, or all of `batch` without indices.

    `instances` are those of each row, int64 (rows,), ascending; None: all rows are for all, or for
    the one object of all instances that read the ring.
    """

    batch: Batch
    indices: npt.NDArray[np.int64] | None = None
    instances: npt.NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.batch.num_rows if self.indices is None else len(self.indices)

    def halves(self) -> tuple[Piece, Piece]:
        """Return it in two pieces."""
        middle, end = self.rows // 2, self.rows
        if self.indices is None:
            return Piece(self.batch.slice(0, middle)), Piece(self.batch.slice(middle, end))
        first, second = self.indices[:middle], self.indices[middle:]
        if self.instances is None:
            return Piece(self.batch, first), Piece(self.batch, second)
        return (
            Piece(self.batch, first, self.instances[:middle]),
            Piece(self.batch, second, self.instances[middle:]),
        )


@dataclass(slots=True)
class WaitingRows:
    """A message with rows, of `size` bytes; its first row has the number `sequence`.

    `destinations` is None where the rows are for all instances that read the ring.
    """

    piece: Piece
    destinations: Destinations | None
    size: int
    sequence: int
    watermark_ns: int


@dataclass(slots=True)
class WaitingMark:
    """A message with nothing but a watermark, or with `WATERMARK_END` the end.

    After one that is `idle` the producer does not hold watermarks back until its next message.
    """

    sequence: int
    watermark_ns: int
    idle: bool = False


@dataclass(slots=True)
class WaitingMarker:
    """The marker of an epoch; with `stop`, sources read nothing after it."""

    sequence: int
    epoch: int
    stop: bool


WaitingItem = WaitingRows | WaitingMark | WaitingMarker


class RingQueue:
    """What waits for one ring, and the number of the next row that is put in here."""

    def __init__(self, ring: OutRing) -> None:
        self.ring = ring
        self.waiting: list[WaitingItem] = []
        self.sequence = 0

    def add(
        self,
        piece: Piece,
        size: int,
        watermark_ns: int,
        messages: Iterable[Destinations | None],
    ) -> None:
        """Queue rows in one message for each of `messages`, which tell whom it is for."""
        for destinations in messages:
            self.waiting.append(WaitingRows(piece, destinations, size, self.sequence, watermark_ns))
        self.sequence += piece.rows

    def mark(self, watermark_ns: int) -> None:
        """Let the last rows carry a watermark; queue it alone if none wait, or if it is the end.

        Where the last rows wait in several messages, each carries it.
        """
        last = self.waiting[-1] if self.waiting else None
        if not isinstance(last, WaitingRows) or watermark_ns == WATERMARK_END:
            self.waiting.append(WaitingMark(self.sequence, watermark_ns))
            return
        for item in reversed(self.waiting):
            if not isinstance(item, WaitingRows) or item.sequence != last.sequence:
                break
            item.watermark_ns = watermark_ns

    def mark_idle(self, watermark_ns: int) -> None:
        """Queue, after all rows, that the producer is idle."""
        self.waiting.append(WaitingMark(self.sequence, watermark_ns, idle=True))
