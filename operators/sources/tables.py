"""Sources of tables in memory: Arrow and pandas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...configs.errors import InputError
from .arrow_reader import (
    ArrowReader,
    check_supported,
    coded_names,
    kept_columns,
    supported_schema,
)
from .base import Source
from .files import START_ANEW
from .progress import Progress

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..process import InstanceContext
    from ..snapshots import Position
    from .base import SourceReader

_UNIT_ROWS = 8192
_FRAME = "the pandas frame"


@dataclass(frozen=True)
class ArrowTableSource(Source):
    """A source of an Arrow table; runs of 8,192 rows are assigned to instances round-robin."""

    position_kind = "a table"

    table: pa.Table = field(repr=False)
    kind: str = "arrow"

    def schema(self) -> Schema:
        """Return the table's columns."""
        from ...transport.wire.types import Schema

        return Schema.from_arrow(supported_schema(self.table.schema))

    def coded_columns(self) -> tuple[str, ...]:
        """See `Source.coded_columns`."""
        return coded_names(self.table.schema)

    def with_columns_needed(self, columns: frozenset[str]) -> ArrowTableSource:
        """See `Source.with_columns_needed`: other columns are not sent to workers."""
        return replace(self, table=self.table.select(kept_columns(self.schema(), columns)))

    def open(self, context: InstanceContext) -> SourceReader:
        """Open this instance's rows."""
        progress = Progress.opened(context, None, {"rows": self.table.num_rows})
        return ArrowReader(self._batches(progress), progress)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Open this instance's share of the rows left.

        Raises:
            InputError: the table has another number of rows.
        """
        rows = self.table.num_rows
        for one in positions:
            if one["rows"] != rows:
                msg = (
                    f"{self.describe()}: the table had {one['rows']:,} rows when a part of it was "
                    f"read; {START_ANEW}"
                )
                raise InputError(msg)
        progress = Progress.opened(context, positions, {"rows": rows})
        return ArrowReader(self._batches(progress), progress)

    def resumption(self) -> str:
        """Return that it seeks."""
        return "seeks to the row"

    def describe(self) -> str:
        """Return the table's size."""
        return f"{self.kind} {self.table.num_rows:,} rows"

    def _batches(self, progress: Progress) -> Iterator[Batch]:
        from ...transport.wire.arrow_dictionaries import DictionaryBatches

        schema, batches = supported_schema(self.table.schema), DictionaryBatches()
        units = -(-self.table.num_rows // _UNIT_ROWS)
        for unit, place in progress.units(0, units):
            rows = place["rows"] if place else 0
            progress.enter(unit, {"rows": rows})
            part = self.table.slice(unit * _UNIT_ROWS + rows, _UNIT_ROWS - rows)
            for batch in part.to_batches():
                progress.move(rows)
                rows += batch.num_rows
                yield batches.batch(batch, schema)


def arrow(table: Any) -> Source:
    """Read an Arrow table, or any object with the Arrow stream interface.

    Args:
        table: a `pyarrow.Table`, `RecordBatch` or `RecordBatchReader` (read whole), a Polars
            frame, a DuckDB relation …; or the bytes of an Arrow IPC stream.

    Raises:
        InputError: it is none of these, the bytes are no such stream, or a column has a type that
            is not supported.
    """
    import pyarrow as pa

    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    elif isinstance(table, bytes):
        try:
            table = pa.ipc.open_stream(table).read_all()
        except (pa.ArrowException, OSError) as error:
            msg = f"arrow() got {len(table):,} bytes that are no Arrow IPC stream: {error}"
            raise InputError(msg) from error
    elif not isinstance(table, pa.Table):
        if not hasattr(table, "__arrow_c_stream__"):
            msg = (
                f"arrow() got a {type(table).__name__}; pass a pyarrow Table, or use "
                "whale.sources.iterable for rows and whale.sources.pandas for a frame"
            )
            raise InputError(msg)
        table = pa.table(table)
    return _checked(ArrowTableSource(table), "the Arrow table")


def pandas(frame: pd.DataFrame) -> Source:
    """Read a copy of a pandas frame; later changes to the frame have no effect.

    The index is left out (call `reset_index()` to keep it); NaN and None are nulls, as in pandas.

    Raises:
        InputError: a column's values do not have one type, or one that is not supported.
    """
    import pandas as pd
    import pyarrow as pa

    if not isinstance(frame, pd.DataFrame):
        msg = (
            f"pandas() got a {type(frame).__name__}; pass a pandas DataFrame, or use "
            "whale.sources.arrow for other tables and whale.sources.iterable for rows"
        )
        raise InputError(msg)
    names = [str(name) for name in frame.columns]
    _refuse_twins(names, _FRAME)
    named = frame.set_axis(names, axis=1)
    try:
        table = pa.Table.from_pandas(named, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        msg = f"{_FRAME}: {_misfit(named, error)}; give the column one type with astype()"
        raise InputError(msg) from error
    source = _checked(ArrowTableSource(table.replace_schema_metadata(None), "pandas"), _FRAME)
    _refuse_changed(named, source.schema())
    return source


def _misfit(frame: pd.DataFrame, error: Exception) -> str:
    """Return why Arrow has no column for one of a frame, with the name of that column."""
    import pyarrow as pa

    if isinstance(error, pa.ArrowException) and not isinstance(error, UnicodeError):
        return "; ".join(str(part) for part in error.args)
    for name in frame.columns:
        try:
            pa.array(frame[name], from_pandas=True)
        except type(error):
            return f"column {name!r}: {error}"
    return str(error)


def _refuse_changed(frame: pd.DataFrame, schema: Schema) -> None:
    """Refuse values that Arrow changes: it drops the time beside dates, and adds missing zones.

    Raises:
        InputError: one is of another kind than its column; the message names it.
    """
    from ...transport.wire.value_kinds import fitted

    for name in frame.select_dtypes(object).columns:
        values = frame[name][frame[name].notna()].tolist()
        fitted(values, schema.field(name).type, f"{_FRAME}: column {name!r}")


def _checked(source: ArrowTableSource, where: str) -> ArrowTableSource:
    _refuse_twins(source.table.column_names, where)
    check_supported(supported_schema(source.table.schema), where, may_leave_out=False)
    return source


def _refuse_twins(names: list[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            msg = f"{where}: the column {name!r} occurs twice; rename one of them"
            raise InputError(msg)
