"""The collect sink, which returns the rows to the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar

from ...configs.errors import OutputError
from ..arguments import check_type
from ..arrow_streams import stream_of
from .base import Delivery, Sink, SinkResult, SinkWriter, Staged
from .row_buffer import RowBuffer
from .writer_schema import WriterSchema, common_schema

if TYPE_CHECKING:
    from typing import Self

    from ...configs.settings import Settings
    from ...transport.wire.batch import Batch
    from ..process import InstanceContext

_BYTES_MAX = 512 << 20


@dataclass(frozen=True)
class CollectSink(Sink):
    """Collects rows in memory, at most `max_bytes` over all instances."""

    delivery: ClassVar[Delivery | None] = "exactly once"
    staged_as = "collect"

    max_bytes: int | None = None

    def configured(self, settings: Settings) -> Self:
        """Return this sink with `runtime.collect_bytes_max` unless a limit was given."""
        if self.max_bytes is not None:
            return self
        return replace(self, max_bytes=settings.runtime.collect_bytes_max)

    def prepare(self, token: str, *, bounded: bool) -> None:
        """Refuse an unbounded job: rows are returned at its end only."""
        if not bounded:
            msg = "sinks.collect returns rows at the end, and a source has none; write to files"
            raise OutputError(msg)

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open one instance's buffer."""
        return CollectWriter(context.operator_id, context.instance, self._limit)

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Concatenate the instances' rows, in the order of the instances."""
        import pyarrow as pa

        if sum(part.nbytes for part in staged) > self._limit:
            raise OutputError(_too_large("the collected result", self._limit))
        schema = common_schema(staged, self.describe())
        if schema is None:
            return SinkResult(rows=0, table=pa.table({}))
        parts = sorted(staged, key=lambda part: part.instance)
        tables = [pa.ipc.open_stream(part.payload).read_all() for part in parts if part.payload]
        # Not `empty_table`, which makes arrays of Python values, for which pyarrow imports pandas.
        table = pa.concat_tables([pa.Table.from_batches([], schema), *tables])
        serialized = schema.serialize().to_pybytes()
        return SinkResult(table.num_rows, table.nbytes, schema=serialized, table=table)

    def publish_partial(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Concatenate the rows collected so far."""
        return self.publish(token, staged)

    def recover(self, token: str, staged: Sequence[Staged], *, bounded: bool) -> None:
        """Refuse an unbounded job; the rows of earlier epochs come back with `staged`."""
        self.prepare(token, bounded=bounded)

    def describe(self) -> str:
        """Return the limit, if one was given."""
        return "collect" if self.max_bytes is None else f"collect up to {_size(self.max_bytes)}"

    @property
    def _limit(self) -> int:
        return _BYTES_MAX if self.max_bytes is None else self.max_bytes


class CollectWriter(SinkWriter):
    """Keeps copies of one instance's rows."""

    def __init__(self, operator_id: str, instance: int, max_bytes: int) -> None:
        self._operator_id = operator_id
        self._instance = instance
        self._max_bytes = max_bytes
        self._schema = WriterSchema(operator_id)
        self._buffer: RowBuffer | None = None
        self._staged_bytes = 0

    def write(self, batch: Batch) -> None:
        """Copy the rows; see `SinkWriter.write`."""
        record = self._schema.conform(batch if batch.owned else batch.copy())
        if self._buffer is None:
            self._buffer = RowBuffer(record.schema)
        self._buffer.add(record)
        if self._staged_bytes + self._buffer.nbytes > self._max_bytes:
            self._buffer = None
            what = f"sink {self._operator_id!r}: the collected result"
            raise OutputError(_too_large(what, self._max_bytes))

    def stage(self) -> Staged:
        """Serialize the rows as an Arrow IPC stream."""
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            return Staged(self._instance, 0)
        return _serialized(self._instance, buffer)

    def stage_epoch(self, epoch: int) -> Staged | None:
        """Serialize the rows since the last call; they are kept with the checkpoint."""
        stage = self.cut_epoch(epoch)
        return None if stage is None else stage()

    def cut_epoch(self, epoch: int) -> Callable[[], Staged] | None:
        """See `SinkWriter.cut_epoch`: rows are serialized beside the loop."""
        if self._buffer is None or not self._buffer.rows:
            return None
        buffer, self._buffer = self._buffer, None
        self._staged_bytes += buffer.nbytes
        return partial(_serialized, self._instance, buffer)

    def abort(self) -> None:
        """Drop the rows."""
        self._buffer = None


def _serialized(instance: int, buffer: RowBuffer) -> Staged:
    """Return the rows as a stream; the buffer keeps them, since this may have to be done again."""
    table = buffer.table()
    payload = stream_of(table.schema, table.to_batches())
    schema = table.schema.serialize().to_pybytes()
    return Staged(instance, table.num_rows, table.nbytes, schema, None, payload)


def _too_large(what: str, max_bytes: int) -> str:
    return (
        f"{what} is larger than {_size(max_bytes)}; write it to files with "
        "whale.sinks.parquet('out/'), or raise the setting runtime.collect_bytes_max"
    )


def _size(nbytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:g} {unit}"
    return f"{nbytes} bytes"


def collect(max_bytes: int | None = None) -> Sink:
    """Collect the rows in memory: `job.results(id)` returns them as Arrow or pandas.

    Rows come in the order of the sink's instances, and within an instance as they arrived. In a job
    with checkpoints, each has the rows since the one before, until the job's end.

    Args:
        max_bytes: the most that may be collected in all; the setting `runtime.collect_bytes_max`
            (512 MiB) if left out.

    Raises:
        OutputError: while running: the rows exceed that.
    """
    check_type("collect", "max_bytes", max_bytes, (Integral, type(None)), "a number of bytes")
    if max_bytes is not None and max_bytes <= 0:
        msg = f"collect(max_bytes={max_bytes}) must be above 0"
        raise OutputError(msg)
    return CollectSink(max_bytes)
