"""KeyedStore against a dict of dicts, its memory, and its errors."""

from __future__ import annotations

import copy
import gc
import math
import os
import resource
import signal
from typing import Any

import numpy as np
import psutil
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

from whale_ray.configs.errors import InputError, ResourceError, StateFullError
from whale_ray.state.budget import StateBudget
from whale_ray.state.keys import hash_keys, virtual_node_of
from whale_ray.state.records import RecordField, RecordLayout
from whale_ray.state.store import KeyedStore
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import DataType, Schema

NODES = 16
KEYS = Schema.of(name="string", number="double")
BINARY = DataType.parse("binary")
LAYOUT = RecordLayout(
    KEYS,
    (
        RecordField("count", np.dtype(np.int64), initial=7),
        RecordField("last", np.dtype((np.float32, (3,))), initial=-1.0),
        RecordField.of_bytes("note"),
    ),
)
Key = tuple[str | None, float | None]


def keys_batch(keys: list[Key]) -> tuple[np.ndarray[Any, Any], Batch]:
    names, numbers = [key[0] for key in keys], [key[1] for key in keys]
    batch = Batch(KEYS, [Column.of(names, "string"), Column.of(numbers, "double")], len(keys))
    return hash_keys(batch, KEYS.names)[0], batch


def canonical(key: Key) -> tuple[str | None, float | str | None]:
    """NaN equals NaN and -0.0 equals 0.0, as in SQL's groups."""
    name, number = key
    return name, "NaN" if number is not None and math.isnan(number) else number


def contents(store: KeyedStore) -> dict[Any, tuple[Any, ...]]:
    slots, hashes = store.scan()
    again = store.find(hashes, store.keys_of(slots))
    assert again.tolist() == slots.tolist()
    keys = store.keys_of(slots)
    rows = zip(
        keys["name"].to_pylist(),
        keys.column("number").to_pylist(),
        store.records["count"][slots].tolist(),
        store.records["last"][slots].tolist(),
        store.values("note", slots, BINARY).to_pylist(),
        strict=True,
    )
    return {canonical((name, number)): tuple(rest) for name, number, *rest in rows}


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
        self.epoch = 0

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
        self.seals[self.epoch] = copy.deepcopy(self.model)

    @precondition(lambda self: self.seals)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.seals)))
        self.store.roll_back(epoch)
        self.seals = {known: kept for known, kept in self.seals.items() if known <= epoch}
        self.model = copy.deepcopy(self.seals[epoch])
        self.epoch = epoch

    @precondition(lambda self: self.seals)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.seals)))
        self.store.release(epoch)
        self.seals = {known: kept for known, kept in self.seals.items() if known >= epoch}

    @rule(nodes=st.sets(st.integers(0, NODES - 1)))
    def move_nodes_to_another_store_and_back(self, nodes: set[int]) -> None:
        moved = np.array(sorted(nodes), np.int64)
        exported = self.store.export_nodes(moved)
        slots, hashes = self.store.scan()
        self.store.delete(slots[np.isin(virtual_node_of(hashes, NODES), moved)])
        other = KeyedStore(LAYOUT, StateBudget(1 << 30), "op", virtual_nodes=NODES)
        other.import_nodes(exported)
        assert not contents(other).keys() & contents(self.store).keys()
        assert contents(other) | contents(self.store) == self.model
        self.store.import_nodes(other.export_nodes(np.arange(NODES)))

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


def integers_store(limit_bytes: int = 1 << 30) -> KeyedStore:
    layout = RecordLayout(Schema.of(k="int64"), (RecordField("n", np.dtype(np.int64)),))
    return KeyedStore(layout, StateBudget(limit_bytes), "counts")


def on_disk() -> int:
    """Return the bytes of this process' nameless files."""
    return sum(
        os.stat(f"/proc/self/fd/{fd}").st_blocks * 512
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
        and "(deleted)" in os.readlink(f"/proc/self/fd/{fd}")
    )


def test_state_beyond_its_memory_lies_on_disk_and_leaves_it_when_it_is_deleted() -> None:
    before = on_disk()
    budget = StateBudget(1 << 20, 1 << 30)
    layout = RecordLayout(Schema.of(k="int64"), (RecordField("n", np.dtype(np.int64)),))
    store = KeyedStore(layout, budget, "counts")
    keys = np.arange(200_000)
    for part in np.split(keys, 20):
        store.records["n"][insert(store, part)] = part
    assert budget.used_by("counts") <= 1 << 20
    assert on_disk() - before > 5 << 20
    slots = insert(store, keys[::-1])
    assert (store.records["n"][slots] == keys[::-1]).all()
    store.clear()
    assert budget.spilled_by("counts") == 0
    assert on_disk() == before


def test_the_index_is_in_memory_and_records_make_room_for_it() -> None:
    """800,000 keys take at least 10 bytes of index each, and their records 24."""
    budget = StateBudget(9 << 20, 1 << 30)
    layout = RecordLayout(Schema.of(k="int64"), ())
    store = KeyedStore(layout, budget, "counts")
    keys = np.random.default_rng(3).permutation(800_000)
    for part in np.split(keys, 50):
        insert(store, part)
    index_bytes = store._table.buckets.nbytes
    assert store.nbytes == budget.used_by("counts") + budget.spilled_by("counts")
    assert 8 * len(keys) * 5 // 4 <= index_bytes <= budget.used_by("counts") <= 9 << 20
    assert budget.spilled_by("counts") >= store.nbytes - (9 << 20)
    slots = insert(store, keys)
    assert (store.records["#key"][slots, 0].view(np.int64) == keys).all()
    assert len(np.unique(slots)) == len(store) == len(keys)


def test_a_key_is_found_and_deleted_in_a_dense_table_of_any_length() -> None:
    store = KeyedStore(
        RecordLayout(Schema.of(k="int64"), ()), StateBudget(200_000, 1 << 30), "counts"
    )
    keys = np.arange(19_000)
    insert(store, keys)
    assert len(store._table.buckets) == (1 << 14) * 5 // 4 * 5 // 4
    store.delete(insert(store, keys[::3]))
    batch = Batch.from_pydict({"k": keys})
    found = store.find(hash_keys(batch, ["k"])[0], batch)
    assert ((found == -1) == (keys % 3 == 0)).all()
    assert (store.keys_of(found[found >= 0]).column("k").data == keys[keys % 3 > 0]).all()


def test_a_full_disk_is_one_clear_line() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = KeyedStore(
        RecordLayout(Schema.of(k="int64"), ()), StateBudget(1 << 20, 1 << 30), "counts"
    )
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, limits[1]))
    try:
        with pytest.raises(ResourceError, match=r"'counts' cannot spill .*runtime.spill_directory"):
            insert(store, np.arange(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def insert(store: KeyedStore, keys: np.ndarray[Any, Any]) -> Any:
    batch = Batch.from_pydict({"k": keys.astype(np.int64)})
    return store.slots(hash_keys(batch, ["k"])[0], batch)


def test_one_key_has_the_record_that_it_has_in_a_batch() -> None:
    store = integers_store()
    keys = np.random.default_rng(5).integers(-(1 << 63), (1 << 63) - 1, 3_000)  # the table grows
    one_by_one = [store.slot_of_one(key) for key in keys.tolist()]
    assert one_by_one == insert(store, keys).tolist()
    assert [store.find_one(key) for key in keys.tolist()] == one_by_one
    store.seal(1)
    key = int(keys[0])
    assert store.find_one(key) == one_by_one[0] != store.slot_of_one(key) == store.find_one(key)
    store.roll_back(1)
    assert store.find_one(key) == one_by_one[0]
    store.clear()
    assert store.find_one(key) == -1
    store.roll_back(1)
    assert store.find_one(key) == one_by_one[0]


def test_a_million_keys_each_have_one_record() -> None:
    store = integers_store()
    keys = np.random.default_rng(3).permutation(1_000_000)
    slots = np.concatenate([insert(store, part) for part in np.array_split(keys, 16)])
    assert len(np.unique(slots)) == len(store) == 1_000_000
    assert store.keys_of(slots)["k"].tolist() == keys.tolist()
    assert insert(store, keys[::7]).tolist() == slots[::7].tolist()


def test_the_keys_of_few_virtual_nodes_are_spread_over_the_whole_index() -> None:
    """A worker among many owns but a few virtual nodes; probing must not get longer for that."""
    store = integers_store()
    keys = np.arange(400_000)
    hashes = hash_keys(Batch.from_pydict({"k": keys}), ["k"])[0]
    keys = keys[virtual_node_of(hashes, 1024) < 16]
    insert(store, keys)
    used = np.flatnonzero(store._table.buckets)
    assert used.max() - used.min() > 0.99 * len(store._table.buckets)
    runs = np.diff(np.flatnonzero(store._table.buckets == 0))
    assert runs.max() < 100


def test_a_virtual_node_is_a_contiguous_range_in_a_scan() -> None:
    store = integers_store()
    insert(store, np.arange(50_000))
    nodes = virtual_node_of(store.scan()[1], 1024)
    assert (np.diff(nodes) != 0).sum() < 1100


def resident_bytes(store: KeyedStore) -> int:
    """Return how much of the mapping that holds the store's memory is resident."""
    for region in psutil.Process().memory_maps(grouped=False):
        first, stop = (int(bound, 16) for bound in region.addr.split("-"))
        if first <= store._log.address < stop:
            return int(region.rss)
    raise LookupError("no mapping has the store's address")


def test_clear_gives_the_memory_back_at_once() -> None:
    gc.collect()  # the kernel may have put mappings of earlier stores and this one together
    store = integers_store()
    before = resident_bytes(store)
    for first in range(0, 1_600_000, 100_000):
        insert(store, np.arange(first, first + 100_000))
    full = resident_bytes(store)
    assert full - before >= 1_600_000 * store.layout.dtype.itemsize
    store.clear()
    assert full - resident_bytes(store) > 0.9 * (full - before)
    assert len(store) == 0 and store.nbytes < 4096


def test_deleted_records_are_used_again() -> None:
    store = integers_store()
    insert(store, np.arange(10_000))
    nbytes = store.nbytes
    for first in range(10_000, 500_000, 10_000):
        slots, _ = store.scan()
        store.delete(slots)
        insert(store, np.arange(first, first + 10_000))
    assert store.nbytes <= 2 * nbytes


def test_replaced_texts_take_no_memory_for_ever() -> None:
    store = KeyedStore(LAYOUT, StateBudget(64 << 20), "op")
    slots = store.slots(*keys_batch([("a", 1.0), ("b", 2.0)]))
    for number in range(500):
        texts = [b"x" * 20_000 + bytes([number % 256]), b"y" * 20_000]
        store.write_values("note", slots, Column.of(texts, "binary"))
    assert store.values("note", slots, BINARY).to_pylist() == texts
    assert store.nbytes < 8 << 20


def test_what_a_release_gives_up_is_freed() -> None:
    store = integers_store()
    for epoch in range(1, 40):
        insert(store, np.arange(50_000))  # every key changes in every epoch
        store.seal(epoch)
        store.release(epoch)
    assert store.nbytes < 4 * 50_000 * 40


def test_rolling_back_needs_a_seal() -> None:
    store = integers_store()
    store.seal(3)
    with pytest.raises(ValueError, match="no seal of epoch 2"):
        store.roll_back(2)
    with pytest.raises(ValueError, match="epoch 3 after epoch 3"):
        store.seal(3)


def test_siblings_share_the_memory_of_one_operator() -> None:
    first = integers_store()
    second = first.sibling()
    slots, others = insert(first, np.arange(100)), insert(second, np.arange(100))
    assert not set(slots.tolist()) & set(others.tolist())
    second.records["n"][others] = 5
    first.clear()
    assert second.records["n"][others].tolist() == [5] * 100


def test_the_error_of_a_full_budget_names_operator_keys_bytes_and_setting() -> None:
    store = integers_store(limit_bytes=1 << 20)
    with pytest.raises(StateFullError) as caught:
        insert(store, np.arange(100_000))
    text = str(caught.value)
    assert text == (
        "operator 'counts': its state of 14,336 keys takes 0.7 MiB and needs 0.5 MiB more, but a"
        " worker's state may take 1.0 MiB: raise runtime.state_bytes, run more workers, or keep"
        " fewer keys"
    )


def test_records_are_numbered_by_32_bits() -> None:
    store = integers_store()
    insert(store, np.arange(1000))
    store._chunks.records_max = 5_000  # 2³² records take too long to fill
    with pytest.raises(
        StateFullError, match="reaches the limit of 5,000 records: run more workers"
    ):
        insert(store, np.arange(100_000))
    assert store.nbytes == store._budget.used_by("counts")


def test_a_key_that_changes_its_type_is_refused() -> None:
    store = integers_store()
    batch = Batch.from_pydict({"k": np.arange(3, dtype=np.int32)})
    with pytest.raises(InputError) as caught:
        store.slots(hash_keys(batch, ["k"])[0], batch)
    assert str(caught.value) == (
        "key column 'k' is int32 and was int64 before: cast it to one type"
    )


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bool", [True, False, None]),
        ("int8", [-1, 0, 127]),
        ("uint64", [2**64 - 1, 0, None]),
        ("float32", [1.5, None, -2.0]),
        ("timestamp[ms]", [1, None, -5]),
        ("decimal128(20, 2)", None),
        ("fixed_size_binary(3)", [b"abc", b"abd", None]),
        ("large_string", ["a", "", None]),
    ],
)
def test_keys_of_all_types_come_back(kind: str, values: list[Any] | None) -> None:
    import decimal

    if values is None:
        values = [decimal.Decimal("1.50"), None, decimal.Decimal("-3.00")]
    if kind.startswith("timestamp"):
        values = [None if v is None else np.datetime64(v, "ms").item() for v in values]
    batch = Batch(Schema.of(k=kind), [Column.of(values, kind)], len(values))
    store = KeyedStore(RecordLayout(batch.schema, ()), StateBudget(), "op")
    slots = store.slots(hash_keys(batch, ["k"])[0], batch)
    assert len(store) == 3
    assert store.keys_of(slots).equals(batch)
    assert store.export_nodes(np.arange(1024)).num_rows == 3


def test_stores_of_no_key_column_have_one_record() -> None:
    store = KeyedStore(
        RecordLayout(Schema(()), (RecordField("n", np.dtype(np.int64)),)), StateBudget(), "op"
    )
    hashes = np.full(4, 42, np.uint64)
    slots = store.slots(hashes, Batch(Schema(()), [], 4))
    assert len(set(slots.tolist())) == 1
