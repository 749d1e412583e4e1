"""A Parquet file, written one row group after another.

A dictionary of a column holds each of its values once. Where most values differ it makes the file
larger, and takes two to three times as long to write: 59 ms, not 18, for 131,072 different int64.
So the first row group decides which columns get one.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLES, _SAMPLE_ROWS = 16, 256
_DISTINCT_MAX = 0.975
"""The part of different values in a sample from which a dictionary is not worth its time: about
half of the values of a row group of 131,072 rows then differ."""


class RowGroupWriter:
    """Writes a Parquet file to a stream, which stays open.

    Raises pyarrow's error for a type that Parquet lacks at once, not with the first row group.
    """

    def __init__(self, stream: BinaryIO, schema: pa.Schema, compression: str) -> None:
        self._paths = _paths(schema)
        self._stream = stream
        self._schema = schema
        self._compression = compression
        self._footer: list[Any] = []
        self._writer: Any = None

    def write(self, rows: pa.Table) -> None:
        """Write a row group of the file's schema."""
        if self._writer is None:
            self._writer = self._open(dictionary_columns(rows, self._paths))
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))

    def close(self) -> Any:
        """Write the end of the file; return its metadata, pyarrow's FileMetaData."""
        if self._writer is None:
            self._writer = self._open(True)
        self._writer.close()
        return self._footer[0]

    def drop(self) -> None:
        """Give the file up: no error follows if there is no room for its end."""
        if self._writer is not None:
            self._writer.is_open = False  # else it is closed when it is freed, and may raise then

    def _open(self, dictionaries: bool | list[str]) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetWriter(
            self._stream,
            self._schema,
            compression=self._compression,
            use_dictionary=dictionaries,
            metadata_collector=self._footer,
        )


def dictionary_columns(rows: pa.Table, paths: list[str]) -> bool | list[str]:
    """Return which of all columns' paths get a dictionary: True for all.

    Values of lists, structs and maps always get one; so do those of a few rows, which cost nothing.
    """
    import pyarrow as pa

    if rows.num_rows < _SAMPLES * _SAMPLE_ROWS:
        return True
    varied = {
        name
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
        if not pa.types.is_nested(column.type) and _varies(column)
    }
    return [path for path in paths if path not in varied] if varied else True


def _varies(column: pa.ChunkedArray) -> bool:
    """Return whether most values differ in samples from all over a column."""
    import pyarrow as pa

    apart = len(column) // _SAMPLES
    # Slices: `take` needs indices, and making them imports pandas, for longer than all this takes.
    samples = [column.slice(number * apart, _SAMPLE_ROWS) for number in range(_SAMPLES)]
    sample = pa.chunked_array([chunk for one in samples for chunk in one.chunks], column.type)
    return len(sample.unique()) > _DISTINCT_MAX * len(sample)


def _paths(schema: pa.Schema) -> list[str]:
    """Return the paths of a schema's columns as Parquet names them, of nested ones each part's."""
    import pyarrow.parquet as pq

    empty = io.BytesIO()
    pq.ParquetWriter(empty, schema).close()
    found = pq.ParquetFile(empty).schema
    return [found.column(position).path for position in range(len(found))]
