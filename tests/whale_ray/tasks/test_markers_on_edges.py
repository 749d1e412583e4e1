"""Markers through one ring: behind all rows that came before, and nothing else gets past them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from whale_ray.configs.errors import CorruptedMessageError, ForeignMessageError, ProtocolError
from whale_ray.operators.groupings import All
from whale_ray.plan.physical import Edge
from whale_ray.state.epochs.aligner import EpochAligner
from whale_ray.tasks.addressing import WorkerOriented
from whale_ray.tasks.edge_reader import EdgeReader, StreamProgress
from whale_ray.tasks.edge_writer import EdgeWriter, Stamp
from whale_ray.tasks.ring_queue import OutRing
from whale_ray.tasks.stage_epochs import EpochInlet
from whale_ray.transport.inproc import create_inproc_ring
from whale_ray.transport.slicing import StreamSlicer
from whale_ray.transport.wire import codec
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.messages import MarkerMessage, SchemaMessage, WorkerMessage

EDGE = Edge(0, "from", "to", 0, 1, 0, All(), carries_time=False, ordered=False)


class Written:
    """Two producers that share a ring, its reading end, and the alignment of that one ring."""

    def __init__(self, ring_bytes: int = 1 << 16, *, checksum: bool = False) -> None:
        self.channel, (self.end,) = create_inproc_ring(ring_bytes, 1, "ring")
        self.ring = OutRing(0, self.channel, (0,), self.channel.max_frame_bytes)
        self.writers = [self._writer(source, checksum) for source in (0, 1)]
        self.rows: list[tuple[int, int]] = []
        self.epochs: Any = self
        self.aligner = EpochAligner([(0, 1)])

    def _writer(self, source: int, checksum: bool) -> EdgeWriter:
        stamp = Stamp(source, attempt=0, with_times=False, checksum=checksum)
        ways = {"worker-oriented": WorkerOriented(EDGE, [self.ring], with_times=False)}
        return EdgeWriter(EDGE, stamp, ways, StreamSlicer(1 << 18, 10**9))

    def emit(self, source: int, values: range) -> None:
        self.writers[source].emit(Batch.from_pydict({"v": np.array(values, np.int64)}))

    def reader(self, *, aligned: bool = True) -> EdgeReader:
        task: Any = self
        inlet = EpochInlet(self.epochs, 0) if aligned else None
        progress = StreamProgress((0, 1))
        return EdgeReader(EDGE, 0, self.end, 0, {0: task}, progress, inlet=inlet)

    # as the task behind the ring, and its epochs

    accepts_rows = True
    instances = (0,)

    @property
    def nodes(self) -> Any:
        raise AssertionError("nothing is refused")

    def mark(self, ring: int, producer: int, epoch: int, *, stop: bool) -> None:
        self.aligner.marker(ring, producer, epoch)

    def deliver(self, port: int, source: int, batch: Batch) -> None:
        self.rows += [(source, value) for value in batch["v"].tolist()]

    def advance(self, edge: int, source: int, watermark_ns: int) -> None:
        pass

    def settle(self, now_ns: int) -> None:
        pass

    def messages(self) -> Iterator[object]:
        schemas: dict[int, Any] = {}
        while (frame := self.end.get()) is not None:
            message = codec.decode(frame.data.copy(), schemas)
            self.end.release_buffer(frame)
            if isinstance(message, SchemaMessage):
                message.register(schemas)
            else:
                yield message


def test_a_marker_cuts_the_slice_before_it_is_due() -> None:
    written = Written()
    written.emit(0, range(3))
    written.writers[0].advance(7)
    written.writers[0].mark_epoch(5, stop=True)
    assert written.writers[0].blocked
    assert written.writers[0].pump(0)
    assert written.writers[0].caught_up
    rows, marker = written.messages()
    assert isinstance(rows, WorkerMessage)
    assert isinstance(marker, MarkerMessage)
    assert (rows.header.row_count, rows.header.watermark_ns) == (3, 7)
    assert (marker.header.sequence, marker.epoch, marker.stops) == (3, 5, True)


def test_a_marker_waits_for_room_behind_its_rows() -> None:
    written = Written(1 << 13)
    writer = written.writers[0]
    writer.emit(Batch.from_pydict({"v": np.arange(2_000)}))
    writer.mark_epoch(1, stop=False)
    writer.pump(0)
    assert not writer.caught_up
    assert writer.blocked
    reader = written.reader()
    while reader.poll(0) or writer.pump(0):
        pass
    assert writer.caught_up
    assert not writer.blocked
    assert written.rows == [(0, value) for value in range(2_000)]
    assert written.aligner.epoch == 1


def test_a_marker_takes_room_that_a_limit_leaves_free() -> None:
    """Else it is sent only once a reader has made room and the producer has its turn again."""
    written = Written()
    writer = written.writers[0]
    written.emit(0, range(3))
    writer.advance(7)
    writer.pump(2 * 10**9)
    written.channel.limit_in_flight(1)
    written.emit(0, range(3, 9))
    writer.pump(4 * 10**9)
    assert writer.blocked
    writer.mark_epoch(1, stop=False)
    writer.pump(4 * 10**9)
    assert writer.caught_up
    reader = written.reader()
    while reader.poll(0):
        pass
    assert written.rows == [(0, value) for value in range(9)]
    assert written.aligner.epoch == 1


def test_nothing_is_due_while_a_ring_is_full() -> None:
    """Else the worker would not sleep until the reader rings, and take the reader's processor."""
    written = Written()
    writer = written.writers[0]
    written.emit(0, range(3))
    assert writer.deadline_ns == 10**9
    writer.pump(10**9)
    written.channel.limit_in_flight(1)
    written.emit(0, range(3, 6))
    writer.advance(7)
    writer.pump(3 * 10**9)
    written.emit(0, range(6, 9))
    writer.advance(8)
    assert writer.blocked
    assert writer.deadline_ns is None
    reader = written.reader()
    while reader.poll(0):
        writer.pump(3 * 10**9)
    assert writer.deadline_ns == 4 * 10**9
    writer.pump(4 * 10**9)
    while reader.poll(0):
        pass
    assert written.rows == [(0, value) for value in range(9)]


def test_an_end_comes_in_place_of_a_marker() -> None:
    written = Written()
    written.writers[0].end()
    written.writers[0].mark_epoch(1, stop=False)
    assert not written.writers[0].caught_up
    written.writers[0].pump(0)
    assert written.writers[0].done
    (end,) = written.messages()
    assert not isinstance(end, MarkerMessage)


def test_a_ring_is_held_once_both_producers_have_come_to_the_marker() -> None:
    written = Written()
    reader = written.reader()
    for source, values in ((0, range(2)), (1, range(5))):
        written.emit(source, values)
        written.writers[source].mark_epoch(1, stop=False)
        written.writers[source].pump(0)
    written.emit(0, range(2, 9))
    written.writers[0].mark_epoch(2, stop=False)
    written.writers[0].pump(0)
    while reader.poll(0):
        pass
    assert written.rows == [(0, 0), (0, 1), *((1, value) for value in range(5))]
    assert reader.held
    assert not reader.available()
    assert written.aligner.pass_on() == 1
    while reader.poll(0):
        pass
    assert written.rows[7:] == [(0, value) for value in range(2, 9)]


def test_a_reader_that_takes_no_part_reads_past_markers() -> None:
    written = Written()
    reader = written.reader(aligned=False)
    for epoch in (1, 2):
        written.emit(0, range(epoch))
        written.writers[0].mark_epoch(epoch, stop=False)
        written.writers[0].pump(0)
    while reader.poll(0):
        pass
    assert written.rows == [(0, 0), (0, 0), (0, 1)]


def test_rows_before_a_siblings_marker_end_the_attempt() -> None:
    written = Written()
    reader = written.reader()
    written.emit(0, range(1))
    written.writers[0].mark_epoch(1, stop=False)
    written.writers[0].pump(0)
    written.emit(0, range(1, 2))
    written.writers[0].pump(2 * 10**9)
    assert [reader.poll(0) for _ in range(3)] == [True] * 3
    with pytest.raises(ProtocolError, match="had not written theirs"):
        reader.poll(0)
    assert written.rows == [(0, 0)]


def put(written: Written, byte: int, value: int) -> None:
    """Send a marker with one byte changed."""

    def encode(buffer: np.ndarray[Any, Any]) -> int:
        size = codec.encode_marker_into(buffer, stream=0, source=0, attempt=0, sequence=0, epoch=1)
        buffer[byte] = value
        return size

    written.channel.put(64, encode)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(
    ("byte", "value", "message"),
    [
        (4, 1, "'from' → 'to': a message of wire version 1, this whale-ray reads 2"),
        (5, 9, "'from' → 'to': a message of unknown kind 9"),
    ],
)
def test_a_frame_of_another_version_or_kind_ends_the_attempt(
    byte: int, value: int, message: str, aligned: bool
) -> None:
    written = Written()
    put(written, byte, value)
    with pytest.raises(ForeignMessageError, match=message):
        written.reader(aligned=aligned).poll(0)


def test_damage_ends_the_attempt_where_it_may_have_been_a_marker() -> None:
    written = Written()
    put(written, 6, 5)  # it claims to have a checksum
    with pytest.raises(CorruptedMessageError, match="'from' → 'to': marker message 0 of stream 0"):
        written.reader().poll(0)
