"""Receives from one ring: decodes frames in place and hands their rows to the local tasks.

One frame is taken at a time, and none while a task that it may feed is blocked: the ring then
fills, and its producer feels it. No other ring is affected.

An all-grouped edge may have two rings from one worker, one for either addressing, whose rows are
numbered as one sequence. A frame that comes before its turn waits for the other ring. It never
waits in vain: a producer puts rows into one ring only when all rows before are in the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ..configs.errors import HeldViewsError, ProtocolError, TopologyError
from ..plan.physical import Edge
from ..plan.unions import columns_of_schema, difference
from ..state.watermarks import WATERMARK_NONE
from ..transport.channel import Channel, Frame
from ..transport.wire.codec import decode
from ..transport.wire.header import Header
from ..transport.wire.messages import SchemaMessage, WatermarkMessage, WorkerMessage
from ..transport.wire.types import Schema
from .stage_task import StageTask


class StreamProgress:
    """How far the rows of some producers have come: what the rings of an edge from a worker share.

    `instances` are the target's local ones, ascending. Of an instance-oriented message each of them
    gets its own in turn, and only then do the next rows follow.
    """

    def __init__(self, sources: Iterable[int], instances: Iterable[int]) -> None:
        self.open_sources = set(sources)
        self.rings = 0
        self.refused: ProtocolError | None = None
        self.early: dict[int, Header] = {}
        self._instances = tuple(instances)
        self._next: dict[int, tuple[int, int]] = {}

    def is_early(self, header: Header) -> bool:
        """Whether rows are missing before it, that another ring may bring."""
        row, turn = self._next.get(header.source, (0, 0))
        return header.sequence > row or (turn > 0 and header.to_all and header.sequence == row)

    def stuck(self) -> bool:
        """Whether no ring can bring what is missing: each waits for another, or lost something."""
        if self.refused is None and len(self.early) < self.rings:
            return False
        return all(self.is_early(header) for header in self.early.values())

    def due(self, source: int) -> int:
        """Return the number of the next row of a producer."""
        return self._next.get(source, (0, 0))[0]

    def take(self, header: Header, instance: int | None) -> bool:
        """Note a message, for one instance or for all; return whether it was its turn."""
        row, turn = self._next.get(header.source, (0, 0))
        if header.row_count == 0 and header.sequence < row:
            return self.rings > 1  # a watermark that the other ring's rows have overtaken
        if header.sequence != row:
            return False
        if instance is None:
            self._next[header.source] = row + header.row_count, 0
            return turn == 0
        if turn >= len(self._instances) or self._instances[turn] != instance:
            return False
        last = turn + 1 == len(self._instances)
        self._next[header.source] = (row + header.row_count, 0) if last else (row, turn + 1)
        return True


class UnitedColumns:
    """The columns that the streams of a union bring to one operator of this worker: the same."""

    def __init__(self) -> None:
        self._first: tuple[Edge, Schema] | None = None

    def check(self, edge: Edge, schema: Schema) -> None:
        """Compare the columns that a stream brings with those of the first stream.

        Raises:
            TopologyError: they differ.
        """
        self._first = self._first or (edge, schema)
        first, columns = self._first
        if edge.id == first.id:
            return
        differs = difference(
            first.source_operator,
            columns_of_schema(columns),
            edge.source_operator,
            columns_of_schema(schema),
        )
        if differs:
            msg = f"operator {edge.target_operator!r}: {differs}"
            raise TopologyError(msg)


class EdgeReader:
    """This worker's end of one ring.

    `stream` is the ring's number, `tasks` are the target's local tasks by instance. With
    `per_instance` every message of rows is for one of these; `progress` is shared by the rings of
    one edge from one worker. `united` is shared by the streams of a union.
    """

    def __init__(
        self,
        edge: Edge,
        stream: int,
        channel: Channel,
        attempt: int,
        tasks: Mapping[int, StageTask],
        progress: StreamProgress,
        *,
        per_instance: bool = False,
        united: UnitedColumns | None = None,
    ) -> None:
        self.edge = edge
        self.channel = channel
        self._stream = stream
        self._per_instance = per_instance
        self._united = united
        self._attempt = attempt
        self._by_instance = dict(tasks)
        self._tasks: Sequence[StageTask] = tuple(
            {id(task): task for task in tasks.values()}.values()
        )
        self._schemas: dict[int, Schema] = {}
        self._progress = progress
        self._early: tuple[Frame, WorkerMessage | WatermarkMessage] | None = None
        self._name = f"{edge.source_operator!r} → {edge.target_operator!r}"
        progress.rings += 1

    @property
    def blocked_by(self) -> Sequence[StageTask]:
        """The tasks that keep it from reading."""
        return [task for task in self._tasks if task.blocked]

    def available(self) -> bool:
        """Whether a frame waits and nothing keeps it from being taken."""
        if self._early is not None:
            if self._progress.is_early(self._early[1].header):
                return False
        elif not self.channel.available():
            return False
        return not self.blocked_by

    def poll(self, now_ns: int) -> bool:
        """Take one frame if there is one; return whether there was."""
        if not self.available():
            return False
        if self._early is not None:
            self.take(None, now_ns)
            return True
        try:
            frame = self.channel.get()
        except HeldViewsError as error:
            raise self.told_of(error) from error
        if frame is None:
            return False
        self.take(frame, now_ns)
        return True

    def told_of(self, error: HeldViewsError) -> HeldViewsError:
        """Return an error of the channel with the name of the operator that is to blame."""
        return HeldViewsError(f"operator {self.edge.target_operator!r} {error}")

    def check_alive(self) -> None:
        """Raise ProtocolError if the producer has left without its end having come."""
        if self._progress.open_sources and self.channel.closed_by_peer:
            msg = (
                f"edge {self._name}: producers {sorted(self._progress.open_sources)} closed their "
                f"ring before their end had come{self._refusal()}"
            )
            raise ProtocolError(msg)

    def take(self, frame: Frame | None, now_ns: int) -> None:
        """Do what a frame says, or (None) the one that was early; keep it if it is that now."""
        message: WorkerMessage | WatermarkMessage | None = None
        if frame is None:
            assert self._early is not None
            frame, message = self._early
            self._early = None
            del self._progress.early[self._stream]
        try:
            message = message or self._understood(frame.data)
            if message is not None and self._is_kept(frame, message):
                return
            if message is not None:
                self._dispatch(message)
            for task in self._tasks:
                task.settle(now_ns)
        finally:
            message = None  # no view may outlive the frame's release
            if self._early is None:
                self.channel.release_buffer(frame)

    def _understood(self, data: npt.NDArray[np.uint8]) -> WorkerMessage | WatermarkMessage | None:
        """Decode; a message that is not ours is counted and stops nothing else.

        If it stood in the place of one of ours, the rows that are missing then are told by their
        numbers.
        """
        try:
            message = decode(data, self._schemas)
        except ProtocolError as error:
            self._progress.refused = self._progress.refused or error
            self._count("messages not understood")
            return None
        if message.header.attempt != self._attempt:
            self._count("messages of an older attempt")
            return None
        if message.header.stream != self._stream:
            self._count("messages of another stream")
            return None
        if isinstance(message, SchemaMessage):
            message.register(self._schemas)
            if self._united is not None:
                self._united.check(self.edge, message.schema)
            return None
        return message

    def _count(self, reason: str) -> None:
        for task in self._tasks[:1]:
            task.nodes[0].metrics.drop({reason: 1})

    def _is_kept(self, frame: Frame, message: WorkerMessage | WatermarkMessage) -> bool:
        """Keep a message until the rows before it have come through the other ring."""
        progress, header = self._progress, message.header
        if progress.rings == 1 or not progress.is_early(header):
            return False
        progress.early[self._stream] = header
        if progress.stuck():
            self._raise_missing(header)
        self._early = frame, message
        return True

    def _dispatch(self, message: WorkerMessage | WatermarkMessage) -> None:
        header = message.header
        instance = None
        if self._per_instance and isinstance(message, WorkerMessage):
            instance = self._addressee(message)
        if not self._progress.take(header, instance):
            self._raise_missing(header)
        if isinstance(message, WatermarkMessage):
            self._advance(self._tasks, header)
        elif instance is not None:
            task = self._by_instance[instance]
            task.deliver_to(instance, self.edge.port, self._place(header), message.batch)
            if instance == task.instances[-1]:
                self._advance([task], header)
        else:
            self._deliver(message)
            self._advance(self._tasks, header)
        if header.is_end:
            self._progress.open_sources.discard(header.source)

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

    def _advance(self, tasks: Iterable[StageTask], header: Header) -> None:
        if header.watermark_ns != WATERMARK_NONE:
            for task in tasks:
                task.advance(self.edge.id, header.source, header.watermark_ns)

    def _deliver(self, message: WorkerMessage) -> None:
        port, source = self.edge.port, self._place(message.header)
        if message.destinations is None:
            for task in self._tasks:
                task.deliver(port, source, message.batch)
        elif len(self._tasks) == 1:
            self._tasks[0].deliver(port, source, message.batch)
        else:
            for instance, batch in message.addressed(self._by_instance):
                self._by_instance[instance].deliver(port, source, batch)

    def _place(self, header: Header) -> int:
        """Return the producer's number among all that feed the port."""
        return self.edge.first_source + header.source

    def _raise_missing(self, header: Header) -> NoReturn:
        due = self._progress.due(header.source)
        msg = (
            f"edge {self._name}: producer {header.source} sent row {header.sequence} where "
            f"row {due} was due{self._refusal()}"
        )
        raise ProtocolError(msg)

    def _refusal(self) -> str:
        """Say what was refused before, if anything: most likely the cause."""
        refused = self._progress.refused
        return "" if refused is None else f"; a message before was refused: {refused}"
