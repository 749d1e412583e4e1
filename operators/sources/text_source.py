"""The base of the CSV and JSON-lines sources: whole files per instance, one schema for all.

A position holds the offset of the block that is being read and how many of its rows were passed on.
Files in UTF-8 that are not compressed are read from there on; others are read again from their
begin, but parsed from there on. The columns that were learnt are in the position.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ...configs.errors import InputError
from .arrow_reader import ArrowReader, supported_schema, wanted_columns
from .base import BadRows, Source
from .block_parser import BlockParser
from .files import FileSet, check_likeness, compression_of, likeness
from .files_passed import FilesPassed
from .progress import Progress, own_or_first
from .text_blocks import BLOCK_BYTES, Quoting, TextBlock, read_blocks
from .text_encoding import UTF_8
from .units_left import UnitsLeft

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    import pyarrow as pa

    from ...transport.wire.types import Schema
    from ..process import InstanceContext
    from ..snapshots import Position
    from .base import SourceReader
    from .progress import Place

    SchemaLike: TypeAlias = Schema | pa.Schema | Mapping[str, str] | Mapping[str, str | type]


@dataclass(frozen=True)
class TextSource(Source):
    """A source of text files of one record per line; files are assigned to instances round-robin.

    Attributes:
        paths: the files.
        given_schema: the columns and their types; None to infer them from the first block of rows.
        columns: the columns to read, None for all.
        on_bad_rows: the policy for malformed lines.
        encoding: the files' encoding, as Python names it.
        block_bytes: how much is read and parsed at once; the rows do not depend on it.
    """

    paths: FileSet
    given_schema: Schema | None
    columns: tuple[str, ...] | None
    on_bad_rows: BadRows = "fail"
    encoding: str = UTF_8
    block_bytes: int = BLOCK_BYTES

    def check(self) -> None:
        """Raise `InputError` if a path is missing or matches no file."""
        self.paths.files()

    def schema(self) -> Schema:
        """Return the columns, inferred from the start of the first file unless given."""
        from ...transport.wire.types import Schema

        return Schema.from_arrow(self._arrow_schema(self.paths.files()))

    def declared_schema(self) -> Schema | None:
        """Return the columns without looking into files; None if they are to be learnt."""
        from ...transport.wire.types import Schema

        return None if self.given_schema is None else Schema.from_arrow(self._arrow_schema([]))

    def with_bad_rows(self, policy: BadRows) -> Self:
        """Return this source with another policy for malformed lines."""
        return replace(self, on_bad_rows=check_policy(policy))

    def open(self, context: InstanceContext) -> SourceReader:
        """Open this instance's files; with one instance they are read in order."""
        files = self.paths.files()
        progress = Progress.opened(context, None, self.paths.facts(files))
        return ArrowReader(self._batches(files, progress, FilesPassed(files), None), progress)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Open this instance's files of those left; columns that were learnt stay.

        Raises:
            InputError: files have come, gone or changed, or a column is wanted that was not learnt.
        """
        files = self.paths.files()
        passed = self.paths.check_same(files, positions)
        facts = {**self.paths.facts(files), **passed.facts()}
        progress = Progress.opened(context, positions, facts)
        learnt = own_or_first(context, positions, "columns")
        return ArrowReader(self._batches(files, progress, passed, learnt), progress)

    def resumption(self) -> str:
        """Return whether all files can be read from the middle."""
        if self.encoding == UTF_8 and not any(map(compression_of, self.paths.files())):
            return "seeks to the block"
        return "reads the file again and skips"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all files in order."""
        files = self.paths.files()
        progress = Progress(UnitsLeft.of_share(0, 1), {}, {})
        return self._batches(files, progress, FilesPassed(files), None)

    def _batches(
        self,
        files: list[str],
        progress: Progress,
        passed: FilesPassed,
        learnt: list[list[str]] | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files of `progress`; count dropped rows there."""
        if learnt is None or self.given_schema is not None:
            schema = self._arrow_schema(files)
        else:
            schema = self._schema_of(learnt)
        if self.given_schema is None:
            progress.facts["columns"] = [[field.name, str(field.type)] for field in schema]
        for unit, place in progress.units(0, len(files)):
            passed.begin(unit)
            progress.facts.update(passed.facts())
            yield from self.file_batches(files[unit], schema, progress, unit, place)
        passed.end()
        progress.facts.update(passed.facts())

    def file_batches(
        self,
        path: str,
        schema: pa.Schema,
        progress: Progress,
        unit: int,
        place: Place | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file after a place in it, and tell `progress` where they are.

        Raises:
            InputError: the file cannot be read, or has changed since it was begun.
            BadRowError: a line is malformed and the policy is `fail`.
        """
        like = likeness(path)
        passed_on, offset, line = 0, 0, 1  # rows passed on after the begin of the block
        if place is not None:
            check_likeness(path, place)
            passed_on, offset, line = place["rows"], place["offset"], place["line"]
            progress.discount(place)
        parser: BlockParser | None = None
        for block in self.blocks(path, offset, line):
            body = block
            if parser is None and offset:
                parser, _ = self._parser(path, next(self.blocks(path)), schema, progress.rejected)
            elif parser is None:
                parser, body = self._parser(path, block, schema, progress.rejected)
            here = {**like, "offset": body.offset, "line": body.first_line, "rows": passed_on}
            progress.enter(unit, here)
            rows = 0
            for batch in parser.batches(path, body):
                skipped = min(passed_on, batch.num_rows)
                passed_on -= skipped
                progress.move(rows + skipped + passed_on)
                rows += batch.num_rows
                if not skipped:
                    yield batch
                elif skipped < batch.num_rows:
                    yield batch.slice(skipped)
                del batch  # its memory serves the next block

    def blocks(self, path: str, offset: int = 0, line: int = 1) -> Iterator[TextBlock]:
        """Yield a file in blocks of whole records, from a block's offset and line on."""
        return read_blocks(
            path, self._quoting(), self.encoding, self.block_bytes, offset=offset, line=line
        )

    def _quoting(self) -> Quoting | None:
        """Return the rules of quoting, None if every line is a record."""
        return None

    def _schema_of(self, learnt: list[list[str]]) -> pa.Schema:
        """Return the wanted ones of columns that were learnt before a checkpoint."""
        import pyarrow as pa

        known = take_schema(dict(learnt))
        assert known is not None
        schema = supported_schema(known.to_arrow())
        names = wanted_columns(schema.names, self.columns, "the columns in the checkpoint")
        return pa.schema([schema.field(name) for name in names])

    @abstractmethod
    def _arrow_schema(self, files: list[str]) -> pa.Schema:
        """Return the columns of the source's batches."""

    @abstractmethod
    def _parser(
        self, path: str, block: TextBlock, schema: pa.Schema, rejected: dict[str, int]
    ) -> tuple[BlockParser, TextBlock]:
        """Return the parser of a file and its first block without any header."""


def take_schema(schema: SchemaLike | None) -> Schema | None:
    """Convert a schema, an Arrow schema, or a mapping of name to type name to a `Schema`."""
    if schema is None:
        return None
    import pyarrow as pa

    from ...transport.wire.types import Schema

    if isinstance(schema, Schema):
        return schema
    if hasattr(schema, "items"):
        return Schema.of(**schema)
    if not isinstance(schema, pa.Schema):
        msg = f"schema={schema!r:.60}: pass a mapping such as {{'id': 'int64', 'text': 'string'}}"
        raise InputError(msg)
    return Schema.from_arrow(schema)


def check_policy(policy: str) -> BadRows:
    """Return the policy, or raise `InputError` for an unknown one."""
    known: dict[str, BadRows] = {"fail": "fail", "drop": "drop"}
    if policy not in known:
        msg = f"on_bad_rows={policy!r} is unknown; use 'fail' or 'drop'"
        raise InputError(msg)
    return known[policy]
