"""Writes the rows of one instance to Parquet files of a Delta table that nobody sees yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ...configs.errors import OutputError
from .base import SinkWriter, Staged
from .delta_files import PUBLICATION, DeltaFile, StagedFiles, key_of, new_name
from .delta_log import as_output_error
from .delta_parts import OpenFile, Partition, check_partition, divide
from .delta_types import delta_schema, in_delta_types
from .row_buffer import RowBuffer
from .writer_schema import WriterSchema

if TYPE_CHECKING:
    import pyarrow as pa

    from ...transport.wire.batch import Batch
    from .delta_sink import DeltaSink

_GROUP_ROWS = 131_072
_GROUP_BYTES = 32 << 20
_OPEN_FILES_MAX = 64
"""A writer of a partitioned table closes its files and begins others when it has so many."""


class DeltaWriter(SinkWriter):
    """Writes the rows of one instance; the open files of a partitioned table are bounded."""

    def __init__(self, sink: DeltaSink, operator_id: str, instance: int, token: str) -> None:
        self._sink = sink
        self._operator_id = operator_id
        self._instance = instance
        self._key = key_of(token, sink.operator_id)
        self._application = sink.application(token)
        self._schema = WriterSchema(operator_id)
        self._buffer: RowBuffer | None = None
        self._partition_by: tuple[str, ...] = ()
        self._open: dict[Partition, OpenFile] = {}
        self._done: list[DeltaFile] = []
        self._parts = 0

    def write(self, batch: Batch) -> None:
        """Keep the rows until there are enough for a row group; see `SinkWriter.write`."""
        record = self._schema.conform(batch if batch.owned else batch.copy())
        values = in_delta_types(record)
        if self._buffer is None:
            self._meet_table(record.schema)
            self._buffer = RowBuffer(values.schema)
        if not values.num_rows:
            return
        self._buffer.add(values)
        if self._buffer.rows >= _GROUP_ROWS or self._buffer.nbytes >= _GROUP_BYTES:
            self._flush()

    def stage(self) -> Staged:
        """Finish the files for `publish`."""
        return self._receipt(self._application, PUBLICATION, self._finish())

    def stage_epoch(self, epoch: int) -> Staged | None:
        """Finish the files of an epoch."""
        files = self._finish()
        return self._receipt(self._application, epoch, files) if files else None

    def publish_part(self) -> Staged | None:
        """Add the rows since the last call to the table, in a transaction of this instance."""
        files = self._finish()
        if not files or self._schema.schema is None:
            return None
        self._parts += 1
        application = f"{self._application}/{self._instance}"
        self._sink.add(files, self._schema.schema, application, self._parts)
        return self._receipt(application, self._parts, files)

    def abort(self) -> None:
        """Remove files that were not finished; the log may name the others, see `discard`."""
        self._buffer = None
        for file in self._open.values():
            file.drop()
        self._open.clear()
        for done in self._done:
            with suppress(OSError):
                self._sink.folder.remove(done.name)
        self._done.clear()

    def _meet_table(self, schema: pa.Schema) -> None:
        """Compare the columns of the first rows with the table's, if there is one."""
        here = delta_schema(schema)
        columns = self._sink.log.columns()
        if columns is None:
            self._partition_by = self._sink.partition_by
        else:
            self._sink.log.refuse_others(columns, here, self._sink.partition_by)
            self._partition_by = columns.partition_by
        for name in self._partition_by:
            check_partition(self._operator_id, name, here)
        if set(here.names) == set(self._partition_by):
            msg = (
                f"sink {self._operator_id!r}: the table is partitioned by all its columns; one at "
                "least must be left"
            )
            raise OutputError(msg)

    def _flush(self) -> None:
        """Write the rows that were kept, a row group for each partition."""
        if self._buffer is None or not self._buffer.rows:
            return
        with self._errors():
            for partition, rows in self._divide(self._buffer.take()):
                if partition not in self._open:
                    if len(self._open) >= _OPEN_FILES_MAX:
                        self._close()
                    self._open[partition] = self._begin(partition, rows.schema)
                self._open[partition].write(rows)

    def _finish(self) -> list[DeltaFile]:
        """Complete all files since the last call, and return them."""
        self._flush()
        with self._errors():
            self._close()
        files, self._done = self._done, []
        return files

    def _close(self) -> None:
        while self._open:
            partition = next(iter(self._open))
            self._done.append(self._open[partition].close())
            del self._open[partition]

    def _begin(self, partition: Partition, schema: pa.Schema) -> OpenFile:
        values = dict(zip(self._partition_by, partition, strict=True))
        name = new_name(self._instance, self._key)
        return OpenFile(self._sink.folder, name, values, schema, self._sink.compression)

    def _divide(self, table: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
        """Yield the rows of each partition, without the columns that it is made by."""
        if not self._partition_by:
            yield (), table
            return
        yield from divide(table, self._partition_by)

    def _receipt(self, application: str, number: int, files: list[DeltaFile]) -> Staged:
        schema = self._schema.schema
        return Staged(
            self._instance,
            sum(file.rows for file in files),
            sum(file.nbytes for file in files),
            None if schema is None else schema.serialize().to_pybytes(),
            payload=StagedFiles(application, number, tuple(files)).to_payload(),
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise as_output_error(self._sink.folder, error) from error
