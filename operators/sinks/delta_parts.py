"""Rows by partition, and the Parquet file of one, with the statistics that Delta's log keeps."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...configs.errors import OutputError
from .delta_files import DeltaFile, TableFolder
from .row_groups import RowGroupWriter

if TYPE_CHECKING:
    import pyarrow as pa

Partition: TypeAlias = tuple[str | None, ...]
"""The value of each column that a table is partitioned by, as Delta's log writes it."""


def check_partition(operator_id: str, name: str, schema: pa.Schema) -> None:
    """Raise `OutputError` unless a table can be partitioned by a column."""
    import pyarrow as pa

    if name not in schema.names:
        msg = f"sink {operator_id!r}: there is no column {name!r} to partition the table by"
        raise OutputError(msg)
    kind = schema.field(name).type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (is_text or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or kind == "date32"):
        msg = (
            f"sink {operator_id!r}: a table cannot be partitioned by column {name!r} of type "
            f"{kind}: take a text, an integer, a boolean or a date"
        )
        raise OutputError(msg)


def divide(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Partition, pa.Table]]:
    """Yield the rows of each partition, without the columns that it is made by.

    Raises:
        OutputError: a text is empty, which Delta's log cannot tell from null.
    """
    import pyarrow as pa

    codes = np.zeros(table.num_rows, np.int64)
    for name in columns:
        encoded = table[name].combine_chunks().dictionary_encode(null_encoding="encode")
        own = encoded.indices.to_numpy()
        # Dense again for each column, so that the product cannot overflow.
        codes = np.unique(codes * len(encoded.dictionary) + own, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    sorted_rows = table.take(pa.array(order))
    rest = sorted_rows.drop_columns(list(columns))
    for start, stop in zip(starts, [*starts[1:], table.num_rows], strict=True):
        partition = tuple(_as_text(name, sorted_rows[name][start].as_py()) for name in columns)
        yield partition, rest.slice(start, stop - start)


def _as_text(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if value == "":
        msg = (
            f"column {name!r}, by which the Delta table is partitioned, has an empty text, which "
            "Delta's log cannot tell from null: replace it by another"
        )
        raise OutputError(msg)
    return str(value).lower() if isinstance(value, bool) else str(value)


class OpenFile:
    """A Parquet file of a table that is being written."""

    def __init__(
        self,
        folder: TableFolder,
        name: str,
        partition: Mapping[str, str | None],
        schema: pa.Schema,
        compression: str,
    ) -> None:
        self._folder = folder
        self._name = name
        self._partition = partition
        self._rows = 0
        self._stream = folder.create(name)
        self._groups = RowGroupWriter(self._stream, schema, compression)

    def write(self, rows: pa.Table) -> None:
        """Write a row group."""
        self._groups.write(rows)
        self._rows += rows.num_rows

    def close(self) -> DeltaFile:
        """Complete the file so that it survives a crash."""
        footer = self._groups.close()
        nbytes, written_ms = self._folder.finish(self._name, self._stream)
        statistics = json.dumps(_statistics(footer))
        return DeltaFile(self._name, nbytes, self._rows, written_ms, self._partition, statistics)

    def drop(self) -> None:
        """Remove the file."""
        self._groups.drop()
        with suppress(OSError):
            self._stream.close()
        with suppress(OSError):
            self._folder.remove(self._name)


def _statistics(footer: Any) -> dict[str, Any]:
    """Return the number of rows, and of integers and dates the bounds, by which readers skip files.

    Args:
        footer: pyarrow's FileMetaData.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for position in range(footer.num_columns):
        name = footer.schema.column(position).path
        groups = [footer.row_group(i).column(position) for i in range(footer.num_row_groups)]
        found = [group.statistics for group in groups]
        if not found or any(one is None or not one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        bounds = [(one.min, one.max) for one in found if one.has_min_max]
        full = [one for one in found if one.num_values]
        if bounds and len(bounds) == len(full) and _is_exact(bounds[0][0]):
            least[name] = _as_json(min(low for low, _ in bounds))
            most[name] = _as_json(max(high for _, high in bounds))
    return {
        "numRecords": footer.num_rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": nulls,
    }


def _is_exact(value: object) -> bool:
    """Return whether the log holds a bound of this kind without cutting it short."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer or type(value) is datetime.date


def _as_json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.date) else value
