"""`BroadcastTable`: the table of a `TableJoin` on one worker, and the join of batches with it.

Every worker has all rows of the table, once, whatever the number of its instances. They are the
same everywhere, in the order in which they came, so a row of the stream finds the same rows
wherever it is joined. Nulls in a key match nothing, so rows of the table with one are not kept.

In a left join, row 0 is a row of nulls, which rows of the stream without a match find.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...configs.errors import ExpressionError, InputError, UsageError
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import Schema
from ..compiled.table_lookup import ROWS_MAX, TableLookup
from ..sealing import SealingByDump
from .common_keys import as_type
from .row_log import RowLog
from .table_index import TableIndex
from .table_kernels import END
from .unique_rows import UniqueRows, is_compiled_for, unique_rows

if TYPE_CHECKING:
    from ..process import InstanceContext
    from .table_join import TableJoin

__all__ = ["BroadcastTable"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_DEAD_ROWS_MIN = 1 << 16
_MERGED_BYTES_MAX = 256 << 20


class BroadcastTable(SealingByDump):
    """The rows of a table, by key.

    A checkpoint needs the dump of one worker; all others load the same. That the table is complete
    is not part of it: the end of its input says so again.

    Args:
        join: what was asked for.
        context: of the operator, with the memory for its state.

    Attributes:
        loaded: whether all rows of the table have come.
        changes: how often `change` was called, so that an unchanged table need not be saved again.
    """

    def __init__(self, join: TableJoin, context: InstanceContext) -> None:
        super().__init__()
        self._join = join
        self._context = context
        context.state_budget.advise(context.operator_id, "join with a smaller table")
        self._schema = join.right
        self._adds_columns = not join.only_left_columns
        self._pads = join.how == "left"
        self._rows = RowLog()
        self._taken_bytes = 0
        self._index: TableIndex | None = None
        self._results: dict[Schema, Schema] = {}
        self._lookup: TableLookup | None = None
        self.loaded = False
        self.changes = 0

    @property
    def keys(self) -> int:
        """The number of different keys."""
        return 0 if self._index is None else len(self._index)

    # -- its rows -----------------------------------------------------------------------------

    def add(self, rows: Batch) -> None:
        """Keep rows of the table.

        Raises:
            UsageError: its key cannot equal that of the stream, or it has other columns than
                were known.
            StateFullError: the worker's memory for state is used up.
        """
        self._lookup = None
        if self._index is None:
            self._schema = rows.schema
        rows = self._fitting(rows, "the table")
        nulls = self._null_keys(rows)
        rows = rows.filter(~nulls) if nulls.any() else rows
        self._opened().append(rows, self._join.right_keys)
        self._keep(rows)

    def finish(self) -> None:
        """Learn that no row of the table follows."""
        if self._schema is not None:
            self._opened()
        self._merge()
        self._lookup = None
        self.loaded = True

    def change(self, rows: Batch) -> None:
        """Let rows, one after the other, replace all rows of their key, or delete them.

        Raises:
            UsageError: they lack columns of the table, or have them in other types.
            StateFullError: the worker's memory for state is used up.
        """
        self.changes += 1
        deletes = self._deletes(rows)
        rows = self._fitting(rows, "the changes")
        known = ~self._null_keys(rows)
        rows, deletes = rows.filter(known), deletes[known]
        self._opened().replace(rows, self._join.right_keys, deletes)
        self._keep(rows.filter(~deletes))
        self._compact()

    # -- saving -------------------------------------------------------------------------------

    def dump(self, nodes: Int64s) -> Iterator[Batch]:
        """Return the rows whose keys belong to some virtual nodes, in the columns that are kept."""
        if self._index is None or self._schema is None:
            return
        right_keys = self._join.right_keys
        kept = [name for name in self._schema.names if name in (*self._added, *right_keys)]
        schema = self._schema.select(kept)
        for keys, numbers in self._index.rows_of_nodes(nodes):
            columns = {
                name: as_type(keys.column(str(at)), schema.field(name).type)
                for at, name in enumerate(right_keys)
            }
            if self._added:
                rows = self._rows.take(numbers)
                columns |= {name: rows.column(name) for name in self._added}
            yield Batch(schema, [columns[name] for name in kept], len(numbers))

    def load(self, batch: Batch) -> None:
        """Take rows that `dump` returned.

        Raises:
            InputError: a column that is needed was not kept.
            UsageError, StateFullError: as in `add`.
        """
        for name in sorted((self._join.table_columns or frozenset()) - {*batch.schema.names}):
            operator = self._context.operator_id
            msg = (
                f"operator {operator!r} needs column {name!r} of its table, of which the checkpoint"
                f" has {', '.join(batch.schema.names)}: give the join and the table's source other"
                " ids, so that the table is read again, and name the old ones in restore_without"
            )
            raise InputError(msg)
        self.add(batch)

    def _forget(self) -> None:
        self.loaded, self._lookup = False, None
        if self._index is not None:
            self._index.clear()
        self._rows = RowLog()
        self._pad()
        self._account()

    # -- joining ------------------------------------------------------------------------------

    def join(self, batch: Batch) -> Iterator[Batch]:
        """Yield what comes of rows of the stream, in their order, in pieces.

        Raises:
            UsageError: its key cannot equal that of the table, or a column would be there twice.
        """
        join = self._join
        slots = self._find(batch)
        if join.only_left_columns:
            wanted = (slots >= 0) == (join.how == "semi")
            yield batch if wanted.all() else batch.filter(wanted)
            return
        if self._index is None:
            if self._pads:
                raise self._unknown_columns()
            return
        schema = self._result_of(batch.schema)
        unmatched = 0 if self._pads else END
        for mine, theirs in self._index.pairs(slots, unmatched):
            left = batch if _are_all(mine, batch.num_rows) else batch.take(mine)
            columns = [*left.columns]
            if self._added:
                columns += self._rows.take(theirs).columns
            yield Batch(schema, columns, len(mine), left.times, left.origin_ns)

    @property
    def makes_lookup_quickly(self) -> bool:
        """Whether `lookup` takes about as long as joining `keys` rows: it compiles nothing."""
        key = self._join.right_keys[0]
        return self._schema is None or is_compiled_for(self._schema.field(key).type)

    @property
    def lookup(self) -> TableLookup:
        """The join as a compiled loop does it; another object whenever the rows are others."""
        if self._lookup is None:
            found = TableLookup(self._join, self._schema)
            if not found.refusal:
                rows = self._unique_rows()
                found = (
                    replace(found, why_not=rows)
                    if isinstance(rows, str)
                    else replace(found, rows=rows)
                )
            self._lookup = found
            self._account()
        return self._lookup

    def _unique_rows(self) -> UniqueRows | str:
        """Return the rows for a loop, or why they cannot be looked up in one."""
        index = self._index
        if index is None or not self.loaded:
            return "a table without rows"
        first = int(self._pads)
        if index.next_number - first > ROWS_MAX or len(self._rows) > 1:
            return f"a table of more than {ROWS_MAX:,} rows"
        parts = list(index.rows_of_nodes(np.arange(self._context.virtual_nodes)))
        if not parts:
            return "a table without rows"
        numbers = np.concatenate([part for _, part in parts])
        keys = Batch.concat([part for part, _ in parts]).take(np.argsort(numbers)).columns[0]
        added = next(self._rows.between(0, index.next_number)) if self._added else None
        found = unique_rows(keys, added)
        if found is None:
            return "a table in which a key is there twice"
        if found.nbytes > self._context.state_budget.free_bytes:
            return "a table for whose index runtime.state_bytes has no memory left"
        return found

    def _find(self, batch: Batch) -> Int64s:
        if self._schema is not None:
            self._result_of(batch.schema)  # which also compares the types of the keys
        if self._index is None:
            return np.full(batch.num_rows, -1, np.int64)
        return self._index.find(batch, self._join.left_keys)

    def _result_of(self, stream: Schema) -> Schema:
        """Return the columns of the result."""
        result = self._results.get(stream)
        if result is None:
            assert self._schema is not None
            try:
                result = self._join.output_schema(stream, self._schema)
            except ExpressionError as error:
                raise UsageError(str(error)) from None
            self._results[stream] = result
        return result

    # -- keeping rows -------------------------------------------------------------------------

    @property
    def _added(self) -> Sequence[str]:
        """The columns that the table adds to those of the stream."""
        if not self._adds_columns or self._schema is None:
            return ()
        return self._join.right_names(self._schema.names)

    def _opened(self) -> TableIndex:
        """Return the index, made when the columns are known, and the row of nulls."""
        if self._index is None:
            if self._schema is None:
                raise self._unknown_columns()
            missing = [name for name in self._join.right_keys if name not in self._schema]
            if missing:
                there = ", ".join(self._schema.names)
                msg = f"join_table names column {missing[0]!r}; the table has {there}"
                raise UsageError(msg)
            keys = self._schema.select(self._join.right_keys)
            self._index = TableIndex(keys, self._context, int(self._pads))
            self._pad()
        return self._index

    def _pad(self) -> None:
        """Keep the row of nulls in a left join."""
        if self._pads and self._added:
            assert self._schema is not None
            schema = self._schema.select(self._added)
            nulls = [Column.of([None], field.type) for field in schema]
            self._rows.append(Batch(schema, nulls, 1))

    def _keep(self, rows: Batch) -> None:
        if self._added and rows.num_rows:
            self._rows.append(rows.select(self._added).with_times(None).copy())
        self._account()

    def _null_keys(self, rows: Batch) -> Bools:
        """Return which rows have a null in their key, bool (n,)."""
        nulls = np.zeros(rows.num_rows, np.bool_)
        for name in self._join.right_keys:
            validity = rows.column(name).validity
            if validity is not None:
                nulls |= ~validity
        return nulls

    def _fitting(self, rows: Batch, which: str) -> Batch:
        """Return the table's columns of rows; raise UsageError if these are not there."""
        if self._schema is None:
            raise self._unknown_columns()
        if rows.schema == self._schema:
            return rows
        for field in self._schema:
            if field.name not in rows.schema:
                there = ", ".join(rows.schema.names)
                msg = f"{which} lack column {field.name!r} of the table; there are {there}"
                raise UsageError(msg)
            kind = rows.schema.field(field.name).type
            if kind != field.type:
                msg = (
                    f"column {field.name!r} is {kind.name} in {which}, and was {field.type.name} in"
                    " the table: cast it with with_column before"
                )
                raise UsageError(msg)
        return rows.select(self._schema.names)

    def _deletes(self, rows: Batch) -> Bools:
        """Return which changes delete, bool (n,)."""
        from ..expressions.evaluation import Environment

        if self._join.delete_when is None:
            return np.zeros(rows.num_rows, np.bool_)
        try:
            return Environment(rows).mask(self._join.delete_when)
        except ExpressionError as error:
            msg = f"delete_when: {error}"
            raise UsageError(msg) from None

    def _compact(self) -> None:
        """Give up the rows that were replaced or deleted, if they are more than half of all."""
        index = self._opened()
        if index.dead_rows < max(_DEAD_ROWS_MIN, index.next_number // 2):
            return
        living = index.renumber()
        if self._added:
            self._rows.keep_only(np.concatenate([np.arange(int(self._pads)), living]))
        self._account()

    def _merge(self) -> None:
        """Let one batch hold the rows if that is not too large: look-ups are faster then."""
        if self._index is not None and self._added and self._rows.nbytes <= _MERGED_BYTES_MAX:
            self._rows.keep_only(np.arange(self._index.next_number))

    def _account(self) -> None:
        """Take memory for the rows as they are now, or give some back."""
        budget, name = self._context.state_budget, self._context.operator_id
        nbytes = self._rows.nbytes + (0 if self._index is None else self._index.nbytes)
        if self._lookup is not None and self._lookup.rows is not None:
            nbytes += self._lookup.rows.nbytes
        if nbytes > self._taken_bytes:
            budget.take(name, nbytes - self._taken_bytes, self.keys)
        else:
            budget.give_back(name, self._taken_bytes - nbytes)
        self._taken_bytes = nbytes

    def _unknown_columns(self) -> UsageError:
        return UsageError(
            "the columns of the table are not known, and it has had no row: declare them,"
            " map(…, schema=…), or on its source"
        )


def _are_all(rows: Int64s, count: int) -> bool:
    """Return whether these are the rows 0 … count − 1."""
    return len(rows) == count and bool((rows == np.arange(count)).all())
