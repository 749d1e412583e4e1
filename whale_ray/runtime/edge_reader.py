"""Receives from one ring: decodes frames in place and hands their rows to the local units.

One frame is taken at a time, and none while a unit that it may feed is blocked: the ring then
fills, and its producer feels it. No other ring is affected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..configs.errors import HeldViewsError, ProtocolError
from ..plan.physical import Edge
from ..state.watermarks import WATERMARK_NONE
from ..transport.channel import Channel
from ..transport.wire.codec import decode
from ..transport.wire.header import Header
from ..transport.wire.messages import SchemaMessage, WatermarkMessage, WorkerMessage
from ..transport.wire.types import Schema
from .unit import Unit


@dataclass
class ReaderCounts:
    """What a reader refused: frames of an older attempt."""

    stale_frames: int = 0


class EdgeReader:
    """This worker's end of one ring; `units` are the target's local units by instance."""

    def __init__(
        self, edge: Edge, channel: Channel, attempt: int, units: Mapping[int, Unit]
    ) -> None:
        self.edge = edge
        self.channel = channel
        self.counts = ReaderCounts()
        self._attempt = attempt
        self._by_instance = dict(units)
        self._units: Sequence[Unit] = tuple({id(unit): unit for unit in units.values()}.values())
        self._schemas: dict[int, Schema] = {}
        self._next_row: dict[int, int] = {}

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
            self._dispatch(decode(frame.data, self._schemas))
            for unit in self._units:
                unit.settle(now_ns)
        finally:
            self.channel.release_buffer(frame)
        return True

    def _dispatch(self, message: WorkerMessage | SchemaMessage | WatermarkMessage) -> None:
        header = message.header
        if header.attempt != self._attempt:
            self.counts.stale_frames += 1
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
                f"edge {self.edge.source_operator!r} → {self.edge.target_operator!r}: producer "
                f"{header.source} sent row {header.sequence} where row {expected} was due"
            )
            raise ProtocolError(msg)
        self._next_row[header.source] = expected + header.row_count
