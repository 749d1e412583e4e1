"""KeyedStore: its memory, its index, and its errors."""

from __future__ import annotations

import gc
import os
import resource
import signal
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state.stores import (
    BINARY,
    LAYOUT,
    insert,
    integers_store,
    keys_batch,
)
from whale_ray.configs.errors import InputError, ResourceError, StateFullError
from whale_ray.state import index
from whale_ray.state.budget import StateBudget
from whale_ray.state.keys import hash_keys, virtual_node_of
from whale_ray.state.node_transfer import export_slots
from whale_ray.state.records import RecordField, RecordLayout
from whale_ray.state.store import KeyedStore
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import Schema


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


def test_one_key_has_the_record_that_it_has_in_a_batch() -> None:
    store = integers_store()
    keys = np.random.default_rng(5).integers(-(1 << 63), (1 << 63) - 1, 3_000)  # the table grows
    one_by_one = [store.slot_of_one(key) for key in keys.tolist()]
    assert one_by_one == insert(store, keys).tolist()
    assert [store.find_one(key) for key in keys.tolist()] == one_by_one
    store.seal(1)
    key = int(keys[0])
    assert store.find_one(key) == one_by_one[0] == store.slot_of_one(key)
    new = store.slot_of_one(7)
    store.roll_back(1)
    assert store.find_one(key) == one_by_one[0] != new
    assert store.find_one(7) == -1
    store.clear()
    assert store.find_one(key) == -1
    store.roll_back(1)
    assert store.find_one(key) == one_by_one[0]


@pytest.mark.parametrize("kind", ["string", "binary"])
@given(
    keys=st.lists(st.tuples(st.integers(-9, 9), st.text(max_size=90)), max_size=40),
    absent=st.tuples(st.integers(-9, 9), st.text(max_size=90)),
)
def test_keys_with_a_text_are_found_one_by_one_as_many_at_a_time(
    kind: str, keys: list[tuple[int, str]], absent: tuple[int, str]
) -> None:
    schema = Schema.of(owner="int64", at=kind)
    layout = RecordLayout(schema, (RecordField("n", np.dtype(np.int64)),))
    store = KeyedStore(layout, StateBudget(1 << 30), "op", virtual_nodes=16)
    one_by_one = [store.slot_of_one(number, text.encode()) for number, text in keys]
    assert len(store) == len(set(keys))
    texts = [text if kind == "string" else text.encode() for _, text in keys]
    columns = [Column.of([number for number, _ in keys], "int64"), Column.of(texts, kind)]
    batch = Batch(schema, columns, len(keys))
    hashes, _ = hash_keys(batch, schema.names)
    assert store.find(hashes, batch).tolist() == one_by_one
    assert store.keys_of(np.array(one_by_one, np.int64)).equals(batch)
    assert [store.find_one(number, text.encode()) for number, text in keys] == one_by_one
    if absent not in keys:
        assert store.find_one(absent[0], absent[1].encode()) == -1


def test_a_million_keys_each_have_one_record() -> None:
    store = integers_store()
    keys = np.random.default_rng(3).permutation(1_000_000)
    slots = np.concatenate([insert(store, part) for part in np.array_split(keys, 16)])
    assert len(np.unique(slots)) == len(store) == 1_000_000
    assert store.keys_of(slots)["k"].tolist() == keys.tolist()
    assert insert(store, keys[::7]).tolist() == slots[::7].tolist()


def test_a_large_index_grows_step_by_step() -> None:
    store = integers_store()
    keys, rows = np.random.default_rng(3).permutation(420_000), 1_000
    moved, replaced, growing = 0, 0, 0
    for part in np.split(keys, len(keys) // rows):
        insert(store, part)
        now = int(store._at[index.MOVED])
        assert now - moved <= (1 << 14) + 200
        replaced += moved > 0 and now == 0
        growing += store._table.is_growing
        moved = now
    assert replaced == 3 and growing > 30
    slots = insert(store, keys)
    assert store.keys_of(slots)["k"].tolist() == keys.tolist()
    assert len(np.unique(slots)) == len(store) == len(keys)


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
    """Return how much of the mappings that hold the store's memory is resident."""
    first = store._log.address
    stop = first + len(store._log.memory)
    found = 0
    for region in psutil.Process().memory_maps(grouped=False):
        begin, end = (int(bound, 16) for bound in region.addr.split("-"))
        if begin < stop and first < end:
            found += int(region.rss)
    return found


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
        "operator 'counts': its state of 14,336 keys or rows takes 0.7 MiB and needs 0.5 MiB more,"
        " but a worker's state may take 1.0 MiB: raise runtime.state_bytes, run more workers, or"
        " keep fewer keys"
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
    assert export_slots(store, store.scan(np.arange(1024))[0]).num_rows == 3


def test_stores_of_no_key_column_have_one_record() -> None:
    store = KeyedStore(
        RecordLayout(Schema(()), (RecordField("n", np.dtype(np.int64)),)), StateBudget(), "op"
    )
    hashes = np.full(4, 42, np.uint64)
    slots = store.slots(hashes, Batch(Schema(()), [], 4))
    assert len(set(slots.tolist())) == 1
