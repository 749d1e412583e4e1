"""KeyedStore against a dict of dicts: sealed, rolled back, read beside the loop that changes it."""

from __future__ import annotations

import copy
import math
import queue
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.state.stores import (
    LAYOUT,
    NODES,
    Key,
    canonical,
    contents,
    insert,
    integers_store,
    keys_batch,
    of_records,
)
from whale_ray.state import heap, index, index_table
from whale_ray.state.budget import StateBudget
from whale_ray.state.keys import virtual_node_of
from whale_ray.state.node_transfer import export_records, export_slots
from whale_ray.state.records import RecordField, RecordLayout
from whale_ray.state.sealed_records import SealedRecords, is_alive
from whale_ray.state.store import KeyedStore
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import Schema

some_keys = st.tuples(
    st.sampled_from([None, "", "a", "b", "longer than eight bytes", "longer than eight bytez"]),
    st.sampled_from([None, 0.0, -0.0, math.nan, 1.5, -math.inf]),
)
many_keys = st.one_of(
    st.lists(some_keys, min_size=1, max_size=6),
    st.integers(1, 300).map(lambda n: [(f"key {i}", float(i)) for i in range(n)]),
)
notes = st.one_of(st.none(), st.binary(max_size=20), st.just(b"x" * 3000))


class StoreMachine(RuleBasedStateMachine):
    """Every operation on the store and on a dict; a snapshot is a copy of the dict."""

    memory_bytes, disk_bytes = 1 << 30, 0

    @initialize()
    def begin(self) -> None:
        self.budget = StateBudget(self.memory_bytes, self.disk_bytes)
        self.store = KeyedStore(LAYOUT, self.budget, "op", virtual_nodes=NODES)
        self.model: dict[Any, tuple[Any, ...]] = {}
        self.seals: dict[int, dict[Any, tuple[Any, ...]]] = {}
        self.sealed: dict[int, tuple[SealedRecords, dict[Any, tuple[Any, ...]] | None]] = {}
        self.epoch = 0

    @precondition(lambda self: self.sealed)
    @rule(data=st.data())
    def read_what_was_sealed(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.sealed)))
        sealed, before = self.sealed[epoch]
        pieces = [sealed.read(sealed.piece(number)) for number in range(sealed.pieces)]
        assert of_records(pieces, sealed) == self.seals[epoch]
        if before is None or sealed.is_first:
            return
        changed = sealed.changed()
        then, now = sealed.read(changed, before=True), sealed.read(changed)
        left = {key: one for key, one in before.items() if key not in of_records([then], sealed)}
        assert left | of_records([now], sealed) == self.seals[epoch]

    def slots_of(self, keys: list[Key]) -> Any:
        slots = self.store.slots(*keys_batch(keys))
        for key in keys:
            self.model.setdefault(canonical(key), (7, [-1.0] * 3, None))
        return slots

    @rule(keys=many_keys, count=st.integers(-(2**62), 2**62), note=notes)
    def put(self, keys: list[Key], count: int, note: bytes | None) -> None:
        slots = self.slots_of(keys)
        self.store.records["count"][slots] = count
        self.store.records["last"][slots] = [1, 2, 3]
        self.store.write_values("note", slots, Column.of([note] * len(slots), "binary"))
        for key in keys:
            self.model[canonical(key)] = (count, [1.0, 2.0, 3.0], note)

    @rule(keys=many_keys)
    def read_modify_write(self, keys: list[Key]) -> None:
        slots = self.slots_of(keys)
        np.add.at(self.store.records["count"], slots, 1)
        for key in keys:
            count, *rest = self.model[canonical(key)]
            self.model[canonical(key)] = (count + 1, *rest)

    @rule(keys=many_keys)
    def find(self, keys: list[Key]) -> None:
        found = self.store.find(*keys_batch(keys))
        assert (found >= 0).tolist() == [canonical(key) in self.model for key in keys]

    @rule(keys=many_keys)
    def read_modify_write_in_the_order_of_records(self, keys: list[Key]) -> None:
        keys = list({canonical(key): key for key in keys}.values())
        hashes, batch = keys_batch(keys)
        met, ordered = [], []
        for rows in self.store.in_order(self.store.places(hashes)):
            known = self.store.find(hashes[rows], batch.take(rows))
            met += rows.tolist()
            ordered += known.tolist()
            slots = self.store.slots(hashes[rows], batch.take(rows))
            self.store.records["count"][slots] += 1
        assert sorted(met) == list(range(len(keys)))
        if self.store.spills:  # those that are not there yet come last
            there = [slot for slot in ordered if slot >= 0]
            assert ordered == sorted(there) + [-1] * (len(ordered) - len(there))
        for key in keys:
            count, *rest = self.model.get(canonical(key), (7, [-1.0] * 3, None))
            self.model[canonical(key)] = (count + 1, *rest)

    @rule(keys=many_keys)
    def delete(self, keys: list[Key]) -> None:
        slots = self.store.find(*keys_batch(keys))
        self.store.delete(slots[slots >= 0])
        for key in keys:
            self.model.pop(canonical(key), None)

    @rule(keys=many_keys)
    def touch_and_delete_what_is_initial(self, keys: list[Key]) -> None:
        self.store.delete(self.store.initial(self.slots_of(keys)))
        for key in map(canonical, keys):
            if self.model.get(key) == (7, [-1.0] * 3, None):
                del self.model[key]

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.model = {}

    @rule()
    def seal(self) -> None:
        self.epoch += 1
        self.store.seal(self.epoch)
        before = self.seals.get(self.epoch - 1)
        self.seals[self.epoch] = copy.deepcopy(self.model)
        self.sealed[self.epoch] = self.store.sealed(self.epoch), before

    @precondition(lambda self: self.seals)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.seals)))
        self.store.roll_back(epoch)
        self.seals = {known: kept for known, kept in self.seals.items() if known <= epoch}
        self.sealed = {known: kept for known, kept in self.sealed.items() if known <= epoch}
        self.model = copy.deepcopy(self.seals[epoch])
        self.epoch = epoch

    @precondition(lambda self: self.seals)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.seals)))
        self.store.release(epoch)
        self.seals = {known: kept for known, kept in self.seals.items() if known >= epoch}
        self.sealed = {known: kept for known, kept in self.sealed.items() if known >= epoch}
        self.sealed[epoch] = self.sealed[epoch][0], None  # what has changed is not known any more

    @rule(nodes=st.sets(st.integers(0, NODES - 1)))
    def move_nodes_to_another_store_and_back(self, nodes: set[int]) -> None:
        moved = np.array(sorted(nodes), np.int64)
        exported = export_slots(self.store, self.store.scan(moved)[0])
        slots, hashes = self.store.scan()
        self.store.delete(slots[np.isin(virtual_node_of(hashes, NODES), moved)])
        other = KeyedStore(LAYOUT, StateBudget(1 << 30), "op", virtual_nodes=NODES)
        other.import_nodes(exported)
        assert not contents(other).keys() & contents(self.store).keys()
        assert contents(other) | contents(self.store) == self.model
        self.store.import_nodes(export_slots(other, other.scan()[0]))

    @invariant()
    def it_is_what_the_dict_is(self) -> None:
        assert contents(self.store) == self.model
        assert len(self.store) == len(self.model)
        in_memory = self.budget.used_by("op")
        assert in_memory <= self.memory_bytes
        assert self.store.nbytes == in_memory + self.budget.spilled_by("op")


StoreMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestStore = StoreMachine.TestCase


class SpillingStoreMachine(StoreMachine):
    """The same, where only the first chunk has room in memory: all others are pages of a file."""

    memory_bytes, disk_bytes = 64 << 10, 1 << 30


SpillingStoreMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None
)
TestSpillingStore = SpillingStoreMachine.TestCase


class GrowingStoreMachine(StoreMachine):
    """The same, where every table is replaced step by step, and that takes as long as it can.

    The values are compacted often.
    """

    @initialize()
    def begin(self) -> None:
        super().begin()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(index_table, "_LARGE_BUCKETS", 1)
        self.patch.setattr(index_table, "_MOVED_PER_KEY", 1)
        self.patch.setattr(index_table, "_MOVED_AT_LEAST", 1)
        self.patch.setattr(heap, "_COMPACTED_FROM_BYTES", 1)

    @rule(count=st.integers(100, 600))
    def find_keys_that_are_moved(self, count: int) -> None:
        keys: list[Key] = [(f"key {i}", float(i)) for i in range(count)]
        self.read_modify_write(keys)
        self.delete(keys[::3])
        self.find(keys)

    @invariant()
    def it_is_what_the_dict_is(self) -> None:
        """Look at what does not finish the table."""
        assert self.store._at[index.HEAP_NEXT] <= self.store._at[index.HEAP_STOP]
        assert len(self.store) == len(self.model)
        assert self.store.nbytes == self.budget.used_by("op")

    def teardown(self) -> None:
        self.patch.undo()
        super().it_is_what_the_dict_is()


GrowingStoreMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None
)
TestGrowingStore = GrowingStoreMachine.TestCase


def test_what_a_release_gives_up_is_freed() -> None:
    store = integers_store()
    for epoch in range(1, 40):
        insert(store, np.arange(50_000))  # every key changes in every epoch
        store.seal(epoch)
        store.release(epoch)
    assert store.nbytes < 4 * 50_000 * 40


def test_a_thread_reads_what_was_sealed_while_the_store_changes() -> None:
    """Both fields of a record are always written alike: a torn record would show."""
    layout = RecordLayout(
        Schema.of(k="int64"),
        (RecordField("n", np.dtype(np.int64)), RecordField("m", np.dtype((np.int64, (9,))))),
    )
    store = KeyedStore(layout, StateBudget(1 << 30), "op")
    random, model = np.random.default_rng(3), {}
    sealed: queue.Queue[Any] = queue.Queue(1)
    found: list[Any] = []

    def read() -> None:
        while (one := sealed.get()) is not None:
            pieces = [one.read(one.piece(number)) for number in range(one.pieces)]
            found.append(np.concatenate([piece[is_alive(piece)] for piece in pieces]))

    reader = threading.Thread(target=read)
    reader.start()
    wanted = []
    try:
        for epoch in range(1, 13):
            for _ in range(20):
                keys = np.unique(random.integers(0, 40_000, 2_000))
                slots = insert(store, keys)
                store.records["n"][slots] = store.records["m"][slots, 0] + epoch
                store.records["m"][slots] = store.records["n"][slots][:, None]
                model |= dict(zip(keys.tolist(), store.records["n"][slots].tolist(), strict=True))
                gone = keys[::10]
                store.delete(insert(store, gone))
                for key in gone.tolist():
                    del model[key]
            store.seal(epoch)
            sealed.put(store.sealed(epoch))
            wanted.append(dict(model))
            if epoch > 3:
                store.release(epoch - 3)
    finally:
        sealed.put(None)
        reader.join()
    for records, then in zip(found, wanted, strict=True):
        keys = export_records(layout, records, store._log.memory)["k"]
        assert dict(zip(keys.tolist(), records["n"].tolist(), strict=True)) == then
        assert (records["m"] == records["n"][:, None]).all()


def test_values_that_were_replaced_come_back_though_the_heap_was_compacted() -> None:
    store = KeyedStore(LAYOUT, StateBudget(64 << 20), "op")
    slots = store.slots(*keys_batch([("a", 1.0), ("b", 2.0), ("c", 3.0)]))
    store.write_values("note", slots, Column.of([b"first", b"second", b"kept"], "binary"))
    store.seal(1)
    sealed, before = store.sealed(1), contents(store)
    for number in range(300):
        slots = store.slots(*keys_batch([("a", 1.0), ("b", 2.0)]))
        texts = [b"x" * 20_000 + bytes([number % 256]), b"y" * 20_000]
        store.write_values("note", slots, Column.of(texts, "binary"))
    assert store.nbytes < 16 << 20
    pieces = [sealed.read(sealed.piece(number)) for number in range(sealed.pieces)]
    assert of_records(pieces, sealed) == before
    store.roll_back(1)
    assert contents(store) == before
    for _ in range(300):
        slots = store.slots(*keys_batch([("a", 1.0)]))
        store.write_values("note", slots, Column.of([b"z" * 20_000], "binary"))
    assert contents(store)["c", 3.0] == before["c", 3.0]
    store.seal(2)
    store.release(2)
    assert store.nbytes < 16 << 20


def test_the_heap_is_compacted_again_behind_a_roll_back() -> None:
    """The chunk in use at the seal has room left, which values fill behind the roll back."""
    store = KeyedStore(LAYOUT, StateBudget(64 << 20), "op")
    keys = [(f"key {number}", 1.0) for number in range(130)]

    def write(text: bytes) -> None:
        for key in keys:
            note = Column.of([text + key[0].encode() + b"x" * 10_000], "binary")
            store.write_values("note", store.slots(*keys_batch([key])), note)
            assert store._at[index.HEAP_NEXT] <= store._at[index.HEAP_STOP]

    write(b"sealed ")
    store.seal(1)
    sealed = contents(store)
    while not store.heap.retired:  # until it is compacted
        write(b"later ")
    store.roll_back(1)
    assert contents(store) == sealed
    for number in range(4):
        write(b"%d " % number)
        assert {one[2] for one in contents(store).values()} == {
            b"%d " % number + key[0].encode() + b"x" * 10_000 for key in keys
        }
    store.roll_back(1)
    assert contents(store) == sealed


def test_rolling_back_needs_a_seal() -> None:
    store = integers_store()
    store.seal(3)
    with pytest.raises(ValueError, match="no seal of epoch 2"):
        store.roll_back(2)
    with pytest.raises(ValueError, match="epoch 3 after epoch 3"):
        store.seal(3)
