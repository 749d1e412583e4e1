"""Shared by all sources that read through Arrow: cutting batches, and the supported types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
        self._pending: Batch | None = None
        self._start = 0
        self._finished = False
        self._batch_of: Callable[[pa.RecordBatch], Batch] | None = None

    def read(self, max_rows: int) -> Batch | None:
        """Return the next rows, or None if the iterator's next batch is empty."""
        if self._pending is None and not self._finished:
            self._pending = self._next()
        if self._pending is None:
            return None
        piece = self._pending.slice(self._start, self._start + max_rows)
        self._start += piece.num_rows
        if self._start >= self._pending.num_rows:
            self._pending = None
        return piece if piece.num_rows else None

    def _next(self) -> Batch | None:
        """Return the iterator's next batch, which is converted once, not for each piece of it."""
        from ...transport.wire.arrow_dictionaries import DictionaryBatches

        self._start = 0
        batch = next(self._batches, None)
        if batch is None:
            self._finished = True
            self._progress.end()
            return None
        if self._batch_of is None:
            self._batch_of = DictionaryBatches().batch
        return self._batch_of(batch)

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


def coded_names(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns of dictionary arrays that `cast_to_schema` leaves as they are."""
    from ...transport.wire.arrow_dictionaries import is_text_dictionary

    return tuple(field.name for field in schema if is_text_dictionary(field.type))


def cast_to_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns and types of `schema`, from `supported_schema`.

    Dictionary arrays of text stay as they are; `ArrowReader` makes coded columns of them.
    """
    import pyarrow as pa

    from ...transport.wire.arrow_dictionaries import is_text_dictionary

    columns, fields = [], []
    for field in schema:
        column = batch.column(field.name)
        kept = is_text_dictionary(column.type) and column.type.value_type == field.type
        if column.type != field.type and not kept:
            column = column.cast(field.type)
        columns.append(column)
        fields.append(field.with_type(column.type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


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


def check_supported(schema: pa.Schema, where: str, *, may_leave_out: bool = True) -> None:
    """Raise `InputError` naming the first column whose type, or time zone, is not supported.

    Args:
        schema: the columns that are wanted.
        where: of them, for the message.
        may_leave_out: whether the source has a parameter `columns`.
    """
    import pyarrow as pa

    from ...transport.wire.types import Schema

    try:
        Schema.from_arrow(schema)
    except InputError as error:
        remedy = ", or leave it out by columns=" if may_leave_out else ""
        msg = f"{where}: {error}{remedy}"
        raise InputError(msg) from None
    for field in schema:
        if pa.types.is_timestamp(field.type) and field.type.tz not in {None, "UTC"}:
            try:
                pa.scalar(0, field.type).as_py()
            except (LookupError, ValueError):  # pytz's, zoneinfo's or Arrow's
                msg = (
                    f"{where}: the time zone {field.type.tz!r} of the column {field.name!r} is not "
                    "known here; install tzdata, or write the column in UTC"
                )
                raise InputError(msg) from None


def check_texts(batch: pa.RecordBatch, path: str) -> None:
    """Refuse text that is not UTF-8; writers of files do not check that.

    Raises:
        InputError: it names the file and the column.
    """
    import pyarrow as pa

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = column.dictionary if pa.types.is_dictionary(column.type) else column
        if _is_text(values.type) and not _is_ascii(values):
            try:
                values.validate(full=True)
            except pa.ArrowInvalid as error:
                msg = (
                    f"{path}: the text column {name!r} holds bytes that are not UTF-8 "
                    f"({first_line(error)}); write it as binary, or in UTF-8"
                )
                raise InputError(msg) from error


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_ascii(values: pa.Array) -> bool:
    """Whether all bytes of texts are ASCII, so that no offset can part a character."""
    import numpy as np
    import pyarrow as pa

    rows, start, (_, ends, pool) = len(values), values.offset, values.buffers()
    if rows == 0 or pool is None:
        return True
    width = np.dtype(np.int64 if pa.types.is_large_string(values.type) else np.int32)
    offsets = np.frombuffer(ends, width, rows + 1, start * width.itemsize)
    used = np.frombuffer(pool, np.uint8)[offsets[0] : offsets[-1]]
    return not used.size or int(used.max()) < 128


def first_line(error: Exception) -> str:
    """Return what an error of Arrow's says, without the places in its sources."""
    return str(error).split(". ")[0].splitlines()[0].rstrip(".")


def check_alike(schema: pa.Schema, path: str, expected: pa.Schema, first: str) -> None:
    """Check that a file has the columns and types of the first one.

    Raises:
        InputError: it names a column that differs, and both files.
    """
    here = {field.name: str(field.type) for field in schema}
    there = {field.name: str(field.type) for field in expected}
    for name in {**there, **here}:
        if here.get(name) != there.get(name):
            msg = (
                f"{path}: the column {name!r} is {here.get(name, 'missing')} here "
                f"but {there.get(name, 'missing')} in {first}; "
                "name the columns= wanted, or write all files with the same types"
            )
            raise InputError(msg)
