"""Receives from one ring: decodes frames in place and hands their rows to the local units.

One frame is taken at a time, and none while a unit that it may feed is blocked: the ring then
fills, and its producer feels it. No other ring is affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..configs.errors import HeldViewsError, ProtocolError
from ..plan.physical import Edge
from ..state.watermarks import WATERMARK_NONE
from ..transport.channel import Channel
from ..transport.wire.codec import decode
from ..transport.wire.header import Header
from ..transport.wire.messages import SchemaMessage, WatermarkMessage, WorkerMessage
from ..transport.wire.types import Schema
from .unit import Unit


class EdgeReader:
    """This worker's end of one ring.

    `stream` is the ring's number, `units` are the target's local units by instance, `sources` the
    producers that write to it.
    """

    def __init__(
        self,
        edge: Edge,
        stream: int,
        channel: Channel,
        attempt: int,
        units: Mapping[int, Unit],
        sources: Iterable[int],
    ) -> None:
        self.edge = edge
        self.channel = channel
        self._stream = stream
        self._refused: ProtocolError | None = None
        self._attempt = attempt
        self._by_instance = dict(units)
        self._units: Sequence[Unit] = tuple({id(unit): unit for unit in units.values()}.values())
        self._schemas: dict[int, Schema] = {}
        self._next_row: dict[int, int] = {}
        self._open_sources = set(sources)
        self._name = f"{edge.source_operator!r} → {edge.target_operator!r}"

    @property
    def blocked_by(self) -> Sequence[Unit]:
        """The units that keep it from reading."""
        return [unit for unit in self._units if unit.blocked]

    def available(self) -> bool:
        """Whether a frame waits and nothing keeps it from being taken."""
        return bool(self.channel.available()) and not self.blocked_by

    def poll(self, now_ns: int) -> bool:
        """Take one frame if there is one; return whether there was."""
        if not self.available():
            return False
        try:
            frame = self.channel.get()
        except HeldViewsError as error:
            msg = f"operator {self.edge.target_operator!r} {error}"
            raise HeldViewsError(msg) from error
        if frame is None:
            return False
        try:
            self._take(frame.data)
            for unit in self._units:
                unit.settle(now_ns)
        finally:
            self.channel.release_buffer(frame)
        return True

    def check_alive(self) -> None:
        """Raise ProtocolError if the producer has left without its end having come."""
        if self._open_sources and self.channel.closed_by_peer:
            msg = (
                f"edge {self._name}: producers {sorted(self._open_sources)} closed their ring "
                f"before their end had come{self._refusal()}"
            )
            raise ProtocolError(msg)

    def _take(self, data: npt.NDArray[np.uint8]) -> None:
        """Decode and dispatch; a message that is not ours is counted and stops nothing else.

        If it stood in the place of one of ours, the rows that are missing then are told by their
        numbers.
        """
        try:
            message = decode(data, self._schemas)
        except ProtocolError as error:
            self._refused = self._refused or error
            self._count("messages not understood")
            return
        self._dispatch(message)

    def _count(self, reason: str) -> None:
        for unit in self._units[:1]:
            unit.nodes[0].metrics.drop({reason: 1})

    def _dispatch(self, message: WorkerMessage | SchemaMessage | WatermarkMessage) -> None:
        header = message.header
        if header.attempt != self._attempt:
            self._count("messages of an older attempt")
            return
        if header.stream != self._stream:
            self._count("messages of another stream")
            return
        if isinstance(message, SchemaMessage):
            message.register(self._schemas)
            return
        self._check_sequence(header)
        if isinstance(message, WorkerMessage):
            self._deliver(message)
        if header.watermark_ns != WATERMARK_NONE:
            for unit in self._units:
                unit.advance(self.edge.id, header.source, header.watermark_ns)
        if header.is_end:
            self._open_sources.discard(header.source)

    def _deliver(self, message: WorkerMessage) -> None:
        port, source = self.edge.port, message.header.source
        if message.destinations is None:
            for unit in self._units:
                unit.deliver(port, source, message.batch)
        elif len(self._units) == 1:
            self._units[0].deliver(port, source, message.batch)
        else:
            for instance, batch in message.addressed(self._by_instance):
                self._by_instance[instance].deliver(port, source, batch)

    def _check_sequence(self, header: Header) -> None:
        expected = self._next_row.get(header.source, 0)
        if header.sequence != expected:
            msg = (
                f"edge {self._name}: producer {header.source} sent row {header.sequence} where "
                f"row {expected} was due{self._refusal()}"
            )
            raise ProtocolError(msg)
        self._next_row[header.source] = expected + header.row_count

    def _refusal(self) -> str:
        """Say what was refused before, if anything: most likely the cause."""
        return "" if self._refused is None else f"; a message before was refused: {self._refused}"
