"""The Parquet source, which reads row group by row group, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from ...configs.errors import InputError
from .arrow_reader import (
    ArrowReader,
    cast_to_schema,
    check_alike,
    check_supported,
    check_texts,
    first_line,
    kept_columns,
    supported_schema,
    wanted_columns,
)
from .base import Source
from .files import FileSet, PathLike, check_likeness, likeness
from .progress import Place, Progress

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ...transport.wire.types import Schema
    from ..process import InstanceContext
    from ..snapshots import Position
    from .base import SourceReader

_BATCH_ROWS = 8192
_READ_AHEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class ParquetSource(Source):
    """A source of Parquet files; row groups are assigned to instances round-robin."""

    paths: FileSet
    columns: tuple[str, ...] | None = None

    def check(self) -> None:
        """Raise `InputError` if a path is missing or matches no file."""
        self.paths.files()

    def schema(self) -> Schema:
        """Return the columns, from the first file's footer."""
        from ...transport.wire.types import Schema

        with _open(self.paths.files()[0]) as file:
            return Schema.from_arrow(self._columns_of(file, self.paths.files()[0]))

    def with_columns_needed(self, columns: frozenset[str]) -> ParquetSource:
        """See `Source.with_columns_needed`: columns that are not read are not decoded."""
        there = self.schema()
        kept = kept_columns(there, columns)
        return self if kept == there.names else replace(self, columns=kept)

    def open(self, context: InstanceContext) -> SourceReader:
        """Open this instance's row groups; with one instance they come in file order."""
        paths = self.paths.files()
        progress = Progress.opened(context, None, {**self.paths.facts(paths), "at": [0, 0]})
        return ArrowReader(self._batches(paths, progress, 0, 0), progress)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Open this instance's row groups of those left; a row group begun is decoded again.

        Raises:
            InputError: files have come, gone or changed.
        """
        paths = self.paths.files()
        self.paths.check_same(paths, positions)
        progress = Progress.opened(context, positions, self.paths.facts(paths))
        # Files before it need not be opened to count their row groups.
        known = (one["at"] for one in positions if one["at"][1] <= progress.first)
        progress.facts["at"] = at = max(known, default=[0, 0])
        return ArrowReader(self._batches(paths, progress, *at), progress)

    def resumption(self) -> str:
        """Return that it seeks."""
        return "seeks to the row group"

    def describe(self) -> str:
        """Return the paths as the user wrote them, and the columns unless all are read."""
        columns = "" if self.columns is None else f" ({', '.join(self.columns)})"
        return f"parquet {self.paths.describe()}{columns}"

    def _columns_of(self, file: pq.ParquetFile, path: str) -> pa.Schema:
        import pyarrow as pa

        schema = supported_schema(file.schema_arrow)
        wanted = wanted_columns(schema.names, self.columns, path)
        schema = pa.schema([schema.field(name) for name in wanted])
        check_supported(schema, path)
        return schema

    def _batches(
        self, paths: list[str], progress: Progress, first_file: int, first_unit: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the row groups of `progress`, from a file on whose first one is `first_unit`."""
        expected: pa.Schema | None = None
        for number, path in enumerate(paths[first_file:], first_file):
            with _open(path) as file:
                schema = self._columns_of(file, path)
                expected = expected or schema
                check_alike(schema, path, expected, paths[first_file])
                progress.facts["at"] = [number, first_unit]
                stop = first_unit + file.metadata.num_row_groups
                units = list(progress.units(first_unit, stop))
                for run, place in _runs(units):
                    if place is not None:
                        check_likeness(path, place)
                    groups = [unit - first_unit for unit in run]
                    lengths = [file.metadata.row_group(group).num_rows for group in groups]
                    skip = 0 if place is None else place["rows"]
                    progress.enter_run(run, lengths, likeness(path))
                    yield from _read(file, path, groups, expected, progress, skip)
                first_unit = stop


def _runs(units: list[tuple[int, Place | None]]) -> Iterator[tuple[list[int], Place | None]]:
    """Yield row groups that are read in one go: those not begun, and each of the others."""
    for is_begun, some in groupby(units, lambda one: one[1] is not None):
        if is_begun:
            yield from (([unit], place) for unit, place in some)
        else:
            yield [unit for unit, _ in some], None


def _read(
    file: pq.ParquetFile,
    path: str,
    groups: list[int],
    schema: pa.Schema,
    progress: Progress,
    skip: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups behind the first `skip`; batches may span row groups."""
    import pyarrow as pa

    rows = 0
    try:
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=schema.names):
            begin, rows = rows, rows + batch.num_rows
            if rows <= skip:
                continue
            some = batch.slice(skip - begin) if begin < skip else batch
            progress.move(max(begin, skip))
            check_texts(some, path)
            yield cast_to_schema(some, schema)
    except (pa.ArrowException, OSError) as error:
        msg = f"{path}: the Parquet file is damaged ({first_line(error)}); write it again"
        raise InputError(msg) from error


def _open(path: str) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(
            path,
            buffer_size=_READ_AHEAD_BYTES,
            pre_buffer=False,
            # Spark writes checksums, which reveal damage that can still be decoded.
            page_checksum_verification=True,
        )
        _ = file.schema_arrow.names  # decodes the names, which may be damaged
        return file
    except (pa.ArrowException, OSError, UnicodeError) as error:
        msg = (
            f"{path}: not a complete Parquet file ({first_line(error)}); "
            "write it again or leave it out"
        )
        raise InputError(msg) from error


def parquet(path: PathLike | Sequence[PathLike], columns: Sequence[str] | None = None) -> Source:
    """Read Parquet files.

    Files of a folder or pattern are read in the order of their names. Row groups are read as
    they are needed, so that memory does not grow with the input. With several instances, row
    groups are assigned round-robin: a file of a single row group is read by one instance.

    Args:
        path: a file, a folder (its `.parquet` and `.pq` files), a pattern such as
            `"gps/2008-*.parquet"`, or a list of these.
        columns: the columns to read, in this order; all if left out.

    Raises:
        InputError: a missing file or column, a damaged file, or files that differ in a column's
            type; raised when the topology is planned or the file is reached.
    """
    files = FileSet.of(path, "Parquet", (".parquet", ".pq"))
    return ParquetSource(files, None if columns is None else tuple(columns))
