"""The sink of Postgres tables, exactly once.

Each writer sends its rows by COPY into tables of staged rows of its own (`postgres_tables`), where
they survive a crash of everything. A commit moves the rows of an epoch into the user's table and
notes job, operator and epoch in `whale_ray_commits`, all in one transaction: repeated, it finds its
note and does nothing. Rows do not pass through the coordinator, however many they are.

With a key, the last row of each key replaces what the table has (an upsert).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from ...configs.errors import OutputError, UsageError
from ...configs.extras import require_extra
from ..arguments import check_type, names
from .base import CommitId, Delivery, Sink, SinkResult, SinkWriter, Staged
from .postgres_server import (
    Connection,
    TableLockedError,
    connect,
    connection_to,
    limit_lock_waits,
)
from .postgres_tables import PostgresTable
from .postgres_writer import PUBLICATION, PostgresWriter, StagedRows, by_stage, staged_rows
from .writer_schema import common_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Self

    import pyarrow as pa

    from ..process import InstanceContext


_log = logging.getLogger(__name__)

LOCK_TIMEOUT_MS = 10_000
"""After so long a commit that waits for a lock is told, and tried again."""
LOCK_ATTEMPTS = 60


@dataclass(frozen=True)
class PostgresResult(SinkResult):
    """The number of rows that a job moved into a table; the rows are there alone."""

    named: str = ""

    @property
    def whereabouts(self) -> str:
        """Where the rows are, in words."""
        return f"in {self.named}"

    def preview(self, rows: int = 5) -> list[dict[str, Any]]:
        """Return no rows."""
        return []

    def _batches(self) -> Iterator[pa.RecordBatch]:
        msg = f"the rows are in {self.named}, together with those of others: read it from there"
        raise OutputError(msg)


@dataclass(frozen=True)
class PostgresSink(Sink):
    """A Postgres table; see `postgres`."""

    publishes_parts: ClassVar[bool] = True
    delivery: ClassVar[Delivery | None] = "exactly once"
    staged_as = "postgres"

    dsn: str = field(repr=False)
    table: PostgresTable
    operator_id: str = ""

    def check_columns(self, columns: pa.Schema) -> None:
        """Compare columns with those of the table; see `Sink.check_columns`."""
        with connection_to(self.dsn, self.table.described) as connection:
            self.table.matched(connection, columns)

    def check_reachable(self) -> None:
        """Log in; see `Sink.check_reachable`."""
        connect(self.dsn, self.table.described).close()

    def for_operator(self, operator_id: str) -> Self:
        """See `Sink.for_operator`: several operators may write into one table."""
        return replace(self, operator_id=operator_id)

    def prepare(self, token: str, *, bounded: bool) -> None:
        """Log in, create the table of commits, and drop what ended jobs have left."""
        with connection_to(self.dsn, self.table.described) as connection:
            self.table.create_commits(connection)
            self.table.drop_unused(connection)

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open one instance's writer; it connects at the first rows."""
        return PostgresWriter(self, context.operator_id, context.instance, token)

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Move all rows into the table in one transaction, unless it is noted."""
        schema = common_schema(staged, self.table.described)
        parts = staged_rows(staged)
        if parts:
            self._commit(token, PUBLICATION, parts)
            self._drop_emptied(by_stage(parts))
        return PostgresResult(
            rows=sum(part.rows for part in staged),
            format="postgres",
            schema=None if schema is None else schema.serialize().to_pybytes(),
            named=self.table.described,
        )

    def _drop_emptied(self, stages: Iterable[str]) -> None:
        """Drop the tables of staged rows of a job that died; writers that live drop their own."""
        try:
            with connection_to(self.dsn, self.table.described) as connection:
                for stage in stages:
                    self.table.drop_unused(connection, stage)
        except OutputError as error:  # the rows are published all the same
            _log.warning("%s; tables that staged rows were in stay until the next job", error)

    def publish_partial(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Move the rows so far: nothing is replaced by a part of it."""
        return self.publish(token, staged)

    def commit(self, commit: CommitId, staged: Sequence[Staged]) -> None:
        """Move an epoch's rows into the table and note it, unless it is noted."""
        parts = staged_rows(staged)
        if parts:
            self._commit(commit.lineage, commit.epoch, parts)

    def recover(self, token: str, staged: Sequence[Staged], *, bounded: bool) -> None:
        """Remove staged rows of epochs that do not count; see `Sink.recover`."""
        self.prepare(token, bounded=bounded)
        parts = staged_rows(staged)
        with connection_to(self.dsn, self.table.described) as connection:
            is_published = bounded and self.table.last(connection, token, self.operator_id) >= 0
            for stage, mine in by_stage(() if is_published else parts).items():
                last = self.table.last(connection, mine[0].lineage, self.operator_id)
                self._require(connection, stage, [one for one in mine if one.epoch > last])
            prefix = self.table.stage_prefix(token, self.operator_id)
            wanted = [part.part for part in parts]
            for stage in self.table.stages(connection, prefix):
                self.table.keep_only(connection, stage, wanted)

    def discard(self, token: str) -> None:
        """Remove what was staged and is not committed."""
        prefix = self.table.stage_prefix(token, self.operator_id)
        with connection_to(self.dsn, self.table.described) as connection:
            for stage in self.table.stages(connection, prefix):
                self.table.keep_only(connection, stage, [])
            connection.commit()
            self.table.drop_unused(connection, prefix)

    def describe(self) -> str:
        """Return the table; the dsn may hold a password."""
        schema = f"{self.table.schema}." if self.table.schema else ""
        key = f" by {', '.join(self.table.key)}" if self.table.key else ""
        return f"postgres {schema}{self.table.name}{key}"

    def _commit(self, lineage: str, epoch: int, parts: Sequence[StagedRows]) -> None:
        """Commit once no other transaction holds the table locked, for some minutes at most.

        If the dsn itself has a `lock_timeout`, that is the limit.
        """
        for attempt in range(1, LOCK_ATTEMPTS + 1):
            is_limited = False
            try:
                with connection_to(self.dsn, self.table.described) as connection:
                    is_limited = limit_lock_waits(connection, LOCK_TIMEOUT_MS)
                    self._commit_in(connection, lineage, epoch, parts)
                    return
            except TableLockedError as error:
                if not is_limited or attempt == LOCK_ATTEMPTS:
                    raise
                waited_s = attempt * LOCK_TIMEOUT_MS // 1000
                most_s = LOCK_ATTEMPTS * LOCK_TIMEOUT_MS // 1000
                _log.warning("%s; it has waited %d of %d s", error, waited_s, most_s)

    def _commit_in(
        self, connection: Connection, lineage: str, epoch: int, parts: Sequence[StagedRows]
    ) -> None:
        if not self.table.advance(connection, lineage, self.operator_id, epoch):
            return
        self.table.create(connection, parts[0].columns)
        stages = by_stage(parts)
        for stage, mine in stages.items():
            self._require(connection, stage, mine)
        if stages:
            numbers = [one.part for one in parts]
            self.table.move(connection, list(stages), numbers, parts[0].columns)
        for stage, mine in stages.items():
            self.table.empty(connection, stage, [one.part for one in mine])

    def _require(self, connection: Connection, stage: str, parts: Sequence[StagedRows]) -> None:
        """Raise `OutputError` unless all rows of parts are staged."""
        wanted = sum(part.rows for part in parts)
        found = self.table.count(connection, stage, [part.part for part in parts])
        if found != wanted:
            msg = (
                f"{self.table.described}: {wanted - found} of {wanted} staged rows are gone from "
                f"{stage}: somebody has removed them; go on from an earlier checkpoint"
            )
            raise OutputError(msg)


def postgres(
    dsn: str,
    table: str,
    *,
    mode: Literal["append", "upsert"] = "append",
    key: str | Sequence[str] = (),
) -> Sink:
    """Write rows into a Postgres table, exactly once with checkpoints: `postgres(dsn, "trips")`.

    Writers send their rows by binary COPY into tables of staged rows. A bounded job moves all of
    them into the table in one transaction at its end. An unbounded one with checkpoints moves those
    of an epoch in one transaction that notes job and epoch in `whale_ray_commits`, so that a
    repeated commit finds itself; without checkpoints, each instance moves its rows every
    `runtime.commit_interval_ms`. A table that is missing is created.

    Columns are compared by name; a table may have more columns if they have a default. Types::

        bool                              boolean
        int8, int16, uint8                smallint, or integer, bigint
        int32, uint16                     integer, or bigint
        int64, uint32                     bigint
        uint64                            numeric(20, 0)
        float16, float32                  real, or double precision
        float64                           double precision
        decimal128(p, s)                  numeric(p, s), or one with more digits
        string                            text, or character varying, json, jsonb
        binary                            bytea
        fixed_size_binary(n)              bytea; of 16 bytes also uuid
        date32, date64                    date
        time32, time64                    time
        timestamp without, with a zone    timestamp, timestamptz
        duration                          interval

    Times are in microseconds; nanoseconds must be whole microseconds. Of `character varying(n)`
    Postgres refuses longer texts, but for spaces at their end, which it leaves out.

    Args:
        dsn: how to reach the database, as psycopg takes it: `postgresql://user:password@host/db`
            or `host=… dbname=…`. It is sent to the workers; a password is better in a file
            `.pgpass` or in the variable PGPASSWORD there. Not through a pool that shares
            connections between transactions.
        table: its name, or `schema.name`.
        mode: `append`; or `upsert`, where the last row of each key replaces what the table has.
        key: of an upsert: the columns of a unique index, or the primary key of a new table.

    Raises:
        ResourceError: the extra `postgres` is not installed.
        UsageError: an argument is none of those above.
        OutputError: while running: the server is gone or refuses the login, or the table has other
            columns.
    """
    require_extra("postgres", "sinks.postgres", "take sinks.parquet")
    check_type("postgres", "dsn", dsn, str, "'host=… dbname=…' or 'postgresql://…'")
    check_type("postgres", "table", table, str, "the name of a table")
    columns = names("postgres", "key", key, "a column, or a list of columns", or_one=True)
    if mode not in ("append", "upsert"):
        msg = f"postgres(mode={mode!r}): it is 'append' or 'upsert'"
        raise UsageError(msg)
    if (mode == "upsert") != bool(columns):
        msg = "postgres(mode='upsert', key=…): an upsert has a key, and nothing else has one"
        raise UsageError(msg)
    schema, _, name = table.rpartition(".")
    if not name or not dsn:
        msg = f"postgres(dsn, {table!r}): name the database and a table, such as 'public.trips'"
        raise UsageError(msg)
    return PostgresSink(dsn, PostgresTable(schema or None, name, columns))
