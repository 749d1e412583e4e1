"""`MapHandle`: a mapping of each key of a process.

A map has the records of its entries by position, too: these are what it is iterated by, and what a
removed entry's place is filled from.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ...configs.errors import InputError, UsageError
from ...state.budget import StateBudget
from ...state.declarations import StateDeclaration
from ...state.store import KeyedStore
from ...transport.wire.column import Column
from ...transport.wire.types import DataType
from .entries import EntriesHandle
from .entry_store import EntryStore
from .handles import Cursor, codec_of, zone_to_declare

__all__ = ["MapHandle"]

Int64s = npt.NDArray[np.int64]

_LEAST_KEY, _GREATEST_KEY = -(1 << 63), (1 << 63) - 1
_TAKEN_BY_FAMILY = {
    "date32": "a datetime.date",
    "duration": "a datetime.timedelta",
    "string": "a str",
    "large_string": "a str",
    "binary": "bytes",
    "large_binary": "bytes",
}
"""What maps take as keys, other than integers; else points in time."""


class MapHandle(EntriesHandle):
    """A mapping from integers, dates, times, text or bytes to values, used like a dict."""

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
        number = DataType.parse("int64")
        self._order = EntryStore(budget, keyed.name, virtual_nodes, number, number)

    @property
    def stores(self) -> list[KeyedStore]:
        """Where its entries are, and their order."""
        return [self._entries.store, self._order.store]

    def _at_places(self, ids: Int64s, places: Int64s) -> Int64s:
        ordered = self._order.find_all(ids, places)
        return np.asarray(self._order.store.records["value"][ordered])

    def _enter(self, slots: Int64s, ids: Int64s, places: Int64s, entries: Int64s) -> None:
        np.asarray(self._entries.positions)[entries] = places
        ordered = self._order.put_all(ids, Column.of(places))
        self._order.store.records["value"][ordered] = entries

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set the value of an entry; raise UsageError for values of other types."""
        self._set(key, value)

    def _set(self, key: Any, value: Any) -> int:
        """Set the value of an entry; return its record."""
        slot, stored = self._slot(), self._stored_key(key)
        owner = self._owner(slot)
        before = len(self._entries.store)
        entry: int = self._entries.put(owner, stored)
        is_new = len(self._entries.store) > before
        try:
            self._write(entry, value)
        except (UsageError, InputError):
            if is_new:
                self._entries.delete(entry)
                self._resize(slot, self._sizes[slot])
            raise
        if is_new:
            size = self._sizes[slot]
            self._entries.positions[entry] = size
            self._order.values[self._order.put(owner, size)] = entry
            self._sizes[slot] = size + 1
        return entry

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
            self._entries.note(moved)
            self._entries.positions[moved] = place
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
        stored = self._entries.store.keys_of(self._own()).column("at")
        if stored.offsets is not None:
            return stored.to_pylist()
        words: list[int] = stored.data.tolist()
        return words if self._decode_key is None else [self._decode_key(word) for word in words]

    def items(self) -> list[tuple[Any, Any]]:
        """Return the entries, in no particular order."""
        return list(zip(self.keys(), self.values(), strict=True))

    def values(self) -> list[Any]:
        """Return the values, in the order of `keys`."""
        return [self._read(entry) for entry in self._own().tolist()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def clear(self) -> None:
        """Remove all entries."""
        slot = self._slot()
        owner, size = self._ids[slot], self._sizes[slot]
        ordered = self._order.find_all(np.full(size, owner), np.arange(size))
        self._entries.store.delete(self._order.store.records["value"][ordered])
        self._order.store.delete(ordered)
        self._resize(slot, 0)

    def _own(self) -> Int64s:
        """Return the records of the key's entries, int64 (n,)."""
        slot = self._slot()
        size = self._sizes[slot]
        return self._at_places(np.full(size, self._ids[slot]), np.arange(size))

    def _find(self, key: object) -> int:
        slot = self._slot()
        stored, owner = self._stored_key(key), self._ids[slot]
        return self._entries.find(owner, stored) if owner else -1

    def _stored_key(self, key: Any) -> Any:
        """Return a key as it is stored, an integer or bytes; raise UsageError for other types."""
        if type(key) is int and self._encode_key is None and _LEAST_KEY <= key <= _GREATEST_KEY:
            return key
        try:
            stored = index(key) if self._encode_key is None else self._encode_key(key)
        except (TypeError, AttributeError, UnicodeEncodeError):
            self._refuse_key(key)
        if not isinstance(stored, bytes) and not _LEAST_KEY <= stored <= _GREATEST_KEY:
            self._refuse_key(key)
        return stored

    def _refuse_key(self, key: object) -> NoReturn:
        kind = self.declaration.key_type
        assert kind is not None
        remedy = ": pass a whole number from -2**63 to 2**63 - 1"
        if self._encode_key is not None:
            wanted = _TAKEN_BY_FAMILY.get(kind.family, "a datetime.datetime")
            remedy = zone_to_declare(kind, key) or f": pass {wanted}"
        msg = f"{self.declaration.name!r} has keys of {kind}, not {key!r}{remedy}"
        raise UsageError(msg) from None
