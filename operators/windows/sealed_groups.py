"""`SealedGroups`: the groups of an operator as they were sealed, as rows of a snapshot.

A thread makes the rows, beside the loop that goes on changing the groups. A group is a row of its
slice, its key, its numbers and its pickled objects; a value of one of its sets is a row, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...state.node_transfer import field_columns, with_columns
from ...state.records import RecordField, copy_of_records
from ...state.sealed_records import SealedRecords, is_alive, living
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import DataType, Schema
from .grouping import SLICE
from .slice_stores import SealedStore
from .slot_objects import SealedObjects
from .slot_texts import text_columns

__all__ = ["Part", "SealedGroups", "value_columns"]

Int64s = npt.NDArray[np.int64]
Records = npt.NDArray[Any]

Part: TypeAlias = int | str
"""The groups of a store, by its number, or the values of a field of sets."""

_BINARY = DataType.parse("binary")


@dataclass(frozen=True)
class SealedGroups:
    """The groups of one operator at one seal; of use as long as `SealedRecords`.

    Attributes:
        key: the key columns.
        stores: the groups, by the stores' numbers.
        sets: the values of each field of sets, by the name of its columns.
        objects: the objects of each field, by the name of its column.
        fields: those that move with a group.
        texts: the types of its fields of texts.
    """

    key: Schema
    stores: Mapping[int, SealedStore]
    sets: Mapping[str, SealedRecords]
    objects: Mapping[str, SealedObjects]
    fields: Sequence[RecordField]
    texts: Mapping[str, DataType]

    @property
    def parts(self) -> Mapping[Part, SealedRecords]:
        """All that may have changed."""
        stores = [(number, store.records) for number, store in self.stores.items()]
        return dict([*stores, *self.sets.items()])

    @property
    def slices(self) -> tuple[int, ...]:
        """The slices that were open."""
        return tuple(one for store in self.stores.values() for one in store.open.tolist())

    def rows(self, pieces: Sequence[tuple[Part, Callable[[], Int64s]]]) -> Batch:
        """Return records as rows, those that have a key.

        Args:
            pieces: stores, or one field of sets, each with what finds the records, ascending.
        """
        return Batch.concat([
            self._groups(part, find()) if isinstance(part, int) else self._values(part, find())
            for part, find in pieces
        ])  # fmt: skip

    def _groups(self, number: int, slots: Int64s) -> Batch:
        store = self.stores[number]
        records = store.records.read(slots)
        slices = store.slices_of(records)
        rows = np.flatnonzero(is_alive(records) & np.isin(slices, store.open))
        records, slots, slices = copy_of_records(records, rows), slots[rows], slices[rows]
        columns = {SLICE: Column.of(slices), **self.columns(records, store.records)}
        for name, objects in self.objects.items():
            columns[name] = Column.of(list(objects.read(slots)), _BINARY)
        return with_columns(self._keys(store.records, records), columns)

    def columns(self, records: Records, sealed: SealedRecords) -> dict[str, Column]:
        """Return the numbers and texts of copies of records as columns."""
        found = field_columns(records, self.fields)
        return found | text_columns(records, self.texts, sealed.layout, sealed.memory)

    def _values(self, name: str, slots: Int64s) -> Batch:
        sealed = self.sets[name]
        records = sealed.read(slots[sealed.holds(slots)])  # its memory may be another's by now
        records = living(records)
        owners, *values = _keys_of(sealed, records).columns
        return with_columns(self._owners(owners.data), value_columns(name, values))

    def _owners(self, slots: Int64s) -> Batch:
        """Return the keys and slices of groups, one of which may come several times."""
        known, rows = np.unique(slots, return_inverse=True)
        places, found = np.empty(len(known), np.int64), 0
        groups = [_in_slices(Batch.empty(self.key), np.empty(0, np.int64))]
        for store in self.stores.values():
            mine = np.flatnonzero(store.records.holds(known))
            if len(mine):
                records = store.records.read(known[mine])
                groups.append(
                    _in_slices(self._keys(store.records, records), store.slices_of(records))
                )
                places[mine] = found + np.arange(len(mine))
                found += len(mine)
        return Batch.concat(groups).take(places[rows])

    def _keys(self, sealed: SealedRecords, records: Records) -> Batch:
        return _keys_of(sealed, records).select(self.key.names)


def _in_slices(keys: Batch, slices: Int64s) -> Batch:
    return with_columns(keys, {SLICE: Column.of(slices)})


def value_columns(name: str, values: Sequence[Column]) -> dict[str, Column]:
    """Return the columns of values of sets under the names that they have in rows."""
    return {f"{name}.{number}": column for number, column in enumerate(values)}


def _keys_of(sealed: SealedRecords, records: Records) -> Batch:
    columns = sealed.layout.key_columns(records, slice(None), sealed.memory)
    return Batch(sealed.layout.keys, columns, len(records))
