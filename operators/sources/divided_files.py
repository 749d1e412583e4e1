"""What sources have in common whose files are divided: into row groups, or record batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from .arrow_reader import (
    ArrowReader,
    check_alike,
    check_column,
    check_supported,
    coded_names,
    kept_columns,
    supported_schema,
    wanted_columns,
)
from .base import Source
from .files import FileSet
from .files_passed import FilesPassed
from .progress import Progress

if TYPE_CHECKING:
    from typing import Self

    import pyarrow as pa

    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..process import InstanceContext
    from ..snapshots import Position
    from .base import SourceReader

__all__ = ["DividedFiles"]

OpenFile = TypeVar("OpenFile")
"""What a subclass reads a file with."""


@dataclass(frozen=True)
class DividedFiles(Source, Generic[OpenFile]):
    """A source of files whose parts, its units, are assigned to instances round-robin.

    Units are counted through all files in the order of these.

    Attributes:
        paths: the files.
        columns: those that are read, in this order; None is all.
    """

    paths: FileSet
    columns: tuple[str, ...] | None = None

    format: ClassVar[str]
    """Of the files, for messages."""

    in_columns = True

    @property
    def position_kind(self) -> str:
        """See `Source.position_kind`."""
        return self.format

    @abstractmethod
    def open_file(self, path: str) -> AbstractContextManager[OpenFile]:
        """Open a file; raises `InputError` if it is missing, damaged or of another format."""

    @abstractmethod
    def columns_in(self, file: OpenFile) -> pa.Schema:
        """Return the columns of a file."""

    @abstractmethod
    def units_in(self, file: OpenFile) -> int:
        """Return the number of a file's units."""

    @abstractmethod
    def read_units(
        self, file: OpenFile, path: str, units: range, schema: pa.Schema, progress: Progress
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file's units that `progress` has left, and keep `progress`.

        They may have other columns, too.

        Args:
            file: open.
            path: its.
            units: their numbers, among those of all files.
            schema: the columns that are read.
            progress: of the reader.
        """

    def check(self) -> None:
        """Raise `InputError` if a path is missing or matches no file."""
        self.paths.files()

    def schema(self) -> Schema:
        """Return the columns, from the first file; see `_with_types`."""
        from ...transport.wire.types import Schema

        path, *others = self.paths.files()
        with self.open_file(path) as file:
            found = self._schema_of(file, path)
        return Schema.from_arrow(self._with_types(found, path, others))

    def coded_columns(self) -> tuple[str, ...]:
        """See `Source.coded_columns`: from the first file."""
        with self.open_file(self.paths.files()[0]) as file:
            found = coded_names(self.columns_in(file))
        return tuple(name for name in found if self.columns is None or name in self.columns)

    def with_columns_needed(self, columns: frozenset[str]) -> Self:
        """See `Source.with_columns_needed`: columns that are not read are not loaded."""
        there = self.schema()
        kept = kept_columns(there, columns)
        return self if kept == there.names else replace(self, columns=kept)

    def open(self, context: InstanceContext) -> SourceReader:
        """Open this instance's units; with one instance they come in file order."""
        paths = self.paths.files()
        progress = Progress.opened(context, None, {**self.paths.facts(paths), "at": [0, 0]})
        passed = FilesPassed(paths)
        return ArrowReader(self._batches(paths, progress, passed, 0, 0), progress)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Open this instance's units of those left, those begun at their next row.

        Raises:
            InputError: files have come, gone or changed.
        """
        paths = self.paths.files()
        passed = self.paths.check_same(paths, positions)
        facts = {**self.paths.facts(paths), **passed.facts()}
        progress = Progress.opened(context, positions, facts)
        # Files before it need not be opened to count their units.
        known = (one["at"] for one in positions if one["at"][1] <= progress.first)
        progress.facts["at"] = at = max(known, default=[0, 0])
        return ArrowReader(self._batches(paths, progress, passed, *at), progress)

    def named_paths(self) -> str:
        """Return the paths as the user wrote them, and the columns unless all are read."""
        columns = "" if self.columns is None else f" ({', '.join(self.columns)})"
        return f"{self.paths.describe()}{columns}"

    def _with_types(self, schema: pa.Schema, path: str, others: Sequence[str]) -> pa.Schema:
        """Return the columns that are read of a file; where their type is null, that of the others.

        Arrow's type null is what pandas writes where all values of a column are null.

        Raises:
            InputError: a type is not supported, or null in all files.
        """
        for other in others:
            if not any(map(_is_null, schema)):
                break
            with self.open_file(other) as file:
                schema = _typed(schema, self._schema_of(file, other))
        check_supported(schema, path)
        return schema

    def _schema_of(self, file: OpenFile, path: str) -> pa.Schema:
        """Return the columns that are read of a file; raises `InputError` if one is missing."""
        import pyarrow as pa

        schema = supported_schema(self.columns_in(file))
        wanted = wanted_columns(schema.names, self.columns, path)
        return pa.schema([schema.field(name) for name in wanted])

    def _batches(
        self,
        paths: list[str],
        progress: Progress,
        passed: FilesPassed,
        first_file: int,
        first_unit: int,
    ) -> Iterator[Batch]:
        """Yield the rows of `progress`, from a file on whose first unit is `first_unit`."""
        from ...transport.wire.arrow_dictionaries import DictionaryBatches

        batches, expected = DictionaryBatches(), None
        for number, path in enumerate(paths[first_file:], first_file):
            with self.open_file(path) as file:
                schema = self._schema_of(file, path)
                expected = expected or self._with_types(schema, path, paths)
                schema = _typed(schema, expected)
                check_supported(schema, path)
                check_alike(schema, path, expected, paths[first_file])
                passed.begin(number)
                progress.facts.update(passed.facts(), at=[number, first_unit])
                stop = first_unit + self.units_in(file)
                units, check = range(first_unit, stop), partial(check_column, path, self.format)
                for data in self.read_units(file, path, units, expected, progress):
                    yield batches.batch(data, expected, check)
                first_unit = stop
        passed.end()
        progress.facts.update(passed.facts())


def _is_null(field: pa.Field) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_null(field.type))


def _typed(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return a schema in which columns of the type null have the type that they have in another."""
    import pyarrow as pa

    names = {*other.names}
    return pa.schema(
        [other.field(one.name) if _is_null(one) and one.name in names else one for one in schema]
    )
