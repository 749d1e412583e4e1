"""`TableIndex`: finds the rows of a table by their key.

The keys are records of a `KeyedStore`, which compares them in full. Keys of both sides are brought
to one type for each column, so that an int32 finds an int64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys, virtual_node_of
from ...state.records import RecordField, RecordLayout
from ...state.store import KeyedStore
from ...transport.wire.batch import Batch
from ...transport.wire.types import Field, Schema
from .common_keys import common_keys, common_type
from .table_kernels import END, NOT_BEGUN, append_rows, pair_with_table, replace_rows

if TYPE_CHECKING:
    from ..process import InstanceContext

__all__ = ["TableIndex"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_INT64 = np.dtype(np.int64)
_FIELDS = (
    RecordField("first", _INT64, END),
    RecordField("last", _INT64, END),
    RecordField("rows", _INT64, 0),
)
_PAIRS_MAX = 1 << 16


class TableIndex:
    """The numbers of a table's rows, by key.

    Args:
        keys: the key columns of the table.
        context: of the operator, with the memory for its state.
        first_number: of the first row.

    Attributes:
        dead_rows: how many numbers belong to rows that were replaced or deleted.
    """

    def __init__(self, keys: Schema, context: InstanceContext, first_number: int) -> None:
        types = Schema(
            tuple(Field(str(at), common_type(field.type)) for at, field in enumerate(keys))
        )
        self._store = KeyedStore(
            RecordLayout(types, _FIELDS),
            context.state_budget,
            context.operator_id,
            virtual_nodes=context.virtual_nodes,
        )
        self._virtual_nodes = context.virtual_nodes
        self._following = np.full(max(first_number, 1024), END, np.int64)
        self._first_number = self._next = first_number
        self.dead_rows = 0

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._store)

    @property
    def nbytes(self) -> int:
        """Bytes of memory beside those that the store of the keys accounts for."""
        return self._following.nbytes

    @property
    def next_number(self) -> int:
        """The number that the next row gets."""
        return self._next

    def append(self, rows: Batch, names: Sequence[str]) -> None:
        """Give rows the next numbers; none of them has a null in its key."""
        slots = self._slots(rows, names)
        self._reserve(rows.num_rows)
        append_rows(slots, *self._columns("first", "last", "rows"), self._following, self._next)
        self._next += rows.num_rows

    def replace(self, rows: Batch, names: Sequence[str], deletes: Bools) -> None:
        """Let rows, one after the other, replace those of their key, or delete them.

        Args:
            rows: none of them has a null in its key.
            names: of the key columns.
            deletes: which rows delete, bool (n,). The others get the next numbers.
        """
        slots = self._slots(rows, names)
        self._reserve(rows.num_rows)
        self.dead_rows += replace_rows(
            slots,
            deletes,
            *self._columns("first", "last", "rows"),
            self._following,
            self._next,
        )
        self._next += int(np.count_nonzero(~deletes))
        (counts,) = self._columns("rows")
        self._store.delete(np.unique(slots[counts[slots] == 0]))

    def find(self, rows: Batch, names: Sequence[str]) -> Int64s:
        """Return the record of each row's key, int64 (n,); -1 if the table has no such key."""
        keys, hashes, _ = self._hashed(rows, names)
        return self._store.find(hashes, keys)

    def pairs(self, slots: Int64s, unmatched: int) -> Iterator[tuple[Int64s, Int64s]]:
        """Yield pairs of a position in `slots` and a row of its key, in pieces.

        Args:
            slots: see `find`.
            unmatched: the row for those without any; END to leave them out.
        """
        first, last = self._columns("first", "last")
        at = np.array([0, NOT_BEGUN], np.int64)
        size = max(len(slots), _PAIRS_MAX)
        while at[0] < len(slots):
            left, right = np.empty((2, size), np.int64)
            count = pair_with_table(slots, first, last, self._following, unmatched, at, left, right)
            if count:
                yield left[:count], right[:count]

    def rows_of_nodes(self, nodes: Int64s) -> Iterator[tuple[Batch, Int64s]]:
        """Yield rows by the virtual nodes of their keys, those of a key in their order.

        Args:
            nodes: int64 (n,).

        Yields:
            (keys, numbers): key columns, named by position and in the types of the index, and the
            numbers of as many rows.
        """
        slots, hashes = self._store.scan()
        slots = slots[np.isin(virtual_node_of(hashes, self._virtual_nodes), nodes)]
        for positions, numbers in self.pairs(slots, END):
            yield self._store.keys_of(slots[positions]), numbers

    def clear(self) -> None:
        """Forget all rows, and give the memory of the keys back."""
        self._store.clear()
        self._next, self.dead_rows = self._first_number, 0

    def renumber(self) -> Int64s:
        """Give new numbers to the rows that were neither replaced nor deleted.

        Returns:
            the numbers that they had, int64 (rows,), ascending: they are now those from
            `first_number` on.
        """
        slots, _ = self._store.scan()
        found = [right for _, right in self.pairs(slots, END)]
        living = np.sort(np.concatenate([np.empty(0, np.int64), *found]))
        stop = self._first_number + len(living)
        numbers = np.full(self._next + 1, END, np.int64)  # the last one is that of END
        numbers[living] = np.arange(self._first_number, stop)
        for field in self._columns("first", "last"):
            field[slots] = numbers[field[slots]]
        following = numbers[self._following[living]]
        self._following[self._first_number : stop] = following
        self._next, self.dead_rows = stop, 0
        return living

    def _slots(self, rows: Batch, names: Sequence[str]) -> Int64s:
        keys, hashes, nulls = self._hashed(rows, names)
        assert nulls is None
        return self._store.slots(hashes, keys)

    def _hashed(
        self, rows: Batch, names: Sequence[str]
    ) -> tuple[Batch, npt.NDArray[np.uint64], Bools | None]:
        """Return the keys of rows in the types of the index, their hashes, and which are null."""
        keys = common_keys(rows, names)
        return keys, *hash_keys(keys, keys.schema.names)

    def _columns(self, *names: str) -> tuple[Any, ...]:
        records: Any = self._store.records
        return tuple(records[name] for name in names)

    def _reserve(self, count: int) -> None:
        """Make room for the numbers of as many rows."""
        if self._next + count > len(self._following):
            size = 1 << int(self._next + count - 1).bit_length()
            grown = np.empty(size, np.int64)
            grown[: self._next] = self._following[: self._next]
            self._following = grown
