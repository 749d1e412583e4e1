"""Slices are cut by bytes (MMS) and by time (WTL) alone; a model in plain lists says when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.transport.slicing import StreamSlicer
from whale_ray.transport.wire.batch import Batch

MMS_BYTES = 4000
WTL_NS = 1_000_000


def rows(start: int, count: int) -> Batch:
    """Return `count` rows of 8 bytes, numbered from `start`."""
    return Batch.from_pydict({"n": np.arange(start, start + count)})


def numbers(batch: Batch | None) -> list[int]:
    return [] if batch is None else [row["n"] for row in batch.to_pylist()]


def test_nothing_waits_at_first():
    slicer = StreamSlicer(MMS_BYTES, WTL_NS)
    assert slicer.deadline_ns is None
    assert not slicer.ready(1 << 62)
    assert slicer.take() is None
    assert slicer.pending_bytes == 0


def test_a_full_slice_is_due_at_once():
    slicer = StreamSlicer(MMS_BYTES, WTL_NS)
    slicer.add(rows(0, 10), now_ns=100)
    assert not slicer.ready(100)
    slicer.add(rows(10, MMS_BYTES // 8), now_ns=100)
    assert slicer.ready(100)
    assert numbers(slicer.take()) == list(range(10 + MMS_BYTES // 8))
    assert not slicer.ready(1 << 62)


def test_the_oldest_row_decides_when_a_small_slice_is_due():
    slicer = StreamSlicer(MMS_BYTES, WTL_NS)
    slicer.add(rows(0, 1), now_ns=100)
    slicer.add(rows(1, 1), now_ns=900_000)
    assert slicer.deadline_ns == 100 + WTL_NS
    assert not slicer.ready(99 + WTL_NS)
    assert slicer.ready(100 + WTL_NS)
    assert numbers(slicer.take()) == [0, 1]
    slicer.add(rows(2, 1), now_ns=5_000_000)
    assert slicer.deadline_ns == 5_000_000 + WTL_NS, "the timer was reset"


def test_without_a_wait_limit_every_row_is_due():
    slicer = StreamSlicer(MMS_BYTES, 0)
    slicer.add(rows(0, 1), now_ns=7)
    assert slicer.ready(7)


def test_no_rows_start_no_timer():
    slicer = StreamSlicer(MMS_BYTES, WTL_NS)
    slicer.add(rows(0, 0), now_ns=1)
    assert slicer.deadline_ns is None


def test_a_single_batch_is_taken_as_it_is():
    slicer = StreamSlicer(MMS_BYTES, WTL_NS)
    batch = rows(0, 5)
    slicer.add(batch, now_ns=1)
    assert slicer.take() is batch


@dataclass
class FakeBatch:
    """What the slicer knows of a batch, counting its copies."""

    owned: bool
    num_rows: int = 1
    nbytes: int = 8
    copies: list[FakeBatch] = field(default_factory=list)

    def copy(self) -> FakeBatch:
        copied = FakeBatch(owned=True)
        self.copies.append(copied)
        return copied


def test_views_are_copied_once_and_only_views():
    slicer = StreamSlicer(MMS_BYTES, WTL_NS)
    view, own, late = FakeBatch(owned=False), FakeBatch(owned=True), FakeBatch(owned=False)
    slicer.add(view, 1)  # type: ignore[arg-type]  # a fake: only three attributes are used
    slicer.own()
    assert slicer._pending == view.copies
    slicer.add(own, 1)  # type: ignore[arg-type]  # a fake, as above
    slicer.add(late, 1)  # type: ignore[arg-type]  # a fake, as above
    slicer.own()
    slicer.own()
    assert slicer._pending == [*view.copies, own, *late.copies]
    assert (len(view.copies), len(own.copies), len(late.copies)) == (1, 0, 1)
    assert slicer._pending[1] is own
    assert slicer.pending_bytes == 24


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 900_000), st.integers(0, 300), st.booleans()), max_size=40
    )
)
def test_like_the_model(steps: list[tuple[int, int, bool]]):
    slicer = StreamSlicer(MMS_BYTES, WTL_NS)
    now_ns, next_row = 0, 0
    waiting: list[int] = []
    oldest_ns = 0
    for pause_ns, count, take_anyway in steps:
        now_ns += pause_ns
        if count and not waiting:
            oldest_ns = now_ns
        slicer.add(rows(next_row, count), now_ns)
        waiting += range(next_row, next_row + count)
        next_row += count
        due = bool(waiting) and (8 * len(waiting) >= MMS_BYTES or now_ns - oldest_ns >= WTL_NS)
        assert slicer.ready(now_ns) == due
        assert slicer.pending_bytes == 8 * len(waiting)
        assert slicer.deadline_ns == (oldest_ns + WTL_NS if waiting else None)
        if due or take_anyway:
            assert numbers(slicer.take()) == waiting
            waiting = []


class Counted:
    """A batch of a whole slice that counts how often its size is asked for."""

    num_rows, owned, schema = 1, True, rows(0, 1).schema
    asked = 0

    @property
    def nbytes(self) -> int:
        Counted.asked += 1
        return MMS_BYTES


def test_taking_a_long_queue_looks_at_each_batch_a_few_times():
    slicer, batches = StreamSlicer(MMS_BYTES, WTL_NS), [Counted() for _ in range(500)]
    for batch in batches:
        slicer.add(cast("Batch", batch), now_ns=1)
    assert list(iter(slicer.take, None)) == batches
    assert (slicer.pending_bytes, slicer._pending_rows) == (0, 0)
    assert Counted.asked <= 5 * len(batches)


def test_what_is_behind_a_slice_is_taken_after_it_and_not_joined():
    slicer = StreamSlicer(MMS_BYTES, WTL_NS)
    whole = MMS_BYTES // 8
    batches = [rows(0, whole), rows(whole, whole), rows(2 * whole, 1), rows(2 * whole + 1, 1)]
    for batch in batches:
        slicer.add(batch, now_ns=1)
    assert slicer.take() is batches[0]
    assert slicer.pending_bytes == MMS_BYTES + 16
    assert slicer.take() is batches[1]
    assert numbers(slicer.take()) == [2 * whole, 2 * whole + 1]
    assert slicer.take() is None
