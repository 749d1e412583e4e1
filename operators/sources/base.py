"""The interface of a source: a picklable description, and the reader that it opens on a worker.

A `Source` is a small frozen value: it is created while the topology is built, pickled to every
worker and opened there once per instance. It therefore holds paths and settings, never open
files. A `SourceReader` reads the opened input; the worker's loop polls it, so it must not block.

Parallelism: instance `context.instance` of `context.parallelism` reads its share of the input.
Shares are disjoint, cover the input and depend on nothing but those two numbers, so that a new
attempt reads the same rows. With one instance the input's order is kept.

`whale_ray.testing.check_source` tests whether a source does all this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from ...configs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..process import InstanceContext
    from ..snapshots import Position

BadRows: TypeAlias = Literal["fail", "drop"]

NOTHING_REJECTED: Mapping[str, int] = MappingProxyType({})
NO_GAUGES: Mapping[str, Mapping[str, int]] = MappingProxyType({})


class Source(ABC):
    """The picklable description of an input.

    Attributes:
        replayable: a new attempt can read the same rows again from the start.
        bounded: the input ends by itself.
        outlives_driver: it can still be read after the process that submitted the job has ended.
        has_splits: its readers have `splits`, an instance maybe none, which is then idle.
        in_columns: its readers take no step for each row, so that many rows at a time take less.
    """

    replayable: bool = True
    bounded: bool = True
    outlives_driver: bool = True
    has_splits: bool = False
    in_columns: bool = False

    @property
    def position_kind(self) -> str:
        """What its readers' positions are of, such as `Parquet`.

        A job goes on only with a source of the kind that it had, since no other one understands
        its positions. Empty: it is not compared.
        """
        return ""

    def check(self) -> None:
        """Raise `InputError` if the input is obviously unusable (a missing file, an empty folder).

        Called while the topology is built or planned; must only look at names, not open files or
        import libraries.
        """
        return

    def schema(self) -> Schema | None:
        """Return the columns if that is cheap (a table in memory, a file's footer), else None.

        Raises:
            InputError: a wanted column is missing, or has an unsupported type.
        """
        return None

    def with_columns_needed(self, columns: frozenset[str]) -> Source:
        """Return this source without columns that nobody needs, if leaving them out saves work.

        Args:
            columns: those that are needed; they may be more than it has. Others may remain.
        """
        return self

    def coded_columns(self) -> tuple[str, ...]:
        """Return the columns whose texts are likely to come as codes of a dictionary.

        Loops are compiled for these before the first row.
        """
        return ()

    def materialize(self, *, cluster: bool) -> Source:
        """Return the source to send to workers; called once, by the driver, at submission.

        A source whose data only the driver can read (a Spark DataFrame) makes it readable for
        workers here. `cluster` is true if the workers are Ray actors.
        """
        return self

    def as_resumed(self) -> Source:
        """Return the source that `materialize` made, for a job that goes on without its topology.

        Called once, by the driver; what the source knew of its input then may not hold any more.
        """
        return self

    def release(self) -> None:
        """Free what `materialize` created; called by the driver when the job has ended."""
        return

    @abstractmethod
    def open(self, context: InstanceContext) -> SourceReader:
        """Open the share of `context.instance` out of `context.parallelism` instances.

        Raises:
            InputError: the input is missing, damaged or lacks a column.
        """

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Open the share of an instance of what an earlier job, or attempt, has not read.

        Args:
            context: as for `open`; its parallelism may differ from that of the positions.
            positions: those of all instances then, in their order. All instances now get the same
                ones, so that they can divide what is left among themselves.

        Raises:
            InputError: the input has changed since, or its rows cannot be divided otherwise.
        """
        msg = f"{self.describe()} cannot be read from a position: {self.resumption_remedy()}"
        raise InputError(msg)

    def resumption(self) -> str | None:
        """Return in a few words how it resumes from a position, for `explain`; None: it cannot.

        Such as "seeks to the row group" or "reads again and skips".
        """
        return None if type(self).open_at is Source.open_at else "goes on from a position"

    def resumption_remedy(self) -> str:
        """Return what to do about it if `resumption` returns None."""
        return f"give {type(self).__name__} open_at(), and its reader position()"

    def with_bad_rows(self, policy: BadRows) -> Self:
        """Return this source with another policy for rows that cannot be read.

        Sources that have no such rows return themselves.
        """
        return self

    @abstractmethod
    def describe(self) -> str:
        """Return one line for `explain`, such as `parquet gps/`."""


class SourceReader(ABC):
    """The opened input of one instance, polled by its worker's loop."""

    @abstractmethod
    def read(self, max_rows: int) -> Batch | None:
        """Return the next rows, between 1 and `max_rows`, or None if there are none at present.

        A batch's `origin_ns` is left at 0, which means the time of this call, unless the reader
        has a more precise one (a rate generator sets the scheduled emission of the oldest row).

        Raises:
            BadRowError: a row cannot be read and the policy is `fail`.
            InputError: the input is damaged.
        """

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether the input has ended, so that `read` will only return None."""

    def next_ready_ns(self) -> int | None:
        """Return when to poll again, in the context clock's monotonic ns; None means immediately.

        Called after `read` returned None while `finished` is false.
        """
        return None

    def splits(self) -> Mapping[str, bool] | None:
        """Return the parts of the input whose rows advance in event time independently, by name.

        Such as the partitions of a topic: each then has a watermark of its own, see
        `operators.split_event_times`. The values say whether a split may have rows at present:
        False if the reader has come to the split's present end. None: the input is one.
        """
        return None

    @property
    def split(self) -> str | None:
        """The split of the rows that `read`, or `drain`, returned last; None: the input is one."""
        return None

    def drain(self) -> Batch | None:
        """Return rows that were taken from the input and not returned yet, as a stopped job ends.

        Called at most once, after the last `read`. A reader that takes rows which nobody could read
        again must return them here, else they are lost.
        """
        return None

    def position(self) -> Position | None:
        """Return where the reader is: after the last row that it returned.

        Called between calls of `read`, at every marker of a checkpoint, so it must be cheap. The
        values are JSON's. None: the reader has no position, and its job can have no checkpoints.
        """
        return None

    @property
    def rejected(self) -> Mapping[str, int]:
        """The rows left out since it was opened, counted by reason.

        What was left out before a position is counted by the reader that returned this position.
        """
        return NOTHING_REJECTED

    def gauges(self) -> Mapping[str, Mapping[str, int]]:
        """Return what the metrics show of the input: by name, then by part; must be cheap.

        Such as `{"rows behind": {"orders/0": 12}}`. Parts of one name are summed up in a line.
        """
        return NO_GAUGES

    def close(self) -> None:
        """Release files and memory; may be called twice."""
        return
