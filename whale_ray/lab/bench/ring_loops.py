"""Compiled senders and receivers, as compiled operators use the ring: no Python in the loop."""

from __future__ import annotations

import numpy as np
from numba import types

from ...transport import ring_kernels as ring
from ...transport.atomics import copy, kernel, load, load_acquire, pause, store_release
from ...transport.segment import Bytes, Words

_RELEASE_EVERY = 32
"""Frames after which a receiver releases memory; it also does when it has caught up."""
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


@kernel("void(int64, int64, int64)")
def _send_one(state: int, source: int, nbytes: int) -> None:
    offset = _reserve(state, nbytes)
    while offset < 0:
        pause()
        offset = _reserve(state, nbytes)
    copy(load(state + _DATA) + offset, source, nbytes)
    _commit(state, nbytes)


@kernel("int64(int64)")
def _receive_one(state: int) -> int:
    """Wait for a frame, read every word of it and release it; return their sum."""
    word = _next_frame(state)
    while word < 0:
        pause()
        word = _next_frame(state)
    total = sum_words(load(state + _DATA) + (word & _OFFSET_MASK), word >> _LENGTH_SHIFT)
    _release(state, load(state + _POSITION))
    return total


@kernel("int64(int64, int64, int64, int64, int64)", releases_gil=True)
def ask_loop(there: int, back: int, source: int, nbytes: int, count: int) -> int:
    """Send a frame and wait for its echo, `count` times; return the sum of what came back."""
    total = 0
    for _ in range(count):
        _send_one(there, source, nbytes)
        total += _receive_one(back)
    return total


@kernel("int64(int64, int64, int64, int64, int64)", releases_gil=True)
def answer_loop(there: int, back: int, source: int, nbytes: int, count: int) -> int:
    """Send a frame for each of `count` received frames; return the sum of their words."""
    total = 0
    for _ in range(count):
        total += _receive_one(there)
        _send_one(back, source, nbytes)
    return total


@kernel("int64(int64, int64, int64, int64)", releases_gil=True)
def fused_loop(memory: int, nbytes: int, places: int, count: int) -> int:
    """Call the reader for `count` messages in place, in turn at each of `places`."""
    total = 0
    for number in range(count):
        total += sum_words(memory + number % places * nbytes, nbytes)
    return total


BARE_HEADER_BYTES = 4096
"""Bytes before the slices in the segment of `write_bare` and `read_bare`."""
_WRITTEN, _READ = 128, 256
"""Offsets of the numbers of slices written and read, behind the segment's own line."""


@kernel("void(int64, int64, int64, int64, int64)", releases_gil=True)
def write_bare(memory: int, source: int, nbytes: int, places: int, count: int) -> None:
    """Copy `count` slices of `nbytes` from address `source` to each of `places` in turn.

    Without a ring: this and `read_bare` show what the machine can do.
    """
    for number in range(count):
        while number - load_acquire(memory + _READ) >= places:
            pause()
        copy(memory + BARE_HEADER_BYTES + number % places * nbytes, source, nbytes)
        store_release(memory + _WRITTEN, number + 1)


@kernel("int64(int64[::1], int64, int64, int64)", releases_gil=True)
def read_bare(words: Words, nbytes: int, places: int, count: int) -> int:
    """Return the sum of all words of the slices that `write_bare` writes into `words`."""
    memory = words.ctypes.data
    total = 0
    for number in range(count):
        while load_acquire(memory + _WRITTEN) <= number:
            pause()
        start = (BARE_HEADER_BYTES + number % places * nbytes) // 8
        for word in words[start : start + nbytes // 8]:
            total += word
        store_release(memory + _READ, number + 1)
    return total


@kernel(types.int64(types.Array(types.uint8, 1, "C", readonly=True)))
def sum_frame(frame: Bytes) -> int:
    """Return the sum of the whole int64 words of `frame`, uint8 (n,): reads every byte."""
    words = frame[: frame.size // 8 * 8].view(np.int64)
    total = 0
    for index in range(words.size):
        total += words[index]
    return total
