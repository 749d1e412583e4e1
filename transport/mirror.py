"""Rings that continue on other hosts: taps, which read raw bytes, and mirrors, which repeat them.

A *tap* is a reader of a ring that is interested in its bytes, not its frames: it hands out
positions and memory to send from. A *mirror* is a ring of the same capacity elsewhere, in which
every byte stands at the same position, padding included; local workers read it as any ring.

::

    host A                                        host B
    producer ─► ring ─► readers                   mirror ─► readers
                   └──► tap ─ bytes [p, p+n) ────► │  └────► tap ─ … ─► host C
                         ▲ release(position)       │ advance, forward, publish
                         └──────── received ───────┘

A mirror knows three positions: `received` (all bytes before it are here), `published` (shown to
its readers: whole frames only) and `limit` (the writer may go so far without overtaking a
reader). A tap of a mirror in the same process sees bytes that are received but not published, so
that they are forwarded first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..configs.errors import CorruptedMessageError, ResourceError
from . import mirror_kernels as kernels
from .doorbell import Doorbell
from .ring import RingConsumer, RingProducer
from .ring_layout import EXPECTED, LINE_BYTES, OPEN, READER_STATE, RingLayout
from .segment import Segment, SegmentKind
from .shm import RingHandle

_ANY_BYTES: Final = 1 << 62


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
        """Make `segment`, fresh and of `layout.total_bytes`, a mirror; see `create`."""
        layout.write(segment)
        self._segment = segment
        self._layout = layout
        self._doorbells = tuple(doorbells)
        self._lines = np.array([doorbell.line for doorbell in doorbells], np.int64)
        self._lines_address = int(self._lines.ctypes.data)
        self._ring = segment.address
        self._data = segment.address + layout.data_offset
        self._memory = segment.memory(layout.data_offset, layout.total_bytes)
        self._poisoned = 0 if poison_released else _ANY_BYTES
        self._whole = 0
        self._limit_seen = layout.capacity
        self._finished_flag = False
        self._closed = False
        self.capacity: Final = layout.capacity
        """Bytes of data; that of the ring which it repeats."""
        self.received = 0
        """Every byte before this position is here."""
        self.published = 0
        """Every frame before this position is visible to the readers."""
        self.finished_at: int | None = None
        """Where the stream ends, once that is known."""
        self.abandoned = False
        """Whether the last look at the readers (`limit`, `ask_to_be_rung`) found that all have
        closed: the stream is wanted no more."""

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
        layout = RingLayout(ring_bytes, readers)
        segment = Segment.create(layout.total_bytes, label, job, kind)
        return cls(segment, layout, doorbells, poison_released=poison_released)

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
        return self._see_tail(kernels.lowest_tail(self._ring, self._layout.readers))

    def _see_tail(self, tail: int) -> int:
        """Take note of what a look at the readers has found; return the limit."""
        if tail == kernels.NO_READER:
            self.abandoned = True
            tail = self.received
        elif tail > self._poisoned:
            kernels.poison(self._data, self.capacity, self._poisoned, tail)
            self._poisoned = tail
        self._limit_seen = limit = tail + self.capacity
        return limit

    def ask_to_be_rung(self, tail: int) -> int:
        """Have the writer's doorbell rung once all readers have passed `tail`; return `limit`."""
        if self._closed:
            return self.limit
        return self._see_tail(kernels.ask_to_be_rung(self._ring, self._layout.readers, tail))

    def writable(self, position: int, nbytes: int) -> tuple[memoryview, ...]:
        """Return the memory of [position, position + nbytes), in one piece or two.

        Raises ValueError if that would overtake a reader, or is not where the next byte belongs.
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
        """Count `nbytes` that were written behind `received`, without showing them to readers.

        Raises CorruptedMessageError, and counts none of them, if they do not hold frames.
        """
        received = self.received + nbytes
        whole = kernels.whole_frames(self._data, self.capacity, self._whole, received, _ANY_BYTES)
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
        """Show the readers every whole frame received; return whether there was one."""
        if self.published == self._whole or self._closed:
            return False
        self.published = self._whole
        kernels.publish(self._ring, self.published, self._lines_address, len(self._lines))
        return True

    @property
    def finished(self) -> bool:
        """Whether `finish` was called: the readers know that nothing follows."""
        return self._finished_flag

    def finish(self) -> None:
        """Tell the readers that no frame follows what was published; again does nothing."""
        if self._finished_flag or self._closed:
            return
        self._finished_flag = True
        kernels.finish(self._ring, self._lines_address, len(self._lines))

    def close(self) -> None:
        """Finish, and give the memory back; readers that have attached keep it mapped."""
        if self._closed:
            return
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
    ) -> None:
        """Take over an attached segment (closed with the tap); see `attach`, `beside`, `of`.

        Raises ResourceError if the place is taken.
        """
        self._segment = segment
        self._layout = RingLayout.read(segment)
        self._doorbell = doorbell
        self._doorbell_line = 0 if doorbell is None else doorbell.line
        self._mirror = mirror
        self._ring = segment.address
        offset = self._layout.reader_offset(reader)
        self._line = segment.address + offset
        self._data = segment.address + self._layout.data_offset
        self._memory = segment.memory(
            self._layout.data_offset, self._layout.total_bytes
        ).toreadonly()
        self._last_head = 0
        self._closed = False
        self.capacity: Final = self._layout.capacity
        """Bytes of the ring's data."""
        self.released = 0
        """Everything before this position was given back."""
        line = segment.words(offset, offset + LINE_BYTES)
        if line[READER_STATE // 8] != EXPECTED:
            msg = f"reader {reader} of ring {segment.handle.path!r} is taken or was closed"
            raise ResourceError(msg)
        line[READER_STATE // 8] = OPEN

    @classmethod
    def attach(
        cls, handle: RingHandle, reader: int, producer_doorbell: Doorbell | None = None
    ) -> RingTap:
        """Tap a ring of another process of this host as reader number `reader`.

        `producer_doorbell` is rung when the producer waits for this tap. Raises ResourceError if
        the ring has vanished or the place is taken.
        """
        segment = Segment.attach(handle.segment)
        try:
            return cls(segment, reader, producer_doorbell)
        except BaseException:
            segment.close()
            raise

    @classmethod
    def beside(
        cls, producer: RingProducer, reader: int, producer_doorbell: Doorbell | None = None
    ) -> RingTap:
        """Tap a ring that this process writes."""
        return cls(producer.segment.share(), reader, producer_doorbell)

    @classmethod
    def of(cls, mirror: MirrorRing, reader: int) -> RingTap:
        """Tap a mirror of this process: bytes can be forwarded before they are published."""
        return cls(mirror.segment.share(), reader, None, mirror)

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
        """Where the stream ends; None as long as more may come."""
        if self._mirror is not None:
            return self._mirror.finished_at
        position = kernels.NOT_FINISHED if self._closed else kernels.finished_at(self._ring)
        return None if position == kernels.NOT_FINISHED else int(position)

    def whole_frames(self, start: int, limit: int, max_bytes: int) -> int:
        """Return where the whole frames from `start` end: at `start` if there is none.

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
            msg = (
                f"ring {self._segment.handle.path!r} holds no frame behind position {start}: "
                "its memory was overwritten"
            )
            raise CorruptedMessageError(msg)
        return int(stop)

    def pieces(self, start: int, stop: int) -> tuple[memoryview, ...]:
        """Return the memory of [start, stop), read-only, in one piece or two.

        It stays as it is until `release` passes `start`.
        """
        return _pieces(self._memory, self.capacity, start, stop - start)

    def release(self, position: int) -> None:
        """Give everything before `position` back to the writer, and wake it if it waits."""
        if position > self.released and not self._closed:
            self.released = position
            kernels.release(self._ring, self._line, position, self._doorbell_line)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Stop reading: the writer no longer waits for this tap. Again does nothing."""
        if self._closed:
            return
        self._last_head = self.head
        self._closed = True
        kernels.leave(self._ring, self._line, self._doorbell_line)
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
