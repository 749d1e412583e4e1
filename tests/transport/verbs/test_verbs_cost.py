"""What slices cost the Python side of verbs: nothing that lasts, however many there are."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from whale_ray.lab.bench.python_side import BATCH, Reads, WholeLink, Writes, request_library
from whale_ray.transport.verbs.link_resources import Data

_WARM_BATCHES = 300
_BATCHES = 300


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """Let nothing that was left behind be found by chance."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def blocks_left_by(work: Callable[[], object], batches: int) -> int:
    """Return how many blocks of memory there are more after `batches` of `work`."""
    before = sys.getallocatedblocks()
    for _ in range(batches):
        work()
    return sys.getallocatedblocks() - before


def highest(work: Callable[[], object], batches: int) -> int:
    """Return the bytes that `batches` of `work` have taken at a time, at most."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(batches):
            work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("side", [Reads, Writes])
def test_requests_are_used_again(side: Callable[..., Reads | Writes]):
    """Neither requests nor what is remembered of them is made anew: 1,200 leave as much as none."""
    library, _ = request_library()
    way = side(library)
    blocks_left_by(way.batch, _WARM_BATCHES)
    assert blocks_left_by(way.batch, _BATCHES) < BATCH
    assert gc.get_count()[0] < _BATCHES


@pytest.mark.parametrize("side", [Reads, Writes])
def test_what_is_taken_at_a_time_does_not_grow(side: Callable[..., Reads | Writes]):
    library, _ = request_library()
    way = side(library)
    blocks_left_by(way.batch, _WARM_BATCHES)
    few, many = highest(way.batch, 50), highest(way.batch, _BATCHES)
    assert many <= few + 1024


@pytest.mark.parametrize("data", [Data.READ, Data.WRITE])
def test_a_whole_link_keeps_nothing_of_its_messages(data: Data):
    link = WholeLink(data)
    blocks_left_by(link.batch, _WARM_BATCHES)
    try:
        assert blocks_left_by(link.batch, _BATCHES) < _BATCHES // 10
    finally:
        link.close()
