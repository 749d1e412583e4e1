"""Receives from one ring: decodes frames in place and hands their rows to the local tasks.

One frame is taken at a time, and none while a task that it may feed is blocked: the ring then
fills, and its producer is back-pressured. No other ring is affected. None is taken either from a
ring that has come to the marker of an epoch and waits for the others of its stage
(stage_epochs.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from ..configs.errors import (
    ForeignMessageError,
    HeldViewsError,
    ProtocolError,
    TopologyError,
)
from ..plan.physical import Edge
from ..plan.unions import columns_of_schema, difference
from ..state.watermarks import WATERMARK_NONE
from ..transport.channel import Channel, Frame
from ..transport.wire.codec import decode
from ..transport.wire.header import Header
from ..transport.wire.messages import (
    MarkerMessage,
    SchemaMessage,
    WatermarkMessage,
    WorkerMessage,
)
from ..transport.wire.types import Schema
from .flow import RowTaker

if TYPE_CHECKING:
    from .stage_epochs import EpochInlet

StreamMessage = WorkerMessage | WatermarkMessage | MarkerMessage
"""What a producer says, in order; schemas come before."""


class StreamProgress:
    """How far the rows of some producers have come, by their numbers.

    Attributes:
        open_sources: the producers whose end has not come.
        idle_sources: the producers that are idle.
        refused: why a message was refused, the first one; None if none was.
    """

    def __init__(self, sources: Iterable[int]) -> None:
        self.open_sources = set(sources)
        self.idle_sources: set[int] = set()
        self.refused: ProtocolError | None = None
        self._next: dict[int, int] = {}

    def due(self, source: int) -> int:
        """Return the number of the next row of a producer."""
        return self._next.get(source, 0)

    def take(self, header: Header) -> bool:
        """Note a message; return whether it was its turn."""
        if header.sequence != self.due(header.source):
            return False
        self._next[header.source] = header.sequence + header.row_count
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

    `stream` is the ring's number, `tasks` are the target's local tasks by instance, or their side
    inputs. `united` is shared by the streams of a union. `inlet` is the ring's place in the
    alignment of its stage; None if it takes no part, since the job has no checkpoints, or the ring
    brings a table: its markers are ignored.
    """

    def __init__(
        self,
        edge: Edge,
        stream: int,
        channel: Channel,
        attempt: int,
        tasks: Mapping[int, RowTaker],
        progress: StreamProgress,
        united: UnitedColumns | None = None,
        inlet: EpochInlet | None = None,
    ) -> None:
        self.edge = edge
        self.channel = channel
        self._stream = stream
        self._united = united
        self._attempt = attempt
        self._by_instance = dict(tasks)
        self._tasks: Sequence[RowTaker] = tuple(
            {id(task): task for task in tasks.values()}.values()
        )
        self._schemas: dict[int, Schema] = {}
        self._progress = progress
        self._inlet = inlet
        self._name = f"{edge.source_operator!r} → {edge.target_operator!r}"

    @property
    def stage(self) -> int:
        """The number of the stage that it feeds."""
        return self.edge.target_stage

    @property
    def blocked_by(self) -> Sequence[RowTaker]:
        """The tasks that keep it from reading."""
        return [task for task in self._tasks if not task.accepts_rows]

    def available(self) -> bool:
        """Whether a frame waits and nothing keeps it from being taken."""
        return self.channel.available() and not self.held and not self.blocked_by

    @property
    def held(self) -> bool:
        """Whether it has come to the marker of an epoch, and waits for others."""
        return self._inlet is not None and self._inlet.held

    def give_up_epoch(self, reason: str) -> None:
        """Let its stage take no snapshot of the epoch for whose marker it is held."""
        if self._inlet is not None:
            self._inlet.give_up(reason)

    def poll(self, now_ns: int) -> bool:
        """Take one frame if there is one; return whether there was."""
        if not self.available():
            return False
        frame = self._receive()
        if frame is None:
            return False
        self.take(frame, now_ns)
        return True

    def _receive(self) -> Frame | None:
        try:
            return self.channel.get()
        except HeldViewsError as error:
            raise self.naming_target(error) from error

    def naming_target(self, error: HeldViewsError) -> HeldViewsError:
        """Return an error of the channel with the name of the operator that holds the views."""
        return HeldViewsError(f"operator {self.edge.target_operator!r} {error}")

    def check_alive(self) -> None:
        """Raise ProtocolError if the producer has left without its end having come."""
        if self._progress.open_sources and self.channel.closed_by_peer:
            msg = (
                f"edge {self._name}: producers {sorted(self._progress.open_sources)} closed their "
                f"ring before their end had come{self._refusal()}"
            )
            raise ProtocolError(msg)

    def take(self, frame: Frame, now_ns: int) -> None:
        """Do what a frame says, and release it."""
        try:
            self.take_bytes(frame.data, now_ns)
        finally:
            self.channel.release_buffer(frame)

    def take_bytes(self, data: npt.NDArray[np.uint8], now_ns: int) -> None:
        """Do what a frame's bytes say, and keep no view of them."""
        message: StreamMessage | None = None
        try:
            message = self._decode(data)
            if message is not None:
                self._follow(message)
            for task in self._tasks:
                task.settle(now_ns)
        finally:
            del message  # an exception would keep it

    def _decode(self, data: npt.NDArray[np.uint8]) -> StreamMessage | None:
        """Decode a message; None for one of a schema, and for one that is refused.

        A message that is damaged or not for this ring is counted and stops nothing else. If rows
        of ours were in its place, the numbers of the next rows show that they are missing. Nothing
        would show that a marker is: with checkpoints, damage is an error.

        Raises:
            ProtocolError: another version of whale-ray wrote it, or it is damaged and may have been
                a marker.
        """
        try:
            message = decode(data, self._schemas)
        except ForeignMessageError as error:
            msg = f"edge {self._name}: {error}"
            raise ForeignMessageError(msg) from error
        except ProtocolError as error:
            if self._inlet is not None:
                msg = f"edge {self._name}: {error}"
                raise type(error)(msg) from error
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

    def _follow(self, message: StreamMessage) -> None:
        """Do what a message says, and tell the stage's alignment how far its producer is."""
        inlet, header = self._inlet, message.header
        if isinstance(message, MarkerMessage):
            self._check_place(header)
            if inlet is not None:
                inlet.marker(message)
            return
        if inlet is not None:
            inlet.row(header.source)
        self._dispatch(message)
        if inlet is not None and header.is_end:
            inlet.end(header.source)

    def _dispatch(self, message: WorkerMessage | WatermarkMessage) -> None:
        header = message.header
        if not self._progress.take(header):
            self._raise_missing(header)
        if self._progress.idle_sources:
            self._wake(header)
        if isinstance(message, WorkerMessage):
            self._deliver(message)
        self._advance(self._tasks, header)
        if header.is_idle:
            self._note_idle(header)
        if header.is_end:
            self._progress.open_sources.discard(header.source)

    def _check_place(self, header: Header) -> None:
        """Check that all rows before a marker have come."""
        if header.sequence != self._progress.due(header.source):
            self._raise_missing(header)

    def _advance(self, tasks: Iterable[RowTaker], header: Header) -> None:
        if header.watermark_ns != WATERMARK_NONE:
            for task in tasks:
                task.advance(self.edge.id, header.source, header.watermark_ns)

    def _wake(self, header: Header) -> None:
        """Let a producer hold the watermark back again: a message of it has come."""
        if header.source in self._progress.idle_sources:
            self._progress.idle_sources.discard(header.source)
            for task in self._tasks:
                task.set_idle(self.edge.id, header.source, False)

    def _note_idle(self, header: Header) -> None:
        """Let an idle producer hold the watermark back no longer, unless rows have overtaken it."""
        if header.sequence == self._progress.due(header.source):
            self._progress.idle_sources.add(header.source)
            for task in self._tasks:
                task.set_idle(self.edge.id, header.source, True)

    def _deliver(self, message: WorkerMessage) -> None:
        port, source = self.edge.port, self._source_on_port(message.header)
        if message.destinations is None:
            for task in self._tasks:
                task.deliver(port, source, message.batch)
        elif len(self._tasks) == 1:
            self._tasks[0].deliver(port, source, message.batch)
        else:
            for instance, batch in message.addressed(self._by_instance):
                self._by_instance[instance].deliver(port, source, batch)

    def _source_on_port(self, header: Header) -> int:
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
        """Return the end of a message: why a frame was refused before, most likely the cause."""
        refused = self._progress.refused
        return "" if refused is None else f"; a message before was refused: {refused}"
