"""The rows that one writer of a Delta table has had for an epoch, in files that nobody sees yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from .cut_output import CutOutput
from .delta_files import DeltaFile
from .delta_log import as_output_error
from .delta_parts import OpenFile, Partition, divide
from .row_buffer import RowBuffer

if TYPE_CHECKING:
    import pyarrow as pa

    from .delta_sink import DeltaSink

__all__ = ["DeltaRows"]

_GROUP_ROWS = 131_072
_GROUP_BYTES = 32 << 20
_OPEN_FILES_MAX = 64
"""Of a partitioned table: when there are so many, they are closed, and others begun."""


class DeltaRows(CutOutput[list[DeltaFile]]):
    """Rows of one schema, divided by partition; `write` is called until they are set apart.

    Args:
        sink: of the writer.
        partition_by: the columns by which the table is divided.
        make_name: returns a new file's name.
        schema: of the rows.
    """

    def __init__(
        self,
        sink: DeltaSink,
        partition_by: tuple[str, ...],
        make_name: Callable[[], str],
        schema: pa.Schema,
    ) -> None:
        super().__init__()
        self._sink = sink
        self._partition_by = partition_by
        self._make_name = make_name
        self._buffer = RowBuffer(schema)
        self._open: dict[Partition, OpenFile] = {}
        self._done: list[DeltaFile] = []

    def write(self, values: pa.RecordBatch) -> None:
        """Keep rows until there are enough for a row group."""
        self._buffer.add(values)
        if self._buffer.rows >= _GROUP_ROWS or self._buffer.nbytes >= _GROUP_BYTES:
            self._flush()

    def _encode(self) -> None:
        self._flush()
        with self._errors():
            self._close()

    def _sync(self) -> list[DeltaFile]:
        return self._done

    def _free(self) -> None:
        for file in self._open.values():
            file.drop()
        self._open.clear()
        for done in self._done:
            with suppress(OSError):
                self._sink.folder.remove(done.name)
        self._done.clear()

    def _flush(self) -> None:
        """Write the rows that were kept, a row group for each partition."""
        if not self._buffer.rows:
            return
        with self._errors():
            for partition, rows in self._divide(self._buffer.take()):
                if partition not in self._open:
                    if len(self._open) >= _OPEN_FILES_MAX:
                        self._close()
                    self._open[partition] = self._begin(partition, rows.schema)
                self._open[partition].write(rows)

    def _close(self) -> None:
        while self._open:
            partition = next(iter(self._open))
            self._done.append(self._open[partition].close())
            del self._open[partition]

    def _begin(self, partition: Partition, schema: pa.Schema) -> OpenFile:
        values = dict(zip(self._partition_by, partition, strict=True))
        return OpenFile(
            self._sink.folder, self._make_name(), values, schema, self._sink.compression
        )

    def _divide(self, table: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
        """Yield the rows of each partition, without the columns that it is made by."""
        if not self._partition_by:
            yield (), table
            return
        yield from divide(table, self._partition_by)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise as_output_error(self._sink.folder, error) from error
