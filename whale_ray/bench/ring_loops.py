"""Compiled senders and receivers, as compiled operators use the ring: no Python in the loop."""

from __future__ import annotations

import numpy as np
from numba import types

from ..transport import ring_kernels as ring
from ..transport.atomics import copy, kernel, load, pause
from ..transport.segment import Bytes

_RELEASE_EVERY = 32
"""Frames after which a receiver gives memory back; it also does when it has caught up."""
_OFFSET_MASK = (1 << ring.LENGTH_SHIFT) - 1

# What numba reads must be plain global names.
_reserve, _commit = ring.reserve, ring.commit
_next_frame, _release = ring.next_frame, ring.release
_DATA, _POSITION, _LENGTH_SHIFT = ring.DATA, ring.POSITION, ring.LENGTH_SHIFT


@kernel("void(int64, int64, int64, int64)", releases_gil=True)
def send_loop(state: int, source: int, nbytes: int, count: int) -> None:
    """Send `count` frames of `nbytes` from address `source`, each committed by itself."""
    data = load(state + _DATA)
    for _ in range(count):
        offset = _reserve(state, nbytes)
        while offset < 0:
            pause()
            offset = _reserve(state, nbytes)
        copy(data + offset, source, nbytes)
        _commit(state, nbytes)


@kernel("int64(int64, int64)")
def sum_words(address: int, nbytes: int) -> int:
    """Return the sum of the whole int64 words of `nbytes` at `address`: reads every byte."""
    total = 0
    for offset in range(0, nbytes - 7, 8):
        total += load(address + offset)
    return total


@kernel("int64(int64, int64)", releases_gil=True)
def receive_loop(state: int, count: int) -> int:
    """Receive `count` frames and return the sum of all their words, read in place."""
    total = 0
    pending = 0
    data = load(state + _DATA)
    while count > 0:
        word = _next_frame(state)
        if word < 0:
            if pending > 0:
                _release(state, load(state + _POSITION))
                pending = 0
            pause()
            continue
        total += sum_words(data + (word & _OFFSET_MASK), word >> _LENGTH_SHIFT)
        count -= 1
        pending += 1
        if pending == _RELEASE_EVERY:
            _release(state, load(state + _POSITION))
            pending = 0
    _release(state, load(state + _POSITION))
    return total


@kernel(types.int64(types.Array(types.uint8, 1, "C", readonly=True)))
def sum_frame(frame: Bytes) -> int:
    """Return the sum of the whole int64 words of `frame`, uint8 (n,): reads every byte."""
    words = frame[: frame.size // 8 * 8].view(np.int64)
    total = 0
    for index in range(words.size):
        total += words[index]
    return total
