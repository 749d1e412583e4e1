"""Micro-batches of Structured Streaming as a source: Spark hands them over, a job reads them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..configs.errors import InputError, UsageError, system_reason
from ..operators.arguments import check_type
from ..operators.sources.base import Source, SourceReader
from ..operators.sources.progress import Progress, own_or_first
from .micro_batch_folder import MicroBatchFolder
from .micro_batch_reader import MicroBatchReader, check_owner
from .source import write_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..operators.process import InstanceContext
    from ..operators.snapshots import Position
    from ..transport.wire.types import Schema

_QUERY_ID = "sql.streaming.queryId"
_LOCK_WAIT_S = 60.0


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
            UsageError: the folder has micro-batches of another query, of other columns, or later
                ones.
            InputError: Spark cannot evaluate it, the folder cannot be written, or another driver
                has been writing into it for a minute.
        """
        from .types import columns_of

        session: Any = frame.sparkSession
        query = str(session.sparkContext.getLocalProperty(_QUERY_ID))
        columns = columns_of(frame.schema, session.conf.get("spark.sql.session.timeZone") or "UTC")
        try:
            with self.folder.lock(number, _LOCK_WAIT_S):
                self.folder.begin(query, columns)
                if self.folder.has(number):
                    self.folder.note_last()
                    return
                place = self.folder.new_place()
                write_parts(frame, columns, place, f"micro-batch {number}")
                self.folder.add(number, place)
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
        owner = self.folder.owner()
        return None if owner is None else owner.columns

    def open(self, context: InstanceContext) -> SourceReader:
        """Open this instance's parts, from the oldest micro-batch that is there."""
        return MicroBatchReader(self.folder, Progress.opened(context, None, {}), context.clock)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Open this instance's share of the parts that were not read.

        Raises:
            InputError: the folder is gone, was emptied, or has another query's batches now.
        """
        facts = {
            name: known
            for name in ("query", "folder")
            if (known := own_or_first(context, positions, name)) is not None
        }
        if facts:
            check_owner(self.folder, facts)
        progress = Progress.opened(context, [_without_ended(one) for one in positions], facts)
        return MicroBatchReader(self.folder, progress, context.clock, resumed=bool(facts))

    def resumption(self) -> str:
        """Return that a part of a file is read again."""
        return "seeks to the part of a micro-batch and skips rows"

    def describe(self) -> str:
        """Return the folder."""
        return f"micro-batches {self.folder.path}"


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


def _without_ended(position: Position) -> Position:
    """Return a position without parts that were read to their ends: they may be gone."""
    begun = [[part, place] for part, place in position["begun"] if place["rows"] < place["of"]]
    return {**position, "begun": begun}
