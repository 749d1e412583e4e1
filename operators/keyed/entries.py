"""Lists and maps of a key: each entry is a record of its own, so none is copied when one changes.

A key with entries has an *id*, which stands in its record. Entries are found by the id and one more
word: their position in a list, their key in a map. A map has its keys by position, too: these are
what it is iterated by, and what a removed entry's place is filled from.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from operator import index
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from ...configs.errors import UsageError
from ...state.budget import StateBudget
from ...state.declarations import StateDeclaration
from ...state.keys import hash_words
from ...state.node_transfer import column_name, field_columns, write_fields
from ...state.records import RecordField, RecordLayout, copy_of_records
from ...state.store import KeyedStore
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import DataType, Schema
from .handles import Cursor, codec_of
from .sealed_entries import SealedEntries

__all__ = ["EntriesHandle", "ListHandle", "MapHandle", "id_field"]

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_ENTRY_KEYS = Schema.of(owner="int64", at="int64")

_LEAST_KEY, _GREATEST_KEY = -(1 << 63), (1 << 63) - 1
_TAKEN_BY_FAMILY = {"date32": "a datetime.date", "duration": "a datetime.timedelta"}
"""What maps take as keys, other than integers; else points in time."""


def id_field(name: str) -> str:
    """Return the field of a key's record for the id under which its entries are found."""
    return f"{name} id"


class _Entries:
    """Records by (id, word), each with one value of fixed width and a position.

    Attributes:
        find: returns the record of an entry, or −1.
        put: returns the record of an entry, a new one if there is none.
    """

    def __init__(
        self,
        budget: StateBudget,
        operator: str,
        virtual_nodes: int,
        kind: DataType,
        fields: tuple[RecordField, ...] = (),
    ):
        position = RecordField("position", np.dtype(np.int64))
        layout = RecordLayout(_ENTRY_KEYS, (RecordField("value", kind.storage), position, *fields))
        self.store = KeyedStore(layout, budget, operator, virtual_nodes=virtual_nodes)
        self.find, self.put = self.store.find_one, self.store.slot_of_one
        self.values: Any = self.store.records["value"].data
        self.positions: Any = self.store.records["position"].data

    def delete(self, slot: int) -> None:
        """Delete a record."""
        self.store.delete(np.array([slot], np.int64))

    def first(self, owner: int, count: int) -> Int64s:
        """Return the records of the entries 0 … count - 1, int64 (count,)."""
        return self.find_all(np.full(count, owner), np.arange(count))

    def find_all(self, owners: Int64s, ats: Int64s) -> Int64s:
        """Return the records of entries, which are there, int64 (n,)."""
        return self.store.find_words(*_hashed(owners, ats))

    def put_all(self, owners: Int64s, ats: Int64s) -> Int64s:
        """Return the records of entries, new ones where there are none, int64 (n,)."""
        return self.store.slots_of_words(*_hashed(owners, ats))


def _hashed(owners: Int64s, ats: Int64s) -> tuple[Hashes, Hashes]:
    """Return the hashes and words of entries' keys, as stores take them."""
    words = np.ascontiguousarray(np.stack([owners, ats], axis=1)).view(np.uint64)
    hashes = np.empty(len(words), np.uint64)
    hash_words(words, hashes)
    return hashes, words


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
    """The field that says where an entry is among those of its key; None: its word does."""

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
        self._entries = _Entries(
            budget, keyed.name, virtual_nodes, declaration.type, self.ENTRY_FIELDS
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
        ats = self._ats(ids[rows], places)
        store = self._entries.store
        records = copy_of_records(store.records, self._entries.find_all(ids[rows], ats))
        kept = field_columns(records, [store.layout.field(name) for name in self._kept_fields])
        return rows, {self.dumped_column: Column.of(ats), **kept}

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
        ats = batch.column(self.dumped_column).data
        entries = self._entries.put_all(ids[rows], ats)
        store = self._entries.store
        fields = [store.layout.field(name) for name in self._kept_fields]
        write_fields(store.records, entries, fields, batch)
        self._enter(keys[rows], ids[rows], ats, places, entries)

    def sealed(self, epoch: int) -> SealedEntries:
        """Return what another thread may read of the last seal, which is of this epoch."""
        store = self._entries.store
        fields = [store.layout.field(name) for name in self._kept_fields]
        named = id_field(self.name), self.dumped_column
        return SealedEntries(store.sealed(epoch), *named, fields, self.PLACE_FIELD)

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

    def _ats(self, ids: Int64s, places: Int64s) -> Int64s:
        """Return under which words the entries at some places are found."""
        return places

    def _enter(
        self, slots: Int64s, ids: Int64s, ats: Int64s, places: Int64s, entries: Int64s
    ) -> None:
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
            self._entries.values[slot] = value if self._encode is None else self._encode(value)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            self._refuse(self.declaration.type, value, error)

    def _read(self, slot: int) -> Any:
        raw = self._entries.values[slot]
        return raw if self._decode is None else self._decode(raw)

    def _refuse(self, kind: DataType, value: object, error: Exception) -> NoReturn:
        msg = f"{self.declaration.name!r} keeps values of {kind}, not {value!r}"
        raise UsageError(msg) from error

    def _resize(self, slot: int, size: int) -> None:
        self._sizes[slot] = size
        if size == 0:
            self._ids[slot] = 0


class ListHandle(EntriesHandle):
    """A list of values of fixed width: `append`, `len`, `[n]`, iteration, `get()`, `clear()`."""

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
        except UsageError:
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
        entries = self._entries.first(self._ids[slot], self._sizes[slot])
        return [self._read(entry) for entry in entries.tolist()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def clear(self) -> None:
        """Remove all values."""
        slot = self._slot()
        self._entries.store.delete(self._entries.first(self._ids[slot], self._sizes[slot]))
        self._resize(slot, 0)

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


class MapHandle(EntriesHandle):
    """A mapping from integers, dates or times to values of fixed width, used like a dict."""

    __slots__ = ("_decode_key", "_encode_key", "_order")

    PLACE_FIELD = "position"

    def __init__(
        self,
        declaration: StateDeclaration,
        keyed: KeyedStore,
        cursor: Cursor,
        budget: StateBudget,
        virtual_nodes: int,
    ) -> None:
        super().__init__(declaration, keyed, cursor, budget, virtual_nodes)
        assert declaration.key_type is not None
        self._encode_key, self._decode_key = codec_of(declaration.key_type)
        word = DataType.parse("int64")
        self._order = _Entries(budget, keyed.name, virtual_nodes, word)

    @property
    def stores(self) -> list[KeyedStore]:
        """Where its entries are, and their order."""
        return [self._entries.store, self._order.store]

    def _ats(self, ids: Int64s, places: Int64s) -> Int64s:
        return np.asarray(self._order.store.records["value"][self._order.find_all(ids, places)])

    def _enter(
        self, slots: Int64s, ids: Int64s, ats: Int64s, places: Int64s, entries: Int64s
    ) -> None:
        np.asarray(self._entries.positions)[entries] = places
        ordered = self._order.put_all(ids, places)
        self._order.store.records["value"][ordered] = ats

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set the value of an entry; raise UsageError for values of other types."""
        slot, word = self._slot(), self._word(key)
        owner = self._owner(slot)
        before = len(self._entries.store)
        entry = self._entries.put(owner, word)
        is_new = len(self._entries.store) > before
        try:
            self._write(entry, value)
        except UsageError:
            if is_new:
                self._entries.delete(entry)
                self._resize(slot, self._sizes[slot])
            raise
        if is_new:
            size = self._sizes[slot]
            self._entries.positions[entry] = size
            self._order.values[self._order.put(owner, size)] = word
            self._sizes[slot] = size + 1

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of an entry, or `default` if there is none."""
        entry = self._find(key)
        return default if entry < 0 else self._read(entry)

    def __getitem__(self, key: Any) -> Any:
        """Return the value of an entry; raise KeyError if there is none."""
        entry = self._find(key)
        if entry < 0:
            raise KeyError(key)
        return self._read(entry)

    def __contains__(self, key: object) -> bool:
        return self._find(key) >= 0

    def __delitem__(self, key: Any) -> None:
        """Remove an entry; raise KeyError if there is none."""
        entry = self._find(key)
        if entry < 0:
            raise KeyError(key)
        self._remove(self._slot(), entry)

    def _remove(self, slot: int, entry: int) -> None:
        owner, place = self._ids[slot], self._entries.positions[entry]
        last = self._sizes[slot] - 1
        last_entry = self._order.find(owner, last)
        if place != last:  # the last one takes its place
            moved = self._order.values[last_entry]
            self._order.values[self._order.put(owner, place)] = moved
            self._entries.positions[self._entries.put(owner, moved)] = place
        self._order.delete(last_entry)
        self._entries.delete(entry)
        self._resize(slot, last)

    def pop(self, key: Any, default: Any = None) -> Any:
        """Remove an entry and return its value, or `default` if there is none."""
        entry = self._find(key)
        if entry < 0:
            return default
        value = self._read(entry)
        del self[key]
        return value

    def keys(self) -> list[Any]:
        """Return the keys, in no particular order."""
        words = self._words()
        return words if self._decode_key is None else [self._decode_key(word) for word in words]

    def items(self) -> list[tuple[Any, Any]]:
        """Return the entries, in no particular order."""
        owner = self._ids[self._slot()]
        found = [self._entries.find(owner, word) for word in self._words()]
        return [(key, self._read(one)) for key, one in zip(self.keys(), found, strict=True)]

    def values(self) -> list[Any]:
        """Return the values, in the order of `keys`."""
        return [value for _, value in self.items()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def clear(self) -> None:
        """Remove all entries."""
        slot = self._slot()
        owner = self._ids[slot]
        for word in self._words():
            self._entries.delete(self._entries.find(owner, word))
        self._order.store.delete(self._order.first(owner, self._sizes[slot]))
        self._resize(slot, 0)

    def _words(self) -> list[int]:
        slot = self._slot()
        records = self._order.first(self._ids[slot], self._sizes[slot])
        words: list[int] = self._order.store.records["value"][records].tolist()
        return words

    def _find(self, key: object) -> int:
        slot = self._slot()
        word, owner = self._word(key), self._ids[slot]
        return self._entries.find(owner, word) if owner else -1

    def _word(self, key: Any) -> int:
        if type(key) is int and self._encode_key is None and _LEAST_KEY <= key <= _GREATEST_KEY:
            return key
        try:
            word = index(key) if self._encode_key is None else self._encode_key(key)
        except (TypeError, AttributeError):
            self._refuse_key(key)
        if not _LEAST_KEY <= word <= _GREATEST_KEY:
            self._refuse_key(key)
        return word

    def _refuse_key(self, key: object) -> NoReturn:
        kind = self.declaration.key_type
        wanted = "a whole number from -2**63 to 2**63 - 1"
        if self._encode_key is not None:
            assert kind is not None
            wanted = _TAKEN_BY_FAMILY.get(kind.family, "a datetime.datetime")
        msg = f"{self.declaration.name!r} has keys of {kind}, not {key!r}: pass {wanted}"
        raise UsageError(msg) from None
