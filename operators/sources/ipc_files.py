"""The source of Arrow IPC files, which are mapped: rows are read where they lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...configs.errors import InputError
from ..arguments import columns_to_read
from .base import Source
from .divided_files import DividedFiles
from .files import FileSet, PathLike, check_likeness, likeness
from .mapped_ipc import MappedIpc
from .progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa


_PIECE_ROWS_MIN, _PIECE_ROWS_MAX = 1 << 16, 1 << 18
_PIECE_BYTES = 16 << 20
"""Texts are checked, and what cannot be a view is converted, in pieces of about so many bytes."""


@dataclass(frozen=True)
class IpcSource(DividedFiles[MappedIpc]):
    """A source of Arrow IPC files; record batches are assigned to instances round-robin."""

    format = "Arrow IPC"

    def open_file(self, path: str) -> MappedIpc:
        """Map a file."""
        return MappedIpc(path)

    def columns_in(self, file: MappedIpc) -> pa.Schema:
        """Return the columns of a file."""
        return file.schema

    def units_in(self, file: MappedIpc) -> int:
        """Return the number of a file's record batches."""
        return file.count()

    def read_units(
        self, file: MappedIpc, path: str, units: range, schema: pa.Schema, progress: Progress
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the record batches that are left, from the next row on."""
        left = list(progress.units(units.start, units.stop))
        numbers = [unit - units.start for unit, _ in left]
        found = file.batches(numbers, schema.names)
        now = likeness(path)
        for (unit, place), (_, batch) in zip(left, found, strict=True):
            rows = 0
            if place is not None:
                check_likeness(path, place)
                rows = place["rows"]
            progress.enter(unit, {**now, "rows": rows})
            most = _piece_rows(batch)
            for start in range(rows, batch.num_rows, most):
                is_whole = start == 0 and batch.num_rows <= most
                piece = batch if is_whole else batch.slice(start, most)
                progress.move(start)
                yield piece

    def resumption(self) -> str:
        """Return that it seeks."""
        return "seeks to the row"

    def describe(self) -> str:
        """Return the paths as the user wrote them, the columns unless all, and how they are read.

        How is found out by the first file.
        """
        return f"ipc {self.named_paths()}{self._access()}"

    def _access(self) -> str:
        try:
            with MappedIpc(self.paths.files()[0]) as file:
                kind = ", a stream that every instance passes over" if file.is_stream else ""
                how = ", compressed, so not mapped" if file.is_compressed() else ", mapped"
                return how + kind
        except InputError:
            return ""  # whoever plans or reads it says what is wrong


def ipc(path: PathLike | Sequence[PathLike], columns: Sequence[str] | None = None) -> Source:
    """Read Arrow IPC files (Feather version 2), without copying what they hold.

    Files are mapped into memory, and rows are read where they lie: numbers and times, texts of up
    to 2 GiB with their 32-bit offsets, texts of small dictionaries as their codes. Booleans, nulls,
    64-bit offsets, other dictionaries and string views are converted as they are read. Compressed
    files are decoded into memory instead, which `explain` says.

    Files of a folder or pattern are read in the order of their names. With several instances,
    record batches are assigned round-robin: a file of a single record batch is read by one
    instance. Files of the stream format are read, too: since they have no footer, every instance
    passes over the whole file to find its record batches.

    A column of Arrow's type null, without any value, has the type that it has in the other files.

    A file must stay as it is while a job reads it. To replace it, write another one and rename it.

    Args:
        path: a file, a folder (its `.arrow`, `.ipc`, `.feather` and `.arrows` files), a pattern
            such as `"gps/2008-*.arrow"`, or a list of these.
        columns: the columns to read, in this order; all if left out.

    Raises:
        InputError: a missing file or column, a file that is cut off, damaged, of another format or
            written to while it is read, or files that differ in a column's type; raised when the
            topology is planned or the file is reached.
    """
    files = FileSet.of(path, "Arrow IPC", (".arrow", ".ipc", ".feather", ".arrows"))
    return IpcSource(files, columns_to_read("ipc", columns))


def _piece_rows(batch: pa.RecordBatch) -> int:
    if batch.num_rows <= _PIECE_ROWS_MIN:
        return _PIECE_ROWS_MIN
    fitting = _PIECE_BYTES * batch.num_rows // max(batch.nbytes, 1)
    return max(_PIECE_ROWS_MIN, min(_PIECE_ROWS_MAX, fitting))
