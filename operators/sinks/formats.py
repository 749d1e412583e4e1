"""The formats of parts (Parquet, CSV, JSON lines): writing them and reading them back.

A format is a small picklable value that opens an encoder per part.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from ...configs.errors import OutputError
from ..sources.files import FileSet
from ..sources.json_values import is_binary, jsonable
from .row_buffer import RowBuffer
from .row_groups import RowGroupWriter
from .writable_times import refuse_unwritable_times

if TYPE_CHECKING:
    import pyarrow as pa

    from ...transport.wire.types import Schema

_GROUP_ROWS = 131_072
_GROUP_BYTES = 32 << 20
_DIGITS_MAX = 38
"""Of a decimal128."""


class PartEncoder(ABC):
    """Writes one part."""

    @abstractmethod
    def write(self, record: pa.RecordBatch) -> None:
        """Write or buffer a batch of the part's schema."""

    @abstractmethod
    def close(self) -> None:
        """Write buffered batches and the end of the file; the stream stays open."""

    def drop(self) -> None:
        """Drop buffered batches without ending the file, for which there may be no room."""
        return


@dataclass(frozen=True)
class PartFormat(ABC):
    """A file format.

    Attributes:
        name: the name of the function that returns the sink.
        suffix: the end of a part's name.
        keeps_rows: whether the encoder keeps batches beyond `write`, so that they must own their
            memory.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]
    keeps_rows: ClassVar[bool] = False

    def check(self, schema: pa.Schema) -> None:
        """Raise `OutputError` naming a column that the format cannot hold."""
        return

    @abstractmethod
    def encoder(self, stream: BinaryIO, schema: pa.Schema) -> PartEncoder:
        """Start a part."""

    @abstractmethod
    def load_line(self, path: str) -> str:
        """Return a line of Python that loads an output folder."""

    @abstractmethod
    def batches(self, paths: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of parts that this format wrote."""


@dataclass(frozen=True)
class ParquetFormat(PartFormat):
    """Parquet, a row group per 131,072 rows or 32 MiB.

    Parquet has no seconds and one kind of date: timestamp[s] and time32[s] are written in
    milliseconds, date64 as date32; `SinkResult.to_arrow` restores their types. Its decimals have no
    negative scale.
    """

    name = "parquet"
    suffix = ".parquet"
    keeps_rows = True

    compression: str = "zstd"

    def check(self, schema: pa.Schema) -> None:
        """Raise `OutputError` naming a column of decimals without their last digits."""
        import pyarrow as pa

        for field in schema:
            kind = field.type
            if pa.types.is_decimal(kind) and kind.scale < 0:
                whole = kind.precision - kind.scale
                wider = f"decimal({whole}, 0)" if whole <= _DIGITS_MAX else "double"
                msg = (
                    f"Parquet cannot hold column {field.name!r} of type {kind}, whose scale is"
                    f" negative; cast it to {wider!r} before the sink"
                )
                raise OutputError(msg)

    def encoder(self, stream: BinaryIO, schema: pa.Schema) -> PartEncoder:
        """Start a part."""
        return _ParquetEncoder(stream, schema, self.compression)

    def load_line(self, path: str) -> str:
        """Return a line of Python that loads an output folder."""
        return f"pandas.read_parquet({path!r})"

    def batches(self, paths: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of parts that this format wrote."""
        import pyarrow.parquet as pq

        for path in paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches():
                    yield batch if batch.schema == schema else batch.cast(schema)


class _ParquetEncoder(PartEncoder):
    def __init__(self, stream: BinaryIO, schema: pa.Schema, compression: str) -> None:
        self._groups = RowGroupWriter(stream, schema, compression)
        self._buffer = RowBuffer(schema)

    def write(self, record: pa.RecordBatch) -> None:
        self._buffer.add(record)
        if self._buffer.rows >= _GROUP_ROWS or self._buffer.nbytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        if self._buffer.rows:
            self._flush()
        self._groups.close()

    def drop(self) -> None:
        self._groups.drop()

    def _flush(self) -> None:
        self._groups.write(self._buffer.take())


@dataclass(frozen=True)
class CsvFormat(PartFormat):
    """CSV with a header: texts in double quotes, a null as an empty field.

    A timestamp with a zone is written as an instant in UTC, as offsets in CSV have no seconds,
    which those of most zones had before 1900.
    """

    name = "csv"
    suffix = ".csv"

    def check(self, schema: pa.Schema) -> None:
        """Raise `OutputError` naming a binary column."""
        for field in schema:
            if is_binary(field.type):
                msg = (
                    f"CSV cannot hold column {field.name!r} of type {field.type}; "
                    "leave it out with select(), or write Parquet"
                )
                raise OutputError(msg)

    def encoder(self, stream: BinaryIO, schema: pa.Schema) -> PartEncoder:
        """Start a part."""
        return _CsvEncoder(stream, schema)

    def load_line(self, path: str) -> str:
        """Return a line of Python that loads an output folder."""
        return f"pyarrow.dataset.dataset({path!r}, format='csv').to_table().to_pandas()"

    def batches(self, paths: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of parts that this format wrote."""
        from ..sources.csv_files import CsvSource

        source = CsvSource(_files(paths), _given(schema), None, newlines_in_values=True)
        return source.batches()


class _CsvEncoder(PartEncoder):
    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        import pyarrow.csv as pc

        self._schema = _in_utc(schema)
        self._writer = pc.CSVWriter(stream, self._schema)

    def write(self, record: pa.RecordBatch) -> None:
        refuse_unwritable_times(record, "CSV")
        self._writer.write_batch(record.cast(self._schema))

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True)
class JsonLinesFormat(PartFormat):
    """One JSON object per line, in UTF-8; values as in `operators/sources/json_values.py`."""

    name = "json_lines"
    suffix = ".jsonl"

    def encoder(self, stream: BinaryIO, schema: pa.Schema) -> PartEncoder:
        """Start a part."""
        return _JsonLinesEncoder(stream, schema)

    def load_line(self, path: str) -> str:
        """Return a line of Python that loads an output folder."""
        return f"pyarrow.dataset.dataset({path!r}, format='json').to_table().to_pandas()"

    def batches(self, paths: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of parts that this format wrote."""
        from ..sources.json_lines_files import JsonLinesSource

        return JsonLinesSource(_files(paths), _given(schema), None).batches()


def json_texts(record: pa.RecordBatch) -> list[str]:
    """Return each row as a JSON object on one line; see `operators/sources/json_values.py`.

    Raises:
        OutputError: a time lies outside the years 0 to 9999.
    """
    refuse_unwritable_times(record, "JSON")
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    names = record.schema.names
    columns = [jsonable(column) for column in record.columns]
    rows = zip(*columns, strict=True) if columns else ((),) * record.num_rows
    return [encode(dict(zip(names, row, strict=True))) for row in rows]


class _JsonLinesEncoder(PartEncoder):
    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        self._stream = stream

    def write(self, record: pa.RecordBatch) -> None:
        self._stream.write(("\n".join(json_texts(record)) + "\n").encode())

    def close(self) -> None:
        return None


def _in_utc(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose timestamps with a zone are in UTC."""
    import pyarrow as pa

    for number, field in enumerate(schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            schema = schema.set(number, field.with_type(pa.timestamp(field.type.unit, "UTC")))
    return schema


FORMATS: dict[str, PartFormat] = {
    one.name: one for one in (ParquetFormat(), CsvFormat(), JsonLinesFormat())
}


def _files(paths: Sequence[str]) -> FileSet:
    return FileSet(tuple(paths), tuple(paths), "written", ())


def _given(schema: pa.Schema) -> Schema:
    from ...transport.wire.types import Schema

    return Schema.from_arrow(schema)
