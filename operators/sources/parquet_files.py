"""The Parquet source, which reads row group by row group, in bounded memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from ...configs.errors import InputError
from ..arguments import columns_to_read
from .arrow_reader import first_line
from .base import Source
from .divided_files import DividedFiles
from .files import FileSet, PathLike, check_likeness, likeness
from .parquet_footer import check_footer
from .progress import Place, Progress
from .read_ahead import read_ahead

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


_ROWS_MIN, _ROWS_MAX = 8192, 65_536
_DECODED_BYTES = 4 << 20
_READ_AHEAD_BYTES = 1 << 20
_DICTIONARY_BYTES_MAX = 1 << 16
_DICTIONARY_BYTES_PER_ROW_MAX = 1
"""Columns whose dictionaries are larger are decoded: Arrow copies them for each batch."""
_CODED_GROUP_ROWS_MIN = 1 << 12
"""Row groups that are smaller on average are decoded: batches with codes end where those end."""


@dataclass(frozen=True)
class ParquetSource(DividedFiles["pq.ParquetFile"]):
    """A source of Parquet files; row groups are assigned to instances round-robin."""

    format = "Parquet"

    def open_file(self, path: str) -> pq.ParquetFile:
        """Open a file, and read its footer."""
        return _open(path)

    def columns_in(self, file: pq.ParquetFile) -> pa.Schema:
        """Return the columns of a file."""
        return file.schema_arrow

    def units_in(self, file: pq.ParquetFile) -> int:
        """Return the number of a file's row groups."""
        groups: int = file.metadata.num_row_groups
        return groups

    def read_units(
        self, file: pq.ParquetFile, path: str, units: range, schema: pa.Schema, progress: Progress
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the row groups that are left; one that was begun is decoded again."""
        for run, place in _runs(list(progress.units(units.start, units.stop))):
            if place is not None:
                check_likeness(path, place)
            groups = [unit - units.start for unit in run]
            lengths = [file.metadata.row_group(group).num_rows for group in groups]
            skip = 0 if place is None else place["rows"]
            progress.enter_run(run, lengths, likeness(path))
            yield from _read(file, path, groups, schema, progress, skip)

    def resumption(self) -> str:
        """Return that it seeks."""
        return "seeks to the row group"

    def describe(self) -> str:
        """Return the paths as the user wrote them, and the columns unless all are read."""
        return f"parquet {self.named_paths()}"


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
    """Yield the rows of some row groups after the first `skip`; batches may span row groups."""
    import pyarrow as pa

    rows, names = 0, schema.names
    try:
        at_once = _rows_at_once(file, groups, names)
        # Arrow's threads, one for each column, cost more than they save with batches of this size.
        batches = file.iter_batches(at_once, row_groups=groups, columns=names, use_threads=False)
        for batch in read_ahead(batches):
            begin, rows = rows, rows + batch.num_rows
            if rows <= skip:
                continue
            some = batch.slice(skip - begin) if begin < skip else batch
            progress.move(max(begin, skip))
            yield some
    except (pa.ArrowException, OSError) as error:
        msg = f"{path}: the Parquet file is damaged ({first_line(error)}); write it again"
        raise InputError(msg) from error


def _rows_at_once(file: pq.ParquetFile, groups: list[int], columns: list[str]) -> int:
    """Return how many rows of some row groups to decode at a time: fewer if they are wide.

    Only the columns that are read count.
    """
    found = [file.metadata.row_group(group) for group in groups]
    roots = [path.split(".", 1)[0] for path in _leaves(file)]
    read = {name.split(".", 1)[0] for name in columns}
    leaves = [leaf for leaf, root in enumerate(roots) if root in read]
    rows = sum(one.num_rows for one in found)
    nbytes = sum(one.column(leaf).total_uncompressed_size for one in found for leaf in leaves)
    return max(_ROWS_MIN, min(_ROWS_MAX, _DECODED_BYTES * rows // max(nbytes, 1)))


def _leaves(file: pq.ParquetFile) -> list[str]:
    """Return the paths of the columns as they are stored: nested ones have several, "a.b"."""
    return [file.schema.column(leaf).path for leaf in range(file.metadata.num_columns)]


def _open(path: str) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        opened = functools.partial(
            pq.ParquetFile,
            path,
            buffer_size=_READ_AHEAD_BYTES,
            pre_buffer=False,
            # Spark writes checksums, which reveal damage that can still be decoded.
            page_checksum_verification=True,
        )
        file = opened()
        _ = file.schema_arrow.names  # decodes the names, which may be damaged
        check_footer(path, file.metadata)
        coded = _coded_texts(file)
        if not coded:
            return file
        with file:
            return opened(metadata=file.metadata, read_dictionary=coded)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        msg = (
            f"{path}: not a complete Parquet file ({first_line(error)}); "
            "write it again or leave it out"
        )
        raise InputError(msg) from error


def _coded_texts(file: pq.ParquetFile) -> list[str]:
    """Return the columns of text of which every row group has a small dictionary, for its rows.

    These are read as dictionary arrays, which costs a fraction of decoding their texts.
    """
    import pyarrow as pa

    found, groups = [], file.metadata.num_row_groups
    if groups > 1 and file.metadata.num_rows < groups * _CODED_GROUP_ROWS_MIN:
        return []
    bytes_max = file.metadata.num_rows * _DICTIONARY_BYTES_PER_ROW_MAX
    texts = {field.name for field in file.schema_arrow if pa.types.is_string(field.type)}
    for leaf, path in enumerate(_leaves(file)):
        if path in texts:
            sizes = [
                _dictionary_bytes(file.metadata.row_group(group).column(leaf))
                for group in range(groups)
            ]
            is_small = max(sizes, default=0) <= _DICTIONARY_BYTES_MAX
            if is_small and 0 not in sizes and sum(sizes) <= bytes_max:
                found.append(path)
    return found


def _dictionary_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    """Return the size of a dictionary as it is stored; 0 if there is none."""
    begin = chunk.dictionary_page_offset
    return 0 if begin is None else max(0, chunk.data_page_offset - begin)


def parquet(path: PathLike | Sequence[PathLike], columns: Sequence[str] | None = None) -> Source:
    """Read Parquet files.

    Files of a folder or pattern are read in the order of their names. Row groups are read as
    they are needed, so that memory does not grow with the input. With several instances, row
    groups are assigned round-robin: a file of a single row group is read by one instance.

    A column without any value in a file, to which pandas gives Arrow's type null, has the type that
    it has in the other files.

    Args:
        path: a file, a folder (its `.parquet` and `.pq` files), a pattern such as
            `"gps/2008-*.parquet"`, or a list of these.
        columns: the columns to read, in this order; all if left out.

    Raises:
        InputError: a missing file or column, a damaged file, or files that differ in a column's
            type; raised when the topology is planned or the file is reached.
    """
    files = FileSet.of(path, "Parquet", (".parquet", ".pq"))
    return ParquetSource(files, columns_to_read("parquet", columns))
