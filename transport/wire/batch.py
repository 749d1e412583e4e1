"""`Batch`: rows as columns, the unit in which rows are sent; a single row is a batch, too.

`Batch` and `Column` are what users see of this package. Their conversions are in `conversion` and
`arrow`, which build on both and are imported when a conversion is first asked for: they load
pyarrow, and batches on their way from one worker to another never need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...configs.errors import InputError
from . import kernels
from .block import (
    Block,
    checked_size,
    column_sources,
    concat_block,
    event_times,
    gather_block,
    row_indices,
)
from .coded_column import CodedColumn, coded_columns
from .column import Column, is_owned
from .preview import preview_of
from .types import DataType, Field, Schema

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    Array = npt.NDArray[Any]

_REPR_ROWS = 5


class Batch:
    """Rows of one schema, held as columns; immutable.

    A received batch is a view of a ring's memory (`owned` is False): a reference to it, or to one
    of its arrays, stops the ring from advancing. Keep `batch.copy()` instead.

    Args:
        schema: the columns' names and types.
        columns: one per field, all of the same length.
        num_rows: needed only where there is no column.
        times: hidden event time of each row: int64 (n,), ns since 1970 in UTC; None without one.
        origin_ns: monotonic ns at which a source read the oldest row; 0 where unknown.

    Raises:
        InputError: the columns do not fit the schema or each other.
    """

    __slots__ = (
        "__weakref__",
        "_block",
        "_columns",
        "_nbytes",
        "_sources",
        "_start",
        "_times",
        "num_rows",
        "origin_ns",
        "schema",
    )
    __iter__: ClassVar[None] = None

    schema: Schema
    num_rows: int
    origin_ns: int
    _columns: list[Column | None]  # None: not yet made from the block
    _times: npt.NDArray[np.int64] | None  # None also while they are in the block
    _block: Block | None
    _start: int
    _sources: npt.NDArray[np.int64] | None
    _nbytes: int  # -1: not yet counted

    def __init__(
        self,
        schema: Schema,
        columns: Sequence[Column],
        num_rows: int | None = None,
        times: npt.NDArray[np.int64] | None = None,
        origin_ns: int = 0,
    ) -> None:
        if len(columns) != len(schema):
            msg = f"{len(columns)} columns for a schema of {len(schema)}: {schema}"
            raise InputError(msg)
        rows = num_rows if num_rows is not None else len(columns[0]) if columns else 0
        for field, column in zip(schema, columns, strict=True):
            if column.type != field.type:
                msg = f"column {field.name!r} holds {column.type}, its schema says {field.type}"
                raise InputError(msg)
            if len(column) != rows:
                msg = f"column {field.name!r} has {len(column)} rows, the batch {rows}"
                raise InputError(msg)
        self.schema = schema
        self.num_rows = rows
        self.origin_ns = origin_ns
        self._columns = list(columns)
        self._times = None if times is None else event_times(times, rows)
        self._block = None
        self._start = 0
        self._sources = None
        self._nbytes = -1

    # -- making one ---------------------------------------------------------------------------

    @classmethod
    def empty(cls, schema: Schema) -> Batch:
        """Return a batch of no rows."""
        return cls(schema, [Column.of([], field.type) for field in schema])

    @classmethod
    def from_pydict(cls, columns: Mapping[str, Any], schema: Schema | None = None) -> Batch:
        """Return a batch of columns by name: arrays or sequences, see `Column.of`.

        Raises:
            InputError: lengths differ, a type is unsupported, or the names are not the schema's.
        """
        from .conversion import batch_of_columns

        return batch_of_columns(columns, schema)

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Mapping[str, Any] | Sequence[Any]],
        schema: Schema | None = None,
    ) -> Batch:
        """Return a batch of mappings by name, or of tuples in the schema's order.

        Raises:
            InputError: a row has other columns, or a value another type; without a schema, also
                when a column holds nothing but nulls, or there is no row.
        """
        from .conversion import batch_of_rows

        return batch_of_rows(rows, schema)

    @classmethod
    def from_arrow(cls, data: pa.RecordBatch | pa.Table) -> Batch:
        """Return a batch of Arrow data, exact to the last bit; without a copy where layouts agree.

        Raises:
            InputError: a column has an unsupported type, or over 2 GiB of text.
        """
        from .arrow import batch_from_arrow

        return batch_from_arrow(data)

    def to_arrow(self) -> pa.RecordBatch:
        """Return the same rows in Arrow; without a copy but for booleans and validity bits."""
        from .arrow import batch_to_arrow

        return batch_to_arrow(self)

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """Return all rows in order, owned, with the oldest origin.

        Schemas may differ where `Schema.unify` finds a wider one.

        Raises:
            InputError: there is no batch, schemas do not fit, or only some have event times.
        """
        if not batches:
            msg = "concat needs at least one batch; use Batch.empty(schema)"
            raise InputError(msg)
        schema = batches[0].schema
        for batch in batches[1:]:
            schema = schema.unify(batch.schema)
        with_times = batches[0].has_times
        if any(batch.has_times != with_times for batch in batches):
            msg = "some of the batches have event times and some have none; use with_times"
            raise InputError(msg)
        pieces = [_widened(batch, schema) for batch in batches]
        origins = [batch.origin_ns for batch in batches if batch.origin_ns]
        if len(pieces) == 1 and pieces[0].owned:
            return pieces[0]
        sources = np.concatenate([piece.sources(with_times) for piece in pieces])
        rows = sum(piece.num_rows for piece in pieces)
        return batch_of_block(
            schema, rows, concat_block(sources, schema.names), min(origins, default=0)
        )

    # -- looking at it ------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.num_rows

    def __contains__(self, name: object) -> bool:
        return name in self.schema

    def __getitem__(self, name: str) -> Any:
        """Return a column's values: an array, masked where it has nulls, or a `BytesView`.

        See `Column.to_numpy`; raise InputError for an unknown name.
        """
        return self._column(self.schema.index(name)).to_numpy()

    def column(self, name: str) -> Column:
        """Return a column ; raise InputError for an unknown name."""
        return self._column(self.schema.index(name))

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns in the schema's order."""
        return tuple(self._column(index) for index in range(len(self._columns)))

    @property
    def coded(self) -> dict[int, CodedColumn]:
        """The columns whose texts are codes of a dictionary, by their places; none in a block."""
        return {} if self._block is not None else coded_columns(self._columns)

    @property
    def has_times(self) -> bool:
        """Whether rows have hidden event times."""
        return self._times is not None or self._times_in_block

    @property
    def times(self) -> npt.NDArray[np.int64] | None:
        """Hidden event time of each row: int64 (n,), ns since 1970 in UTC; None without one."""
        if self._times is None and self._block is not None and self._times_in_block:
            self._times = self._block.times(self._start, self.num_rows)
        return self._times

    @property
    def owned(self) -> bool:
        """Whether the rows may be kept: False while they are views of received memory."""
        if self._times is not None and not is_owned(self._times):
            return False
        if self._block is not None:
            return not self._block.received
        return all(column is not None and column.owned for column in self._columns)

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take in a message, header apart."""
        if self._nbytes < 0:
            coded = self.coded
            rest = self.drop(self.schema.names[at] for at in coded) if coded else self
            size = checked_size(
                kernels.concat_bytes(rest.sources(rest.has_times)), rest.schema.names
            )
            self._nbytes = size + sum(column.padded_bytes() for column in coded.values())
        return self._nbytes

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows as dicts of Python values."""
        return iter(self.to_pylist())

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the rows as dicts of Python values, None for null."""
        names = self.schema.names
        if not names:
            return [{} for _ in range(self.num_rows)]
        values = [column.to_pylist() for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]

    def to_pydict(self) -> dict[str, list[Any]]:
        """Return the columns as lists of Python values, None for null."""
        return {
            name: column.to_pylist()
            for name, column in zip(self.schema.names, self.columns, strict=True)
        }

    def equals(self, other: Batch) -> bool:
        """Whether schema, rows and event times are the same bit by bit (a NaN equals itself)."""
        if self.schema != other.schema or self.num_rows != other.num_rows:
            return False
        here, there = self.times, other.times
        if (here is None) != (there is None):
            return False
        if here is not None and there is not None and not np.array_equal(here, there):
            return False
        return all(a.equals(b) for a, b in zip(self.columns, other.columns, strict=True))

    def preview(self, row: int) -> str:
        """Return one row as a short line for messages; long values are cut."""
        one = self.slice(row, row + 1)
        columns = zip(self.schema.names, one.columns, strict=True)
        return preview_of(columns)

    def __repr__(self) -> str:
        lines = [f"Batch({self.num_rows} rows; {self.schema})"]
        lines += [f"  {self.preview(row)}" for row in range(min(self.num_rows, _REPR_ROWS))]
        if self.num_rows > _REPR_ROWS:
            lines.append("  …")
        return "\n".join(lines)

    # -- other rows ---------------------------------------------------------------------------

    def slice(self, start: int, stop: int | None = None) -> Batch:
        """Return the rows from `start` to before `stop`, without a copy; bounds as in a list."""
        start, stop, _ = slice(start, stop).indices(self.num_rows)
        rows = max(0, stop - start)
        times = None if self._times is None else self._times[start : start + rows]
        columns: list[Column | None]
        if self._block is not None:
            columns = [None] * len(self._columns)
        else:
            columns = [column.slice(start, start + rows) for column in self.columns]
        begin = self._start + start
        return _batch(self.schema, rows, columns, times, self.origin_ns, self._block, begin)

    def take(self, indices: Any) -> Batch:
        """Return the rows at these indices, integers (m,), in their order; owned.

        Raises:
            InputError: an index is outside the batch, or they are not integers.
        """
        chosen = row_indices(indices)
        coded = self.coded
        if coded or not (len(self.schema) or self.has_times):
            return self._taken_coded(coded, chosen)
        block = gather_block(self.sources(self.has_times), chosen, self.schema.names)
        return batch_of_block(self.schema, chosen.size, block, self.origin_ns)

    def _taken_coded(self, coded: dict[int, CodedColumn], chosen: Array) -> Batch:
        """Return the same as `take`, also without any column; those that are coded stay so."""
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < self.num_rows:
            checked_size(kernels.BAD_INDEX)
        rest = self.drop(self.schema.names[at] for at in coded)
        if len(rest.schema) or rest.has_times:
            rest = rest.take(chosen)
        columns: list[Column | None] = [*rest.columns]
        for at, column in coded.items():  # in the order of their places
            columns.insert(at, column.take(chosen))
        return _batch(self.schema, chosen.size, columns, rest.times, self.origin_ns, None, 0)

    def filter(self, mask: Any) -> Batch:
        """Return the rows where `mask`, bool (n,), is True and not masked; owned."""
        keep = np.asarray(np.ma.filled(mask, False))
        if keep.dtype != np.bool_ or keep.shape != (self.num_rows,):
            msg = f"a mask must be bool ({self.num_rows},), not {keep.dtype} {keep.shape}"
            raise InputError(msg)
        return self.take(np.flatnonzero(keep))

    def copy(self) -> Batch:
        """Return the same rows in memory of their own."""
        block = concat_block(self.sources(self.has_times), self.schema.names)
        return batch_of_block(self.schema, self.num_rows, block, self.origin_ns)

    # -- other columns ------------------------------------------------------------------------

    def select(self, names: Sequence[str]) -> Batch:
        """Return these columns in this order."""
        chosen = [self._column(self.schema.index(name)) for name in names]
        return self._with(self.schema.select(names), chosen)

    def drop(self, names: Iterable[str]) -> Batch:
        """Return the batch without these columns."""
        return self.select(self.schema.drop(names).names)

    def rename(self, names: Mapping[str, str]) -> Batch:
        """Return the batch with columns renamed, old name to new name."""
        return self._with(self.schema.rename(names), self._columns, self._block)

    def with_column(self, name: str, values: Any, type: str | DataType | None = None) -> Batch:
        """Return the batch with one more column, or with the one of that name replaced.

        `values` as for `Column.of`.
        """
        column = Column.of(values, type)
        if len(column) != self.num_rows:
            msg = f"column {name!r} has {len(column)} rows, the batch {self.num_rows}"
            raise InputError(msg)
        schema = self.schema.with_field(Field(name, column.type))
        columns = list(self.columns)
        columns[schema.index(name) : schema.index(name) + 1] = [column]
        return self._with(schema, columns)

    def with_times(self, times: npt.NDArray[np.int64] | None) -> Batch:
        """Return the batch with these hidden event times: int64 (n,), ns; None for none."""
        checked = None if times is None else event_times(times, self.num_rows)
        block = self._block
        if block is not None and self._times_in_block:
            layout = np.ascontiguousarray(block.layout[: len(self.schema)])
            block = Block(block.memory, layout, block.received)
        is_new = self._nbytes >= 0 and checked is not None and not self.has_times
        nbytes = self._nbytes + 8 * self.num_rows if is_new else -1
        parts = (self._columns, checked, self.origin_ns, block, self._start, nbytes)
        return _batch(self.schema, self.num_rows, *parts)

    def with_origin(self, origin_ns: int) -> Batch:
        """Return the batch with this origin, monotonic ns."""
        parts = (self._columns, self._times, origin_ns, self._block, self._start, self._nbytes)
        return _batch(self.schema, self.num_rows, *parts)

    # -- for the codec ------------------------------------------------------------------------

    def sources(self, with_times: bool) -> npt.NDArray[np.int64]:
        """Return the kernels' table of the columns, event times last: int64 (1, columns [+ 1], 5).

        It holds addresses, valid as long as the batch lives.

        Raises:
            InputError: event times are wanted and there are none.
        """
        if self._sources is None:
            self._sources = self._build_sources()
        count = len(self._columns)
        if not with_times:
            return self._sources[:, :count]
        if self._sources.shape[1] == count:
            msg = "the batch has no event times; declare the source's event_time"
            raise InputError(msg)
        return self._sources

    def _build_sources(self) -> npt.NDArray[np.int64]:
        if self._block is None:
            return column_sources(list(self.columns), self._times)
        table = self._block.sources(self.schema.layout, self._start, self.num_rows)
        if self._times is None or self._times_in_block:
            return table
        return np.concatenate([table, column_sources([], self._times)], axis=1)

    @property
    def _times_in_block(self) -> bool:
        return self._block is not None and self._block.layout.shape[0] > len(self._columns)

    def _column(self, index: int) -> Column:
        column = self._columns[index]
        if column is None:
            assert self._block is not None
            kind = self.schema.fields[index].type
            column = self._block.column(index, kind, self._start, self.num_rows)
            self._columns[index] = column
        return column

    def _with(
        self, schema: Schema, columns: Sequence[Column | None], block: Block | None = None
    ) -> Batch:
        times = self._times if block is not None else self.times
        return _batch(
            schema, self.num_rows, list(columns), times, self.origin_ns, block, self._start
        )

    def __reduce__(self) -> tuple[Any, ...]:
        kept = self if self._is_whole_block else self.copy()
        assert kept._block is not None
        parts = (kept.schema, kept.num_rows, kept._block.memory, kept._block.layout, self.origin_ns)
        return _unpickled, parts

    @property
    def _is_whole_block(self) -> bool:
        block = self._block
        if block is None or block.received or self._start or self.has_times != self._times_in_block:
            return False
        return self.nbytes == block.memory.size


def batch_of_block(schema: Schema, rows: int, block: Block, origin_ns: int) -> Batch:
    """Return the batch of a whole block; columns are made when they are first asked for."""
    return _batch(schema, rows, [None] * len(schema), None, origin_ns, block, 0)


def _batch(
    schema: Schema,
    rows: int,
    columns: list[Column | None],
    times: npt.NDArray[np.int64] | None,
    origin_ns: int,
    block: Block | None,
    start: int,
    nbytes: int = -1,
) -> Batch:
    """Make a batch of parts that are known to fit: no check, for the hot path."""
    batch = object.__new__(Batch)
    batch.schema = schema
    batch.num_rows = rows
    batch.origin_ns = origin_ns
    batch._columns = columns
    batch._times = times
    batch._block = block
    batch._start = start
    batch._sources = None
    batch._nbytes = nbytes
    return batch


def _unpickled(
    schema: Schema, rows: int, memory: Array, layout: npt.NDArray[np.int64], origin_ns: int
) -> Batch:
    memory.flags.writeable = False
    return batch_of_block(schema, rows, Block(memory, layout, received=False), origin_ns)


def _widened(batch: Batch, schema: Schema) -> Batch:
    if batch.schema is schema or batch.schema == schema:
        return batch
    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        data = column.data if field.type.kind == "bytes" else column.data.astype(field.type.storage)
        columns.append(Column(field.type, data, column.offsets, column.validity))
    return Batch(schema, columns, batch.num_rows, batch.times, batch.origin_ns)
