"""A source that makes pauses, in which checkpoints are taken, and may fail; a sink that fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from whale_ray.configs.errors import InputError
from whale_ray.operators.process import InstanceContext
from whale_ray.operators.sinks.base import Delivery, Sink, SinkResult, SinkWriter, Staged
from whale_ray.operators.snapshots import Position
from whale_ray.operators.sources.base import Source, SourceReader
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

_POLL_NS = 5_000_000


class PlannedFailureError(InputError):
    """The failure that a test asks for."""


@dataclass(frozen=True)
class PacedTable(Source):
    """The rows of a table in `parts` equal parts, with a pause before each but the first.

    With `fails_after`, the source fails in the middle of the part behind so many. A pause is longer
    than the interval of checkpoints in tests. With `snapshots` it ends once so many snapshots were
    taken of it; of two, the first belongs to a checkpoint that is complete. With `begins_ns`, a
    time of the clock, part k is read no sooner than k pauses after that, in any attempt.
    """

    table: pa.Table
    parts: int = 5
    fails_after: int | None = None
    bounded: bool = True
    pause_ms: int = 1_000
    snapshots: int | None = None
    begins_ns: int | None = None

    def schema(self) -> Schema:
        return Schema.from_arrow(self.table.schema)

    def open(self, context: InstanceContext) -> SourceReader:
        return self.open_at(context, ())

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        assert context.parallelism == 1
        return _PacedReader(self, context, positions[0]["row"] if positions else 0)

    def describe(self) -> str:
        return "paced table"


class _PacedReader(SourceReader):
    def __init__(self, source: PacedTable, context: InstanceContext, row: int) -> None:
        self._source, self._clock = source, context.clock
        self._batch = Batch.from_arrow(source.table.combine_chunks())
        self._row = row
        part_rows = -(-self._batch.num_rows // source.parts)
        first = 0 if source.begins_ns is not None else 1
        self._pauses = [part * part_rows for part in range(first, source.parts)]
        self._part_rows = part_rows
        self._paused_at = -1
        self._resume_ns = 0
        self._snapshots = 0
        self._fails_at = None
        if source.fails_after is not None:
            self._fails_at = source.fails_after * part_rows + part_rows // 2

    def read(self, max_rows: int) -> Batch | None:
        if self._row in self._pauses and self._row != self._paused_at:
            self._paused_at, self._snapshots = self._row, 0
            self._resume_ns = self._end_of_pause_ns()
        if self.finished or self._clock.monotonic_ns() < self._resume_ns:
            return None
        ends = [self._row + max_rows, self._batch.num_rows]
        ends += [pause for pause in self._pauses if pause > self._row]
        if self._fails_at is not None:
            if self._row == self._fails_at:
                raise PlannedFailureError("the source fails on purpose")
            ends.append(self._fails_at)
        first, self._row = self._row, min(end for end in ends if end > self._row)
        return self._batch.slice(first, self._row)

    def _end_of_pause_ns(self) -> int:
        now_ns, pause_ns = self._clock.monotonic_ns(), self._source.pause_ms * 1_000_000
        if self._source.begins_ns is None:
            return now_ns + pause_ns
        begin_ns = self._source.begins_ns + self._row // self._part_rows * pause_ns
        return now_ns + max(0, begin_ns - self._clock.wall_ns())

    @property
    def finished(self) -> bool:
        return self._row >= self._batch.num_rows

    def next_ready_ns(self) -> int:
        if self._source.snapshots is None:
            return self._resume_ns
        return min(self._resume_ns, self._clock.monotonic_ns() + _POLL_NS)

    def position(self) -> dict[str, Any]:
        self._snapshots += 1
        if self._snapshots == self._source.snapshots:
            self._resume_ns = 0
        return {"row": self._row}


@dataclass(frozen=True)
class FailingSink(Sink):
    """Another sink of a bounded job, which fails after so many rows."""

    inner: Sink
    rows: int
    delivery: ClassVar[Delivery | None] = "exactly once"

    def prepare(self, token: str, *, bounded: bool) -> None:
        self.inner.prepare(token, bounded=bounded)

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        return _FailingWriter(self.inner.open(context, token), self.rows)

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        return self.inner.publish(token, staged)

    def commit(self, commit: object, staged: Sequence[Staged]) -> None:
        raise NotImplementedError

    def recover(self, token: str, staged: Sequence[Staged], *, bounded: bool) -> None:
        self.inner.recover(token, staged, bounded=bounded)

    def describe(self) -> str:
        return f"{self.inner.describe()}, which fails"


class _FailingWriter(SinkWriter):
    def __init__(self, inner: SinkWriter, rows: int) -> None:
        self._inner, self._left = inner, rows

    def write(self, batch: Batch) -> None:
        self._left -= batch.num_rows
        if self._left < 0:
            raise PlannedFailureError("the sink fails on purpose")
        self._inner.write(batch)

    def stage(self) -> Staged:
        return self._inner.stage()

    def stage_epoch(self, epoch: int) -> Staged | None:
        return self._inner.stage_epoch(epoch)

    def abort(self) -> None:
        self._inner.abort()
