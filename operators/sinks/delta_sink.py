"""The sink of Delta Lake tables, exactly once.

Writers put complete Parquet files into the table's folder, where nobody sees them, since no entry
of the table's log names them. A commit adds those of all instances in one transaction that carries
the job, the operator and the epoch (`delta_log`): repeated, it finds itself in the log. A job that
is restored is another application to the log, so its epochs are not taken for those of the job
before.

A file that no entry will ever name, since its epoch does not count, is removed by `recover` and
`discard`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, get_args

from ...configs.errors import OutputError, UsageError
from ...configs.extras import require_extra
from ...configs.file_names import check_encodable
from ..arguments import check_type, names
from .base import CommitId, Delivery, Sink, SinkResult, SinkWriter, Staged
from .delta_files import PUBLICATION, DeltaFile, TableFolder, key_in, key_of, staged_files
from .delta_log import DeltaLog, as_output_error
from .delta_types import delta_schema
from .delta_writer import DeltaWriter
from .writer_schema import common_schema

if TYPE_CHECKING:
    from typing import Self

    import pyarrow as pa

    from ..process import InstanceContext

_Compression: TypeAlias = Literal["zstd", "snappy", "gzip", "none"]


@dataclass(frozen=True)
class DeltaResult(SinkResult):
    """The rows that a job added to a Delta table.

    Attributes:
        folder: of the table.
        files: the files that were added.
    """

    folder: TableFolder | None = None
    files: tuple[DeltaFile, ...] = ()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        schema = self._schema()
        for file in self.files:
            assert self.folder is not None  # whose files these are
            table = self.folder.read(file.name)
            for name, text in file.partition.items():
                value = pa.nulls(1, pa.string()) if text is None else pa.array([text])
                table = table.append_column(
                    name, value.cast(schema.field(name).type).take([0] * file.rows)
                )
            yield from table.select(schema.names).cast(schema).to_batches()


@dataclass(frozen=True)
class DeltaSink(Sink):
    """A Delta table; see `delta`."""

    publishes_parts: ClassVar[bool] = True
    delivery: ClassVar[Delivery | None] = "exactly once"
    staged_as = "delta"

    folder: TableFolder
    mode: Literal["append", "overwrite"]
    partition_by: tuple[str, ...]
    compression: str
    operator_id: str = ""
    given_url: str = field(default="", compare=False)

    def check(self) -> None:
        """Raise `OutputError` if a local folder has something else in it than a Delta table."""
        if not self.folder.is_local or not os.path.lexists(self.folder.url):
            return
        if not os.path.isdir(self.folder.url):
            msg = (
                f"the Delta table {self.given_url!r} must be a folder, and is a file: name another"
            )
            raise OutputError(msg)
        names = set(self.folder.names())
        if "_delta_log" in names:
            return
        others = sorted(name for name in names if key_in(name) is None)
        if others:
            msg = (
                f"the folder {self.given_url!r} is no Delta table and holds {others[0]!r}: name "
                "another, or move that away"
            )
            raise OutputError(msg)

    def check_columns(self, columns: pa.Schema) -> None:
        """Compare columns with those of the table; see `Sink.check_columns`."""
        table = self.log.columns() if self.mode == "append" else None
        if table is not None:
            self.log.refuse_others(table, delta_schema(columns), self.partition_by)

    def for_operator(self, operator_id: str) -> Self:
        """See `Sink.for_operator`: several operators may write into one table."""
        return replace(self, operator_id=operator_id)

    def prepare(self, token: str, *, bounded: bool) -> None:
        """Look at the table: it must be readable, and be partitioned as the user has said."""
        if self.mode == "overwrite" and not bounded:
            msg = (
                f"{self.describe()}: a source has no end, so there is no time at which the table "
                "could be replaced as a whole; use mode='append'"
            )
            raise OutputError(msg)
        columns = self.log.columns()
        if columns is not None and self.mode == "append":
            self.log.refuse_partitions(columns, self.partition_by)
        if columns is not None and columns.is_append_only and self.mode == "overwrite":
            msg = (
                f"{self.describe()}: the table is append-only (delta.appendOnly), so its rows "
                "cannot be replaced; use mode='append', or name another table"
            )
            raise OutputError(msg)

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open one instance's writer; no file is created before the first row."""
        return DeltaWriter(self, context.operator_id, context.instance, token)

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Add all files in one transaction, unless the log has it; see `Sink.publish`."""
        schema = common_schema(staged, self.describe())
        files = _files(staged)
        if schema is not None and (files or self.mode == "overwrite" or self._is_missing()):
            self.add(files, schema, self.application(token), PUBLICATION)
            self._remove(token, {file.name for file in files})
        return self._result(files, schema)

    def publish_partial(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Add the rows so far; a table is not replaced by a part of its rows."""
        if self.mode == "overwrite":
            return super().publish_partial(token, staged)
        return self.publish(token, staged)

    def commit(self, commit: CommitId, staged: Sequence[Staged]) -> None:
        """Add an epoch's files in one transaction, unless the log has it; see `Sink.commit`."""
        files = _files(staged)
        schema = common_schema(staged, self.describe())
        if files and schema is not None:
            self.add(files, schema, self.application(commit.lineage), commit.epoch)

    def recover(self, token: str, staged: Sequence[Staged], *, bounded: bool) -> None:
        """Remove files of epochs that do not count; see `Sink.recover`."""
        self.prepare(token, bounded=bounded)
        there = set(self._names())
        for one in staged_files(staged):
            missing = [file.name for file in one.files if file.name not in there]
            # Those of an epoch that was committed may have been compacted and vacuumed since.
            if missing and self.log.last(one.application) < one.number:
                msg = (
                    f"{self.describe()}: {len(missing)} files with staged rows are gone, such as "
                    f"{missing[0]!r}: VACUUM, or somebody else, has removed them; go on from an "
                    "earlier checkpoint"
                )
                raise OutputError(msg)
        self._remove(token, {file.name for file in _files(staged)})

    def lacks_output(self) -> bool:
        """See `Sink.lacks_output`."""
        return self._is_missing()

    def discard(self, token: str) -> None:
        """Remove what was staged and is not committed."""
        self._remove(token, ())

    def describe(self) -> str:
        """Return the table, as the user wrote it."""
        return f"delta {self.given_url}"

    @property
    def log(self) -> DeltaLog:
        """The table's log."""
        return DeltaLog(self.folder)

    def application(self, token: str) -> str:
        """Return who commits, as it stands in the log."""
        return f"whale-ray/{token}/{self.operator_id}"

    def add(
        self, files: Sequence[DeltaFile], schema: pa.Schema, application: str, number: int
    ) -> None:
        """Add files to the table in one transaction, unless its log has it."""
        self.log.add(
            files,
            delta_schema(schema),
            application,
            number,
            mode=self.mode,
            partition_by=self.partition_by,
        )

    def _is_missing(self) -> bool:
        return self.log.columns() is None

    def _names(self) -> list[str]:
        try:
            return list(self.folder.names())
        except OSError as error:
            raise as_output_error(self.folder, error) from error

    def _remove(self, token: str, wanted: Collection[str]) -> None:
        """Remove the files of a job's operator that neither it nor the log names."""
        key = key_of(token, self.operator_id)
        mine = {name for name in self._names() if key_in(name) == key} - set(wanted)
        for name in sorted(mine - self.log.named() if mine else mine):
            self.folder.remove(name)

    def _result(self, files: Iterable[DeltaFile], schema: pa.Schema | None) -> SinkResult:
        added = tuple(files)
        return DeltaResult(
            rows=sum(file.rows for file in added),
            nbytes=sum(file.nbytes for file in added),
            path=self.folder.url,
            parts=tuple(self.folder.path(file.name) for file in added),
            format="delta",
            schema=None if schema is None else schema.serialize().to_pybytes(),
            load_line=f"deltalake.DeltaTable({self.folder.url!r}).to_pandas()" if added else "",
            folder=self.folder,
            files=added,
        )


def _files(staged: Sequence[Staged]) -> list[DeltaFile]:
    return [file for one in staged_files(staged) for file in one.files]


def _check_path(path: str) -> None:
    """Refuse what deltalake takes for another path: it decodes paths as URLs, after it commits."""
    if re.search(r"%[0-9a-fA-F]{2}|[\\\x00-\x1f\x7f]", path):
        msg = (
            f"delta({path!r}): deltalake cannot read tables whose paths have '%' before two digits,"
            " a backslash or a control character; name another folder"
        )
        raise UsageError(msg)


def delta(
    path_or_url: str | os.PathLike[str],
    *,
    mode: Literal["append", "overwrite"] = "append",
    partition_by: str | Sequence[str] = (),
    compression: _Compression = "zstd",
    storage_options: Mapping[str, str] | None = None,
) -> Sink:
    """Add rows to a Delta Lake table, exactly once with checkpoints: `delta("tables/trips")`.

    A bounded job adds all its rows in one transaction at its end. An unbounded one with checkpoints
    adds those of an epoch in one transaction that carries the job and the epoch, so that a repeated
    commit finds itself; without checkpoints, each instance adds its rows every
    `runtime.commit_interval_ms`. The table is created if it is missing. The folder also holds files
    of rows that are not committed yet, which readers of the table do not see.

    Columns are compared by name. Types that Delta Lake lacks become the smallest one that holds all
    values: uint8 → short, uint16 → integer, uint32 → long, uint64 → decimal(20, 0), float16 →
    float, date64 → date, fixed-size binary → binary; timestamps are in microseconds, those with a
    zone in UTC. Times of day and durations are refused.

    Args:
        path_or_url: a folder, or a URL such as `s3://bucket/trips`. All workers must reach it.
        mode: `append`, or `overwrite` to replace all rows in the same transaction (bounded jobs).
        partition_by: columns by which a new table is partitioned: texts, integers, booleans, dates.
        compression: of the files.
        storage_options: credentials and endpoint of an object store, as the package `deltalake`
            takes them; they are sent to the workers.

    Raises:
        OutputError: the place is something else than a Delta table; while running: the table has
            other columns, a column's type has no counterpart, or the table cannot be written.
        ResourceError: the extra `delta` is not installed.
        UsageError: an argument is none of those above.
    """
    require_extra("delta", "sinks.delta", "take sinks.parquet")
    check_type("delta", "path_or_url", path_or_url, (str, os.PathLike), "a folder or a URL")
    wanted = "a mapping of texts"
    check_type("delta", "storage_options", storage_options, (Mapping, type(None)), wanted)
    given = os.fspath(path_or_url)
    if mode not in ("append", "overwrite"):
        msg = f"delta(mode={mode!r}): it is 'append' or 'overwrite'"
        raise UsageError(msg)
    if compression not in get_args(_Compression):
        known = ", ".join(map(repr, get_args(_Compression)))
        msg = f"delta(compression={compression!r}): it is one of {known}"
        raise UsageError(msg)
    if not given or "\0" in given:
        msg = f"delta({given!r}): name a folder, or a URL such as 's3://bucket/trips'"
        raise UsageError(msg)
    url = given.removeprefix("file://") if given.startswith("file:///") else given
    if "://" not in url:
        check_encodable("the table", given)
        url = os.path.abspath(os.path.expanduser(url))
        _check_path(url)
    wanted = "a column, or a list of columns"
    columns = names("delta", "partition_by", partition_by, wanted, or_one=True)
    folder = TableFolder(url, dict(storage_options or {}))
    return DeltaSink(folder, mode, columns, compression, given_url=given)
