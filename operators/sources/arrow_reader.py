"""Shared by all sources that read through Arrow: cutting batches, and the supported types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ...configs.errors import InputError
from .base import SourceReader

if TYPE_CHECKING:
    import pyarrow as pa

    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..snapshots import Position
    from .progress import Progress


class ArrowReader(SourceReader):
    """Reads from an iterator of record batches, at most `max_rows` rows at a time.

    The iterator may yield empty batches, for which `read` returns None, so that a long part of the
    input without usable rows does not block the worker's loop. It tells `progress` where each batch
    lies, before it yields it.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], progress: Progress) -> None:
        self._batches = batches
        self._progress = progress
        self._pending: pa.RecordBatch | None = None
        self._start = 0
        self._finished = False

    def read(self, max_rows: int) -> Batch | None:
        """Return the next rows, or None if the iterator's next batch is empty."""
        from ...transport.wire.batch import Batch

        if self._pending is None and not self._finished:
            self._pending = next(self._batches, None)
            self._start = 0
            if self._pending is None:
                self._finished = True
                self._progress.end()
        if self._pending is None:
            return None
        piece = self._pending.slice(self._start, max_rows)
        self._start += piece.num_rows
        if self._start >= self._pending.num_rows:
            self._pending = None
        return Batch.from_arrow(piece) if piece.num_rows else None

    @property
    def finished(self) -> bool:
        """Whether the iterator has ended."""
        return self._finished

    def position(self) -> Position:
        """Return the units left and begun."""
        return self._progress.position(self._start)

    @property
    def rejected(self) -> Mapping[str, int]:
        """The number of rows dropped so far, by reason."""
        return {reason: rows for reason, rows in self._progress.rejected.items() if rows}

    def close(self) -> None:
        """Drop the iterator, which closes its files."""
        self._batches = iter(())
        self._pending = None


def supported_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a source's batches: plain types, every field nullable.

    Dictionary-encoded columns become their values, string views strings; metadata is dropped. As
    in Spark, columns that a file declares as required are nullable, too.
    """
    import pyarrow as pa

    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    return kind


def cast_to_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns and types of `schema`, from `supported_schema`."""
    import pyarrow as pa

    columns = []
    for field in schema:
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def kept_columns(schema: Schema, needed: frozenset[str]) -> tuple[str, ...]:
    """Return the columns that are needed, in their order; if none is, the narrowest one.

    Rows without any column could not be counted.
    """
    kept = tuple(name for name in schema.names if name in needed)
    if kept or not schema.names:
        return kept
    return (min(schema, key=lambda field: (field.type.kind == "bytes", field.type.width)).name,)


def wanted_columns(names: Sequence[str], columns: Sequence[str] | None, where: str) -> list[str]:
    """Return the columns to read, in the requested order.

    Raises:
        InputError: a column is missing, or a name occurs twice.
    """
    wanted = list(names if columns is None else columns)
    for name in wanted:
        if names.count(name) > 1:
            msg = f"{where}: the column {name!r} occurs twice; rename one of them"
            raise InputError(msg)
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {_some(names)}"
            msg = f"{where}: no column {name!r}; {hint}"
            raise InputError(msg)
    return wanted


def _some(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def check_supported(schema: pa.Schema, where: str) -> None:
    """Raise `InputError` naming the first column whose type is not supported."""
    from ...transport.wire.types import Schema

    try:
        Schema.from_arrow(schema)
    except InputError as error:
        msg = f"{where}: {error}"
        raise InputError(msg) from None
