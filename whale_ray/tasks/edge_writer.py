"""Sends what one producer emits on one edge: slicing, numbering, watermarks, the end.

Each ring of the edge is a stream of its own, in which a producer numbers its rows from 0:
(producer, stream, attempt, number) names a row of the job, on keyed edges too.

Rows wait in a slicer until they make a slice (MMS bytes, or WTL has passed). The edge's addressing
(addressing.py) turns a slice into messages for the edge's rings, each small enough for a frame, and
these are put one after the other. A full ring blocks this writer alone: its messages wait here, and
the operators that feed it are not called until they are gone.

The marker of an epoch comes after all rows that were emitted before it, and into every ring of the
edge, also into those that its present addressing does not use: rows after the marker may. As long
as it waits for room, the writer is blocked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..metrics.loads import EdgeLoad
from ..plan.physical import Edge
from ..state.watermarks import WATERMARK_END, WATERMARK_NONE
from ..transport.channel import Outcome
from ..transport.slice_limits import SliceLimits
from ..transport.slicing import StreamSlicer
from ..transport.wire import codec
from ..transport.wire.batch import Batch
from ..transport.wire.header import HEADER_BYTES
from ..transport.wire.types import Schema
from .addressing import AddressingStrategy
from .ring_queue import (
    OutRing,
    RingQueue,
    WaitingItem,
    WaitingMark,
    WaitingMarker,
    WaitingRows,
)


@dataclass(frozen=True)
class Stamp:
    """The header fields that are the same in every frame of a writer."""

    source: int
    attempt: int
    with_times: bool
    checksum: bool


class EdgeWriter:
    """Sends the rows of one producer on one edge; a `Downstream`.

    `addressings` has the ways to address the edge by name; the first is the one to begin with.

    Attributes:
        edge: the edge.
        ended: whether no more rows follow.
    """

    def __init__(
        self,
        edge: Edge,
        stamp: Stamp,
        addressings: Mapping[str, AddressingStrategy],
        slicer: StreamSlicer,
    ) -> None:
        self.edge = edge
        self.ended = False
        self._stamp = stamp
        self._addressings = dict(addressings)
        self._addressing = self._next_addressing = next(iter(addressings.values()))
        self._queues = [queue for each in addressings.values() for queue in each.queues]
        self._slicer = slicer
        self._watermark_ns = self._sent_watermark_ns = WATERMARK_NONE
        self._last_watermark_ns = WATERMARK_NONE  # before the end
        self._idle = self._sent_idle = False
        self._advanced_at_ns: int | None = None
        self._now_ns = 0
        self._rows_sent = self._messages_sent = self._bytes_sent = self._slices_cut = 0
        self._marker: tuple[int, bool] | None = None  # epoch and STOP, until it is queued

    def set_addressing(self, name: str) -> None:
        """Use another addressing from the next slice on; callable from any thread.

        An edge that has none of that name, such as a keyed one, keeps its own.
        """
        self._next_addressing = self._addressings.get(name, self._next_addressing)

    def limit_slices(self, limits: SliceLimits) -> None:
        """Change when slices are due, watermarks included; callable from any thread."""
        self._slicer.limit(limits)

    @property
    def rows_dropped(self) -> int:
        """How many rows were left out for a null key."""
        return self._addressing.rows_dropped

    @property
    def sent(self) -> EdgeLoad:
        """What it has sent so far."""
        return EdgeLoad(self._rows_sent, self._messages_sent, self._bytes_sent, self._slices_cut)

    @property
    def blocked(self) -> bool:
        """Whether frames wait for room in a ring."""
        return self._marker is not None or self._waits

    @property
    def _waits(self) -> bool:
        """Whether a message is queued. Asked several times a message: a loop, no generator."""
        for queue in self._queues:
            if queue.waiting:
                return True
        return False

    @property
    def caught_up(self) -> bool:
        """Whether every marker that it was given, and the end, are in all rings."""
        return not self.blocked and (not self.ended or self._sent_watermark_ns == WATERMARK_END)

    @property
    def done(self) -> bool:
        """Whether the end has been sent to everybody."""
        return self.ended and self.caught_up

    @property
    def deadline_ns(self) -> int | None:
        """When the next slice or watermark is due, monotonic ns.

        None if nothing waits, or while a ring is full: nothing is cut before it has room.
        """
        if self._waits:
            return None
        deadline = self._slicer.deadline_ns
        if self._advanced_at_ns is None:
            return deadline
        due = self._advanced_at_ns + self._slicer.limits.wtl_ns
        return due if deadline is None else min(due, deadline)

    def emit(self, batch: Batch) -> None:
        """Take rows; views in them stay valid only until `settle`."""
        if not batch.num_rows:
            return
        if batch.has_times and not self._stamp.with_times:
            batch = batch.with_times(None)  # so that all pending batches are alike
        self._slicer.add(batch, self._now_ns)
        if not self.blocked and self._slicer.ready(self._now_ns):
            self._cut()
            self._push()

    def advance(self, watermark_ns: int) -> None:
        """Take a watermark; it travels after all rows that were emitted before it."""
        if watermark_ns > self._watermark_ns:
            self._watermark_ns = watermark_ns
            if self._advanced_at_ns is None:
                self._advanced_at_ns = self._now_ns

    def set_idle(self, idle: bool) -> None:
        """Take whether the producer is idle; that travels after the rows, as a watermark does."""
        self._idle = idle
        if self._advanced_at_ns is None:
            self._advanced_at_ns = self._now_ns

    def end(self) -> None:
        """Take the end: everything that waits is sent at once, the last watermark before the end.

        So whether timers fire before their input has ended does not depend on when frames are sent.
        """
        self.ended = True
        self._idle = False
        self._last_watermark_ns = self._watermark_ns
        self.advance(WATERMARK_END)

    def mark_epoch(self, epoch: int, *, stop: bool) -> None:
        """Take the marker of an epoch; `caught_up` says when it is in all rings.

        A producer that has ended writes none: its end counts as one. Nobody may emit before it has
        caught up, and neither may the producers that share its rings (see
        `state.epochs.aligner`). So it takes any room that the rings have: this producer's next turn
        may be long after a reader has made more.
        """
        if self.ended:
            return
        self._marker = (epoch, stop)
        for queue in self._queues:
            queue.ring.channel.lift_limit()

    def settle(self, now_ns: int) -> None:
        """Send what is due; copy what has to wait, since its memory is valid only until now."""
        self.pump(now_ns)
        self._slicer.own()
        if not self._waits:
            return
        copies: dict[int, Batch] = {}  # pieces of one slice share its batch
        for queue in self._queues:
            for item in queue.waiting:
                if isinstance(item, WaitingRows) and not item.piece.batch.owned:
                    shared = item.piece.batch
                    if id(shared) not in copies:
                        copies[id(shared)] = shared.copy()
                    item.piece.batch = copies[id(shared)]

    def pump(self, now_ns: int) -> bool:
        """Send what is due and what the rings have room for; return whether anything was sent."""
        self._now_ns = now_ns
        sent = self._push()
        if self._waits:
            return sent
        if self._marker is not None:
            self._cut()
            self._queue_marker(*self._marker)
            self._marker = None
        elif self._due(now_ns):
            self._cut()
        else:
            return sent
        return self._push() or sent

    def _due(self, now_ns: int) -> bool:
        if self.ended:
            return self._sent_watermark_ns != WATERMARK_END
        if self._slicer.ready(now_ns):
            return True
        return (
            self._advanced_at_ns is not None
            and now_ns >= self._advanced_at_ns + self._slicer.limits.wtl_ns
        )

    def _cut(self) -> None:
        """Turn everything pending into messages, the watermark last; all queues are empty."""
        addressing = self._next_addressing  # read once: another thread may set it
        if addressing is not self._addressing:
            addressing.continue_from(self._addressing)
            self._addressing = addressing
        queues = addressing.queues
        while (batch := self._slicer.take()) is not None:
            for piece in self._slicer.pieces(batch):
                addressing.queue_slice(piece, self._sent_watermark_ns)
                self._slices_cut += 1
        if self._last_watermark_ns > self._sent_watermark_ns:
            for queue in queues:
                queue.mark(self._last_watermark_ns)
        if self._watermark_ns > self._sent_watermark_ns or self._sent_idle > self._idle:
            for queue in queues:
                queue.mark(self._watermark_ns)
            self._sent_watermark_ns = self._watermark_ns
        if self._idle:  # again after rows, which tell readers that it is not
            for queue in queues:
                queue.mark_idle(self._watermark_ns)
        self._sent_idle = self._idle
        self._advanced_at_ns = None

    def _queue_marker(self, epoch: int, stop: bool) -> None:
        """Queue a marker after everything else, for the rings of all addressings."""
        for addressing in self._addressings.values():
            if addressing is not self._addressing:
                addressing.continue_from(self._addressing)
            for queue in addressing.queues:
                queue.waiting.append(WaitingMarker(queue.sequence, epoch, stop))

    def _push(self) -> bool:
        sent = False
        for queue in self._queues:
            waiting, count = queue.waiting, 0
            while count < len(waiting) and self._put(queue, waiting[count]):
                count += 1
            if count:
                del waiting[:count]  # at once: each one alone would move all behind it
                sent = True
        return sent

    def _put(self, queue: RingQueue, item: WaitingItem) -> bool:
        ring = queue.ring
        if isinstance(item, WaitingMark):
            outcome = ring.channel.put(
                HEADER_BYTES,
                lambda buffer: self._encode_mark(buffer, ring, item),
            )
            return self._accepted(outcome)
        if isinstance(item, WaitingMarker):
            outcome = ring.channel.put(
                HEADER_BYTES,
                lambda buffer: self._encode_marker(buffer, ring, item),
            )
            return self._accepted(outcome)
        schema = item.piece.batch.schema
        if schema.schema_id not in ring.schemas_sent and not self._put_schema(ring, schema):
            return False
        outcome = ring.channel.put(item.size, lambda buffer: self._encode_rows(buffer, ring, item))
        if not self._accepted(outcome):
            return False
        self._rows_sent += item.piece.rows
        self._messages_sent += 1
        self._bytes_sent += item.size
        return True

    def _put_schema(self, ring: OutRing, schema: Schema) -> bool:
        stamp = self._stamp
        outcome = ring.channel.put(
            codec.schema_message_size(schema),
            lambda buffer: codec.encode_schema_into(
                buffer,
                schema,
                stream=ring.stream,
                source=stamp.source,
                attempt=stamp.attempt,
            ),
        )
        if not self._accepted(outcome):
            return False
        ring.schemas_sent.add(schema.schema_id)
        return True

    def _accepted(self, outcome: Outcome) -> bool:
        """Return whether a frame was sent; what a ring without readers drops counts as sent."""
        if outcome is Outcome.TOO_LARGE:
            msg = f"edge {self.edge.id}: a frame was measured smaller than it is"
            raise AssertionError(msg)
        return outcome is not Outcome.BACK_PRESSURED

    def _encode_mark(self, buffer: npt.NDArray[np.uint8], ring: OutRing, mark: WaitingMark) -> int:
        stamp = self._stamp
        return codec.encode_watermark_into(
            buffer,
            stream=ring.stream,
            source=stamp.source,
            attempt=stamp.attempt,
            sequence=mark.sequence,
            watermark_ns=mark.watermark_ns,
            end=mark.watermark_ns == WATERMARK_END,
            idle=mark.idle,
        )

    def _encode_marker(
        self, buffer: npt.NDArray[np.uint8], ring: OutRing, marker: WaitingMarker
    ) -> int:
        stamp = self._stamp
        return codec.encode_marker_into(
            buffer,
            stream=ring.stream,
            source=stamp.source,
            attempt=stamp.attempt,
            sequence=marker.sequence,
            epoch=marker.epoch,
            stop=marker.stop,
        )

    def _encode_rows(self, buffer: npt.NDArray[np.uint8], ring: OutRing, rows: WaitingRows) -> int:
        stamp = self._stamp
        fields: codec.MessageFields = {
            "stream": ring.stream,
            "source": stamp.source,
            "attempt": stamp.attempt,
            "sequence": rows.sequence,
            "watermark_ns": rows.watermark_ns,
            "with_times": stamp.with_times,
            "checksum": stamp.checksum,
        }
        if rows.destinations is not None:
            fields["destinations"] = rows.destinations
        batch, indices = rows.piece.batch, rows.piece.indices
        if indices is None:
            return codec.encode_into(buffer, batch, **fields)
        return codec.encode_gather_into(buffer, batch, indices, **fields)
