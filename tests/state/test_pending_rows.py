"""Rows that wait for a pass come once, with their record; those of a key in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.state import pending_rows
from whale_ray.state.budget import StateBudget
from whale_ray.state.pending_rows import PendingRows
from whale_ray.state.region_runs import RegionRuns
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

ROWS = Schema.of(key="int64", number="int64")
KEYS, PER_REGION = 40, 7
Int64s = Any


class Records:
    """The record of key k is k; of some keys the index tells another one, of others none."""

    region_pages = 3

    def __init__(self, misled: set[int], new: set[int]) -> None:
        self.misled, self.new = misled, new
        self.passes: list[list[int]] = []

    def places(self, rows: Batch) -> Int64s:
        found = rows.column("key").data.copy()
        found[np.isin(found, list(self.misled))] //= 2
        found[np.isin(rows.column("key").data, list(self.new))] = -1
        return found

    def regions(self, places: Int64s) -> Int64s:
        return places // PER_REGION

    def passed(self, regions: Iterable[int]) -> Iterator[int]:
        self.passes.append(list(regions))
        yield from self.passes[-1]

    def slots_at(self, rows: Batch, places: Int64s) -> Int64s:
        return np.where(places == rows.column("key").data, places, -1)

    def in_pieces(self, rows: Batch) -> Iterator[tuple[Batch, Int64s]]:
        for start in range(0, rows.num_rows, 5):
            piece = rows.slice(start, start + 5)
            yield piece, piece.column("key").data

    def growth_bytes(self, keys: int) -> int:
        return 0


def batch(keys: list[int], first: int) -> Batch:
    numbers = range(first, first + len(keys))
    rows = Batch.from_pydict({"key": keys, "number": list(numbers)}, ROWS)
    return rows.with_times(np.arange(first, first + len(keys)))


@pytest.fixture(autouse=True)
def few_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_rows, "_ELSEWHERE_ROWS", 4)
    monkeypatch.setattr(RegionRuns, "has_room", lambda *_: True)


subsets = st.sets(st.integers(0, KEYS - 1))


@given(
    batches=st.lists(st.lists(st.integers(0, KEYS - 1), max_size=60), max_size=5),
    last=st.lists(st.integers(0, KEYS - 1), max_size=30),
    misled=subsets,
    new=subsets,
    new_wait=st.booleans(),
)
def test_each_row_comes_once_with_its_record_and_rows_of_a_key_in_their_order(
    batches: list[list[int]], last: list[int], misled: set[int], new: set[int], new_wait: bool
) -> None:
    records, budget = Records(misled, new), StateBudget(1 << 30, 1 << 30)
    pending = PendingRows("rows", budget, records, records)
    taken: list[Batch] = []
    count = 0
    for keys in batches:
        at_once = pending.put_off(batch(keys, count), new_wait=new_wait)
        assert at_once is not None
        assert at_once.schema == ROWS
        assert at_once.num_rows == (0 if new_wait else sum(key in new for key in keys))
        taken.append(at_once)
        count += len(keys)
    assert len(pending) == count - sum(one.num_rows for one in taken)
    for rows, slots in pending.taken(batch(last, count)):
        assert slots.tolist() == rows.column("key").data.tolist()
        taken.append(rows)
    assert len(pending) == 0
    assert budget.spilled_by("rows") == 0
    found = Batch.concat(taken) if taken else batch([], 0)
    numbers = found.column("number").data
    everything = np.array([key for keys in (*batches, last) for key in keys], np.int64)
    assert sorted(numbers.tolist()) == list(range(len(everything)))
    assert (found.column("key").data == everything[numbers]).all()
    if found.num_rows:
        assert found.times is not None
        assert (found.times == numbers).all()
    for key in range(KEYS):
        mine = numbers[found.column("key").data == key]
        assert (np.diff(mine) > 0).all()


def test_regions_with_few_rows_are_not_passed() -> None:
    """A region has three pages: with fewer rows their pages are read instead."""
    records = Records(set(), set())
    pending = PendingRows("rows", StateBudget(1 << 30, 1 << 30), records, records)
    pending.put_off(batch([0, 1, PER_REGION], 0))
    taken = list(pending.taken(batch([2, PER_REGION], 3)))
    assert records.passes == [[0]]
    assert sum(rows.num_rows for rows, _ in taken) == 5


def test_rows_that_have_no_room_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RegionRuns, "has_room", lambda *_: False)
    records = Records(set(), {3})
    pending = PendingRows("rows", StateBudget(1 << 30, 1 << 30), records, records)
    assert pending.put_off(batch([1, 2, 3], 0), new_wait=False) is None
    assert len(pending) == 0
