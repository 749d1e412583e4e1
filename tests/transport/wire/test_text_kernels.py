"""Whether offsets fit their pool and texts are ASCII, against a look at each byte."""

import numpy as np
import pytest

from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.text_kernels import (
    FITTING,
    MISPLACED,
    NOT_ASCII,
    codes_fit,
    state_of_texts,
)


def state_of(offsets: list[int], pool: bytes, width: type, *, looks: bool = True) -> int:
    ends, held = np.array(offsets, width), np.frombuffer(pool or b"\0", np.uint8)
    is_large = ends.itemsize == 8
    state: int = state_of_texts(
        ends.ctypes.data, len(ends) - 1, is_large, held.ctypes.data, len(pool), looks
    )
    return state


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_a_byte_that_is_not_ascii_is_found_wherever_it_is(width: type) -> None:
    for size in range(1, 20):
        for first in range(size):
            assert state_of([first, size], b"\x7f" * size, width) == FITTING
            for place in range(size):
                pool = bytearray(b"\x7f" * size)
                pool[place] = 0x80
                expected = NOT_ASCII if place >= first else FITTING
                assert state_of([first, size], bytes(pool), width) == expected
                assert state_of([first, size], bytes(pool), width, looks=False) == FITTING


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_offsets_that_fall_or_leave_the_pool_are_found_before_a_byte_is_read(width: type) -> None:
    beyond = int(np.iinfo(width).max)
    for offsets in ([0, 3, 2, 4], [-1, 0], [0, 5], [0, beyond], [beyond, 0], [3, 1]):
        assert state_of(offsets, b"abcd", width) == MISPLACED
    for offsets in ([0], [0, 4], [2, 2, 4, 4], [4]):
        assert state_of(offsets, b"abcd", width) == FITTING


def test_bytes_of_rows_are_known_after_times_and_an_origin_are_added() -> None:
    texts = ["a", None, "bcd"]
    batch = Batch.from_pydict({"number": np.arange(3), "text": texts})
    counted = batch.nbytes
    times = np.arange(3) * 10
    timed = batch.with_origin(7).with_times(times)
    fresh = Batch.from_pydict({"number": np.arange(3), "text": texts}).with_times(times)
    assert timed.nbytes == fresh.nbytes == counted + 8 * 3
    assert timed.with_times(times + 1).nbytes == fresh.nbytes
    assert timed.with_times(None).nbytes == counted


def test_codes_outside_their_dictionary_are_found() -> None:
    for codes, texts, fits in (
        ([], 0, True),
        ([0], 0, False),
        ([0, 2, 1], 3, True),
        ([0, 3, 1], 3, False),
        ([2, -1, 0], 3, False),
        ([-(1 << 31)], 3, False),
    ):
        held = np.array(codes, np.int32)
        assert codes_fit(held.ctypes.data, len(held), texts) == fits
