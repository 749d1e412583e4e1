"""Spark Structured Streaming as a source: micro-batches are handed over in a folder.

Spark calls the source's `take` with each micro-batch (`foreachBatch`); it writes the rows into the
folder, where they appear all at once and survive a crash, and returns. A job reads them from there,
as an endless input. So Spark and the job need not run at the same time, and neither waits for the
other::

    folder/query.json                           whose batches these are, and their columns
    folder/last.json                            the last micro-batch, and the part that follows it
    folder/batch-000000007-000000031/           micro-batch 7, whose first part has the number 31
        part-00000.parquet …                    its rows, as Spark has divided them

Spark repeats a micro-batch with the same number, and the same rows, if it does not know whether it
was taken; one whose folder is there is taken already. Parts are numbered through all batches: a
position of the source says which parts an instance has still to read, see `Progress`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..configs.errors import InputError, UsageError, system_reason
from ..operators.arguments import check_type
from ..operators.sources.arrow_reader import ArrowReader
from ..operators.sources.base import Source, SourceReader
from ..operators.sources.files import START_ANEW
from ..operators.sources.progress import Progress, own_or_first
from ..ray_bridge.blocks import behind, check_rows, fitted
from .source import write_parts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from ..operators.process import InstanceContext
    from ..operators.snapshots import Position
    from ..transport.clock import Clock
    from ..transport.wire.types import Schema

_QUERY = "query.json"
_LAST = "last.json"
_QUERY_ID = "sql.streaming.queryId"
_NAME = re.compile(r"batch-(\d{9,})-(\d{9,})")
_HIDDEN = re.compile(r"\.[0-9a-f]{32}")
_POLL_NS = 50_000_000
_BATCH_ROWS = 8192
_NONE = (-1, 0)
"""The last micro-batch before any, and the part behind it."""


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch in the folder.

    Attributes:
        number: Spark's.
        first: the number of its first part, through all batches.
        path: of its folder.
    """

    number: int
    first: int
    path: str

    def parts(self) -> list[str]:
        """Return the paths of its parts, in their order."""
        return sorted(entry.path for entry in os.scandir(self.path))


@dataclass(frozen=True)
class MicroBatchFolder:
    """The folder in which micro-batches are handed over."""

    path: str

    def batches(self) -> list[MicroBatch]:
        """Return the micro-batches that are there, in their order."""
        with suppress(FileNotFoundError):
            found = [(_NAME.fullmatch(name), name) for name in os.listdir(self.path)]
            there = [
                MicroBatch(int(match[1]), int(match[2]), os.path.join(self.path, name))
                for match, name in found
                if match
            ]
            return sorted(there, key=lambda one: one.number)
        return []

    def query(self) -> tuple[str, Schema] | None:
        """Return whose batches these are, and their columns; None before the first one."""
        from ..transport.wire.types import DataType, Field, Schema

        try:
            with open(os.path.join(self.path, _QUERY), encoding="utf-8") as stream:
                told = json.load(stream)
        except FileNotFoundError:
            return None
        columns = tuple(Field(name, DataType.parse(kind)) for name, kind in told["columns"])
        return told["query"], Schema(columns)

    def begin(self, query: str, columns: Schema) -> None:
        """Note whose batches these are; refuse those of another query.

        Raises:
            UsageError: the folder has batches of another query, or of other columns.
        """
        os.makedirs(self.path, exist_ok=True)
        known = self.query()
        if known is None:
            told = {"query": query, "columns": [[one.name, one.type.name] for one in columns]}
            self._write(_QUERY, told)
        elif known[0] != query:
            msg = (
                f"the folder {self.path!r} has micro-batches of another query ({known[0]}), whose "
                "numbers begin at 0, too: give each query a folder, and keep its checkpointLocation"
            )
            raise UsageError(msg)
        elif [(one.name, one.type) for one in known[1]] != [(o.name, o.type) for o in columns]:
            before = ", ".join(map(str, known[1]))
            msg = (
                f"the folder {self.path!r} has micro-batches of the columns ({before}), and the "
                "query has others now: give it another folder"
            )
            raise UsageError(msg)
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        """Remove what a handler that was killed was writing, and nothing else that is hidden."""
        for name in os.listdir(self.path):
            if _HIDDEN.fullmatch(name):
                path = os.path.join(self.path, name)
                shutil.rmtree(path, ignore_errors=True)
                with suppress(OSError):  # it was a folder
                    os.unlink(path)

    def has(self, number: int) -> bool:
        """Return whether a micro-batch was taken; Spark repeats none but the last."""
        return number <= self._last()[0]

    def note_last(self) -> None:
        """Note the last micro-batch in a file: parts are numbered on if its folder is removed."""
        last = self._last()
        if last != self._noted():
            self._write(_LAST, list(last))

    def _last(self) -> tuple[int, int]:
        """Return the number of the last micro-batch that was taken, and of the part behind it."""
        noted, batches = self._noted(), self.batches()
        if not batches:
            return noted
        last = batches[-1]
        return max(noted, (last.number, last.first + len(last.parts())))

    def _noted(self) -> tuple[int, int]:
        try:
            with open(os.path.join(self.path, _LAST), encoding="utf-8") as stream:
                number, following = json.load(stream)
        except FileNotFoundError:
            return _NONE
        return number, following

    def new_place(self) -> str:
        """Return the path of a hidden folder, which is not there yet."""
        return os.path.join(self.path, f".{uuid4().hex}")

    def add(self, number: int, place: str) -> None:
        """Let the Parquet files of a hidden folder appear as a micro-batch, all at once.

        Files without rows are left out; without any there is no batch. The rows survive a crash.
        """
        import pyarrow.parquet as pq

        names = sorted(name for name in os.listdir(place) if name.endswith(".parquet"))
        kept = [name for name in names if pq.read_metadata(os.path.join(place, name)).num_rows]
        for name in set(os.listdir(place)) - set(kept):
            os.unlink(os.path.join(place, name))
        if not kept:
            os.rmdir(place)
            return
        for index, name in enumerate(kept):
            path = os.path.join(place, f"part-{index:05d}.parquet")
            os.rename(os.path.join(place, name), path)
            _sync(path)
        _sync(place)
        _, first = self._last()
        os.rename(place, os.path.join(self.path, f"batch-{number:09d}-{first:09d}"))
        _sync(self.path)

    def _write(self, name: str, content: object) -> None:
        hidden = self.new_place()
        with open(hidden, "w", encoding="utf-8") as stream:
            json.dump(content, stream)
        _sync(hidden)
        os.rename(hidden, os.path.join(self.path, name))
        _sync(self.path)


@dataclass(frozen=True)
class MicroBatchSource(Source):
    """The micro-batches of a streaming query; see `micro_batches`."""

    folder: MicroBatchFolder

    bounded = False

    def take(self, frame: DataFrame, number: int) -> None:
        """Take a micro-batch, unless it was taken: pass this method to `foreachBatch`.

        It returns when the rows are in the folder and survive a crash of everything.

        Args:
            frame: the rows.
            number: Spark's number of the micro-batch.

        Raises:
            UsageError: the folder has micro-batches of another query, or of other columns.
            InputError: Spark cannot evaluate it, or the folder cannot be written.
        """
        from .types import columns_of

        session: Any = frame.sparkSession
        query = str(session.sparkContext.getLocalProperty(_QUERY_ID))
        columns = columns_of(frame.schema, session.conf.get("spark.sql.session.timeZone") or "UTC")
        try:
            self.folder.begin(query, columns)
            if not self.folder.has(number):
                place = self.folder.new_place()
                write_parts(frame, columns, place, f"micro-batch {number}")
                self.folder.add(number, place)
            self.folder.note_last()
        except OSError as error:
            msg = (
                f"micro-batch {number} cannot be written into {self.folder.path!r}: "
                f"{system_reason(error)}; correct that, and Spark repeats it"
            )
            raise InputError(msg) from error

    def check(self) -> None:
        """Raise `InputError` if something else is in the place of the folder."""
        if os.path.lexists(self.folder.path) and not os.path.isdir(self.folder.path):
            msg = f"micro_batches({self.folder.path!r}) is a file: name a folder"
            raise InputError(msg)

    def schema(self) -> Schema | None:
        """Return the columns, once a micro-batch is there."""
        known = self.folder.query()
        return None if known is None else known[1]

    def open(self, context: InstanceContext) -> SourceReader:
        """Open this instance's parts, from the oldest micro-batch that is there."""
        return MicroBatchReader(self.folder, Progress.opened(context, None, {}), context.clock)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Open this instance's share of the parts that were not read.

        Raises:
            InputError: the folder has another query's batches now, or one that is needed is gone.
        """
        known = self.folder.query()
        before = own_or_first(context, positions, "query")
        if before is not None and (known is None or known[0] != before):
            msg = (
                f"{self.describe()}: the folder had micro-batches of query {before} when a part of "
                f"it was read, and has others now; {START_ANEW}"
            )
            raise InputError(msg)
        facts = {} if before is None else {"query": before}
        progress = Progress.opened(context, [_without_ended(one) for one in positions], facts)
        there = self.folder.batches()
        if there:
            _check_reached(progress, there[0])
        return MicroBatchReader(self.folder, progress, context.clock, resumed=before is not None)

    def resumption(self) -> str:
        """Return that a part of a file is read again."""
        return "seeks to the part of a micro-batch and skips rows"

    def describe(self) -> str:
        """Return the folder."""
        return f"micro-batches {self.folder.path}"


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
                    _check_reached(progress, batch)
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


def _without_ended(position: Position) -> Position:
    """Return a position without parts that were read to their ends: they may be gone."""
    begun = [[part, place] for part, place in position["begun"] if place["rows"] < place["of"]]
    return {**position, "begun": begun}


def _check_reached(progress: Progress, oldest: MicroBatch) -> None:
    """Raise `InputError` if parts that are still to read came before the oldest micro-batch."""
    if progress.first < oldest.first:
        msg = (
            f"micro-batches {os.path.dirname(oldest.path)}: those before {oldest.number} are gone, "
            f"and have rows that were not read; {START_ANEW}"
        )
        raise InputError(msg)


def micro_batches(folder: str | os.PathLike[str]) -> MicroBatchSource:
    """Read the micro-batches of a Structured Streaming query, each row once.

    ::

        batches = whale.sources.micro_batches("/shared/trips")
        topology.source(batches, id="trips")
        query = stream.writeStream.foreachBatch(batches.take)
        query.option("checkpointLocation", "/shared/query").start()

    Spark's handler, `take`, returns when the rows of a micro-batch are in the folder, where they
    survive a crash. A micro-batch that Spark repeats is read once. The source is unbounded and has
    positions: a job with checkpoints continues where it was. Folders of micro-batches that the
    oldest kept checkpoint has read may be removed.

    Args:
        folder: on storage that Spark's executors, its driver and all workers share; one per query.
    """
    check_type("micro_batches", "folder", folder, (str, os.PathLike), "the path of a folder")
    given = os.fspath(folder)
    if not given or "://" in given or "\0" in given:
        msg = f"micro_batches({given!r}): name a folder on a local or mounted file system"
        raise UsageError(msg)
    return MicroBatchSource(MicroBatchFolder(os.path.abspath(os.path.expanduser(given))))


def _sync(path: str) -> None:
    """Make a file, or the names in a folder, survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
