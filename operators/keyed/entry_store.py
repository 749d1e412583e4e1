"""The entries of lists and maps: records that are found by an id and one more key."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...state.budget import StateBudget
from ...state.keys import hash_keys, hash_words
from ...state.records import RecordField, RecordLayout
from ...state.store import KeyedStore
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import DataType, Schema

__all__ = ["EntryStore", "entry_store"]

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


def entry_store(
    budget: StateBudget,
    operator: str,
    virtual_nodes: int,
    key: DataType,
    kind: DataType,
    fields: tuple[RecordField, ...] = (),
) -> EntryStore:
    """Return an empty store of entries.

    Args:
        budget: the worker's memory for state.
        operator: the id of the operator, for messages.
        virtual_nodes: as in the plan.
        key: the type of the entries' keys, beside the id.
        kind: the type of their values.
        fields: what else they keep, beside value and position.
    """
    is_text = key.kind == "bytes"
    keys = Schema.of(owner="int64", at=key if is_text else "int64")
    is_kept_in_heap = kind.kind == "bytes"
    value = RecordField.of_bytes("value") if is_kept_in_heap else RecordField("value", kind.storage)
    position = RecordField("position", np.dtype(np.int64))
    layout = RecordLayout(keys, (value, position, *fields))
    store = KeyedStore(layout, budget, operator, virtual_nodes=virtual_nodes)
    return _EntriesByText(store) if is_text else EntryStore(store)


class EntryStore:
    """Records by (id, integer), or (id, bytes), each with a value and a position.

    Attributes:
        store: has the records.
        find: returns the record of an entry, or −1.
        put: returns the record of an entry, a new one if there is none.
        positions: by record.
    """

    def __init__(self, store: KeyedStore) -> None:
        self.store = store
        self.find: Any = store.find_one
        self.put: Any = store.slot_of_one
        self.positions: Any = store.records["position"].data
        self.values: Any = store.records["value"].data
        bit = store.layout.bits.get("value")
        self._mask = 0 if bit is None else 1 << bit
        self._bits: Any = None if bit is None else store.records["#set"].data

    def read(self, slot: int) -> Any:
        """Return the raw value of a record."""
        raw = self.values[slot]
        return self.store.heap.get(raw) if self._mask else raw

    def write(self, slot: int, raw: Any) -> None:
        """Set the raw value of a record; raise StateFullError, InputError for a text too long."""
        if self._mask:
            self.values[slot] = self.store.replace_value(self.values[slot], raw)
            self._bits[slot] |= self._mask
        else:
            self.values[slot] = raw

    def note(self, slot: int) -> None:
        """Note that a record is about to be written to that `put` did not return just now."""
        self.store.note(np.array([slot], np.int64))

    def delete(self, slot: int) -> None:
        """Delete a record."""
        self.store.delete(np.array([slot], np.int64))

    def find_all(self, owners: Int64s, ats: Int64s) -> Int64s:
        """Return the records of entries, which are there, int64 (n,)."""
        return self.store.find_words(*_hashed(owners, ats))

    def put_all(self, owners: Int64s, ats: Column) -> Int64s:
        """Return the records of entries, new ones where there are none, int64 (n,)."""
        return self.store.slots_of_words(*_hashed(owners, ats.data))


class _EntriesByText(EntryStore):
    """Records by (id, text or bytes)."""

    def put_all(self, owners: Int64s, ats: Column) -> Int64s:
        """See `EntryStore.put_all`."""
        keys = Batch(self.store.layout.keys, [Column.of(owners), ats])
        return self.store.slots(hash_keys(keys, keys.schema.names)[0], keys)


def _hashed(owners: Int64s, ats: Int64s) -> tuple[Hashes, Hashes]:
    """Return the hashes and words of entries' keys, as stores take them."""
    words = np.ascontiguousarray(np.stack([owners, ats], axis=1)).view(np.uint64)
    hashes = np.empty(len(words), np.uint64)
    hash_words(words, hashes)
    return hashes, words
