"""The reader of micro-batches: one instance's parts, in their order, for ever."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..configs.errors import InputError, system_reason
from ..operators.sources.arrow_reader import ArrowReader
from ..operators.sources.files import START_ANEW
from ..operators.sources.progress import Progress
from ..ray_bridge.blocks import behind, check_rows, fitted
from .micro_batch_folder import MicroBatch, MicroBatchFolder

if TYPE_CHECKING:
    import pyarrow as pa

    from ..transport.clock import Clock

_POLL_NS = 50_000_000
_BATCH_ROWS = 8192


class MicroBatchReader(ArrowReader):
    """Reads the parts of one instance in their order, and waits for further micro-batches."""

    def __init__(
        self, folder: MicroBatchFolder, progress: Progress, clock: Clock, *, resumed: bool = False
    ) -> None:
        self._folder = folder
        self._resumed = resumed
        self._clock = clock
        self._waits = False
        super().__init__(self._endless(progress), progress)

    def next_ready_ns(self) -> int | None:
        """Return when to look for further micro-batches."""
        return self._clock.monotonic_ns() + _POLL_NS if self._waits else None

    def _endless(self, progress: Progress) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        nothing = pa.RecordBatch.from_pylist([], schema=pa.schema([]))
        following = -1  # the part with which the next micro-batch begins
        while True:
            there = [one for one in self._folder.batches() if one.first >= following]
            for batch in there:
                if following >= 0 and batch.first != following:
                    msg = (
                        f"micro-batches {self._folder.path}: one before {batch.number} is gone, "
                        "whose rows were not read; keep them until a checkpoint has them"
                    )
                    raise InputError(msg)
                if following < 0 and self._resumed:
                    check_reached(progress, batch)
                parts = self._paths(batch)
                following = batch.first + len(parts)
                yield from self._parts(batch, parts, progress)
            if not there:
                self._waits = True
                yield nothing
                self._waits = False

    def _paths(self, batch: MicroBatch) -> list[str]:
        try:
            return batch.parts()
        except OSError as error:
            msg = f"micro-batch {batch.path} cannot be read ({system_reason(error)}); {START_ANEW}"
            raise InputError(msg) from error

    def _parts(
        self, batch: MicroBatch, parts: Sequence[str], progress: Progress
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        known = self._folder.query()
        assert known is not None  # it is there before the first batch
        progress.facts["query"] = known[0]
        schema = known[1].to_arrow()
        origin = f"micro-batch {batch.number} in {self._folder.path}"
        for number, place in progress.units(batch.first, batch.first + len(parts)):
            path = parts[number - batch.first]
            try:
                with pq.ParquetFile(path, pre_buffer=False) as file:
                    total = file.metadata.num_rows
                    check_rows(origin, number, total, place)
                    progress.enter(number, {"rows": 0, "of": total})
                    for rows in behind(place, file.iter_batches(_BATCH_ROWS), progress):
                        yield fitted(rows, schema, origin)
            except (OSError, pa.ArrowException) as error:
                msg = f"{origin}: {path} cannot be read ({error}); {START_ANEW}"
                raise InputError(msg) from error


def check_reached(progress: Progress, oldest: MicroBatch) -> None:
    """Raise `InputError` if parts that are still to read came before the oldest micro-batch."""
    if progress.first < oldest.first:
        msg = (
            f"micro-batches {os.path.dirname(oldest.path)}: those before {oldest.number} are gone, "
            f"and have rows that were not read; {START_ANEW}"
        )
        raise InputError(msg)
