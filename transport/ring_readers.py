"""How far the readers of a ring are, compiled; for whoever writes it: a producer, or a relay.

All functions take the address of the ring (its segment) and the number of its readers. Tails are
loaded with acquire, before the writer overwrites what lies before them.
"""

from __future__ import annotations

from typing import Final

from .atomics import kernel, load_acquire
from .ring_layout import CLOSED, LINE_BYTES, READER_POSITION, READER_STATE, READERS

NO_READER: Final = -1


@kernel("int64(int64, int64)")
def lowest_tail(ring: int, readers: int) -> int:
    """Return the lowest tail of the readers that are not closed, or NO_READER."""
    lowest = NO_READER
    line = ring + READERS
    for _ in range(readers):
        if load_acquire(line + READER_STATE) != CLOSED:
            tail = load_acquire(line)
            if lowest == NO_READER or tail < lowest:
                lowest = tail
        line += LINE_BYTES
    return lowest


@kernel("int64(int64, int64)")
def lowest_position(ring: int, readers: int) -> int:
    """Return up to where all readers that are not closed have taken frames, or NO_READER."""
    lowest = NO_READER
    line = ring + READERS
    for _ in range(readers):
        if load_acquire(line + READER_STATE) != CLOSED:
            position = max(load_acquire(line), load_acquire(line + READER_POSITION))
            if lowest == NO_READER or position < lowest:
                lowest = position
        line += LINE_BYTES
    return lowest


@kernel("int64(int64, int64)")
def open_readers(ring: int, readers: int) -> int:
    """Return how many readers are not closed."""
    count = 0
    line = ring + READERS
    for _ in range(readers):
        if load_acquire(line + READER_STATE) != CLOSED:
            count += 1
        line += LINE_BYTES
    return count
