"""A source of a table that makes pauses, in which checkpoints are taken, and that may fail once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from whale_ray.configs.errors import InputError
from whale_ray.operators.process import InstanceContext
from whale_ray.operators.snapshots import Position
from whale_ray.operators.sources.base import Source, SourceReader
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema


class PlannedFailureError(InputError):
    """The failure that a test asks for."""


@dataclass(frozen=True)
class PacedTable(Source):
    """The rows of a table in `parts` equal parts, with a pause before each but the first.

    With `fails_after`, the source fails in the middle of the part behind so many. A pause is longer
    than the interval of checkpoints in tests.
    """

    table: pa.Table
    parts: int = 5
    fails_after: int | None = None
    bounded: bool = True
    pause_ms: int = 1_000

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
        self._pauses = [part * part_rows for part in range(1, source.parts)]
        self._paused_at = -1
        self._resume_ns = 0
        self._fails_at = None
        if source.fails_after is not None:
            self._fails_at = source.fails_after * part_rows + part_rows // 2

    def read(self, max_rows: int) -> Batch | None:
        if self._row in self._pauses and self._row != self._paused_at:
            self._paused_at = self._row
            self._resume_ns = self._clock.monotonic_ns() + self._source.pause_ms * 1_000_000
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

    @property
    def finished(self) -> bool:
        return self._row >= self._batch.num_rows

    def next_ready_ns(self) -> int:
        return self._resume_ns

    def position(self) -> dict[str, Any]:
        return {"row": self._row}
