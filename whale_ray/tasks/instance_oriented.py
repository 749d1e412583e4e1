"""Instance-oriented addressing of broadcast edges, as Storm's: what one-to-many is compared with.

Every slice is serialized anew for each destination instance, and each message, which carries that
instance's id, travels alone through a ring to the instance's worker. Slicing, encoding and the
numbering of rows are those of worker-oriented addressing, so that a running job can change from one
to the other between two slices.

An edge that may change has two rings from a producing worker to a consuming one: the one that all
workers read, and one of its own. Their rows are numbered as one sequence. A frame that comes before
its turn waits for the other ring. The rows that it waits for always come: a producer puts rows into
one ring only when all rows before are in the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..configs.errors import ProtocolError
from ..plan.physical import Edge
from ..transport.channel import Channel, Frame
from ..transport.wire import codec
from ..transport.wire.header import Header
from ..transport.wire.messages import WatermarkMessage, WorkerMessage
from .addressing import WorkerOriented
from .edge_reader import EdgeReader, StreamMessage, StreamProgress, UnitedColumns
from .flow import RowTaker
from .ring_queue import Destinations, OutRing, Piece

if TYPE_CHECKING:
    from .stage_epochs import EpochInlet


class InstanceOriented(WorkerOriented):
    """All rows for all instances, in one message for each; a ring per worker."""

    def _size(self, piece: Piece, ring: OutRing) -> int:
        return codec.message_size(piece.batch, 1, self._with_times)

    def _messages(self, piece: Piece, ring: OutRing) -> Iterable[Destinations | None]:
        rows = piece.rows
        return [np.array([[instance, rows]], np.uint32) for instance in ring.instances]


class TwoRingProgress(StreamProgress):
    """How far the rows of some producers have come through two rings, which share it.

    `instances` are the target's local ones, ascending. Of an instance-oriented slice each of them
    gets a message in turn; only then do the next rows follow.
    """

    def __init__(self, sources: Iterable[int], instances: Iterable[int]) -> None:
        super().__init__(sources)
        self.rings = 0
        self.early: dict[int, Header] = {}
        self._instances = tuple(instances)
        self._turns: dict[int, int] = {}  # by producer: who is next, within a begun slice

    def is_early(self, header: Header) -> bool:
        """Whether rows are missing before it that the other ring may bring."""
        row = self._next.get(header.source, 0)
        if header.sequence != row:
            return header.sequence > row
        return header.source in self._turns and header.to_all

    def is_stuck(self) -> bool:
        """Whether no ring can bring what is missing: each waits for another, or lost something."""
        if self.refused is None and len(self.early) < self.rings:
            return False
        return all(self.is_early(header) for header in self.early.values())

    def take(self, header: Header) -> bool:
        """Note a message for all instances; return whether it was its turn."""
        source, row = header.source, self._next.get(header.source, 0)
        if header.sequence != row:
            # A watermark that the other ring's rows have overtaken says nothing new.
            return header.row_count == 0 and header.sequence < row
        if source in self._turns:
            return False
        self._next[source] = row + header.row_count
        return True

    def take_for(self, instance: int, header: Header) -> bool:
        """Note a message for one instance; return whether it was its turn."""
        source, row = header.source, self._next.get(header.source, 0)
        turn = self._turns.get(source, 0)
        if header.sequence != row or self._instances[turn] != instance:
            return False
        if turn + 1 < len(self._instances):
            self._turns[source] = turn + 1
        else:
            self._turns.pop(source, None)
            self._next[source] = row + header.row_count
        return True


class TwoRingReader(EdgeReader):
    """This worker's end of one of two rings: of the one that all workers read."""

    def __init__(
        self,
        edge: Edge,
        stream: int,
        channel: Channel,
        attempt: int,
        tasks: Mapping[int, RowTaker],
        progress: TwoRingProgress,
        united: UnitedColumns | None = None,
        inlet: EpochInlet | None = None,
    ) -> None:
        super().__init__(edge, stream, channel, attempt, tasks, progress, united, inlet)
        self._order = progress
        self._early: Frame | None = None
        progress.rings += 1

    def available(self) -> bool:
        """Whether a frame waits, it is its turn, and no task keeps it from being taken."""
        if self._early is not None:
            if self._order.is_early(self._order.early[self._stream]):
                return False
        elif not self.channel.available():
            return False
        return not self.held and not self.blocked_by

    def _receive(self) -> Frame | None:
        """Return the early frame whose turn it is, before all others."""
        frame = self._early
        if frame is None:
            return super()._receive()
        self._early = None
        del self._order.early[self._stream]
        return frame

    def take(self, frame: Frame, now_ns: int) -> None:
        """Do what a frame says, or keep it if rows before it must come through the other ring."""
        message: StreamMessage | None = None
        kept = False
        try:
            message = self._decode(frame.data)
            if message is not None and self._order.is_early(message.header):
                self._keep(frame, message.header)
                kept = True
                return
            if message is not None:
                self._follow(message)
            for task in self._tasks:
                task.settle(now_ns)
        finally:
            del message  # no view may outlive the frame's release
            if not kept:
                self.channel.release_buffer(frame)

    def _check_place(self, header: Header) -> None:
        """See `EdgeReader._check_place`; it was not early, so that none is missing.

        The other ring's rows overtake the marker of an epoch that was forgotten.
        """

    def _keep(self, frame: Frame, header: Header) -> None:
        """Keep an early frame; raises ProtocolError if what it waits for is lost."""
        self._order.early[self._stream] = header
        if self._order.is_stuck():
            self._raise_missing(header)
        self._early = frame


class InstanceOrientedReader(TwoRingReader):
    """This worker's end of the other one: each message with rows is for one local instance."""

    def _dispatch(self, message: WorkerMessage | WatermarkMessage) -> None:
        if isinstance(message, WatermarkMessage):
            super()._dispatch(message)
            return
        header, instance = message.header, self._addressee(message)
        if not self._order.take_for(instance, header):
            self._raise_missing(header)
        if self._progress.idle_sources:
            self._wake(header)
        task = self._by_instance[instance]
        task.deliver_to(instance, self.edge.port, self._source_on_port(header), message.batch)
        if instance == task.instances[-1]:
            self._advance([task], header)

    def _addressee(self, message: WorkerMessage) -> int:
        addressed = [] if message.destinations is None else message.destinations[:, 0].tolist()
        if len(addressed) != 1 or addressed[0] not in self._by_instance:
            msg = (
                f"edge {self._name}: {message.header.describe()} is for "
                f"{'all' if message.destinations is None else addressed}, not for one instance "
                f"of this worker"
            )
            raise ProtocolError(msg)
        return int(addressed[0])
