"""Groups by slice and key against a dict of sets, whether slices share stores or not."""

from __future__ import annotations

from unittest import mock

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from whale_ray.operators.windows import slice_stores
from whale_ray.operators.windows.slice_stores import SliceStores, keys_in_slices
from whale_ray.state.budget import StateBudget
from whale_ray.state.keys import hash_keys, virtual_node_of
from whale_ray.state.records import RecordLayout
from whale_ray.state.store import KeyedStore
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import DataType, Schema

KEYS = Schema.of(k="string")
KEY = st.integers(0, 30).map(lambda number: f"key {number}") | st.none()
NODES = 8


def keys_of(values: list[str | None]) -> Batch:
    return Batch(KEYS, [Column.of(values, DataType.parse("string"))], len(values))


class SlicesAndGroups(RuleBasedStateMachine):
    """Slices open in any order near the latest, and close from the first on, as windows do."""

    @initialize(shares=st.booleans(), groups=st.sampled_from([1, 8, 1 << 13]))
    def start(self, shares, groups):
        self.patch = mock.patch.object(slice_stores, "SHARED_GROUPS", groups)
        self.patch.start()
        self.budget = StateBudget(64 << 20)
        layout = RecordLayout(keys_in_slices(KEYS) if shares else KEYS, ())
        spare = KeyedStore(layout, self.budget, "counts", virtual_nodes=NODES)
        self.stores = SliceStores(spare, NODES, shares=shares)
        self.spare = spare
        self.model: dict[int, dict[str | None, int]] = {}
        self.first_open = -5

    @rule(rows=st.lists(st.tuples(st.integers(0, 6), KEY), max_size=60))
    def enter(self, rows):
        slices = np.array([self.first_open + ahead for ahead, _ in rows], np.int64)
        keys = keys_of([key for _, key in rows])
        slots = self.stores.slots(slices, hash_keys(keys, ["k"])[0], keys).tolist()
        for (ahead, key), slot in zip(rows, slots, strict=True):
            assert self.model.setdefault(self.first_open + ahead, {}).setdefault(key, slot) == slot

    @rule(closed=st.integers(1, 4))
    def close(self, closed):
        self.first_open += closed
        for slice_ in [one for one in self.stores.slices if one < self.first_open]:
            self.stores.free(slice_)
            del self.model[slice_]

    @rule(key=KEY, ahead=st.integers(0, 6))
    def find(self, key, ahead):
        keys, slice_ = keys_of([key]), self.first_open + ahead
        (slot,) = self.stores.find(slice_, hash_keys(keys, ["k"])[0], keys)
        assert slot == self.model.get(slice_, {}).get(key, -1)

    @rule(nodes=st.sets(st.integers(0, NODES - 1)))
    def scan_some(self, nodes):
        for slice_, known in self.model.items():
            keys = keys_of(list(known))
            own = virtual_node_of(hash_keys(keys, ["k"])[0], NODES).tolist()
            wanted = {slot for slot, node in zip(known.values(), own, strict=True) if node in nodes}
            found = self.stores.scan(slice_, np.array(sorted(nodes), np.int64))
            assert set(found.tolist()) == wanted

    @invariant()
    def has_the_open_groups(self):
        assert set(self.stores.slices) == set(self.model)
        for slice_, known in self.model.items():
            slots = self.stores.scan(slice_, None)
            assert sorted(slots.tolist()) == sorted(known.values())
            names = self.spare.keys_of(slots).column("k").to_pylist()
            assert [known[name] for name in names] == slots.tolist()
        assert self.stores.groups == sum(map(len, self.model.values()))

    def teardown(self):
        for slice_ in self.stores.slices:
            self.stores.free(slice_)
        assert not list(self.stores)
        self.patch.stop()


SlicesAndGroups.TestCase.settings = settings(max_examples=40, stateful_step_count=15)
TestSlicesAndGroups = SlicesAndGroups.TestCase


def test_many_small_slices_take_few_stores_and_a_late_one_keeps_no_more_than_its_part():
    budget = StateBudget(64 << 20)
    layout = RecordLayout(keys_in_slices(KEYS), ())
    spare = KeyedStore(layout, budget, "counts", virtual_nodes=NODES)
    stores = SliceStores(spare, NODES, shares=True)
    keys = keys_of([f"key {number}" for number in range(100)])
    hashes = hash_keys(keys, ["k"])[0]
    for slice_ in range(200):
        stores.slots(np.full(100, slice_), hashes, keys)
    assert len(list(stores)) <= 3
    for slice_ in range(199):
        stores.free(slice_)
    assert len(list(stores)) == 1
    assert stores.groups == 100
