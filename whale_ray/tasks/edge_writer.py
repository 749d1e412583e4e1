"""Sends what one producer emits on one edge: slicing, grouping, numbering, watermarks, the end.

Each ring of the edge is a stream of its own, in which a producer numbers its rows from 0:
(producer, stream, attempt, number) names a row of the job, on keyed edges too.

An all-grouped edge is *worker-oriented*: a slice is serialized once, into the one ring that all
workers read. For comparison it can be *instance-oriented*, as Storm is: every slice is serialized
anew for each destination instance, and each message, which carries that instance's id, travels
alone through a ring to the instance's worker. Both share slicing, encoding and the numbering of
rows, so that one can follow the other from slice to slice; what was cut before is in its ring by
then.

Rows wait in a slicer until they make a slice (MMS bytes, or WTL has passed), are then spread over
the edge's rings by its grouping, cut into frames that a ring takes, and put one after the other. A
full ring blocks this writer alone: its frames wait here, and the operators that feed it are not
called until they are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..configs.errors import InputError, JobError
from ..configs.settings import DECLARATIONS
from ..operators.keys import stable_partition
from ..plan.physical import Edge
from ..state.watermarks import WATERMARK_END, WATERMARK_NONE
from ..transport.channel import Channel, Outcome
from ..transport.ring_layout import capacity_for, max_frame_bytes_of
from ..transport.slicing import StreamSlicer
from ..transport.wire import codec
from ..transport.wire.batch import Batch
from ..transport.wire.header import HEADER_BYTES
from ..transport.wire.types import Schema
from .partitioner import Partitioner

Destinations = npt.NDArray[np.uint32]
Indices = npt.NDArray[np.int64]


@dataclass
class OutRing:
    """A ring that this worker writes; the producers of one edge share it.

    Attributes:
        stream: its number, in the header of every frame.
        channel: the producer's end.
        instances: the target's instances behind it, ascending.
        max_frame_bytes: what it takes at most in one frame.
        per_instance: whether it is for instance-oriented messages of an all-grouped edge.
        schemas_sent: ids of the schemas that its readers know.
    """

    stream: int
    channel: Channel
    instances: tuple[int, ...]
    max_frame_bytes: int
    per_instance: bool = False
    schemas_sent: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Stamp:
    """What stands in the header of every frame of a writer."""

    source: int
    attempt: int
    with_times: bool
    checksum: bool


@dataclass
class _Piece:
    """Rows for one frame: `batch[indices]`, or all of `batch` without indices.

    `instances` are those of each row, int64 (rows,), ascending; None: all rows are for all.
    """

    batch: Batch
    indices: Indices | None
    instances: npt.NDArray[np.int64] | None

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.batch.num_rows if self.indices is None else len(self.indices)

    def halves(self) -> tuple[_Piece, _Piece]:
        """Return it in two pieces."""
        middle, end = self.rows // 2, self.rows
        if self.indices is None:
            first, second = self.batch.slice(0, middle), self.batch.slice(middle, end)
            return _Piece(first, None, None), _Piece(second, None, None)
        assert self.instances is not None
        return (
            _Piece(self.batch, self.indices[:middle], self.instances[:middle]),
            _Piece(self.batch, self.indices[middle:], self.instances[middle:]),
        )


@dataclass
class _Rows(_Piece):
    """A frame of `size` bytes that waits for its ring, its first row number `sequence`.

    `instance` is the only one that a message of an all-grouped edge is for; None: it is for all.
    """

    size: int
    sequence: int
    watermark_ns: int
    instance: int | None = None


@dataclass
class _Mark:
    """A watermark, or with `WATERMARK_END` the end, that waits for its ring."""

    sequence: int
    watermark_ns: int


class _Outbox:
    """What waits for one ring, and the number of the next row that is put in here."""

    def __init__(self, ring: OutRing) -> None:
        self.ring = ring
        self.waiting: list[_Rows | _Mark] = []
        self.sequence = 0

    def add(self, piece: _Piece, size: int, watermark_ns: int) -> None:
        """Queue rows as one message, or with instance-oriented addressing as one for each."""
        ring = self.ring
        for instance in ring.instances if ring.per_instance else (None,):
            self.waiting.append(
                _Rows(
                    piece.batch,
                    piece.indices,
                    piece.instances,
                    size,
                    self.sequence,
                    watermark_ns,
                    instance,
                )
            )
        self.sequence += piece.rows

    def mark(self, watermark_ns: int) -> None:
        """Let the last rows carry a watermark; send it by itself where there are none, or at last.

        Each of the messages with the last rows carries it, to its own instance.
        """
        last = self.waiting[-1] if self.waiting else None
        if not isinstance(last, _Rows) or watermark_ns == WATERMARK_END:
            self.waiting.append(_Mark(self.sequence, watermark_ns))
            return
        for item in reversed(self.waiting):
            if item.sequence != last.sequence:
                break
            item.watermark_ns = watermark_ns


class EdgeWriter:
    """One producer's way into one edge; a `Downstream`.

    `partitioner` is None for the all grouping, which has a single ring, or for instance-oriented
    addressing one more for each consuming worker.

    Attributes:
        edge: the edge.
        instance_oriented: how an all-grouped edge is to address from its next slice on; may be set
            from any thread, where there are rings for it.
        rows_dropped: rows left out for a null key.
        ended: whether no more rows follow.
    """

    def __init__(
        self,
        edge: Edge,
        stamp: Stamp,
        rings: Sequence[OutRing],
        partitioner: Partitioner | None,
        slicer: StreamSlicer,
        parallelism: int,
        wtl_ns: int,
    ) -> None:
        self.edge = edge
        self.rows_dropped = 0
        self.instance_oriented = False
        self._stamp = stamp
        self._outboxes = self._shared = [_Outbox(ring) for ring in rings if not ring.per_instance]
        self._single = [_Outbox(ring) for ring in rings if ring.per_instance]
        self._partitioner = partitioner
        self._slicer = slicer
        self._parallelism = parallelism
        self._wtl_ns = wtl_ns
        self._watermark_ns = self._sent_watermark_ns = WATERMARK_NONE
        self._advanced_at_ns: int | None = None
        self._now_ns = 0
        self.ended = False

    @property
    def blocked(self) -> bool:
        """Whether frames wait for room in a ring."""
        return any(outbox.waiting for outbox in self._outboxes)

    @property
    def done(self) -> bool:
        """Whether the end has been sent to everybody."""
        return self.ended and self._sent_watermark_ns == WATERMARK_END and not self.blocked

    @property
    def deadline_ns(self) -> int | None:
        """When the next slice or watermark is due, monotonic ns; None if nothing waits."""
        deadline = self._slicer.deadline_ns
        if self._advanced_at_ns is None:
            return deadline
        due = self._advanced_at_ns + self._wtl_ns
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
        """Take a watermark; it travels behind all rows that were emitted before it."""
        if watermark_ns > self._watermark_ns:
            self._watermark_ns = watermark_ns
            if self._advanced_at_ns is None:
                self._advanced_at_ns = self._now_ns

    def end(self) -> None:
        """Take the end: everything that waits is sent at once."""
        self.ended = True
        self.advance(WATERMARK_END)

    def settle(self, now_ns: int) -> None:
        """Send what is due; copy what has to wait, since its memory may go after this call."""
        self.pump(now_ns)
        self._slicer.own()
        copies: dict[int, Batch] = {}  # pieces of one slice share its batch
        for outbox in self._outboxes:
            for item in outbox.waiting:
                if isinstance(item, _Rows) and not item.batch.owned:
                    shared = item.batch
                    if id(shared) not in copies:
                        copies[id(shared)] = shared.copy()
                    item.batch = copies[id(shared)]

    def pump(self, now_ns: int) -> bool:
        """Send what is due and what the rings have room for; return whether anything was sent."""
        self._now_ns = now_ns
        sent = self._push()
        if self.blocked or not self._due(now_ns):
            return sent
        self._cut()
        return self._push() or sent

    def _due(self, now_ns: int) -> bool:
        if self.ended:
            return self._sent_watermark_ns != WATERMARK_END
        if self._slicer.ready(now_ns):
            return True
        return self._advanced_at_ns is not None and now_ns >= self._advanced_at_ns + self._wtl_ns

    def _cut(self) -> None:
        """Turn everything pending into frames, the watermark last; nothing waits any more."""
        self._address()
        batch = self._slicer.take()
        if batch is not None:
            self._spread(batch)
        if self._watermark_ns > self._sent_watermark_ns:
            for outbox in self._outboxes:
                outbox.mark(self._watermark_ns)
            self._sent_watermark_ns = self._watermark_ns
        self._advanced_at_ns = None

    def _address(self) -> None:
        """Turn to the rings of the addressing that is asked for; the numbering goes on there."""
        wanted = self._single if self.instance_oriented and self._single else self._shared
        if wanted is not self._outboxes:
            for outbox in wanted:
                outbox.sequence = self._outboxes[0].sequence
            self._outboxes = wanted

    def _spread(self, batch: Batch) -> None:
        if self._partitioner is None:
            self._enqueue(self._outboxes, _Piece(batch, None, None))
            return
        try:
            batch, instances, dropped = self._partitioner(batch)
        except InputError as error:
            msg = f"after operator {self.edge.source_operator!r}: {error}"
            raise InputError(msg) from error
        self.rows_dropped += dropped
        if batch.num_rows == 0:
            return
        order, counts = stable_partition(instances, self._parallelism)
        ends = np.cumsum(counts)
        sorted_instances = np.repeat(np.arange(self._parallelism), counts)
        for outbox in self._outboxes:
            first, last = outbox.ring.instances[0], outbox.ring.instances[-1]
            start, stop = int(ends[first] - counts[first]), int(ends[last])
            if stop > start:
                rows = slice(start, stop)
                self._enqueue([outbox], _Piece(batch, order[rows], sorted_instances[rows]))

    def _enqueue(self, outboxes: Sequence[_Outbox], piece: _Piece) -> None:
        """Queue the same rows for some rings, in pieces that these take in one frame each."""
        ring = min((outbox.ring for outbox in outboxes), key=lambda ring: ring.max_frame_bytes)
        size = self._size(piece, ring)
        if size <= ring.max_frame_bytes:
            for outbox in outboxes:
                outbox.add(piece, size, self._sent_watermark_ns)
            return
        if piece.rows == 1:
            self._raise_too_large(ring, piece, size)
        for half in piece.halves():
            self._enqueue(outboxes, half)

    def _size(self, piece: _Piece, ring: OutRing) -> int:
        with_times = self._stamp.with_times
        if piece.indices is None:
            return codec.message_size(piece.batch, int(ring.per_instance), with_times)
        return codec.gather_size(piece.batch, piece.indices, len(ring.instances), with_times)

    def _raise_too_large(self, ring: OutRing, piece: _Piece, size: int) -> None:
        row = 0 if piece.indices is None else int(piece.indices[0])
        msg = (
            f"operator {self.edge.source_operator!r} emitted a row of {size:,} bytes, but the "
            f"ring to {self.edge.target_operator!r} takes {ring.max_frame_bytes:,} at "
            f"most; {_larger_rings(size)} (row: {piece.batch.preview(row)})"
        )
        raise JobError(msg)

    def _push(self) -> bool:
        sent = False
        for outbox in self._outboxes:
            while outbox.waiting and self._put(outbox, outbox.waiting[0]):
                outbox.waiting.pop(0)
                sent = True
        return sent

    def _put(self, outbox: _Outbox, item: _Rows | _Mark) -> bool:
        ring = outbox.ring
        if isinstance(item, _Mark):
            outcome = ring.channel.put(
                HEADER_BYTES,
                lambda buffer: self._encode_mark(buffer, ring, item),
            )
            return self._accepted(outcome)
        schema = item.batch.schema
        if schema.schema_id not in ring.schemas_sent and not self._put_schema(ring, schema):
            return False
        outcome = ring.channel.put(item.size, lambda buffer: self._encode_rows(buffer, ring, item))
        return self._accepted(outcome)

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
        """Tell sent from back-pressured; a closed ring swallows (all its readers are gone)."""
        if outcome is Outcome.TOO_LARGE:
            msg = f"edge {self.edge.id}: a frame was measured smaller than it is"
            raise AssertionError(msg)
        return outcome is not Outcome.BACK_PRESSURED

    def _encode_mark(self, buffer: npt.NDArray[np.uint8], ring: OutRing, mark: _Mark) -> int:
        stamp = self._stamp
        return codec.encode_watermark_into(
            buffer,
            stream=ring.stream,
            source=stamp.source,
            attempt=stamp.attempt,
            sequence=mark.sequence,
            watermark_ns=mark.watermark_ns,
            end=mark.watermark_ns == WATERMARK_END,
        )

    def _encode_rows(self, buffer: npt.NDArray[np.uint8], ring: OutRing, rows: _Rows) -> int:
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
        if rows.instance is not None:
            fields["destinations"] = np.array([[rows.instance, rows.rows]], np.uint32)
        if rows.indices is None:
            return codec.encode_into(buffer, rows.batch, **fields)
        assert rows.instances is not None
        fields["destinations"] = _destinations(rows.instances)
        return codec.encode_gather_into(buffer, rows.batch, rows.indices, **fields)


def _destinations(instances: npt.NDArray[np.int64]) -> Destinations:
    """Return (instance, row end) of each run of ascending `instances`; uint32 (runs, 2)."""
    ends = np.append(np.flatnonzero(np.diff(instances)) + 1, len(instances))
    return np.stack([instances[ends - 1], ends], axis=1).astype(np.uint32)


def _larger_rings(size: int) -> str:
    """Return what to do for a row of `size` bytes, in values that the settings take."""
    largest = int(DECLARATIONS["transport.ring_bytes"].high or 0)
    needed = capacity_for(size)
    if needed > largest:
        return (
            f"no ring takes more than {max_frame_bytes_of(largest):,}: split it into several rows, "
            "or pass the name of a file that holds it"
        )
    # The second, too: where memory is short, rings become smaller than the first says.
    return f"set transport.ring_bytes and transport.ring_bytes_min to {needed}"
