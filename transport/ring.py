"""The two ends of a ring as channels; the kind of segment decides which processes share it.

The producer owns the segment. Each consumer is one of its readers, known by an index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from ..configs.errors import CorruptedMessageError, ResourceError
from . import ring_kernels as kernels
from .atomics import direct
from .channel import (
    ChannelStatistics,
    Encode,
    Frame,
    Outcome,
    ReceivingEnd,
    SendingEnd,
    check_held_views,
)
from .doorbell import Doorbell
from .in_flight import RingProgress
from .ring_layout import (
    CLOSED,
    EXPECTED,
    FRAME_ALIGNMENT,
    HEAD,
    LINE_BYTES,
    OPEN,
    READER_STATE,
    READERS,
    RingLayout,
)
from .ring_readers import NO_READER, lowest_position, open_readers
from .segment import Bytes, Segment, Words

_REFUSALS: Final = {kernels.NO_ROOM: Outcome.BACK_PRESSURED, kernels.ALL_CLOSED: Outcome.CLOSED}
_OFFSET_MASK: Final = (1 << kernels.LENGTH_SHIFT) - 1
_SENT: Final = Outcome.SENT
_LENGTH_SHIFT: Final = kernels.LENGTH_SHIFT
_EMPTY: Final = kernels.EMPTY
_UINT8: Final = np.dtype(np.uint8)
_frombuffer: Final = np.frombuffer
_POSITION_WORD: Final = kernels.POSITION // 8
_NOT_OPEN: Final = "the channel is not open: call open() first"

# Called for every frame, without numba's check of the arguments' types.
_reserve: Final = direct(kernels.reserve)
_commit: Final = direct(kernels.commit)
_next_frame: Final = direct(kernels.next_frame)
_has_frame: Final = direct(kernels.has_frame)
_release: Final = direct(kernels.release)


class RingProducer(SendingEnd):
    """The sending end of a ring, the only writer of its segment's data and head."""

    def __init__(
        self,
        segment: Segment,
        layout: RingLayout,
        doorbells: Sequence[Doorbell] = (),
        *,
        poison_released: bool = False,
    ) -> None:
        """Make `segment`, zeroed and of `layout.total_bytes`, a ring that this object owns.

        `doorbells` are rung when a frame was sent: those of the readers, each once, in any
        order. With `poison_released` bytes are overwritten as soon as all readers released them.
        """
        layout.write(segment)
        self._segment = segment
        self._layout = layout
        self._doorbells = tuple(doorbells)
        self._lines = np.array([doorbell.line for doorbell in doorbells], np.int64)
        self._data: Bytes = segment.buffer[layout.data_offset :]
        self._lag_at_close: tuple[int | None, ...] = ()
        self._closed = False
        # -1 after `close`: one comparison checks for frames too large and for a closed end.
        self._limit = layout.max_frame_bytes
        self._state = self._new_state(poison_released)
        # The kernels take an address; as a Python int it is made once.
        self._state_address = int(self._state.ctypes.data)

    def _new_state(self, poison_released: bool) -> Words:
        state = kernels.new_state()
        for field, value in (
            (kernels.RING, self._segment.address),
            (kernels.DATA, self._segment.address + self._layout.data_offset),
            (kernels.CAPACITY, self._layout.capacity),
            (kernels.READER_COUNT, self._layout.readers),
            (kernels.DOORBELLS, int(self._lines.ctypes.data)),
            (kernels.DOORBELL_COUNT, len(self._lines)),
            (kernels.POISONS, int(poison_released)),
            (kernels.IN_FLIGHT_MAX, self._layout.capacity),
        ):
            state[field // 8] = value
        return state

    @property
    def layout(self) -> RingLayout:
        """The ring's sizes."""
        return self._layout

    @property
    def segment(self) -> Segment:
        """The ring's memory, which this end owns."""
        return self._segment

    @property
    def max_frame_bytes(self) -> int:
        """The largest payload that `put` takes."""
        return self._layout.max_frame_bytes

    @property
    def state_address(self) -> int:
        """The argument `state` of the functions of ring_kernels, for compiled senders.

        Valid as long as this object lives and is not closed.
        """
        return self._state_address

    def open(self) -> None:
        """Do nothing: a ring can be written to before its readers attach."""

    def ready_to_send(self, nbytes: int) -> Outcome:
        """See `Channel.ready_to_send`."""
        if nbytes > self._limit:
            return self._beyond_limit()
        offset = _reserve(self._state_address, nbytes)
        return _SENT if offset >= 0 else _REFUSALS[offset]

    def put(self, nbytes: int, encode: Encode) -> Outcome:
        """See `Channel.put`."""
        if nbytes > self._limit:
            return self._beyond_limit()
        offset = _reserve(self._state_address, nbytes)
        if offset < 0:
            return _REFUSALS[offset]
        used = encode(self._data[offset : offset + nbytes])
        if not 0 <= used <= nbytes:
            msg = f"encode used {used} of {nbytes} reserved bytes"
            raise ValueError(msg)
        _commit(self._state_address, used)
        return _SENT

    def put_copy(self, payload: Bytes) -> Outcome:
        """Send a copy of `payload`, contiguous uint8 (n,), in one call of compiled code."""
        if payload.size > self._limit:
            return self._beyond_limit()
        result = kernels.put_copy(self._state_address, payload)
        return _SENT if result >= 0 else _REFUSALS[result]

    def _beyond_limit(self) -> Outcome:
        return Outcome.CLOSED if self._closed else Outcome.TOO_LARGE

    def progress(self) -> RingProgress:
        """Return how far the readers have come; the channel must not be closed."""
        state = self._state
        sent = int(state[kernels.OWN_HEAD // 8])
        taken = lowest_position(self._segment.address, self._layout.readers)
        refusals = int(state[kernels.BACK_PRESSURED // 8])
        return RingProgress(sent, sent if taken == NO_READER else taken, refusals)

    def limit_in_flight(self, nbytes: int) -> None:
        """Begin no frame after `nbytes`, 1 or more, that a reader has not taken yet.

        A frame may go beyond that. It is BACK_PRESSURED like one without room: the reader rings
        when half of these bytes are read.
        """
        self._state[kernels.IN_FLIGHT_MAX // 8] = nbytes

    def lift_limit(self) -> None:
        """See `Channel.lift_limit`."""
        self.limit_in_flight(self._layout.capacity)

    def drop_reader(self, reader: int) -> None:
        """Stop waiting for a reader that is known to be dead; callable from any thread."""
        line = self._layout.reader_offset(reader)
        # The view keeps the memory mapped if another thread closes the producer meanwhile.
        mapped = self._segment.buffer
        if mapped.size > 0:
            ring = int(mapped.ctypes.data)
            kernels.drop_reader(ring, ring + line)

    def statistics(self) -> ChannelStatistics:
        """See `Channel.statistics`."""
        state = self._state
        return ChannelStatistics(
            frames=int(state[kernels.FRAMES // 8]),
            payload_bytes=int(state[kernels.PAYLOAD_BYTES // 8]),
            back_pressured=int(state[kernels.BACK_PRESSURED // 8]),
            capacity_bytes=self._layout.capacity,
            lag_bytes=self._lag_at_close if self._closed else self._lags(),
            held_bytes=0,
        )

    def _lags(self) -> tuple[int | None, ...]:
        head = int(self._state[kernels.OWN_HEAD // 8])
        end = READERS + self._layout.readers * LINE_BYTES
        lines = self._segment.words(READERS, end).reshape(self._layout.readers, -1)
        return tuple(
            None if line[READER_STATE // 8] == CLOSED else head - int(line[0]) for line in lines
        )

    @property
    def closed_by_peer(self) -> bool:
        """Whether every reader has closed or was dropped."""
        return not self._closed and open_readers(self._segment.address, self._layout.readers) == 0

    def close(self) -> None:
        """End the stream, and release the segment.

        Readers that have attached keep it mapped; others can no longer attach.
        """
        if self._closed:
            return
        self._lag_at_close = self._lags()
        self._closed = True
        self._limit = -1
        kernels.close_producer(self._state_address)
        self._data = np.empty(0, np.uint8)
        self._segment.close()


class RingConsumer(ReceivingEnd):
    """A receiving end of a ring: one of its readers."""

    def __init__(
        self,
        segment: Segment,
        reader: int,
        doorbell: Doorbell | None = None,
        *,
        held_fraction: float = 0.5,
    ) -> None:
        """Take over an attached segment (closed with this end) as reader number `reader`.

        `doorbell` is the producer's, rung when it waits for this reader. `open` begins.
        """
        self._segment = segment
        self._layout = RingLayout.read(segment)
        self._reader = reader
        self._doorbell = doorbell
        self._line = self._layout.reader_offset(reader)
        self._held_limit = int(held_fraction * self._layout.capacity)
        self._held_bytes = 0
        self._position = 0
        self._closed = False
        self._ready = False  # open, and not closed
        start = self._layout.data_offset
        # An array made of this memoryview has it as its base, not another array: it is the root
        # of all views of the frame, and alive as long as any of them.
        self._memory = segment.memory(start, segment.handle.size).toreadonly()
        # Oldest first; a frame takes at least FRAME_ALIGNMENT bytes, so it can never overflow.
        self._frames: deque[Frame] = deque(maxlen=self._layout.capacity // FRAME_ALIGNMENT)
        self._state = self._new_state()
        self._state_address = int(self._state.ctypes.data)
        self._words = self._state.data  # whose items are Python ints
        self._last_lag = 0

    def _new_state(self) -> Words:
        state = kernels.new_state()
        for field, value in (
            (kernels.RING, self._segment.address),
            (kernels.DATA, self._segment.address + self._layout.data_offset),
            (kernels.CAPACITY, self._layout.capacity),
            (kernels.TAIL, self._segment.address + self._line),
            (kernels.DOORBELL, 0 if self._doorbell is None else self._doorbell.line),
        ):
            state[field // 8] = value
        return state

    @property
    def state_address(self) -> int:
        """The argument `state` of the functions of ring_kernels, for compiled receivers.

        Valid as long as this object lives and is not closed. Such a receiver must not mix its
        own `next_frame` with `get`.
        """
        return self._state_address

    def open(self) -> None:
        """Take the reader's place in the ring; ResourceError if it is taken or was dropped."""
        if self._ready or self._closed:
            return
        line = self._segment.words(self._line, self._line + LINE_BYTES)
        if line[READER_STATE // 8] != EXPECTED:
            was = "was closed" if line[READER_STATE // 8] == CLOSED else "is already attached"
            msg = f"reader {self._reader} of ring {self._segment.handle.path!r} {was}"
            raise ResourceError(msg)
        line[READER_STATE // 8] = OPEN
        self._ready = True

    def available(self) -> bool:
        """See `Channel.available`."""
        if self._closed:
            return False
        if self._frames:
            self._reclaim()
        # If too much is held, there may never be room for a frame: `get` then raises. It also
        # raises for an evicted reader.
        return self._held_bytes > self._held_limit or bool(_has_frame(self._state_address))

    def get(self) -> Frame | None:
        """See `Channel.get`."""
        if not self._ready:
            self._check_opened()
            return None
        if self._held_bytes:
            self._check_held()
        word = _next_frame(self._state_address)
        if word < 0:
            if word == _EMPTY:
                return None
            raise self._refusal(word)
        # Not np.ndarray(buffer=...), which would refer to the mapping without keeping it mapped.
        data = _frombuffer(self._memory, _UINT8, word >> _LENGTH_SHIFT, word & _OFFSET_MASK)
        position = self._position
        self._position = end = self._words[_POSITION_WORD]
        frame = Frame(data, position, end)
        self._frames.append(frame)
        return frame

    def release_buffer(self, frame: Frame) -> None:
        """See `Channel.release_buffer`."""
        if self._closed:
            return
        frame.release()
        view, frames = frame.view, self._frames
        if len(frames) == 1 and frames[0] is frame and view is not None and view() is None:
            # The usual case, made fast: no other frame is held.
            frames.popleft()
            _release(self._state_address, frame.end)
            return
        self._held_bytes += frame.end - frame.position
        self._reclaim()

    def _check_opened(self) -> None:
        if not self._closed:
            raise RuntimeError(_NOT_OPEN)

    def _reclaim(self) -> None:
        """Move the tail over the oldest frames of which no view is alive."""
        frames = self._frames
        tail = -1
        while frames:
            frame = frames[0]
            view = frame.view
            if view is None or view() is not None:
                break
            frames.popleft()
            tail = frame.end
            self._held_bytes -= tail - frame.position
        if tail >= 0:
            _release(self._state_address, tail)

    def _check_held(self) -> None:
        self._reclaim()
        if self._held_bytes > self._held_limit:
            check_held_views(
                self._still_held_bytes, self._held_limit, self._layout.capacity, "ring"
            )

    def _still_held_bytes(self) -> int:
        self._reclaim()
        return self._held_bytes

    def get_copy(self, target: Bytes) -> int | None:
        """Copy the next frame into `target`, uint8 (n,), and release it; return its length.

        None if there is no frame. Raises ValueError if `target` is too small, the frame stays.
        """
        length = self._receive(kernels.get_copy(self._state_address_when_free(), target))
        return None if length < 0 else length

    def _state_address_when_free(self) -> int:
        """Return the address for a call that moves the tail past all frames read so far."""
        if not self._ready:
            raise RuntimeError(_NOT_OPEN)
        if self._frames:
            self._reclaim()
        if self._frames:
            msg = "frames of this channel are still held: release them before copying others out"
            raise RuntimeError(msg)
        return self._state_address

    def _receive(self, result: int) -> int:
        if result < _EMPTY:
            raise self._refusal(result)
        self._position = self._words[_POSITION_WORD]
        return result

    def _refusal(self, result: int) -> Exception:
        """Return the error for a negative result of a kernel."""
        if result == kernels.OTHER_SIZE:
            return ValueError("the next frame does not have the size of the target")
        ring = f"ring {self._segment.handle.path!r}"
        # An evicted reader may also have read bytes of later frames.
        if result == kernels.EVICTED or self.evicted:
            msg = f"reader {self._reader} of {ring} was evicted: it had been taken for dead"
            return ResourceError(msg)
        msg = f"{ring} holds no frame at position {self._position}: its memory was overwritten"
        return CorruptedMessageError(msg)

    @property
    def evicted(self) -> bool:
        """Whether the producer dropped this reader although it lives; `get` then raises.

        If it is False after the bytes of a frame were read, they were the frame's. Otherwise the
        producer may have overwritten them meanwhile: discard the results.
        """
        return self._ready and bool(kernels.is_evicted(self._state_address))

    @property
    def closed_by_peer(self) -> bool:
        """Whether the producer has closed, and every frame was received."""
        return not self._closed and bool(kernels.is_drained(self._state_address))

    def statistics(self) -> ChannelStatistics:
        """See `Channel.statistics`."""
        state = self._state
        if not self._closed:
            head = int(self._segment.words(HEAD, HEAD + 8)[0])
            self._last_lag = head - int(state[kernels.OWN_TAIL // 8])
        return ChannelStatistics(
            frames=int(state[kernels.FRAMES // 8]),
            payload_bytes=int(state[kernels.PAYLOAD_BYTES // 8]),
            back_pressured=0,
            capacity_bytes=self._layout.capacity,
            lag_bytes=(self._last_lag,),
            held_bytes=self._held_bytes,
        )

    def close(self) -> None:
        """Stop reading: the producer no longer waits for this reader."""
        if self._closed:
            return
        self.statistics()
        self._closed = True
        self._ready = False
        kernels.close_reader(self._state_address)
        self._frames.clear()
        self._memory = memoryview(b"")
        self._segment.close()
