"""Rows by partition, and the Parquet file of one, with the statistics that Delta's log keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
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
        OutputError: a text is empty, which Delta's log cannot tell from null, or a day has no name.
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
        partition = tuple(_as_text(name, sorted_rows[name][start]) for name in columns)
        yield partition, rest.slice(start, stop - start)


def _as_text(name: str, scalar: pa.Scalar) -> str | None:
    import pyarrow as pa

    if not scalar.is_valid:
        return None
    where = f"column {name!r}, by which the Delta table is partitioned,"
    if pa.types.is_date(scalar.type):
        day = _day(scalar.value)
        if day is None:
            msg = (
                f"{where} has a day outside the years 1 to 9999, which Delta's log cannot name: "
                "correct it, or leave such rows out"
            )
            raise OutputError(msg)
        return day
    value = scalar.as_py()
    if value == "":
        msg = (
            f"{where} has an empty text, which Delta's log cannot tell from null: replace it by "
            "another"
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
        full = [one for one in found if one.num_values]
        if full and all(one.has_min_max for one in full) and _is_exact(full[0]):
            bounds = min(one.min_raw for one in full), max(one.max_raw for one in full)
            if full[0].logical_type.type == "DATE":
                bounds = _day(bounds[0]), _day(bounds[1])
            if None not in bounds:
                least[name], most[name] = bounds
    return {
        "numRecords": footer.num_rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": nulls,
    }


def _is_exact(statistics: Any) -> bool:
    """Return whether the log holds the bounds of a column without cutting them short."""
    is_whole = statistics.physical_type in {"INT32", "INT64"}
    return is_whole and statistics.logical_type.type in {"NONE", "INT", "DATE"}


def _day(days: int) -> str | None:
    """Return a day since 1970 as Delta's log writes it; None outside the years 1 to 9999."""
    try:
        return (date(1970, 1, 1) + timedelta(days)).isoformat()
    except OverflowError:
        return None
