"""The algorithms of the ring, compiled: one call moves one frame, or many.

Each end of a ring keeps a private block of words, described by the constants below: its own
position, the last position seen of the other side, and its counters. All functions take the address
of such a block, which is the cheapest argument of a call from Python, and may be called from other
compiled code: a compiled source or sink runs its whole loop without Python.

Memory order: the head is stored with release after the bytes of the frame, and loaded with
acquire before them; a tail is stored with release after the reader's last access, and loaded
with acquire before the producer overwrites. Fences stand where one side publishes and then asks
whether the other sleeps (see doorbell.py).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import types

from .atomics import (
    add,
    copy,
    exchange,
    fence,
    fill,
    inner,
    kernel,
    load,
    load_acquire,
    prefetch_to_write,
    store,
    store_release,
)
from .doorbell import ring_line
from .ring_layout import (
    CLOSED,
    CLOSINGS,
    FRAME_ALIGNMENT,
    HEAD,
    LENGTH_BYTES,
    LINE_BYTES,
    POISON,
    PRODUCER_CLOSED,
    READER_POSITION,
    READER_STATE,
    WANTED_TAIL,
)
from .ring_readers import NO_READER, lowest_position, lowest_tail
from .segment import Bytes, Words

# Results of the kernels in place of an offset or count.
NO_ROOM: Final = -1
ALL_CLOSED: Final = -2
EMPTY: Final = -1
NOT_A_FRAME: Final = -2
OTHER_SIZE: Final = -3
EVICTED: Final = -4

# Both ends: byte offsets into the private block.
RING: Final = 0  # address of the segment
DATA: Final = 8  # address of the data
CAPACITY: Final = 16
FRAMES: Final = 24  # frames committed, or delivered
PAYLOAD_BYTES: Final = 32  # bytes of their payloads

# The producer's end.
OWN_HEAD: Final = 40
MIN_TAIL: Final = 48  # as last seen
PADDING: Final = 56  # before the frame that is reserved
CLOSINGS_SEEN: Final = 64
READER_COUNT: Final = 72
DOORBELLS: Final = 80  # address of the addresses of the readers' doorbells
DOORBELL_COUNT: Final = 88
POISONS: Final = 96  # 1: overwrite what the readers have released
BACK_PRESSURED: Final = 104
IN_FLIGHT_MAX: Final = 112  # no frame is begun after so many bytes that a reader has not taken
MIN_POSITION: Final = 120  # of the readers, as last seen

# A reader's end.
POSITION: Final = 40  # of the next frame
HEAD_SEEN: Final = 48
TAIL: Final = 56  # its own line in the ring
OWN_TAIL: Final = 64
DOORBELL: Final = 72  # the producer's, or 0

STATE_BYTES: Final = 256
LENGTH_SHIFT: Final = 32
"""`next_frame` returns offset | length << LENGTH_SHIFT; both are below 2**30."""

# Readers cannot empty a ring of this size in the time of a wake-up, some 30 µs.
_LARGE_RING_BYTES = 1 << 18
# While no reader is open nothing fits, so that every reservation checks the readers again.
_NEVER_FITS = -(1 << 62)

# Read-only arrays would not match the plain type.
_BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
_TABLE_IN = types.Array(types.uint8, 2, "C", readonly=True)


def new_state() -> Words:
    """Return a zeroed private block, alone on its cache lines: int64, STATE_BYTES long."""
    words = np.zeros((STATE_BYTES + LINE_BYTES) // 8, np.int64)
    skip = -int(words.ctypes.data) % LINE_BYTES // 8
    return words[skip : skip + STATE_BYTES // 8]


@inner
def frame_bytes(nbytes: int) -> int:
    """Return the bytes that a frame with a payload of `nbytes` takes in the ring."""
    return (nbytes + LENGTH_BYTES + FRAME_ALIGNMENT - 1) & -FRAME_ALIGNMENT


@inner
def _poison(state: int, start: int, stop: int) -> None:
    """Overwrite the positions from `start` to `stop`, which no reader may see any more."""
    data = load(state + DATA)
    capacity = load(state + CAPACITY)
    while start < stop:
        offset = start & (capacity - 1)
        nbytes = min(stop - start, capacity - offset)
        fill(data + offset, nbytes, POISON)
        start += nbytes


@inner
def _refresh_readers(state: int) -> int:
    """Refresh the producer's view of the readers; return the lowest tail."""
    # Closings first: a reader that closes in between is noticed at the next refresh.
    store(state + CLOSINGS_SEEN, load_acquire(load(state + RING) + CLOSINGS))
    ring, readers = load(state + RING), load(state + READER_COUNT)
    tail = lowest_tail(ring, readers)
    if tail == NO_READER:
        tail = _NEVER_FITS
    elif load(state + POISONS) != 0:
        _poison(state, load(state + MIN_TAIL), tail)
    store(state + MIN_TAIL, tail)
    store(state + MIN_POSITION, lowest_position(ring, readers))
    return tail


@inner
def _is_full(state: int, end: int) -> bool:
    """Return whether a frame up to position `end` must wait, by what was seen of the readers."""
    in_flight = load(state + OWN_HEAD) - load(state + MIN_POSITION)
    no_room = end - load(state + MIN_TAIL) > load(state + CAPACITY)
    return no_room or in_flight >= load(state + IN_FLIGHT_MAX)


@inner
def _wanted_tail(state: int, end: int) -> int:
    """Return the lowest tail at which a producer that waits for room up to `end` is woken.

    In a large ring a quarter must be free: a producer woken for each frame would sleep again after
    each, and every wake-up costs the reader more than a slice. A reader that has read everything
    always reaches that tail, since it may hold no more than half of the ring. A small ring is not
    left to empty that far: the readers would have nothing to read while the producer wakes up. Of
    the bytes that a limit lets wait, half must have been read; a reader that holds them still is
    seen when the producer looks again by itself.
    """
    capacity = load(state + CAPACITY)
    head = load(state + OWN_HEAD)
    limit = load(state + IN_FLIGHT_MAX)
    wanted = end - capacity
    if capacity >= _LARGE_RING_BYTES:
        wanted = max(wanted, head - capacity // 4 * 3)
    if limit < capacity:
        wanted = max(wanted, head - limit // 2)
    return wanted


@inner
def _make_room(state: int, end: int) -> int:
    """Find room up to position `end`: 0, NO_ROOM (and ask to be woken) or ALL_CLOSED."""
    ring = load(state + RING)
    tail = _refresh_readers(state)
    if tail != _NEVER_FITS and _is_full(state, end):
        store(ring + WANTED_TAIL, _wanted_tail(state, end))
        # Either this refresh sees the tail of a reader that moves now, or that reader, which fences
        # between storing its tail and loading the wanted tail, sees that it must ring.
        fence()
        tail = _refresh_readers(state)
        if tail != _NEVER_FITS and _is_full(state, end):
            store(state + BACK_PRESSURED, load(state + BACK_PRESSURED) + 1)
            return NO_ROOM
    if load(ring + WANTED_TAIL) != 0:
        store(ring + WANTED_TAIL, 0)
    return ALL_CLOSED if tail == _NEVER_FITS else 0


@kernel("int64(int64, int64)")
def reserve(state: int, nbytes: int) -> int:
    """Find room for a frame: the offset of its payload in the data, NO_ROOM or ALL_CLOSED.

    `nbytes` must not exceed the layout's `max_frame_bytes`. Nothing is visible before `commit`;
    the next reservation replaces one that is not committed.
    """
    capacity = load(state + CAPACITY)
    head = load(state + OWN_HEAD)
    size = frame_bytes(nbytes)
    to_the_end = capacity - (head & (capacity - 1))
    padding = 0 if size <= to_the_end else to_the_end
    end = head + padding + size
    if (
        _is_full(state, end)
        or load_acquire(load(state + RING) + CLOSINGS) != load(state + CLOSINGS_SEEN)
        or load(state + POISONS) != 0
    ):
        refusal = _make_room(state, end)
        if refusal < 0:
            return refusal
    store(state + PADDING, padding)
    return ((head + padding) & (capacity - 1)) + LENGTH_BYTES


@inner
def _append(state: int, nbytes: int) -> None:
    """Complete the reserved frame, `nbytes` of which are used, and move the producer's own head."""
    data = load(state + DATA)
    mask = load(state + CAPACITY) - 1
    head = load(state + OWN_HEAD)
    padding = load(state + PADDING)
    if padding != 0:
        store(data + (head & mask), -padding)
        head += padding
    store(data + (head & mask), nbytes)
    store(state + OWN_HEAD, head + frame_bytes(nbytes))
    store(state + FRAMES, load(state + FRAMES) + 1)
    store(state + PAYLOAD_BYTES, load(state + PAYLOAD_BYTES) + nbytes)


@inner
def _ring_readers(state: int) -> None:
    doorbells = load(state + DOORBELLS)
    for index in range(load(state + DOORBELL_COUNT)):
        ring_line(load(doorbells + 8 * index))


@inner
def _publish(state: int) -> None:
    """Show the readers everything up to the producer's own head, and wake those that sleep."""
    store_release(load(state + RING) + HEAD, load(state + OWN_HEAD))
    if load(state + DOORBELL_COUNT) != 0:
        fence()
        _ring_readers(state)


@inner
def _prefetch_next(state: int) -> None:
    """Prefetch the first cache lines of the next frame, which are in the readers' caches."""
    offset = load(state + OWN_HEAD) & (load(state + CAPACITY) - 1)
    line = load(state + DATA) + offset
    prefetch_to_write(line)
    prefetch_to_write(line + FRAME_ALIGNMENT)


@kernel("void(int64, int64)")
def commit(state: int, nbytes: int) -> None:
    """Publish the reserved frame with the first `nbytes` of its payload."""
    _append(state, nbytes)
    _publish(state)
    _prefetch_next(state)


@kernel(types.int64(types.int64, _BYTES_IN))
def put_copy(state: int, payload: Bytes) -> int:
    """Send a copy of `payload`: a non-negative number, NO_ROOM or ALL_CLOSED."""
    offset = reserve(state, payload.size)
    if offset >= 0:
        copy(load(state + DATA) + offset, payload.ctypes.data, payload.size)
        commit(state, payload.size)
    return offset


@kernel(types.int64(types.int64, _TABLE_IN))
def put_many(state: int, payloads: Bytes) -> int:
    """Send each row of `payloads` as a frame, visible together; return how many found room.

    NO_ROOM or ALL_CLOSED if not even one did.
    """
    count, nbytes = payloads.shape
    source = payloads.ctypes.data
    data = load(state + DATA)
    sent = 0
    refusal = 0
    while sent < count:
        offset = reserve(state, nbytes)
        if offset < 0:
            refusal = offset
            break
        copy(data + offset, source + sent * nbytes, nbytes)
        _append(state, nbytes)
        sent += 1
    if sent == 0:
        return refusal
    _publish(state)
    return sent


@kernel("void(int64)")
def close_producer(state: int) -> None:
    """End the stream: mark the producer as closed, and wake the readers."""
    store_release(load(state + RING) + PRODUCER_CLOSED, 1)
    fence()
    _ring_readers(state)


@kernel("void(int64, int64)")
def drop_reader(ring: int, line: int) -> None:
    """Stop counting the reader whose line is at address `line`; callable from any thread."""
    if exchange(line + READER_STATE, CLOSED) != CLOSED:
        add(ring + CLOSINGS, 1)


@kernel("void(int64)")
def close_reader(state: int) -> None:
    """Stop counting this reader, and wake the producer if it waits."""
    ring = load(state + RING)
    drop_reader(ring, load(state + TAIL))
    doorbell = load(state + DOORBELL)
    if doorbell != 0:
        fence()
        if load_acquire(ring + WANTED_TAIL) != 0:
            ring_line(doorbell)


@kernel("int64(int64)")
def next_frame(state: int) -> int:
    """Step over the next frame: its offset | length << LENGTH_SHIFT, or one of the refusals.

    EMPTY, NOT_A_FRAME or EVICTED. The frame's bytes stay as they are until `release` moves the
    tail past them, or the reader is evicted.
    """
    if load(load(state + TAIL) + READER_STATE) == CLOSED:
        return EVICTED
    position = load(state + POSITION)
    head = load(state + HEAD_SEEN)
    if position == head:
        head = load_acquire(load(state + RING) + HEAD)
        store(state + HEAD_SEEN, head)
        if position == head:
            return EMPTY
    data = load(state + DATA)
    capacity = load(state + CAPACITY)
    offset = position & (capacity - 1)
    length = load(data + offset)
    if length < 0:
        # Padding reaches exactly to the end of the data.
        if offset - length != capacity:
            return NOT_A_FRAME
        position -= length
        offset = 0
        length = load(data)
    # Checked although only a faulty producer writes others: the code after this relies on them.
    end = position + frame_bytes(length)
    if length < 0 or length > capacity // 4 or end > head:
        return NOT_A_FRAME
    store(state + POSITION, end)
    store_release(load(state + TAIL) + READER_POSITION, end)
    store(state + FRAMES, load(state + FRAMES) + 1)
    store(state + PAYLOAD_BYTES, load(state + PAYLOAD_BYTES) + length)
    return (offset + LENGTH_BYTES) | (length << LENGTH_SHIFT)


@kernel("boolean(int64)")
def is_evicted(state: int) -> bool:
    """Return whether this reader is counted as closed.

    If not, every byte read so far was still the reader's own.
    """
    # The reads come before this load; on the other side the overwriting comes after the mark.
    fence()
    return load_acquire(load(state + TAIL) + READER_STATE) == CLOSED


@kernel("boolean(int64)")
def has_frame(state: int) -> bool:
    """Return whether `next_frame` would find a frame, or that this reader was evicted."""
    position = load(state + POSITION)
    if position != load(state + HEAD_SEEN) or is_evicted(state):
        return True
    return position != load_acquire(load(state + RING) + HEAD)


@kernel("boolean(int64)")
def is_drained(state: int) -> bool:
    """Return whether the producer has closed and every frame has been read."""
    ring = load(state + RING)
    # The flag first: no frame follows it.
    if load_acquire(ring + PRODUCER_CLOSED) == 0:
        return False
    return load(state + POSITION) == load_acquire(ring + HEAD)


@kernel("void(int64, int64)")
def release(state: int, tail: int) -> None:
    """Release everything before position `tail` to the producer, and wake it if it waits."""
    before = load(state + OWN_TAIL)
    store(state + OWN_TAIL, tail)
    store_release(load(state + TAIL), tail)
    doorbell = load(state + DOORBELL)
    if doorbell != 0:
        fence()
        wanted = load_acquire(load(state + RING) + WANTED_TAIL)
        if before < wanted <= tail:
            ring_line(doorbell)


@inner
def _step_back(state: int, position: int, length: int) -> None:
    """Undo `next_frame`."""
    store(state + POSITION, position)
    store_release(load(state + TAIL) + READER_POSITION, position)
    store(state + FRAMES, load(state + FRAMES) - 1)
    store(state + PAYLOAD_BYTES, load(state + PAYLOAD_BYTES) - length)


@kernel("int64(int64, uint8[::1])")
def get_copy(state: int, target: Bytes) -> int:
    """Copy the next frame into `target` and release it: its length, or a refusal.

    EMPTY, NOT_A_FRAME or EVICTED; OTHER_SIZE, and the frame stays, if `target` is too small.
    No earlier frame may be held.
    """
    position = load(state + POSITION)
    word = next_frame(state)
    if word < 0:
        return word
    length = word >> LENGTH_SHIFT
    if length > target.size:
        _step_back(state, position, length)
        return OTHER_SIZE
    offset = word & ((1 << LENGTH_SHIFT) - 1)
    copy(target.ctypes.data, load(state + DATA) + offset, length)
    release(state, load(state + POSITION))
    return EVICTED if is_evicted(state) else length


@kernel("int64(int64, uint8[:, ::1])")
def get_many(state: int, targets: Bytes) -> int:
    """Copy frames into the rows of `targets` and release them together; return how many.

    Stops at a frame whose length is not that of a row. EMPTY, NOT_A_FRAME, EVICTED or OTHER_SIZE
    if there is not even one. No earlier frame may be held.
    """
    count, nbytes = targets.shape
    target = targets.ctypes.data
    data = load(state + DATA)
    received = 0
    refusal = 0
    while received < count:
        position = load(state + POSITION)
        word = next_frame(state)
        if word < 0:
            refusal = word
            break
        if word >> LENGTH_SHIFT != nbytes:
            _step_back(state, position, word >> LENGTH_SHIFT)
            refusal = OTHER_SIZE
            break
        offset = word & ((1 << LENGTH_SHIFT) - 1)
        copy(target + received * nbytes, data + offset, nbytes)
        received += 1
    if received == 0:
        return refusal
    release(state, load(state + POSITION))
    return EVICTED if is_evicted(state) else received
