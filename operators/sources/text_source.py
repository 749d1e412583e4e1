"""The base of the CSV and JSON-lines sources: whole files per instance, one schema for all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ...configs.errors import InputError
from .arrow_reader import ArrowReader
from .base import BadRows, Source
from .block_parser import BlockParser
from .files import FileSet, share
from .text_blocks import BLOCK_BYTES, TextBlock, read_blocks
from .text_encoding import UTF_8

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    import pyarrow as pa

    from ...transport.wire.types import Schema
    from ..process import InstanceContext
    from .base import SourceReader

    SchemaLike: TypeAlias = Schema | pa.Schema | Mapping[str, str]


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

    def with_bad_rows(self, policy: BadRows) -> Self:
        """Return this source with another policy for malformed lines."""
        return replace(self, on_bad_rows=check_policy(policy))

    def open(self, context: InstanceContext) -> SourceReader:
        """Open this instance's files; with one instance they are read in order."""
        rejected: dict[str, int] = {}
        batches = self.batches(context.instance, context.parallelism, rejected)
        return ArrowReader(batches, rejected)

    def batches(
        self, instance: int, parallelism: int, rejected: dict[str, int]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one instance; count dropped rows in `rejected`, by reason."""
        files = self.paths.files()
        schema = self._arrow_schema(files)
        for index in share(len(files), instance, parallelism):
            parser: BlockParser | None = None
            for block in self.blocks(files[index]):
                body = block
                if parser is None:
                    parser, body = self._parser(files[index], block, schema, rejected)
                yield from parser.batches(files[index], body)

    def blocks(self, path: str) -> Iterator[TextBlock]:
        """Yield a file in blocks of whole records."""
        return read_blocks(path, None, self.encoding, self.block_bytes)

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
    from ...transport.wire.types import Schema

    if isinstance(schema, Schema):
        return schema
    if hasattr(schema, "items"):
        return Schema.of(**schema)
    return Schema.from_arrow(schema)


def check_policy(policy: str) -> BadRows:
    """Return the policy, or raise `InputError` for an unknown one."""
    known: dict[str, BadRows] = {"fail": "fail", "drop": "drop"}
    if policy not in known:
        msg = f"on_bad_rows={policy!r} is unknown; use 'fail' or 'drop'"
        raise InputError(msg)
    return known[policy]
