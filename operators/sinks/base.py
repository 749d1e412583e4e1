"""The interface of a sink: a picklable description, its writers, and one publication at the end.

Calls for a bounded job::

    coordinator   check()   prepare(token)                             publish(token, staged)
    instance 0                        open ── write … write ── stage ──┘    (or discard(token))
    instance 1                        open ── write … write ── stage ──┘

Nothing is visible before `publish`, and `publish` makes everything visible at once. A writer of
an unbounded job never stages: it calls `publish_part` every commit interval and once at its end.

With checkpoints, writers stage at each epoch's marker, and never publish parts themselves::

    coordinator   prepare(token)      manifest(1) commit(1)   manifest(2) commit(2)   …   unbounded
    instances         open ── write ── stage_epoch(1) ── write ── stage_epoch(2) ── …
    coordinator   prepare(token)      manifest(1)             manifest(2)   …  publish      bounded

`stage_epoch` keeps the worker's loop waiting. A writer that has `cut_epoch` only sets the rows
apart there; the thread that writes snapshots completes and syncs them while the job runs on.

An epoch counts once its manifest, which lists what was staged, is in the store of checkpoints. A
job that resumes from there calls `recover` in the place of `prepare`, then `commit` again for that
epoch, since nobody knows whether it was done. In a bounded job nothing is committed: `publish` gets
what was staged for all epochs, and since the last one.

`whale_ray.testing.check_sink` tests whether a sink does all this.

The runtime stages only when every instance has ended, and keeps the writers until `publish` or
`discard` returned: the shorter the time between the two, the less a machine that crashes leaves
behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from ...configs.errors import InputError, OutputError, UsageError
from ...configs.extras import require_extra
from ..arguments import check_type, refuse

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, Self

    import pandas
    import pyarrow

    from ...configs.settings import Settings
    from ...transport.wire.batch import Batch
    from ..process import InstanceContext

Delivery: TypeAlias = Literal["exactly once", "at least once"]
"""How often a row takes effect in a job with checkpoints, whatever dies."""


@dataclass(frozen=True)
class Staged:
    """The finished output of one writer, for the coordinator: picklable, not yet visible.

    Attributes:
        instance: the sink's instance.
        rows: rows written.
        nbytes: bytes of the file or payload.
        schema: the serialized Arrow schema of the rows, None if the writer saw no batch. Where no
            writer of a sink did, the coordinator fills in the columns that the plan predicts, if
            any.
        path: the file, None if there is none (no rows, or a sink without files).
        payload: data that `publish` needs of a sink without files, such as the rows themselves.
        inode: the file's inode number, which does not change when the file is published.
        epoch: with checkpoints, the epoch for which it was staged; the runtime fills it in. So no
            two of an instance are equal, however equal their rows are.
    """

    instance: int
    rows: int
    nbytes: int = 0
    schema: bytes | None = None
    path: str | None = None
    payload: bytes | None = field(default=None, repr=False)
    inode: int | None = None
    epoch: int | None = None

    def is_file(self, found: os.stat_result) -> bool:
        """Return whether a file of the part's name, at some place, is the part.

        The name of an epoch's part has the job and the epoch, so that no other file has it, and a
        copy of the file is the part, too. Other jobs have parts of the other names.
        """
        if self.epoch is not None:
            return found.st_size == self.nbytes
        return found.st_ino == self.inode


@dataclass(frozen=True)
class SinkResult:
    """The output that a job published through one sink.

    Attributes:
        rows: rows published.
        nbytes: bytes published.
        path: the output folder, None for a sink without files.
        parts: the files in it, absolute, in the order of their names.
        format: the name of the files' format, such as `parquet`.
        schema: the serialized Arrow schema, None if no row was seen.
        load_line: a line of Python that loads the output.
        partial: true if the input was not read to its end, so that rows may be missing.
        table: the rows of a sink without files, else None.
    """

    rows: int
    nbytes: int = 0
    path: str | None = None
    parts: tuple[str, ...] = ()
    format: str = ""
    schema: bytes | None = field(default=None, repr=False)
    load_line: str = ""
    partial: bool = False
    table: pyarrow.Table | None = field(default=None, repr=False)

    @property
    def whereabouts(self) -> str:
        """Where the rows are, in words."""
        return f"in {self.path or 'memory'}"

    def to_arrow(self) -> pyarrow.Table:
        """Return all rows as an Arrow table, read from the files if there are any."""
        import pyarrow as pa

        if self.table is not None:
            return self.table
        return pa.Table.from_batches(list(self._batches()), self._schema())

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a pandas frame.

        Integer columns with nulls become pandas' nullable integers; floats would not be exact
        beyond 2^53.

        Raises:
            InputError: a date is outside the years 1 to 9999, which Python has.
            ResourceError: pandas, an extra, is not installed.
        """
        return to_pandas(self.to_arrow())

    def preview(self, rows: int = 5) -> list[dict[str, Any]]:
        """Return the first rows, reading no more than needed.

        Dates and times outside the years 1 to 9999, which Python does not have, are text.

        Raises:
            UsageError: `rows` is no number of rows.
        """
        wanted = "a whole number of rows, from 0 on"
        check_type("preview", "rows", rows, Integral, wanted)
        if rows < 0:
            refuse("preview", "rows", rows, wanted)
        head: list[dict[str, Any]] = []
        batches = self.table.to_batches() if self.table is not None else self._batches()
        for batch in batches:
            head += _python_rows(batch.slice(0, rows - len(head)))
            if len(head) >= rows:
                break
        return head

    def _schema(self) -> pyarrow.Schema:
        import pyarrow as pa

        if self.schema is None:
            return pa.schema([])
        return pa.ipc.read_schema(pa.py_buffer(self.schema))

    def _batches(self) -> Iterator[pyarrow.RecordBatch]:
        from .formats import FORMATS

        if not self.parts:
            return iter(())
        return FORMATS[self.format].batches(self.parts, self._schema())


def _python_rows(batch: pyarrow.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as Python values; see `SinkResult.preview`."""
    try:
        return list(batch.to_pylist())
    except (OverflowError, ValueError):
        columns = [[_python_value(one) for one in column] for column in batch.columns]
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _python_value(value: pyarrow.Scalar) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return f"{value.type} of {value.value}"


def to_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """Return a table as a pandas frame without losing integers; see `SinkResult.to_pandas`."""
    require_extra("pandas", "to_pandas()", "take to_arrow()")
    import pandas as pd
    import pyarrow as pa

    nullable = {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.uint8(): pd.UInt8Dtype(),
        pa.uint16(): pd.UInt16Dtype(),
        pa.uint32(): pd.UInt32Dtype(),
        pa.uint64(): pd.UInt64Dtype(),
    }
    try:
        frame = table.to_pandas()
    except (OverflowError, ValueError) as error:
        msg = f"pandas cannot hold a row ({error}); take to_arrow(), or cast the column to 'string'"
        raise InputError(msg) from error
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count and column.type in nullable:
            frame[name] = column.to_pandas(types_mapper=nullable.get)
    return frame


class Sink(ABC):
    """The picklable description of an output.

    Attributes:
        publishes_parts: whether its writers have `publish_part`, which unbounded jobs without
            checkpoints need.
        delivery: what it promises in a job with checkpoints; None: it has no `stage_epoch`,
            `commit` and `recover`, and its job can have none.
    """

    publishes_parts: ClassVar[bool] = False
    delivery: ClassVar[Delivery | None] = None

    @property
    def staged_as(self) -> str:
        """The kind of what it stages, such as `parquet`.

        A job goes on only with a sink of the kind that it had, since no other one finds the rows
        that are staged. Empty: it is not compared.
        """
        return ""

    def check(self) -> None:
        """Raise `OutputError` if the output cannot be written (it exists, no permission).

        Called while the topology is built or planned; must not change anything.
        """
        return

    def check_columns(self, columns: pyarrow.Schema) -> None:
        """Raise `OutputError` if rows of these columns do not fit into the output as it is.

        Called before the job starts or goes on, if the columns are known then; must not change
        anything. Sinks that take any columns only see whether the output answers.
        """
        self.check_reachable()

    def check_reachable(self) -> None:
        """Raise `OutputError` if the server of the output does not answer.

        Called in the place of `check_columns` if the columns are not known yet.
        """
        return

    def configured(self, settings: Settings) -> Self:
        """Return this sink with settings for the options that its user left out."""
        return self

    def for_operator(self, operator_id: str) -> Self:
        """Return this sink as that of an operator, for a place that several sinks may share.

        Called once, before `prepare`. Two sinks of one job that write into one table have the same
        token, and tell what they have staged and committed apart by the operator.
        """
        return self

    def prepare(self, token: str, *, bounded: bool) -> None:
        """Prepare the place of the output; called once per job, before the first writer opens.

        Raises:
            OutputError: as `check`.
        """
        return

    @abstractmethod
    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open the writer of one instance; `token` identifies the attempt in file names."""

    @abstractmethod
    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Make the staged parts of all instances visible at once; called by the coordinator.

        Must be idempotent by `token`: a coordinator that replaces one that died calls it again. So
        does a job that is restored from the last checkpoint of one that died as it published: with
        the token of that job, behind `recover`, and with the same rows. If the output was already
        published, only the result is returned.

        Raises:
            OutputError: the parts do not fit together or cannot be published; nothing is visible.
        """

    def publish_partial(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Publish the output of a job that the user stopped before its input had ended.

        An output that an earlier job published is not replaced; everything else is as for
        `publish`. A sink that never replaces anything, such as one that appends, may do the same
        as `publish`.

        Raises:
            OutputError: as `publish`; this sink publishes complete outputs only.
        """
        msg = (
            f"{type(self).__name__} publishes complete outputs only, and the job was stopped before"
            " its input had ended: give it publish_partial(), or let publish() do the same with "
            "runtime.partial_output=replace"
        )
        raise OutputError(msg)

    def commit(self, commit: CommitId, staged: Sequence[Staged]) -> None:
        """Make visible what the writers of an unbounded job with checkpoints staged for an epoch.

        Called by the coordinator once the epoch's manifest is durable, and again after every
        restart, since it is unknown whether it was done: must be idempotent by `commit`. `staged`
        may hold parts of several epochs, since the last that was committed.

        Raises:
            OutputError: it cannot be done at present, or it is unknown whether it was; it is tried
                again.
        """
        msg = (
            f"{type(self).__name__} cannot commit epochs: give it commit(), and its writer "
            "stage_epoch()"
        )
        raise OutputError(msg)

    def recover(self, token: str, staged: Sequence[Staged], *, bounded: bool) -> None:
        """Prepare to resume from an epoch; takes the place of `prepare` in a job that is restored.

        Removes what was staged under the token and is not in `staged`: it belongs to epochs that
        do not count.

        Args:
            token: as for `open`; with checkpoints it stays the same in all attempts of a job. Here,
                for `publish` and for `discard` it is that of the job before if that died as it
                published: its writers have staged all rows, and those of this job get none.
            staged: what the epochs that count have staged, and is not committed; in a bounded job
                it may have been published already under the token.
            bounded: as for `prepare`.

        Raises:
            OutputError: something of `staged` is gone, or the output cannot be written.
        """
        msg = f"{type(self).__name__} cannot go on from a checkpoint: give it recover()"
        raise OutputError(msg)

    def lacks_output(self) -> bool:
        """Return whether nothing was ever committed at its place; False if it cannot tell.

        Asked before an unbounded job resumes from a checkpoint, to warn its user.
        """
        return False

    def discard(self, token: str) -> None:
        """Remove what an attempt that will not be published has staged; may be called twice."""
        return

    @abstractmethod
    def describe(self) -> str:
        """Return one line for `explain`, such as `parquet out/`."""


@dataclass(frozen=True)
class CommitId:
    """What identifies a commit, however often it is repeated.

    The epoch alone does not: a job that was restored from an older epoch has the same epochs again,
    with other rows.

    Attributes:
        lineage: the job that staged it: another one for each restored job.
        epoch: of the job.
    """

    lineage: str
    epoch: int


class SinkWriter(ABC):
    """The opened output of one instance."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Write the rows of a batch; rows that are kept beyond the call must be copied.

        Raises:
            OutputError: the rows' columns differ from earlier ones, or there is no room.
        """

    @abstractmethod
    def stage(self) -> Staged:
        """Finish the output so that the coordinator can publish it; it stays invisible."""

    @abstractmethod
    def abort(self) -> None:
        """Drop what was written and not published, and release all resources.

        The last call of every writer, also after a publication; may be called twice.
        """

    def stage_epoch(self, epoch: int) -> Staged | None:
        """Finish the rows written since the last call, so that they survive; they stay invisible.

        Called at each marker of a checkpoint; the writer continues after it. None without rows.
        Parts are named `part-<instance>-<epoch>`.

        Raises:
            OutputError: this sink has no epochs, or there is no room.
        """
        msg = (
            f"{type(self).__name__} cannot stage epochs, which checkpoints need: give its writer "
            "stage_epoch()"
        )
        raise OutputError(msg)

    def cut_epoch(self, epoch: int) -> Callable[[], Staged] | None:
        """Set the rows written since the last call apart; return what stages them.

        None without rows. What is returned is called by the thread that writes snapshots, beside
        `write` and maybe `abort`: again if it raised, else once. By default `stage_epoch` does it
        all at once.

        Raises:
            OutputError: as `stage_epoch`; so does what is returned.
            AttemptLostError: rows that an earlier call has set apart are gone; the job goes back to
                its last checkpoint.
        """
        staged = self.stage_epoch(epoch)
        if staged is None:
            return None
        if not isinstance(staged, Staged):
            msg = (
                f"{type(self).__name__}.stage_epoch() returned {staged!r:.60}: it must return a "
                "whale.sinks.Staged, or None without rows"
            )
            raise UsageError(msg)
        return lambda: staged

    def publish_part(self) -> Staged | None:
        """Publish the rows written since the last call, for unbounded jobs; None without rows.

        Raises:
            OutputError: this sink is for bounded jobs only, or the part cannot be published.
        """
        msg = (
            f"{type(self).__name__}: this sink publishes once, at the end of a bounded job; "
            "use a sink of files (parquet, csv, json_lines) for an unbounded one"
        )
        raise OutputError(msg)
