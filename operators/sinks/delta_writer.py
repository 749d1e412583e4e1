"""Writes the rows of one instance to Parquet files of a Delta table that nobody sees yet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...configs.errors import OutputError
from .base import SinkWriter, Staged
from .delta_files import PUBLICATION, DeltaFile, StagedFiles, key_of, new_name
from .delta_parts import check_partition
from .delta_rows import DeltaRows
from .delta_types import delta_schema, in_delta_types
from .writer_schema import WriterSchema

if TYPE_CHECKING:
    import pyarrow as pa

    from ...transport.wire.batch import Batch
    from .delta_sink import DeltaSink


class DeltaWriter(SinkWriter):
    """Writes the rows of one instance; the open files of a partitioned table are bounded."""

    def __init__(self, sink: DeltaSink, operator_id: str, instance: int, token: str) -> None:
        self._sink = sink
        self._operator_id = operator_id
        self._instance = instance
        self._key = key_of(token, sink.operator_id)
        self._application = sink.application(token)
        self._schema = WriterSchema(operator_id)
        self._rows: DeltaRows | None = None
        self._cut: list[DeltaRows] = []
        self._partition_by: tuple[str, ...] | None = None
        self._required: frozenset[str] = frozenset()
        self._parts = 0

    def write(self, batch: Batch) -> None:
        """Keep the rows until there are enough for a row group; see `SinkWriter.write`."""
        record = self._schema.conform(batch if batch.owned else batch.copy())
        values = in_delta_types(record)
        if self._partition_by is None:
            self._partition_by = self._meet_table(record.schema)
        for name in self._required:
            if record.column(name).null_count:
                msg = (
                    f"sink {self._operator_id!r}: column {name!r} of the Delta table takes no "
                    "null, and the rows have one there; leave such rows out, or fill it"
                )
                raise OutputError(msg)
        if not values.num_rows:
            return
        if self._rows is None:
            make_name = partial(new_name, self._instance, self._key)
            self._rows = DeltaRows(self._sink, self._partition_by, make_name, values.schema)
        self._rows.write(values)

    def stage(self) -> Staged:
        """Finish the files for `publish`."""
        return self._receipt(self._application, PUBLICATION, self._finish())

    def stage_epoch(self, epoch: int) -> Staged | None:
        """Finish the files of an epoch."""
        stage = self.cut_epoch(epoch)
        return None if stage is None else stage()

    def cut_epoch(self, epoch: int) -> Callable[[], Staged] | None:
        """Set the files of an epoch apart, which are then completed and synced beside the loop."""
        self._cut = [rows for rows in self._cut if not rows.is_complete]
        for earlier in self._cut:
            earlier.check()
        rows, self._rows = self._rows, None
        if rows is None:
            return None
        self._cut.append(rows)
        return lambda: self._receipt(self._application, epoch, rows.complete())

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
        for rows in (*self._cut, *([] if self._rows is None else [self._rows])):
            rows.drop()
        self._cut.clear()
        self._rows = None

    def _meet_table(self, schema: pa.Schema) -> tuple[str, ...]:
        """Compare the columns of the first rows with the table's; return what it is divided by."""
        here = delta_schema(schema)
        columns = self._sink.log.columns()
        if columns is None:
            partition_by = self._sink.partition_by
        else:
            self._sink.log.refuse_others(columns, here, self._sink.partition_by)
            partition_by = columns.partition_by
            self._required = columns.required
        for name in partition_by:
            check_partition(self._operator_id, name, here)
        if set(here.names) == set(partition_by):
            msg = (
                f"sink {self._operator_id!r}: the table is partitioned by all its columns; one at "
                "least must be left"
            )
            raise OutputError(msg)
        return partition_by

    def _finish(self) -> list[DeltaFile]:
        """Complete all files since the last call, and return them."""
        rows, self._rows = self._rows, None
        if rows is None:
            return []
        self._cut.append(rows)  # so that `abort` removes its files if this fails
        return rows.complete()

    def _receipt(self, application: str, number: int, files: list[DeltaFile]) -> Staged:
        schema = self._schema.schema
        return Staged(
            self._instance,
            sum(file.rows for file in files),
            sum(file.nbytes for file in files),
            None if schema is None else schema.serialize().to_pybytes(),
            payload=StagedFiles(application, number, tuple(files)).to_payload(),
        )
