"""A reader of a source whose results are all checked, with a clock that advances as it asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..operators.sources.base import Source, SourceReader
from ..transport.clock import VirtualClock
from .conformance import require
from .driving import instance_context

if TYPE_CHECKING:
    from ..operators.snapshots import Position
    from ..transport.wire.batch import Batch
    from ..transport.wire.types import Schema

__all__ = ["CheckedReader"]

_IDLE_CALLS_MAX = 100_000
"""A bounded source that returns no rows for this many calls is considered endless."""


class CheckedReader:
    """A reader whose results are all checked."""

    def __init__(
        self,
        source: Source,
        instance: int,
        parallelism: int,
        positions: Sequence[Position] | None = None,
    ) -> None:
        self._name = type(source).__name__
        self._clock = VirtualClock()
        context = instance_context(instance, parallelism, clock=self._clock)
        self._columns: Schema | None = source.schema()
        if positions is None:
            opened, method = source.open(context), "open()"
        else:
            opened, method = source.open_at(context, positions), "open_at()"
        self.reader = opened
        require(
            isinstance(self.reader, SourceReader),
            f"{self._name}.{method} must return a SourceReader, not {self.reader!r}",
        )

    def batches(self, max_rows: int) -> Iterator[Batch]:
        """Yield all batches, and check the end."""
        while (batch := self.next_batch(max_rows)) is not None:
            yield batch
        self._check_end(max_rows)

    def next_batch(self, max_rows: int) -> Batch | None:
        """Return the next batch; None at the end."""
        idle = 0
        while not self.reader.finished:
            batch = self.reader.read(max_rows)
            if batch is not None:
                self._check(batch, max_rows)
                return batch
            if not self.reader.finished:
                idle += 1
                require(idle < _IDLE_CALLS_MAX, f"{self._name} has nothing to read and never ends")
                self._wait()
        return None

    def _check(self, batch: Batch, max_rows: int) -> None:
        from ..transport.wire.batch import Batch

        require(
            isinstance(batch, Batch), f"{self._name}: read() must return a Batch, not {batch!r}"
        )
        require(
            1 <= batch.num_rows <= max_rows,
            f"{self._name}: read({max_rows}) returned {batch.num_rows} rows: at least one and at "
            "most as many as asked for, or None",
        )
        if self._columns is None:
            self._columns = batch.schema
        require(
            batch.schema == self._columns,
            f"{self._name}: a batch has the columns {batch.schema}, but schema() or the batches "
            f"before it {self._columns}",
        )

    def _wait(self) -> None:
        ready_ns = self.reader.next_ready_ns()
        require(
            ready_ns is None or isinstance(ready_ns, int),
            f"{self._name}: next_ready_ns() must return nanoseconds or None, not {ready_ns!r}",
        )
        if ready_ns is not None:
            self._clock.sleep_ns(max(0, ready_ns - self._clock.monotonic_ns()))

    def _check_end(self, max_rows: int) -> None:
        require(
            self.reader.read(max_rows) is None and self.reader.finished,
            f"{self._name}: a reader that had finished went on: read() returns None from then on",
        )
        rejected = self.reader.rejected
        require(
            isinstance(rejected, Mapping) and all(count >= 0 for count in rejected.values()),
            f"{self._name}: rejected must map reasons to numbers of rows, not {rejected!r}",
        )
