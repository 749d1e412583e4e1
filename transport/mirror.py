"""Rings that continue on other hosts: taps, which read raw bytes, and mirrors, copies of rings.

A *tap* is a reader of a ring that reads bytes, not frames: it returns positions and memory to send
from. A *mirror* is a ring of the same capacity on another host, in which every byte is at the same
position, padding included; local workers read it as any ring.

::

    host A                                        host B
    producer ─► ring ─► readers                   mirror ─► readers
                   └──► tap ─ bytes [p, p+n) ────► │  └────► tap ─ … ─► host C
                         ▲ release(position)       │ advance, forward, publish
                         └──────── received ───────┘

A mirror has three positions: `received` (all bytes before it are here), `published` (visible to
its readers: whole frames only) and `limit` (up to which the writer may write without overtaking a
reader). A tap of a mirror in the same process sees bytes that are received but not published, so
that they are forwarded first.

A process that writes a mirror or taps a ring may be killed at any instant, and another takes its
place: all state for that is in the memory, which a third process has created (`make_memory`). The
order of stores makes that safe::

    the writer:  bytes ─► received ─► what others see: forwarded, granted, published (the head)
    the tap:     bytes acknowledged by all children ─► tail (at a frame's start)

The next writer continues at `received`: bytes after it, of a message that was cut short, are
written once more, the same as before. It publishes again, as the writer before may have died before
it woke the readers; a resumed tap wakes the writer for the same reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..configs.errors import CorruptedMessageError, ResourceError
from . import mirror_kernels as kernels
from .doorbell import Doorbell
from .handles import RingHandle
from .ring import RingConsumer, RingProducer
from .ring_layout import (
    CLOSED,
    LINE_BYTES,
    OPEN,
    PRODUCER_CLOSED,
    READER_STATE,
    RECEIVED,
    RingLayout,
)
from .ring_readers import NO_READER, lowest_tail
from .segment import Segment, SegmentKind

_ANY_BYTES: Final = 1 << 62


def make_memory(
    ring_bytes: int, readers: int, job: str, label: str, kind: SegmentKind = "memfd"
) -> tuple[Segment, RingHandle]:
    """Create the memory of a mirror for another process to write; arguments as of `create_ring`.

    `readers` counts the local workers, and one more for the tap that forwards the stream. The
    caller keeps the segment open as long as a writer or a reader may attach. Raises ResourceError
    if there is no memory for it.
    """
    layout = RingLayout(ring_bytes, readers)
    segment = Segment.create(layout.total_bytes, label, job, kind)
    layout.write(segment)
    return segment, RingHandle(segment.handle, readers)


class MirrorRing:
    """The writing end of a mirror. One thread uses it; its readers are `RingConsumer`s."""

    def __init__(
        self,
        segment: Segment,
        layout: RingLayout,
        doorbells: Sequence[Doorbell] = (),
        *,
        poison_released: bool = False,
    ) -> None:
        """Write to the memory of a mirror, and close it with this end; see `create`, `attach`.

        Raises ResourceError if the memory is not a mirror's in a valid state.
        """
        self._segment = segment
        self._layout = layout
        self._doorbells = tuple(doorbells)
        self._lines = np.array([doorbell.line for doorbell in doorbells], np.int64)
        self._lines_address = int(self._lines.ctypes.data)
        self._ring = segment.address
        self._data = self.data_address = segment.address + layout.data_offset
        self._memory = segment.memory(layout.data_offset, layout.total_bytes)
        self._limit_seen = 0
        self._closed = False
        self._owns = True
        self.capacity: Final = layout.capacity
        """Bytes of data; the same as of the ring that it copies."""
        self.received = int(segment.words(RECEIVED, RECEIVED + 8)[0])
        """Every byte before this position is here."""
        self.published = int(kernels.head(self._ring))
        """Every frame before this position is visible to the readers."""
        self._whole = self._end_of_whole_frames()
        self._finished_flag = bool(segment.words(PRODUCER_CLOSED, PRODUCER_CLOSED + 8)[0])
        self.finished_at = self.published if self._finished_flag else None
        """The position at which the stream ends, once that is known."""
        self.abandoned = False
        """Whether the last check of the readers (`limit`, `request_wake_up`) found that all have
        closed: the stream is not needed any more."""
        self._poisoned = _ANY_BYTES
        tail = self.lowest_tail
        if poison_released:
            self._poisoned = tail

    def _end_of_whole_frames(self) -> int:
        """Return the end of the whole frames among the bytes received, published or not."""
        whole = kernels.NOT_A_FRAME
        if 0 <= self.published <= self.received <= self.published + self.capacity:
            whole = kernels.whole_frames(
                self._data, self.capacity, self.published, self.received, _ANY_BYTES
            )
        if whole == kernels.NOT_A_FRAME:
            msg = (
                f"mirror {self._segment.handle.path!r} says that {self.received:,} bytes are here "
                f"and {self.published:,} published, but its memory does not hold them: it was "
                "overwritten"
            )
            raise ResourceError(msg)
        return int(whole)

    @classmethod
    def create(
        cls,
        ring_bytes: int,
        readers: int,
        job: str,
        label: str,
        doorbells: Sequence[Doorbell] = (),
        *,
        kind: SegmentKind = "memfd",
        poison_released: bool = False,
    ) -> MirrorRing:
        """Create a mirror of a ring of `ring_bytes`; arguments as of `shm.create_ring`.

        `readers` counts the local workers, and one more if a `RingTap` forwards the stream to
        other hosts. `kind` "private" serves readers of this process (`consumer`). Raises
        ResourceError if there is no room.
        """
        segment, _ = make_memory(ring_bytes, readers, job, label, kind)
        layout = RingLayout(ring_bytes, readers)
        return cls(segment, layout, doorbells, poison_released=poison_released)

    @classmethod
    def attach(
        cls,
        handle: RingHandle,
        doorbells: Sequence[Doorbell] = (),
        *,
        poison_released: bool = False,
    ) -> MirrorRing:
        """Write a mirror whose memory another process of this host has created (`make_memory`).

        Continues at the position of an earlier writer, which must be dead. Closing this end does
        not finish the stream. Raises ResourceError if the memory has vanished.
        """
        segment = Segment.attach(handle.segment)
        try:
            return cls.over(segment, doorbells, poison_released=poison_released)
        except BaseException:
            segment.close()
            raise

    @classmethod
    def over(
        cls,
        segment: Segment,
        doorbells: Sequence[Doorbell] = (),
        *,
        poison_released: bool = False,
    ) -> MirrorRing:
        """Write a mirror in memory that this process has mapped; otherwise as `attach`."""
        layout = RingLayout.read(segment)
        mirror = cls(segment, layout, doorbells, poison_released=poison_released)
        mirror._owns = False
        mirror._show()
        return mirror

    @property
    def handle(self) -> RingHandle:
        """What workers of this host attach with (`shm.attach_ring`)."""
        return RingHandle(self._segment.handle, self._layout.readers)

    @property
    def segment(self) -> Segment:
        """The memory, which this object owns."""
        return self._segment

    def consumer(
        self, reader: int, doorbell: Doorbell | None = None, *, held_fraction: float = 0.5
    ) -> RingConsumer:
        """Return reader number `reader` as a receiving end of this process, open.

        `doorbell` is rung when the mirror waits for this reader. Raises ResourceError if the
        place is taken.
        """
        consumer = RingConsumer(
            self._segment.share(), reader, doorbell, held_fraction=held_fraction
        )
        consumer.open()
        return consumer

    @property
    def lowest_tail(self) -> int:
        """The position that all open readers have passed; `received` if none is open."""
        return self.limit - self.capacity

    @property
    def limit(self) -> int:
        """The position up to which bytes may be written without overtaking an open reader."""
        if self._closed:
            return self.received + self.capacity
        return self._see_tail(lowest_tail(self._ring, self._layout.readers))

    def _see_tail(self, tail: int) -> int:
        """Update the state from the lowest tail of the readers; return the limit."""
        if tail == NO_READER:
            self.abandoned = True
            tail = self.received
        elif tail > self._poisoned:
            kernels.poison(self._data, self.capacity, self._poisoned, tail)
            self._poisoned = tail
        self._limit_seen = limit = tail + self.capacity
        return limit

    def request_wake_up(self, tail: int) -> int:
        """Ask to be woken when all open readers have passed `tail`; return `limit`."""
        if self._closed:
            return self.limit
        return self._see_tail(kernels.request_wake_up(self._ring, self._layout.readers, tail))

    def writable(self, position: int, nbytes: int) -> tuple[memoryview, ...]:
        """Return the memory of [position, position + nbytes), in one piece or two.

        Raises ValueError if that would overtake a reader, or is not the next position.
        """
        end = position + nbytes
        fits = end <= self._limit_seen or end <= self.limit
        if position != self.received or nbytes < 0 or not fits:
            msg = (
                f"{nbytes} bytes at position {position} of a mirror that has {self.received} "
                f"and may take bytes up to {self.limit}"
            )
            raise ValueError(msg)
        return _pieces(self._memory, self.capacity, position, nbytes)

    def advance(self, nbytes: int) -> None:
        """Count `nbytes` that were written after `received`, without publishing them.

        Raises CorruptedMessageError, and counts none of them, if they do not hold frames.
        """
        received = self.received + nbytes
        whole = kernels.advance(self._ring, self._data, self.capacity, self._whole, received)
        if whole == kernels.NOT_A_FRAME:
            msg = f"the bytes from position {self._whole} to {received} hold no frames"
            raise CorruptedMessageError(msg)
        self._whole = whole
        self.received = received

    @property
    def whole(self) -> bool:
        """Whether what was received ends with a whole frame."""
        return self._whole == self.received

    def publish(self) -> bool:
        """Make every whole frame received visible to the readers; return whether there was one."""
        if self.published == self._whole or self._closed:
            return False
        self._show()
        return True

    def _show(self) -> None:
        self.published = self._whole
        kernels.publish(self._ring, self.published, self._lines_address, len(self._lines))

    @property
    def finished(self) -> bool:
        """Whether `finish` was called, and the stream has ended for the readers."""
        return self._finished_flag

    def finish(self) -> None:
        """End the stream after the frames published; calling it again does nothing."""
        if self._finished_flag or self._closed:
            return
        self._finished_flag = True
        kernels.finish(self._ring, self._lines_address, len(self._lines))

    def close(self) -> None:
        """Release the memory; readers that have attached keep it mapped.

        If this process has created the mirror (`create`), that also ends the stream.
        """
        if self._closed:
            return
        if self._owns:
            self.finish()
        self._closed = self.abandoned = True
        self._memory = memoryview(b"")
        self._segment.close()


class RingTap:
    """A reader of raw bytes: of a producer's ring, or of a mirror of this process.

    Takes one reader's place. One thread uses it.
    """

    def __init__(
        self,
        segment: Segment,
        reader: int,
        doorbell: Doorbell | None = None,
        mirror: MirrorRing | None = None,
        *,
        resume: bool = False,
    ) -> None:
        """Take over an attached segment (closed with the tap); see `attach`, `beside`, `of`.

        With `resume` the place may be that of a dead tap, with its state. Raises ResourceError if
        the place is taken, or was closed.
        """
        self._segment = segment
        self._layout = RingLayout.read(segment)
        self._doorbell = doorbell
        self._doorbell_line = 0 if doorbell is None else doorbell.line
        self._mirror = mirror
        self._ring = segment.address
        offset = self._layout.reader_offset(reader)
        self._line = segment.address + offset
        self._data = self.data_address = segment.address + self._layout.data_offset
        self._memory = segment.memory(
            self._layout.data_offset, self._layout.total_bytes
        ).toreadonly()
        self._last_head = 0
        self._closed = False
        self.capacity: Final = self._layout.capacity
        """Bytes of the ring's data."""
        line = segment.words(offset, offset + LINE_BYTES)
        state = int(line[READER_STATE // 8])
        if state == CLOSED or (state == OPEN and not resume):
            msg = f"reader {reader} of ring {segment.handle.path!r} is taken or was closed"
            raise ResourceError(msg)
        self.released = int(line[0])
        """Everything before this position was released; a frame begins here."""
        self.resumed: Final = state == OPEN
        """Whether the place was another tap's before, which may have read on from `released`."""
        line[READER_STATE // 8] = OPEN
        if self.resumed and doorbell is not None:
            kernels.wake(doorbell.line)

    @classmethod
    def attach(
        cls,
        handle: RingHandle,
        reader: int,
        producer_doorbell: Doorbell | None = None,
        *,
        resume: bool = False,
    ) -> RingTap:
        """Tap a ring of another process of this host as reader number `reader`.

        `producer_doorbell` is rung when the producer waits for this tap. With `resume` the place
        may be that of a tap whose process is dead: this one continues at its `released`. Raises
        ResourceError if the ring has vanished, or the place is taken or was closed.
        """
        segment = Segment.attach(handle.segment)
        try:
            return cls(segment, reader, producer_doorbell, resume=resume)
        except BaseException:
            segment.close()
            raise

    @classmethod
    def beside(cls, producer: RingProducer, producer_doorbell: Doorbell | None = None) -> RingTap:
        """Tap a ring that this process writes, as its first reader."""
        return cls(producer.segment.share(), 0, producer_doorbell)

    @classmethod
    def of(cls, mirror: MirrorRing, reader: int, *, resume: bool = False) -> RingTap:
        """Tap a mirror that this process writes: bytes can be forwarded before publication.

        `resume` as of `attach`.
        """
        return cls(mirror.segment.share(), reader, None, mirror, resume=resume)

    @property
    def head(self) -> int:
        """The position up to which bytes can be read: for a mirror, what it has received."""
        if self._mirror is not None:
            self._last_head = self._mirror.received
        elif not self._closed:
            self._last_head = kernels.head(self._ring)
        return self._last_head

    @property
    def finished_at(self) -> int | None:
        """The position at which the stream ends; None as long as more may come."""
        if self._mirror is not None:
            return self._mirror.finished_at
        position = kernels.NOT_FINISHED if self._closed else kernels.finished_at(self._ring)
        return None if position == kernels.NOT_FINISHED else int(position)

    def whole_frames(self, start: int, limit: int, max_bytes: int) -> int:
        """Return the end of the whole frames from `start` on: `start` if there is none.

        Not beyond `limit` or the head, and not beyond `max_bytes` unless the first frame alone is
        larger. Raises CorruptedMessageError if the memory does not hold frames.
        """
        if self._closed:
            return start
        head = self._last_head
        if head <= start:
            head = self.head
        limit = min(limit, head)
        stop = kernels.whole_frames(self._data, self.capacity, start, limit, max_bytes)
        if stop == kernels.NOT_A_FRAME:
            raise self._no_frame(start)
        return int(stop)

    def pieces(self, start: int, stop: int) -> tuple[memoryview, ...]:
        """Return the memory of [start, stop), read-only, in one piece or two.

        It stays unchanged until `release` passes `start`.
        """
        return _pieces(self._memory, self.capacity, start, stop - start)

    def release(self, position: int) -> None:
        """Release everything before `position` to the writer, and wake it if it waits.

        A frame is released as a whole: one that `position` is within is kept, so that a walk over
        frames can always begin at `released`. `position` must not be beyond the head. Raises
        CorruptedMessageError if the memory does not hold frames.
        """
        if position <= self.released or self._closed:
            return
        released = kernels.release(
            self._ring, self._line, self._data, self.capacity, position, self._doorbell_line
        )
        if released == kernels.NOT_A_FRAME:
            raise self._no_frame(self.released)
        self.released = int(released)

    def _no_frame(self, position: int) -> CorruptedMessageError:
        msg = (
            f"ring {self._segment.handle.path!r} holds no frame after position {position}: "
            "its memory was overwritten"
        )
        return CorruptedMessageError(msg)

    @property
    def closed(self) -> bool:
        """Whether `close` or `detach` was called."""
        return self._closed

    def close(self) -> None:
        """Stop reading: the writer no longer waits for this tap. A second call does nothing."""
        if not self._closed:
            kernels.leave(self._ring, self._line, self._doorbell_line)
            self.detach()

    def detach(self) -> None:
        """Stop reading, and keep the place for another tap to `resume`; the writer waits for it."""
        if self._closed:
            return
        self._last_head = self.head
        self._closed = True
        self._memory = memoryview(b"")
        self._segment.close()


def _pieces(
    memory: memoryview, capacity: int, position: int, nbytes: int
) -> tuple[memoryview, ...]:
    """Return [position, position + nbytes) of a ring's data: two pieces if it wraps."""
    offset = position & (capacity - 1)
    end = offset + nbytes
    if end <= capacity:
        return (memory[offset:end],)
    return memory[offset:], memory[: end - capacity]
