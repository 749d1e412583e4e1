"""Stages the rows of one instance in tables of its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NoReturn

from ...configs.errors import AttemptLostError, OutputError
from .base import SinkWriter, Staged
from .postgres_part import PostgresPart, PostgresSession
from .postgres_server import ServerLostError, wait_for_server
from .postgres_types import TableColumn
from .writer_schema import WriterSchema

if TYPE_CHECKING:
    import pyarrow as pa

    from ...transport.wire.batch import Batch
    from .postgres_sink import PostgresSink

_log = logging.getLogger(__name__)

PUBLICATION = 0
"""The number of a bounded job's only commit; epochs are numbered from 1."""


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
    """Sends rows to the server as they come; a transaction ends when its rows are staged."""

    def __init__(self, sink: PostgresSink, operator_id: str, instance: int, token: str) -> None:
        self._sink = sink
        self._table = sink.table
        self._instance = instance
        self._token = token
        prefix = sink.table.stage_prefix(token, sink.operator_id)
        self._stages = [f"{prefix}{instance}_{turn}" for turn in (0, 1)]
        self._turn = 0  # of the part that is being written
        self._operator_id = operator_id
        self._schema = WriterSchema(operator_id)
        self._session: PostgresSession | None = None
        self._part: PostgresPart | None = None
        self._cut: list[PostgresPart] = []

    def write(self, batch: Batch) -> None:
        """Send the rows once there are enough; see `SinkWriter.write`.

        Raises:
            AttemptLostError: the server was gone, and with it what was sent since the last epoch.
            OutputError: it does not come back, or refuses the rows.
        """
        record = self._schema.conform(batch if batch.owned else batch.copy())
        try:
            self._send(record)
        except ServerLostError as error:
            self._wait_for_server(error)

    def _send(self, record: pa.RecordBatch) -> None:
        if self._session is None:
            self._session = PostgresSession.open(
                self._sink.dsn, self._table, self._stages, record.schema
            )
        if not record.num_rows:
            return
        if self._part is None:
            self._part = self._new_part(self._session, record.schema)
        self._part.write(record)

    def stage(self) -> Staged:
        """Stage the rows for `publish`, which creates the table also if there are none."""
        stage = self._cut_rows(PUBLICATION)
        if stage is not None:
            try:
                return stage()
            except ServerLostError as error:
                self._wait_for_server(error)
        schema = self._schema.schema
        if schema is None or self._session is None:
            return Staged(self._instance, 0)
        return self._receipt(PUBLICATION, self._new_part(self._session, schema))

    def stage_epoch(self, epoch: int) -> Staged | None:
        """Stage the rows of an epoch."""
        stage = self._cut_rows(epoch)
        return None if stage is None else stage()

    def cut_epoch(self, epoch: int) -> Callable[[], Staged] | None:
        """See `SinkWriter.cut_epoch`: the server makes the rows durable beside the loop."""
        return self._cut_rows(epoch)

    def publish_part(self) -> Staged | None:
        """Stage the rows since the last call and move them into the table, in one transaction."""
        part, session = self._part, self._session
        if part is None or session is None:
            return None
        part.send()
        with session.in_use() as connection:
            session.end_copy()
            self._table.create(connection, session.columns)
            self._table.move(connection, [part.stage], [part.number], session.columns)
            self._table.empty(connection, part.stage, [part.number])
            connection.commit()
        self._begin_next()
        return self._receipt(None, part)

    def abort(self) -> None:
        """Drop rows that are not staged; those that are stay for `publish`, `commit`, `recover`."""
        for part in (*self._cut, *([] if self._part is None else [self._part])):
            part.drop()
        self._cut.clear()
        self._part = None
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _cut_rows(self, epoch: int) -> Callable[[], Staged] | None:
        self._cut = [part for part in self._cut if not part.is_complete]
        for earlier in self._cut:
            try:
                earlier.check()
            except AttemptLostError as error:
                self._wait_for_server(error)
        part = self._part
        if part is None:
            return None
        self._begin_next()
        self._cut.append(part)

        def stage() -> Staged:
            part.complete()
            return self._receipt(epoch, part)

        return stage

    def _wait_for_server(self, error: OutputError | AttemptLostError) -> NoReturn:
        """Wait for a server that is gone; then let the attempt end, so that rows are read again."""
        _log.warning(
            "sink %r waits for the server, then the job goes back to its last checkpoint: %s",
            self._operator_id,
            error,
        )
        wait_for_server(self._sink.dsn, self._table.described)
        raise AttemptLostError(str(error)) from error

    def _new_part(self, session: PostgresSession, schema: pa.Schema) -> PostgresPart:
        return PostgresPart(session, self._stages[self._turn], schema, tuple(self._cut))

    def _begin_next(self) -> None:
        """Let the next rows be a part of their own, in the other table of staged rows."""
        self._part = None
        self._turn = 1 - self._turn

    def _receipt(self, epoch: int | None, part: PostgresPart) -> Staged:
        """Return what was staged, or, without an epoch, published."""
        schema = self._schema.schema
        assert schema is not None  # there were rows, or none of known columns
        payload = None
        if epoch is not None:
            payload = StagedRows(
                self._token, epoch, part.stage, part.number, part.rows, part.columns
            ).to_payload()
        serialized = schema.serialize().to_pybytes()
        return Staged(self._instance, part.rows, 0, serialized, payload=payload)


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
