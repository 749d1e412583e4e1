"""Stores that tests fill, and what is in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from whale_ray.state.budget import StateBudget
from whale_ray.state.keys import hash_keys
from whale_ray.state.node_transfer import export_records, export_slots
from whale_ray.state.records import RecordField, RecordLayout
from whale_ray.state.sealed_records import SealedRecords, is_alive
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
    return of_batch(export_slots(store, slots))


def of_records(
    pieces: list[np.ndarray[Any, Any]], sealed: SealedRecords
) -> dict[Any, tuple[Any, ...]]:
    found: dict[Any, tuple[Any, ...]] = {}
    for piece in pieces:
        exported = of_batch(export_records(LAYOUT, piece[is_alive(piece)], sealed.memory))
        assert not found.keys() & exported.keys()
        found |= exported
    return found


def of_batch(exported: Batch) -> dict[Any, tuple[Any, ...]]:
    last = [np.frombuffer(one, np.float32).tolist() for one in exported.column("#last").to_pylist()]
    rows = zip(
        exported.column("name").to_pylist(),
        exported.column("number").to_pylist(),
        exported.column("#count").to_pylist(),
        last,
        exported.column("#note").to_pylist(),
        strict=True,
    )
    return {canonical((name, number)): tuple(rest) for name, number, *rest in rows}


def integers_store(limit_bytes: int = 1 << 30) -> KeyedStore:
    layout = RecordLayout(Schema.of(k="int64"), (RecordField("n", np.dtype(np.int64)),))
    return KeyedStore(layout, StateBudget(limit_bytes), "counts")


def insert(store: KeyedStore, keys: np.ndarray[Any, Any]) -> Any:
    batch = Batch.from_pydict({"k": keys.astype(np.int64)})
    return store.slots(hash_keys(batch, ["k"])[0], batch)
