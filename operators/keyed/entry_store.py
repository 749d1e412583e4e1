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

__all__ = ["EntryStore"]

Int64s = npt.NDArray[np.int64]


class EntryStore:
    """Records by (id, integer), or (id, bytes), each with a value and a position.

    Args:
        budget: the worker's memory for state.
        operator: the id of the operator, for messages.
        virtual_nodes: as in the plan.
        key: the type of the entries' keys, beside the id.
        kind: the type of their values.
        fields: what else they keep, beside value and position.

    Attributes:
        store: has the records.
        find: returns the record of an entry, or −1.
        put: returns the record of an entry, a new one if there is none.
        positions: by record.
    """

    def __init__(
        self,
        budget: StateBudget,
        operator: str,
        virtual_nodes: int,
        key: DataType,
        kind: DataType,
        fields: tuple[RecordField, ...] = (),
    ) -> None:
        keys = Schema.of(owner="int64", at=key if key.kind == "bytes" else "int64")
        is_heap = kind.kind == "bytes"
        value = RecordField.of_bytes("value") if is_heap else RecordField("value", kind.storage)
        position = RecordField("position", np.dtype(np.int64))
        layout = RecordLayout(keys, (value, position, *fields))
        self.store = store = KeyedStore(layout, budget, operator, virtual_nodes=virtual_nodes)
        self.find: Any = store.find_one
        self.put: Any = store.slot_of_one
        self.positions: Any = store.records["position"].data
        self.values: Any = store.records["value"].data
        self._mask = 1 << layout.bits["value"] if is_heap else 0
        self._bits: Any = store.records["#set"].data if is_heap else None

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
        """Return the records of entries by integers, which are there, int64 (n,)."""
        words = np.ascontiguousarray(np.stack([owners, ats], axis=1)).view(np.uint64)
        hashes = np.empty(len(words), np.uint64)
        hash_words(words, hashes)
        return self.store.find_words(hashes, words)

    def put_all(self, owners: Int64s, ats: Column) -> Int64s:
        """Return the records of entries, new ones where there are none, int64 (n,)."""
        keys = Batch(self.store.layout.keys, [Column.of(owners), ats])
        return self.store.slots(hash_keys(keys, keys.schema.names)[0], keys)
