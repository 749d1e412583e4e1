"""Rows that are put off until a pass over the records of their keys, which are on the disk."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from whale_ray.operators.keyed.stored_parts import StoredParts
from whale_ray.state.budget import StateBudget
from whale_ray.state.disk_traffic import DiskTraffic
from whale_ray.state.keys import hash_keys
from whale_ray.state.records import RecordLayout
from whale_ray.state.store import KeyedStore
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

KEYS = 60_000
"""Some megabytes of records; of the keys that rows have, every 11th has none yet."""

ROWS = Schema.of(**{"key": "string", "#key ": "int64"})


class Stored:
    """Records by key, most of them on the disk, and rows that are numbered as they come."""

    def __init__(self, state_bytes: int = 1 << 20) -> None:
        self.budget = StateBudget(state_bytes, 1 << 30)
        layout = RecordLayout(Schema.of(key="string"), [])
        self.store = KeyedStore(layout, self.budget, "rows", virtual_nodes=16)
        known = Batch.from_pydict({"key": [f"key {n}" for n in range(KEYS) if n % 11]})
        self.store.slots(hash_keys(known, ["key"])[0], known)
        self.begun: list[Batch] = []
        self.parts = StoredParts(
            "rows",
            self.budget,
            self.store,
            ["key"],
            lambda batch, _: self.begun.append(batch),
            lambda: None,
        )
        self.random = np.random.default_rng(3)
        self.numbers = 0

    def rows(self, count: int) -> Batch:
        """Return rows of random keys, a tenth of them frequent ones."""
        keys = self.random.integers(0, KEYS, count)
        keys[::10] %= 13
        numbers = np.arange(self.numbers, self.numbers + count)
        self.numbers += count
        columns = {"key": [f"key {key}" for key in keys], "#key ": numbers}
        batch = Batch.from_pydict(columns, ROWS)
        return batch.with_times(numbers)

    def taken(self, batch: Batch) -> dict[str, list[int]]:
        """Take rows, with those that were put off; return the numbers of each key's, in order."""
        found: dict[str, list[int]] = defaultdict(list)
        for part, slots in self.parts.of(batch):
            assert part.schema == batch.schema
            assert part.times is not None
            assert part.times.tolist() == part.column("#key ").to_pylist()
            keys = part.column("key").to_pylist()
            if slots is not None:
                assert self.store.keys_of(slots).column("key").to_pylist() == keys
            for key, number in zip(keys, part.column("#key ").to_pylist(), strict=True):
                found[key].append(number)
        return found


def numbers_by_key(*batches: Batch) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for batch in batches:
        for row in batch.to_pylist():
            found[row["key"]].append(row["#key "])
    return found


@pytest.mark.parametrize("pages", [1, 1 << 30], ids=["whole regions", "single pages"])
@pytest.mark.parametrize("last", [1_000, 0])
def test_rows_that_were_put_off_come_before_those_in_memory_and_in_order(
    pages: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeyedStore, "region_pages", pages)
    stored = Stored()
    assert stored.store.spills
    for _ in range(2):
        batches = [stored.rows(1_500) for _ in range(4)]
        on_disk_bytes = stored.budget.spilled_by("rows")
        for number, batch in enumerate(batches):
            assert stored.parts.put_off(batch)
            if number == 1:  # as a timer may, meanwhile
                gone = Batch.from_pydict({"key": [f"key {n}" for n in range(0, KEYS, 5) if n % 11]})
                slots = stored.store.find(hash_keys(gone, ["key"])[0], gone)
                stored.store.delete(slots[slots >= 0])
        assert stored.budget.spilled_by("rows") > on_disk_bytes
        assert stored.begun == []
        end = stored.rows(last)
        assert stored.taken(end) == numbers_by_key(*batches, end)
        assert len(stored.begun) > 1
        stored.begun.clear()
        assert stored.taken(stored.rows(0)) == {}


def test_rows_that_were_put_off_are_forgotten_and_their_room_is_given_back() -> None:
    stored = Stored()
    on_disk_bytes = stored.budget.spilled_by("rows")
    assert stored.parts.put_off(stored.rows(5_000))
    stored.parts.forget()
    assert stored.budget.spilled_by("rows") == on_disk_bytes
    rows = stored.rows(1_000)
    assert stored.taken(rows) == numbers_by_key(rows)


def test_rows_are_not_put_off_where_the_disk_has_no_room_or_all_records_are_in_memory() -> None:
    assert not Stored(state_bytes=1 << 26).parts.put_off(Stored().rows(100))
    stored, waiting = Stored(), list[Batch]()
    records_bytes = stored.budget.spilled_by("rows")
    while stored.parts.put_off(batch := stored.rows(5_000)):
        waiting.append(batch)
    assert 3 / 2 < stored.budget.spilled_by("rows") / records_bytes < 2
    assert stored.taken(batch) == numbers_by_key(*waiting, batch)


def test_memory_for_rows_is_given_back_as_the_index_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is half of the budget, and in the end an eighth: the index stays in memory till then."""
    monkeypatch.setattr(DiskTraffic, "is_heavy", True)
    stored, shares = Stored(state_bytes=3 << 20), list[int]()
    index_bytes = []
    for first in range(KEYS, 8 * KEYS, KEYS // 4):
        shares.append(stored.parts.bytes_gathered_max)
        new = Batch.from_pydict({"key": [f"key {n}" for n in range(first, first + KEYS // 4)]})
        stored.store.slots(hash_keys(new, ["key"])[0], new)
        if not stored.store._log.is_on_disk(stored.store._table.buckets):
            index_bytes.append(stored.store._table.nbytes)
    assert (shares[0], shares[-1]) == (3 << 19, 3 << 17)
    assert shares == sorted(shares, reverse=True)
    assert 3 << 19 < index_bytes[-1] < 3 * 7 << 17
    assert len(index_bytes) < len(shares), "it has grown beyond the memory"
    used_bytes = stored.budget.used_bytes
    stored.parts.close()
    assert stored.budget.used_bytes == used_bytes - shares[-1]
