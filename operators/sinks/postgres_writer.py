"""Stages the rows of one instance in a table of its own, in Postgres' binary COPY."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from ...configs.errors import OutputError
from .base import SinkWriter, Staged
from .postgres_copy import HEADER, TRAILER, rows_of
from .postgres_server import Connection, connect, hold, release_all, server_errors
from .postgres_tables import number_of
from .postgres_types import TableColumn
from .row_buffer import RowBuffer
from .writer_schema import WriterSchema

if TYPE_CHECKING:
    import pyarrow as pa

    from ...transport.wire.batch import Batch
    from .postgres_sink import PostgresSink

PUBLICATION = 0
"""The number of a bounded job's only commit; epochs are numbered from 1."""

_CHUNK_ROWS = 32_768
_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class StagedRows:
    """What one writer has staged at once, as the payload of `Staged`.

    Attributes:
        lineage: the job that staged it.
        epoch: at whose marker; `PUBLICATION` at the end.
        stage: the table of staged rows.
        part: the number under which they lie there.
        rows: how many.
        columns: theirs.
    """

    lineage: str
    epoch: int
    stage: str
    part: int
    rows: int
    columns: tuple[TableColumn, ...]

    def to_payload(self) -> bytes:
        """Return JSON, which a manifest keeps."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_payload(cls, payload: bytes) -> StagedRows:
        """Return what `to_payload` was called for."""
        told = json.loads(payload)
        return cls(**{**told, "columns": tuple(TableColumn(**one) for one in told["columns"])})


def staged_rows(staged: Iterable[Staged]) -> list[StagedRows]:
    """Return what writers have staged, in their order."""
    return [StagedRows.from_payload(part.payload) for part in staged if part.payload]


class PostgresWriter(SinkWriter):
    """Sends rows to the server as they come; its transaction ends when they are staged."""

    def __init__(self, sink: PostgresSink, operator_id: str, instance: int, token: str) -> None:
        self._sink = sink
        self._table = sink.table
        self._instance = instance
        self._token = token
        prefix = sink.table.stage_prefix(token, sink.operator_id)
        self._stages = [f"{prefix}{instance}_{turn}" for turn in (0, 1)]
        self._turn = 0  # of the part that is being written
        self._schema = WriterSchema(operator_id)
        self._buffer: RowBuffer | None = None
        self._columns: tuple[TableColumn, ...] = ()
        self._connection: Connection | None = None
        self._copying: AbstractContextManager[Any] | None = None
        self._copy: Any = None
        self._part = 0
        self._rows = 0

    def write(self, batch: Batch) -> None:
        """Send the rows once there are enough; see `SinkWriter.write`."""
        record = self._schema.conform(batch if batch.owned else batch.copy())
        if self._buffer is None:
            self._meet_table(record.schema)
            self._buffer = RowBuffer(record.schema)
        if not record.num_rows:
            return
        self._buffer.add(record)
        if self._buffer.rows >= _CHUNK_ROWS or self._buffer.nbytes >= _CHUNK_BYTES:
            self._send()

    def stage(self) -> Staged:
        """Stage the rows for `publish`."""
        return self._staged(PUBLICATION)

    def stage_epoch(self, epoch: int) -> Staged | None:
        """Stage the rows of an epoch."""
        staged = self._staged(epoch)
        return staged if staged.rows else None

    def publish_part(self) -> Staged | None:
        """Stage the rows since the last call and move them into the table, in one transaction."""
        self._finish_copy()
        if not self._rows or self._connection is None:
            return None
        with server_errors(self._table.described):
            self._table.create(self._connection, self._columns)
            self._table.move(self._connection, [self._stage], [self._part], self._columns)
            self._table.empty(self._connection, self._stage, [self._part])
            self._connection.commit()
        return self._receipt(None)

    def abort(self) -> None:
        """Drop rows that are not staged; those that are stay for `publish`, `commit`, `recover`."""
        self._buffer = None
        copying, self._copying, self._copy = self._copying, None, None
        connection, self._connection = self._connection, None
        if connection is None:
            return
        import psycopg

        with suppress(psycopg.Error):  # the server may be gone
            if copying is not None:
                copying.__exit__(InterruptedError, InterruptedError("the job was aborted"), None)
            connection.rollback()
            release_all(connection)
            for stage in self._stages:
                self._table.drop_unused(connection, stage)
            connection.commit()
        connection.close()

    @property
    def _stage(self) -> str:
        """The table of staged rows for the part that is being written."""
        return self._stages[self._turn]

    def _meet_table(self, schema: pa.Schema) -> None:
        """Compare the columns of the first rows with the table's, if there is one."""
        self._connection = connect(self._sink.dsn, self._table.described)
        with server_errors(self._table.described):
            self._columns = self._table.matched(self._connection, schema)
            for stage in self._stages:
                hold(self._connection, number_of(stage))
                self._table.create_stage(self._connection, stage, self._columns)
            self._connection.commit()
            self._table.check_key(self._connection, self._stage, self._columns)
            self._connection.commit()

    def _send(self) -> None:
        """Send the rows that were kept."""
        import pyarrow as pa

        if self._buffer is None or not self._buffer.rows:
            return
        for record in self._buffer.take().combine_chunks().to_batches():
            count = record.num_rows
            numbers = np.arange(self._rows, self._rows + count)
            begins = self._copy is None
            if begins:
                self._part = uuid4().int >> 65  # a number that no other part has: 63 bits
            part = pa.array(np.full(count, self._part, np.int64))
            raw = rows_of(
                [part, pa.array(numbers), *record.columns],
                ["bigint", "bigint", *(column.kind for column in self._columns)],
                ["whale_part", "whale_row", *record.schema.names],
            )
            with server_errors(self._table.described):
                if begins:
                    self._begin_copy()
                self._copy.write(raw)
            self._rows += count

    def _begin_copy(self) -> None:
        assert self._connection is not None  # there were rows
        statement = self._table.copy_statement(self._stage, self._columns)
        self._copying = self._connection.cursor().copy(statement)
        self._copy = self._copying.__enter__()
        self._copy.write(HEADER)

    def _finish_copy(self) -> None:
        self._send()
        copying, self._copying = self._copying, None
        if copying is None:
            return
        with server_errors(self._table.described):
            self._copy.write(TRAILER)
            self._copy = None
            copying.__exit__(None, None, None)

    def _staged(self, epoch: int) -> Staged:
        """Complete what was sent, so that it survives, and return it."""
        self._finish_copy()
        if self._rows:
            assert self._connection is not None
            with server_errors(self._table.described):
                self._connection.commit()
        return self._receipt(epoch)

    def _receipt(self, epoch: int | None) -> Staged:
        """Return what was staged, or, without an epoch, published; begin anew."""
        schema = self._schema.schema
        rows, self._rows = self._rows, 0
        payload = None
        if epoch is not None and schema is not None:
            payload = StagedRows(
                self._token, epoch, self._stage, self._part, rows, self._columns
            ).to_payload()
        if rows:
            self._turn = 1 - self._turn
        serialized = None if schema is None else schema.serialize().to_pybytes()
        return Staged(self._instance, rows, 0, serialized, payload=payload)


def by_stage(parts: Sequence[StagedRows]) -> dict[str, list[StagedRows]]:
    """Return parts that have rows by the table that they lie in, each in their order.

    Raises:
        OutputError: their columns differ.
    """
    found: dict[str, list[StagedRows]] = {}
    for part in parts:
        if not part.rows:
            continue
        found.setdefault(part.stage, []).append(part)
        if {one.name for one in part.columns} != {one.name for one in parts[0].columns}:
            msg = (
                f"the rows staged in {part.stage} have other columns than those in {parts[0].stage}"
            )
            raise OutputError(msg)
    return found
