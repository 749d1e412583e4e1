"""A part of staged rows in a Postgres table, sent by binary COPY in one transaction.

::

    loop      write … send … write ── cut ── write … (kept here) … send
    thread                            └── complete: send the rest, commit

All parts of a writer go through one connection, one after the other. Rows that come while the part
before is being committed are kept, and sent once there are enough; then the loop waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from ...configs.errors import OutputError
from .cut_output import CutOutput
from .postgres_copy import HEADER, TRAILER, rows_of
from .postgres_server import Connection, connect, hold, release_all, server_errors
from .postgres_tables import number_of
from .row_buffer import RowBuffer

if TYPE_CHECKING:
    import pyarrow as pa

    from .postgres_tables import PostgresTable
    from .postgres_types import TableColumn

__all__ = ["PostgresPart", "PostgresSession"]

_CHUNK_ROWS = 32_768
_CHUNK_BYTES = 8 << 20


class PostgresSession:
    """The connection of one writer, used by one thread at a time.

    Attributes:
        columns: those of the table for the rows' columns, once it is open.
    """

    def __init__(self, connection: Connection, table: PostgresTable, stages: Sequence[str]) -> None:
        self._connection: Connection | None = connection
        self._table, self._stages = table, stages
        self._lock = Lock()
        self._is_closing = False
        self._copying: AbstractContextManager[Any] | None = None
        self._copy: Any = None
        self.columns: tuple[TableColumn, ...] = ()

    @classmethod
    def open(
        cls, dsn: str, table: PostgresTable, stages: Sequence[str], schema: pa.Schema
    ) -> PostgresSession:
        """Connect, compare the columns of the first rows with the table's, and create the stages.

        Raises:
            OutputError: the server is gone or refuses the login, or the table has other columns.
        """
        session = cls(connect(dsn, table.described), table, stages)
        try:
            session._prepare(schema)
        except BaseException:
            session.close()
            raise
        return session

    def _prepare(self, schema: pa.Schema) -> None:
        with self.in_use() as connection:
            self.columns = self._table.matched(connection, schema)
            for stage in self._stages:
                hold(connection, number_of(stage))
                self._table.create_stage(connection, stage, self.columns)
            connection.commit()
            self._table.check_key(connection, self._stages[0], self.columns)
            connection.commit()

    @contextmanager
    def in_use(self) -> Iterator[Connection]:
        """Keep others from the connection; raise `OutputError` for errors, and if it is closed."""
        try:
            with self._lock:
                if self._is_closing or self._connection is None:
                    msg = "the attempt is over"
                    raise OutputError(msg)
                with server_errors(self._table.described):
                    yield self._connection
        finally:
            if self._is_closing:
                self.close()

    def copy(self, stage: str, raw: bytes) -> None:
        """Send rows in the format of a binary COPY; for a thread that uses the connection."""
        if self._copy is None:
            assert self._connection is not None
            statement = self._table.copy_statement(stage, self.columns)
            self._copying = self._connection.cursor().copy(statement)
            self._copy = self._copying.__enter__()
            self._copy.write(HEADER)
        self._copy.write(raw)

    def end_copy(self) -> None:
        """End the COPY, if one is under way; for a thread that uses the connection."""
        copying, self._copying = self._copying, None
        copy, self._copy = self._copy, None
        if copying is not None:
            copy.write(TRAILER)
            copying.__exit__(None, None, None)

    def close(self) -> None:
        """Roll back, drop the stages if they are empty, and close; behind a thread that uses it."""
        self._is_closing = True
        if self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()

    def _close(self) -> None:
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


class PostgresPart(CutOutput[None]):
    """The rows of one part; `write` is called until they are set apart.

    Args:
        session: of the writer.
        stage: the table of staged rows.
        schema: of the rows.
        before: parts that may not be complete, which must be before this one is sent.
    """

    def __init__(
        self,
        session: PostgresSession,
        stage: str,
        schema: pa.Schema,
        before: Sequence[PostgresPart],
    ) -> None:
        super().__init__()
        self._session = session
        self._before = before
        self._names = schema.names
        self._buffer = RowBuffer(schema)
        self.stage = stage
        self.number = uuid4().int >> 65  # that no other part has: 63 bits
        self.columns = session.columns
        self.rows = 0

    def write(self, record: pa.RecordBatch) -> None:
        """Keep rows until there are enough to be sent."""
        self._buffer.add(record)
        self.rows += record.num_rows
        if self._buffer.rows >= _CHUNK_ROWS or self._buffer.nbytes >= _CHUNK_BYTES:
            self.send()

    def send(self) -> None:
        """Send the rows that were kept; raise `OutputError` if that is impossible."""
        for part in self._before:
            part.complete()
        self._before = ()
        if not self._buffer.rows:
            return
        first = self.rows - self._buffer.rows
        for record in self._buffer.take().combine_chunks().to_batches():
            raw = self._encoded(record, first)
            first += record.num_rows
            with self._session.in_use():
                self._session.copy(self.stage, raw)

    def _encoded(self, record: pa.RecordBatch, first: int) -> bytes:
        """Return rows for a binary COPY; `first` is the number of the first one in the part."""
        import pyarrow as pa

        number = pa.array(np.full(record.num_rows, self.number, np.int64))
        rows = pa.array(np.arange(first, first + record.num_rows))
        return rows_of(
            [number, rows, *record.columns],
            ["bigint", "bigint", *(column.kind for column in self.columns)],
            ["whale_part", "whale_row", *self._names],
        )

    def _encode(self) -> None:
        self.send()
        with self._session.in_use() as connection:
            self._session.end_copy()
            connection.commit()

    def _sync(self) -> None:
        """Nothing: the server has done it at the commit."""

    def _free(self) -> None:
        """Nothing: the transaction is rolled back when the session is closed."""
