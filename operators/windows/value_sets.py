"""`ValueSets`: a set of values for each slot, which says how many they are; `ValueLists` of them.

A value of a slot is a record, found by both. The records of a slot are chained, so that its values
can be enumerated: the slot has the first record, each record the next.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...state.records import RecordField, RecordLayout
from ...transport.compiling import njit
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.column_rows import rows_of_columns
from ...transport.wire.types import DataType, Field, Schema

if TYPE_CHECKING:
    from ...state.store import KeyedStore

__all__ = ["ValueLists", "ValueSets"]

Int64s = npt.NDArray[np.int64]

_INT64 = DataType.parse("int64")
_SLOT = "slot"
_END = -1
_NOT_LINKED = -2
"""In the place of the next record: this one is new, and in no chain yet."""


class ValueSets:
    """The sets of one field of an accumulator. Values are equal as keys are: NaN equals NaN.

    Args:
        types: of the columns that make up a value.
        groups: the store whose slots have the sets; the values lie in the same memory.
        name: its records have the fields `fields(name)`.
    """

    def __init__(self, types: Sequence[DataType], groups: KeyedStore, name: str) -> None:
        fields = [Field(f"value{number}", kind) for number, kind in enumerate(types)]
        self._schema = Schema((Field(_SLOT, _INT64), *fields))
        following = RecordField("next", np.dtype(np.int64), _NOT_LINKED)
        self._values = groups.sibling(RecordLayout(self._schema, [following]))
        self._next: Any = self._values.records["next"]
        first, size = self.fields(name)
        self._first: Any = groups.records[first.name]
        self._sizes: Any = groups.records[size.name]

    @staticmethod
    def fields(name: str) -> list[RecordField]:
        """Return what a record keeps of its set: the first value of its chain, and how many."""
        int64 = np.dtype(np.int64)
        return [RecordField(f"{name}.first", int64, _END), RecordField(f"{name}.size", int64)]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the values take."""
        return self._values.nbytes

    def add(self, slots: Int64s, columns: Sequence[Column]) -> None:
        """Add a value to the set of each slot, unless a column is null there.

        Args:
            slots: int64 (n,).
            columns: of n rows, together the values.

        Raises:
            StateFullError: the worker's memory for state is used up.
        """
        values = Batch(self._schema, [Column(_INT64, slots), *columns], len(slots))
        valid = [column.validity for column in columns if column.validity is not None]
        if valid:
            rows = np.flatnonzero(np.logical_and.reduce(valid))
            slots, values = slots[rows], values.take(rows)
        hashes, _ = hash_keys(values, self._schema.names)
        if self._values.is_sealed:  # only what is new counts as changed
            new = np.flatnonzero(self._values.find(hashes, values) < 0)
            slots, values, hashes = slots[new], values.take(new), hashes[new]
        found = self._values.slots(hashes, values)
        _link(slots, found, self._next, self._first, self._sizes)

    def merge(self, slots: Int64s, other: ValueSets, other_slots: Int64s) -> None:
        """Add to the set of each slot the values of a slot of `other`."""
        rows, columns = other.listed(other_slots)
        if len(rows):
            self._add_of(slots, rows, columns)

    def sizes(self, slots: Int64s) -> Int64s:
        """Return the number of values of each slot, int64 (n,)."""
        return np.asarray(self._sizes[slots])

    def dump(self, slots: Int64s) -> list[bytes]:
        """Return the set of each slot as a pickled batch of its values."""
        values, rows = self._values_of(slots)
        batch = self._values.keys_of(values).drop((_SLOT,))
        bounds = np.searchsorted(rows, np.arange(len(slots) + 1)).tolist()
        return [pickle.dumps(batch.slice(*pair).copy()) for pair in pairwise(bounds)]

    def listed(self, slots: Int64s) -> tuple[Int64s, Sequence[Column]]:
        """Return the values of all sets as columns, and which of the slots each is of."""
        values, rows = self._values_of(slots)
        return rows, self._values.keys_of(values).columns[1:]

    def load(self, slots: Int64s, sets: Iterable[bytes]) -> None:
        """Add the sets that another dumped to those of slots; raise StateFullError as `add`."""
        batches: list[Batch] = [pickle.loads(one) for one in sets]  # noqa: S301  # from a dump
        if batches:
            rows = np.repeat(np.arange(len(batches)), [batch.num_rows for batch in batches])
            self._add_of(slots, rows, Batch.concat(batches).columns)

    def _add_of(self, slots: Int64s, rows: Int64s, columns: Sequence[Column]) -> None:
        """Add values that others have, as `listed` returns them, to the sets of slots."""
        self.add(slots[rows], columns)

    def drop(self, slots: Int64s) -> None:
        """Empty the sets of these slots, each of which is named once, and whose records go."""
        if self._sizes[slots].sum() == len(self._values):  # all that there are: no need to look
            self._values.clear()
        else:
            self._values.delete(self._values_of(slots)[0])

    @property
    def values(self) -> KeyedStore:
        """The records of the values; the first column of their keys is the slot."""
        return self._values

    def _values_of(self, slots: Int64s) -> tuple[Int64s, Int64s]:
        """Return the records of the values of slots, and which of the slots each belongs to."""
        total = int(self._sizes[slots].sum())
        values, rows = np.empty(total, np.int64), np.empty(total, np.int64)
        _enumerate(slots, self._first, self._next, values, rows)
        return values, rows


class ValueLists(ValueSets):
    """The lists of one field: sets whose values are numbered in the order in which they came."""

    def __init__(self, types: Sequence[DataType], groups: KeyedStore, name: str) -> None:
        super().__init__((_INT64, *types), groups, name)

    def append(self, slots: Int64s, columns: Sequence[Column]) -> None:
        """Append values, none of which is null, to the lists of slots; raise as `add`."""
        numbers = np.empty(len(slots), np.int64)
        order = np.argsort(slots, kind="stable")
        _number(slots[order], order, self._sizes, numbers)
        self.add(slots, [Column(_INT64, numbers), *columns])

    def _add_of(self, slots: Int64s, rows: Int64s, columns: Sequence[Column]) -> None:
        """Append lists that others have to those of slots, pair by pair in order."""
        numbers, *values = columns
        order = np.lexsort((numbers.data, rows))
        self.append(slots[rows[order]], rows_of_columns(values, order))


@njit(cache=True, nogil=True)
def _number(slots: Any, rows: Any, sizes: Any, numbers: Any) -> None:
    """Write the number of each value: they go on behind those that its slot has.

    Args:
        slots: of values, sorted.
        rows: the row of each.
        sizes: how many values a slot has.
        numbers: receives the number of each row.
    """
    number = np.int64(0)
    for at in range(len(slots)):
        if at == 0 or slots[at] != slots[at - 1]:
            number = sizes[slots[at]]
        numbers[rows[at]] = number
        number += 1


@njit(cache=True, nogil=True)
def _link(slots: Any, values: Any, following: Any, first: Any, sizes: Any) -> None:
    """Put the records that are new into the chains of their slots."""
    for row in range(len(slots)):
        slot, value = slots[row], values[row]
        if following[value] == _NOT_LINKED:
            following[value] = first[slot]
            first[slot] = value
            sizes[slot] += 1


@njit(cache=True, nogil=True)
def _enumerate(slots: Any, first: Any, following: Any, values: Any, rows: Any) -> None:
    """Write the records of all chains, and the row of the slot to which each belongs."""
    count = 0
    for row in range(len(slots)):
        value = first[slots[row]]
        while value != _END:
            values[count], rows[count] = value, row
            count += 1
            value = following[value]
