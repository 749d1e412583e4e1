"""Batches that Python code gives, of whatever kind, as ours with the same columns each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...configs.errors import InputError
from .arrow_reader import first_line, supported_schema, wanted_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema

__all__ = ["ColumnsOfBatches"]


class ColumnsOfBatches:
    """Converts batches to columns that were declared, or to those of the first batch.

    Args:
        declared: the schema; None if the first batch tells it.
    """

    def __init__(self, declared: Schema | None) -> None:
        self._schema = declared
        self._is_declared = declared is not None

    def learn(self, schema: Schema | None) -> None:
        """Take the columns of the first batch."""
        self._schema = schema

    @property
    def are_known(self) -> bool:
        """Whether they were declared or learnt."""
        return self._schema is not None

    @property
    def learnt(self) -> list[list[str]] | None:
        """The names and types that the first batch had, in values of JSON; None if it did not."""
        if self._is_declared or self._schema is None:
            return None
        return [[field.name, str(field.type)] for field in self._schema]

    @property
    def empty(self) -> Batch:
        """A batch of no rows."""
        from ...transport.wire.batch import Batch
        from ...transport.wire.types import Schema

        return Batch.empty(self._schema or Schema(()))

    def fit(self, number: int, given: object) -> Batch:
        """Return a batch with the columns.

        Args:
            number: the batch's, for messages.
            given: see `batches`.

        Raises:
            InputError: it is no batch, or has other columns.
        """
        try:
            batch = self._of_arrays(given) if isinstance(given, Mapping) else given
            return self._with_columns(batch)
        except InputError as error:
            msg = f"batch {number}: {error}"
            raise InputError(msg) from error

    def _of_arrays(self, columns: Mapping[str, Any]) -> Batch:
        """Return a batch of arrays, converted to the declared types as the values of rows are."""
        from ...transport.wire.batch import Batch

        if not self._is_declared or self._schema is None:
            return Batch.from_pydict(columns)
        wanted = {name: columns[name] for name in self._schema.names if name in columns}
        return Batch.from_pydict(wanted, self._schema)

    def _with_columns(self, given: object) -> Batch:
        from ...transport.wire.batch import Batch

        if self._schema is None:
            return given if isinstance(given, Batch) else Batch.from_arrow(_table_of(given))
        if isinstance(given, Batch):
            if given.schema == self._schema:
                return given
            given = given.to_arrow()
        return Batch.from_arrow(self._cast(_table_of(given), self._schema.to_arrow()))

    def _cast(self, table: pa.Table, wanted: pa.Schema) -> pa.Table:
        """Return a table with the columns that are wanted, of their types."""
        import pyarrow as pa

        chosen = wanted_columns(table.column_names, wanted.names, "its columns")
        if not self._is_declared and len(chosen) < table.num_columns:
            extra = next(name for name in table.column_names if name not in chosen)
            msg = f"the first batch had no column {extra!r}; pass schema=, or leave it out"
            raise InputError(msg)
        table = table.select(chosen)
        columns = []
        for field in table.schema:
            kind = wanted.field(field.name).type
            _check_type(field, kind, may_differ=self._is_declared)
            try:
                columns.append(table.column(field.name).cast(kind))
            except pa.ArrowException as error:
                msg = f"the column {field.name!r}: {first_line(error)}; declare a wider type"
                raise InputError(msg) from error
        return pa.Table.from_arrays(columns, schema=wanted)


def _table_of(given: object) -> pa.Table:
    """Return what was given as a table of plain types; raise InputError if it is none."""
    from .tables import arrow, pandas

    if type(given).__module__.partition(".")[0] == "pandas":
        source: Any = pandas(given)  # type: ignore[arg-type]  # it refuses all but frames
    elif hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
        source = arrow(given)
    else:
        msg = (
            f"a {type(given).__name__} is no batch: yield mappings of column name to array, tables"
            " of Arrow, pandas or Polars, or whale.Batch; rows go to whale.sources.iterable"
        )
        raise InputError(msg)
    table: pa.Table = source.table
    return table.cast(supported_schema(table.schema))


def _check_type(field: pa.Field, wanted: pa.DataType, *, may_differ: bool) -> None:
    """Raise InputError unless a column has a type, or one that may be converted to it."""
    if field.type == wanted or _kind_of(field.type) == _kind_of(wanted) in _SAME:
        return
    if may_differ and _kind_of(field.type) == _kind_of(wanted) is not None:
        return
    remedy = "convert it" if may_differ else "pass schema=, or convert it"
    before = "declared" if may_differ else "in the first batch"
    msg = f"the column {field.name!r} is {field.type} here, and {wanted} as {before}; {remedy}"
    raise InputError(msg)


_SAME = ("text", "bytes")
"""Kinds whose types differ only in the width of their offsets."""


def _kind_of(kind: pa.DataType) -> str | None:
    """Return a name for the types whose values may be converted to each other; None: to none."""
    from pyarrow import types

    kinds = {
        "text": (types.is_string, types.is_large_string),
        "bytes": (types.is_binary, types.is_large_binary),
        "number": (types.is_integer, types.is_floating, types.is_decimal),
        "timestamp": (types.is_timestamp,),
        "date": (types.is_date,),
        "duration": (types.is_duration,),
    }
    for name, tests in kinds.items():
        if any(test(kind) for test in tests):
            return name
    return None
