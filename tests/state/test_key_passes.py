"""Passes over records on the disk, against a dict: the records of the keys, in the rows' order."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.state.stores import LAYOUT, canonical, contents, keys_batch
from whale_ray.state.budget import StateBudget
from whale_ray.state.page_fetching import PageFetcher
from whale_ray.state.store import KeyedStore

Expected = dict[Any, tuple[int, int]]
"""How many rows a key has had, and the number of its last one."""


def spilled_store(index_on_disk: bool) -> KeyedStore:
    """Return a store of text keys, most of whose records are on the disk."""
    store = KeyedStore(LAYOUT, StateBudget(1 << 20, 1 << 30), "passed", virtual_nodes=16)
    keys = [(f"key {number}", float(number)) for number in range(20_000)]
    store.slots(*keys_batch(keys))
    if index_on_disk:
        assert store.set_aside(1 << 19)
        store.reserve(200_000)
        assert store._log.is_on_disk(store._table.buckets)
    return store


def take(store: KeyedStore, keys: list[Any], first: int, expected: Expected) -> None:
    """Count rows in a pass, each after the row before of its key; keys of 7 rows are deleted."""
    taken = []
    for rows, slots in store.passes(*keys_batch(keys)):
        taken += rows.tolist()
        gone = []
        for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
            counted = int(store.records["count"][slot]) - 7
            assert (counted, int(store.records["last"][slot][0])) == expected.get(
                canonical(keys[row]), (0, -1)
            )
            expected[canonical(keys[row])] = counted + 1, first + row
            store.records["count"][slot] += 1
            store.records["last"][slot] = first + row
            if counted == 6:
                gone.append(slot)
        for slot in gone:  # a piece has all rows of its keys
            columns = store.keys_of(np.array([slot])).to_pydict().values()
            key = canonical(next(zip(*columns, strict=True)))
            if expected[key][0] == 7:
                del expected[key]
                store.delete(np.array([slot]))
    assert sorted(taken) == list(range(len(keys)))


@pytest.mark.parametrize("is_useful", [False, True])
def test_a_pass_finds_the_record_of_each_row_and_keeps_the_order_of_its_key(
    is_useful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether pages are asked for ahead and written early, as where they come from the disk."""
    monkeypatch.setattr(PageFetcher, "_is_useful", lambda _: is_useful)
    for index_on_disk in (False, True):
        drawn = random.Random(4)
        store, expected = spilled_store(index_on_disk), Expected()
        assert store.spills
        for first in range(0, 4_000, 1_000):
            keys = [drawn_key(drawn) for _ in range(1_000)]
            take(store, keys, first, expected)
        counted = {key: values[0] - 7 for key, values in contents(store).items()}
        assert {key: n for key, n in counted.items() if n} == {
            key: n for key, (n, _) in expected.items()
        }


def test_a_pass_leaves_images_of_what_it_changes() -> None:
    store, expected = spilled_store(index_on_disk=False), Expected()
    before = contents(store)
    store.seal(1)
    drawn = random.Random(5)
    take(store, [drawn_key(drawn) for _ in range(1_000)], 0, expected)
    assert contents(store) != before
    store.roll_back(1)
    assert contents(store) == before


def drawn_key(drawn: random.Random) -> tuple[str | None, float | None]:
    """Return a frequent key, one of those on the disk, a new one, or one with a null."""
    number = drawn.choice((drawn.randrange(20), drawn.randrange(25_000)))
    if drawn.random() < 0.05:
        return drawn.choice(((None, float(number)), (f"key {number}", None), (None, None)))
    return f"key {number}", float(number)


def test_pages_are_fetched_as_soon_as_some_had_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = spilled_store(index_on_disk=False)
    hashes, _ = keys_batch([(f"key {number}", float(number)) for number in range(20_000)])
    fetched: list[int] = []
    monkeypatch.setattr(PageFetcher, "_fetch", lambda _, some: fetched.append(len(some)))
    reads = [0, 0, 0, 5]  # before the batch, before two pieces of it, and behind them
    usage = mock.Mock(side_effect=lambda _: mock.Mock(ru_inblock=reads.pop(0)))
    monkeypatch.setattr("whale_ray.state.page_fetching.resource.getrusage", usage)
    pieces = list(store._fetcher.fetched(hashes))
    assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
    assert (pieces[-1][1], [stop for _, stop in pieces[:2]]) == (20_000, [1024, 2048])
    assert fetched == [stop - start for start, stop in pieces[2:]]
    fetched.clear()
    reads += [5]
    list(store._fetcher.fetched(hashes))  # so shortly behind, all of them are
    assert sum(fetched) == 20_000
