"""The algorithms of mirrors and taps on the memory of a ring, compiled.

The rules of ring_kernels.py hold here too: heads and tails are stored with release and loaded
with acquire, and a fence stands between publishing and asking whether the other side sleeps. All
functions take addresses: of the ring (its segment), of its data, of one reader's line.
"""

from __future__ import annotations

from typing import Final

from .atomics import add, exchange, fence, fill, inner, kernel, load, load_acquire, store_release
from .doorbell import ring_line
from .ring_layout import (
    CLOSED,
    CLOSINGS,
    FRAME_ALIGNMENT,
    HEAD,
    LENGTH_BYTES,
    POISON,
    PRODUCER_CLOSED,
    READER_STATE,
    RECEIVED,
    WANTED_TAIL,
)
from .ring_readers import lowest_tail

NOT_A_FRAME: Final = -2
NOT_FINISHED: Final = -1


@inner
def _ring_all(doorbells: int, count: int) -> None:
    """Wake the sleeping readers; the addresses of their doorbells are at `doorbells`."""
    if count != 0:
        fence()
        for index in range(count):
            ring_line(load(doorbells + 8 * index))


@inner
def _walk(data: int, capacity: int, mask: int, start: int, limit: int, max_bytes: int) -> int:
    """Walk over whole frames; position p is at the address `data` + (p & `mask`)."""
    position = start
    while position < limit:
        frame = position
        length = load(data + (frame & mask))
        if length < 0:
            # Padding reaches exactly to the end of the ring's data.
            if (frame & (capacity - 1)) - length != capacity:
                return NOT_A_FRAME
            frame -= length
            if frame >= limit:
                break
            length = load(data + (frame & mask))
        if length < 0 or length > capacity // 4:
            return NOT_A_FRAME
        end = frame + ((length + LENGTH_BYTES + FRAME_ALIGNMENT - 1) & -FRAME_ALIGNMENT)
        if end > limit or (end - start > max_bytes and position > start):
            break
        position = end
    return position


@kernel("int64(int64, int64, int64, int64, int64)")
def whole_frames(data: int, capacity: int, start: int, limit: int, max_bytes: int) -> int:
    """Walk over whole frames from position `start`: where they end, or NOT_A_FRAME.

    Not beyond `limit`, and not beyond `max_bytes` unless the first frame alone is larger.
    Padding counts as a part of the frame after it.
    """
    return _walk(data, capacity, capacity - 1, start, limit, max_bytes)


@kernel("int64(int64, int64, int64, int64, int64)")
def whole_frames_copied(first: int, capacity: int, start: int, limit: int, max_bytes: int) -> int:
    """Walk as `whole_frames` does, over a copy of a ring's bytes that does not wrap.

    `first` is the address at which position 0 would stand.
    """
    return _walk(first, capacity, -1, start, limit, max_bytes)


@kernel("int64(int64, int64, int64, int64, int64)")
def advance(ring: int, data: int, capacity: int, whole: int, received: int) -> int:
    """Store that every byte before `received` is here, for a later writer.

    Return where the whole frames end, of which those before `whole` are known; NOT_A_FRAME, and
    nothing is noted, if the bytes hold none. What follows from the bytes being here (a grant,
    their publication) comes after this store: a writer may be killed in between.
    """
    end = _walk(data, capacity, capacity - 1, whole, received, received - whole)
    if end != NOT_A_FRAME:
        store_release(ring + RECEIVED, received)
    return end


@kernel("int64(int64)")
def head(ring: int) -> int:
    """Return the position up to which the ring's frames are visible."""
    return load_acquire(ring + HEAD)


@kernel("int64(int64)")
def finished_at(ring: int) -> int:
    """Return the position at which the writer closed the ring, or NOT_FINISHED."""
    # The flag first: no frame is published after it.
    if load_acquire(ring + PRODUCER_CLOSED) == 0:
        return NOT_FINISHED
    return load_acquire(ring + HEAD)


@kernel("void(int64, int64, int64, int64)")
def publish(ring: int, position: int, doorbells: int, count: int) -> None:
    """Make everything before `position` visible to the readers, and wake those that sleep."""
    store_release(ring + HEAD, position)
    _ring_all(doorbells, count)


@kernel("void(int64, int64, int64)")
def finish(ring: int, doorbells: int, count: int) -> None:
    """End the stream: mark it as finished, and wake the readers."""
    store_release(ring + PRODUCER_CLOSED, 1)
    _ring_all(doorbells, count)


@kernel("int64(int64, int64, int64)")
def request_wake_up(ring: int, readers: int, tail: int) -> int:
    """Have the reader that moves the lowest tail to `tail` ring; return the lowest tail now."""
    if load(ring + WANTED_TAIL) != tail:
        store_release(ring + WANTED_TAIL, tail)
        # Either the load below sees a reader that moves now, or that reader, which fences between
        # storing its tail and loading the wanted tail, sees that it must ring.
        fence()
    return lowest_tail(ring, readers)


@kernel("void(int64, int64, int64, int64)")
def poison(data: int, capacity: int, start: int, stop: int) -> None:
    """Overwrite the positions from `start` to `stop`, which no reader may see any more."""
    while start < stop:
        offset = start & (capacity - 1)
        nbytes = min(stop - start, capacity - offset)
        fill(data + offset, nbytes, POISON)
        start += nbytes


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def release(ring: int, line: int, data: int, capacity: int, tail: int, doorbell: int) -> int:
    """Move the tail of the reader at `line`; return where it is now, or NOT_A_FRAME.

    To `tail` or, within a frame, to the frame's start. Wakes the writer (`doorbell`, or 0) if it
    waits.
    """
    before = load(line)
    tail = _walk(data, capacity, capacity - 1, before, tail, tail - before)
    if tail <= before:
        return before if tail == before else NOT_A_FRAME
    store_release(line, tail)
    if doorbell != 0:
        fence()
        if before < load_acquire(ring + WANTED_TAIL) <= tail:
            ring_line(doorbell)
    return tail


@kernel("void(int64)")
def wake(doorbell: int) -> None:
    """Wake the writer."""
    fence()
    ring_line(doorbell)


@kernel("void(int64, int64, int64)")
def leave(ring: int, line: int, doorbell: int) -> None:
    """Close the reader at `line`: the writer no longer waits for it."""
    if exchange(line + READER_STATE, CLOSED) != CLOSED:
        add(ring + CLOSINGS, 1)
    if doorbell != 0:
        fence()
        if load_acquire(ring + WANTED_TAIL) != 0:
            ring_line(doorbell)
