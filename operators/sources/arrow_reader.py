"""Shared by all sources that read through Arrow: cutting batches, and the supported types."""

from __future__ import annotations

from collections import Counter
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

_SHOWN_MAX = 8
"""How many names of columns a message has at most."""


class ArrowReader(SourceReader):
    """Reads from an iterator of batches, Arrow's or ours, at most `max_rows` rows at a time.

    The iterator may yield empty batches, for which `read` returns None, so that a long part of the
    input without usable rows does not block the worker's loop. It tells `progress` where each batch
    lies, before it yields it.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch | Batch], progress: Progress) -> None:
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
        piece = self._pending
        if self._start or piece.num_rows > max_rows:
            piece = piece.slice(self._start, self._start + max_rows)
        self._start += piece.num_rows
        if self._start >= self._pending.num_rows:
            self._pending = None
        return piece if piece.num_rows else None

    def _next(self) -> Batch | None:
        """Return the iterator's next batch, which is converted once, not for each piece of it."""
        from ...transport.wire.batch import Batch  # loads numba

        self._start = 0
        batch = next(self._batches, None)
        if batch is None:
            self._finished = True
            self._progress.end()
            return None
        if isinstance(batch, Batch):
            return batch
        if self._batch_of is None:
            from ...transport.wire.arrow_dictionaries import DictionaryBatches

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
    """Return the columns of dictionary arrays that `DictionaryBatches` leaves coded."""
    from ...transport.wire.arrow_dictionaries import is_text_dictionary

    return tuple(field.name for field in schema if is_text_dictionary(field.type))


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
    times = Counter(names)
    for name in wanted:
        if times[name] > 1:
            msg = f"{where}: the column {name!r} occurs twice; rename one of them"
            raise InputError(msg)
        if name not in times:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {_some(names)}"
            msg = f"{where}: no column {name!r}; {hint}"
            raise InputError(msg)
    return wanted


def _some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown, more = names[:_SHOWN_MAX], len(names) - _SHOWN_MAX
    return ", ".join(map(repr, shown)) + (f" and {more} more" if more > 0 else "")


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


def check_column(path: str, of: str, name: str, column: pa.Array) -> None:
    """Refuse values that lie outside their column's memory, and texts that are not UTF-8.

    Whoever reads them trusts both; writers of files do not check the latter.

    Args:
        path: the file.
        of: its format, for messages.
        name: the column's.
        column: its rows.

    Raises:
        InputError: it names the file and the column.
    """
    fault = _fault_of(column) if len(column) else None
    if fault is not None:
        is_text, reason = fault
        msg = (
            f"{path}: the text column {name!r} holds bytes that are not UTF-8 ({reason}); "
            "write it as binary, or in UTF-8"
            if is_text
            else f"{path}: the {of} file is damaged (column {name!r}: {reason}); write it again"
        )
        raise InputError(msg)


def _fault_of(column: pa.Array) -> tuple[bool, str] | None:
    """Return whether it is texts that are not UTF-8, else places, and what is wrong; or None."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        if not _has_all(column.dictionary, column.indices):
            return False, "a value is not in the dictionary"
        return _fault_of(column.dictionary) if len(column.dictionary) else None
    is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if is_large or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _fault_of_texts(column, is_large)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            return False, first_line(error)
    return None


def _has_all(dictionary: pa.Array, codes: pa.Array) -> bool:
    """Whether a dictionary has a value for each code that is not null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from ...transport.wire.text_kernels import codes_fit

    if codes.type == pa.int32() and not codes.null_count:
        place = codes.buffers()[1].address + 4 * codes.offset
        return bool(codes_fit(place, len(codes), len(dictionary)))
    ends = pc.min_max(codes).as_py()
    return ends["max"] is None or 0 <= ends["min"] <= ends["max"] < len(dictionary)


def _fault_of_texts(column: pa.Array, is_large: bool) -> tuple[bool, str] | None:
    """Return the same of texts, or binary values, with offsets of 64 bits if they are large."""
    import pyarrow as pa

    from ...transport.wire.text_kernels import MISPLACED, NOT_ASCII, state_of_texts

    rows, (_, offsets, pool) = len(column), column.buffers()
    looks = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    place = offsets.address + column.offset * (8 if is_large else 4)
    begin, size = (place, 0) if pool is None else (pool.address, pool.size)
    state = state_of_texts(place, rows, is_large, begin, size, looks)
    if state == MISPLACED:
        return False, "values lie outside its memory"
    if state == NOT_ASCII:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            return True, first_line(error)
    return None


def first_line(error: Exception) -> str:
    """Return what an error of Arrow's says, without the places in its sources."""
    return str(error).split(". ")[0].splitlines()[0].rstrip(".")


def check_alike(schema: pa.Schema, path: str, expected: pa.Schema, first: str) -> None:
    """Check that a file has the columns and types of the first one.

    Texts may have offsets of 32 or 64 bits: libraries choose one or the other for the same column.

    Raises:
        InputError: it names a column that differs, and both files.
    """
    here = {field.name: field.type for field in schema}
    there = {field.name: field.type for field in expected}
    for name in {**there, **here}:
        if _with_large_offsets(here.get(name)) != _with_large_offsets(there.get(name)):
            msg = (
                f"{path}: the column {name!r} is {here.get(name, 'missing')} here "
                f"but {there.get(name, 'missing')} in {first}; "
                "name the columns= wanted, or write all files with the same types"
            )
            raise InputError(msg)


def _with_large_offsets(kind: pa.DataType | None) -> pa.DataType | None:
    import pyarrow as pa

    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)
