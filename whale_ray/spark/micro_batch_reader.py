"""The reader of micro-batches: one instance's parts, in their order, for ever."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..configs.errors import InputError, system_reason
from ..operators.sources.arrow_reader import ArrowReader
from ..operators.sources.files import START_ANEW
from ..operators.sources.progress import Progress
from ..ray_bridge.blocks import behind, check_rows, fitted
from .folder_names import FolderNames
from .micro_batch_folder import QUERY_FILE, MicroBatch, MicroBatchFolder

if TYPE_CHECKING:
    import pyarrow as pa

    from ..transport.clock import Clock
    from ..transport.wire.types import Schema

_POLL_NS = 50_000_000
_BATCH_ROWS = 8192
_KEEP = f"{START_ANEW} (micro-batches must stay until the oldest kept checkpoint has read them)"


class MicroBatchReader(ArrowReader):
    """Reads the parts of one instance in their order, and waits for further micro-batches."""

    def __init__(
        self, folder: MicroBatchFolder, progress: Progress, clock: Clock, *, resumed: bool = False
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._waits = False
        self._names = FolderNames(folder.path, clock)
        self._columns: Schema | None = None
        self._newest = (-1, -1)  # number and first part of the last micro-batch that was seen
        # The part with which the next micro-batch begins; None: that of the oldest one. A reader
        # that resumes needs all parts that are left to it.
        self._following = 0 if resumed else None
        super().__init__(self._endless(progress), progress)

    def next_ready_ns(self) -> int | None:
        """Return when to look for further micro-batches."""
        return self._clock.monotonic_ns() + _POLL_NS if self._waits else None

    def _endless(self, progress: Progress) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        nothing = pa.RecordBatch.from_pylist([], schema=pa.schema([]))
        while True:
            further = self._further(progress)
            for batch, end in further:
                yield from self._batch(batch, end, progress)
            if not further:
                self._waits = True
                yield nothing
                self._waits = False

    def _further(self, progress: Progress) -> list[tuple[MicroBatch, int | None]]:
        """Return the micro-batches that have appeared since the last call, see `_with_ends`.

        Raises:
            InputError: the folder, which was there, is gone or was emptied, or cannot be read.
        """
        try:
            added = self._names.added()
            if added is None:
                return []
            appeared = self._folder.batches_of(added)
            if appeared or progress.facts:  # also if they have the names of others before
                self._columns = check_owner(self._folder, progress.facts)
            further = [one for one in appeared if (one.number, one.first) > self._newest]
            if not further:
                return []
            self._newest = (further[-1].number, further[-1].first)
            return self._with_ends(further)
        except OSError as error:
            msg = (
                f"micro-batches {self._folder.path}: the folder cannot be read "
                f"({system_reason(error)}); correct that and resume"
            )
            raise InputError(msg) from error

    def _with_ends(self, batches: list[MicroBatch]) -> list[tuple[MicroBatch, int | None]]:
        """Return each micro-batch with the part behind it, None if only its files tell this.

        Its files may be fewer than they were, if it was read and is being removed.
        """
        number, following = self._folder.noted()
        last = following if number == batches[-1].number else None
        return list(zip(batches, [*(one.first for one in batches[1:]), last], strict=True))

    def _batch(
        self, batch: MicroBatch, end: int | None, progress: Progress
    ) -> Iterator[pa.RecordBatch]:
        """Read the parts of a micro-batch, unless all of them were read before.

        Args:
            batch: the micro-batch.
            end: the part behind it, if it is known.
            progress: it says which parts are still to read.
        """
        if self._following is None:
            progress.begin_at(batch.first)
            self._following = batch.first
        if end is not None and end <= progress.first:
            self._following = end
            return
        self._check_follows(batch, self._following, progress)
        parts = self._paths(batch)
        stop = max(parts, default=batch.first - 1) + 1
        self._following = stop
        yield from self._parts(batch, parts, stop, progress)

    def _check_follows(self, batch: MicroBatch, following: int, progress: Progress) -> None:
        """Raise `InputError` if parts before a micro-batch are gone, or were numbered anew."""
        if batch.first < following:
            msg = (
                f"micro-batches {self._folder.path}: the parts of {batch.number} are numbered from "
                f"{batch.first:,}, though those before {following:,} were read already: the folder "
                f"was emptied in the meantime; {START_ANEW}"
            )
            raise InputError(msg)
        if next(progress.units(following, batch.first), None) is not None:
            msg = (
                f"micro-batches {self._folder.path}: those before {batch.number} are gone, or "
                f"parts of them, and have rows that were not read; {_KEEP}"
            )
            raise InputError(msg)

    def _paths(self, batch: MicroBatch) -> dict[int, str]:
        try:
            return batch.parts()
        except OSError as error:
            msg = f"micro-batch {batch.path} cannot be read ({system_reason(error)}); {START_ANEW}"
            raise InputError(msg) from error

    def _parts(
        self, batch: MicroBatch, parts: Mapping[int, str], stop: int, progress: Progress
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        assert self._columns is not None  # known since the micro-batch was seen
        schema = self._columns.to_arrow()
        origin = f"micro-batch {batch.number} in {self._folder.path}"
        for number, place in progress.units(batch.first, stop):
            if number not in parts:
                name = f"part-{number - batch.first:05d}.parquet"
                msg = f"{origin}: {name} is gone, whose rows were not read; {_KEEP}"
                raise InputError(msg)
            path = parts[number]
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


def check_owner(folder: MicroBatchFolder, facts: dict[str, Any]) -> Schema:
    """Return the columns of a folder, if it is the one of the facts in a position.

    Args:
        folder: the folder.
        facts: the query and the folder's id, as far as they are known; what is not is added.

    Raises:
        InputError: the folder is gone, was emptied, or has another query's micro-batches.
    """
    owner = folder.owner()
    remedy = START_ANEW
    if owner is None:
        gone = f"its {QUERY_FILE}" if os.path.isdir(folder.path) else "the folder"
        what = f"{gone} is gone"
        remedy = f"mount its disk if that is missing, {remedy}"
    elif facts.setdefault("query", owner.query) != owner.query:
        what = f"has those of query {owner.query} now"
    elif facts.setdefault("folder", owner.folder_id) != owner.folder_id:
        what = "was emptied since then, so that its parts are numbered anew"
    else:
        return owner.columns
    if "query" in facts:
        what = f"had those of query {facts['query']} when a part of it was read, and {what}"
    msg = f"micro-batches {folder.path}: the folder {what}; {remedy}"
    raise InputError(msg)
