"""Lists and maps of a key: each entry is a record of its own, so none is copied when one changes.

A key with entries has an *id*, which stands in its record. Entries are found by the id and one more
key: their position in a list, their key in a map.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from ...configs.errors import InputError, UsageError
from ...state.budget import StateBudget
from ...state.declarations import StateDeclaration
from ...state.node_transfer import column_name, kept_columns, write_columns
from ...state.records import RecordField, copy_of_records
from ...state.store import KeyedStore
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import DataType
from .entry_store import EntryStore
from .handles import Cursor, codec_of, zone_to_declare
from .sealed_entries import SealedEntries

__all__ = ["EntriesHandle", "ListHandle", "id_field"]

Int64s = npt.NDArray[np.int64]


def id_field(name: str) -> str:
    """Return the field of a key's record for the id under which its entries are found."""
    return f"{name} id"


class EntriesHandle(ABC):
    """What lists and maps have in common."""

    __slots__ = (
        "_cursor",
        "_decode",
        "_encode",
        "_entries",
        "_ids",
        "_new_id",
        "_sizes",
        "declaration",
    )

    ENTRY_FIELDS: ClassVar[tuple[RecordField, ...]] = ()
    """What the records of entries keep beside value and position."""
    PLACE_FIELD: ClassVar[str | None] = None
    """The field that says where an entry is among those of its key; None: its position does."""

    def __init__(
        self,
        declaration: StateDeclaration,
        keyed: KeyedStore,
        cursor: Cursor,
        budget: StateBudget,
        virtual_nodes: int,
    ) -> None:
        self.declaration = declaration
        self._cursor: Any = cursor
        self._sizes: Any = keyed.records[declaration.name].data
        self._ids: Any = keyed.records[id_field(declaration.name)].data
        self._new_id = itertools.count(1)
        key = declaration.key_type or DataType.parse("int64")
        self._entries = EntryStore(
            *(budget, keyed.name, virtual_nodes, key, declaration.type, self.ENTRY_FIELDS)
        )
        self._encode, self._decode = codec_of(declaration.type)

    @property
    def name(self) -> str:
        """The name under which it is declared."""
        return self.declaration.name

    def __repr__(self) -> str:
        return f"<{self.declaration.describe()}>"

    @abstractmethod
    def clear(self) -> None:
        """Remove all entries."""

    # -- saving and moving --------------------------------------------------------------------

    @property
    def dumped_column(self) -> str:
        """The column of dumped entries that says where they are, in a list or map."""
        return column_name(f"{self.name} at")

    def count(self, slots: Int64s) -> int:
        """Return how many entries some keys have together."""
        return int(np.asarray(self._sizes)[slots].sum())

    def dump(self, slots: Int64s) -> tuple[Int64s, dict[str, Column]]:
        """Return the entries of keys, those of a key together in order: of which key, columns."""
        sizes, ids = np.asarray(self._sizes)[slots], np.asarray(self._ids)[slots]
        rows = np.repeat(np.arange(len(slots)), sizes)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        entries = self._at_places(ids[rows], places)
        store = self._entries.store
        records = copy_of_records(store.records, entries)
        kept = kept_columns(store.layout, records, self._fields, store.memory)
        return rows, {self.dumped_column: store.keys_of(entries).column("at"), **kept}

    def load(self, slots: Int64s, batch: Batch) -> None:
        """Take the dumped entries of keys that have none; `slots` has the key of each.

        Raises:
            StateFullError: the worker's memory for state is used up.
        """
        keys, firsts, counts = np.unique(slots, return_index=True, return_counts=True)
        rows = np.repeat(np.arange(len(keys)), counts)
        order = np.argsort(slots, kind="stable")
        places = np.arange(len(slots)) - np.repeat(np.cumsum(counts) - counts, counts)
        ids = np.array([next(self._new_id) for _ in firsts], np.int64)
        np.asarray(self._ids)[keys], np.asarray(self._sizes)[keys] = ids, counts
        batch = batch.take(order)
        entries = self._entries.put_all(ids[rows], batch.column(self.dumped_column))
        write_columns(self._entries.store, entries, self._fields, batch)
        self._enter(keys[rows], ids[rows], places, entries)

    def sealed(self, epoch: int) -> SealedEntries:
        """Return what another thread may read of the last seal, which is of this epoch."""
        named = id_field(self.name), self.dumped_column
        return SealedEntries(
            self._entries.store.sealed(epoch), *named, self._fields, self.PLACE_FIELD
        )

    def forget(self) -> None:
        """Forget the entries of all keys, which keep no ids either."""
        for store in self.stores:
            store.drop()

    @property
    def stores(self) -> list[KeyedStore]:
        """Where its entries are."""
        return [self._entries.store]

    def roll_back(self, epoch: int) -> Int64s:
        """Go back to a seal of the stores; return the records of entries that come back."""
        changed = [store.roll_back(epoch) for store in self.stores]
        return changed[0]

    @property
    def _kept_fields(self) -> tuple[str, ...]:
        """The fields of entries that are dumped."""
        return ("value",)

    @property
    def _fields(self) -> list[RecordField]:
        layout = self._entries.store.layout
        return [layout.field(name) for name in self._kept_fields]

    @abstractmethod
    def _at_places(self, ids: Int64s, places: Int64s) -> Int64s:
        """Return the records of the entries at some places, int64 (n,)."""

    def _enter(self, slots: Int64s, ids: Int64s, places: Int64s, entries: Int64s) -> None:
        """Do what else must be done with entries that were loaded."""

    def __len__(self) -> int:
        return int(self._sizes[self._slot()])

    def __bool__(self) -> bool:
        return len(self) > 0

    def _slot(self) -> int:
        slot = self._cursor[0]
        if slot is None:
            msg = f"{self.declaration.name!r} belongs to a key, and there is none here"
            raise UsageError(msg)
        return slot

    def _owner(self, slot: int) -> int:
        """Return the id of the key at hand, a new one if it has none."""
        owner: int = self._ids[slot]
        if owner == 0:
            owner = self._ids[slot] = next(self._new_id)
        return owner

    def _write(self, slot: int, value: Any) -> None:
        try:
            raw = value if self._encode is None else self._encode(value)
            self._entries.write(slot, raw)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            self._refuse(self.declaration.type, value, error)

    def _read(self, slot: int) -> Any:
        raw = self._entries.read(slot)
        return raw if self._decode is None else self._decode(raw)

    def _refuse(self, kind: DataType, value: object, error: Exception) -> NoReturn:
        msg = f"{self.declaration.name!r} keeps values of {kind}, not {value!r}"
        msg += zone_to_declare(kind, value)
        raise UsageError(msg) from error

    def _resize(self, slot: int, size: int) -> None:
        self._sizes[slot] = size
        if size == 0:
            self._ids[slot] = 0


class ListHandle(EntriesHandle):
    """A list of values: `append`, `len`, `[n]`, iteration, `get()`, `clear()`."""

    __slots__ = ()

    def append(self, value: Any) -> None:
        """Add a value at the end.

        Raises:
            UsageError: it is not of the declared type.
            StateFullError: the worker's memory for state is used up.
        """
        slot = self._slot()
        size = self._sizes[slot]
        entry = self._entries.put(self._owner(slot), size)
        try:
            self._write(entry, value)
        except (UsageError, InputError):
            self._entries.delete(entry)
            self._resize(slot, size)
            raise
        self._sizes[slot] = size + 1

    def __getitem__(self, place: int) -> Any:
        """Return a value; raise IndexError if there is none at that place."""
        return self._read(self._entry(place))

    def __setitem__(self, place: int, value: Any) -> None:
        """Replace a value; raise IndexError if there is none at that place."""
        slot, place = self._slot(), self._place(place)
        self._write(self._entries.put(self._ids[slot], place), value)

    def get(self) -> list[Any]:
        """Return all values."""
        slot = self._slot()
        entries = self._own(slot)
        return [self._read(entry) for entry in entries.tolist()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def clear(self) -> None:
        """Remove all values."""
        slot = self._slot()
        self._entries.store.delete(self._own(slot))
        self._resize(slot, 0)

    def _at_places(self, ids: Int64s, places: Int64s) -> Int64s:
        return self._entries.find_all(ids, places)

    def _own(self, slot: int) -> Int64s:
        """Return the records of a key's values, in order, int64 (n,)."""
        size = self._sizes[slot]
        return self._entries.find_all(np.full(size, self._ids[slot]), np.arange(size))

    def _entry(self, place: int) -> int:
        return self._entries.find(self._ids[self._slot()], self._place(place))

    def _place(self, place: int) -> int:
        """Return a place counted from the begin; raise IndexError if there is no value."""
        size = self._sizes[self._slot()]
        if not -size <= place < size:
            msg = f"{self.declaration.name!r} has {size} values, none at {place}"
            raise IndexError(msg)
        placed: int = place % size
        return placed
