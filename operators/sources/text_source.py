"""What the CSV and JSON-lines sources share: files dealt out whole, one schema for all of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ...configs.errors import InputError
from .arrow_reader import ArrowReader
from .base import BadRows, Source
from .files import FileSet, share
from .text_blocks import Block, BlockParser, read_blocks

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
    """Text files of one record per line; the unit dealt out to instances is a file."""

    paths: FileSet
    given_schema: Schema | None
    columns: tuple[str, ...] | None
    on_bad_rows: BadRows = "fail"

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
        """Yield the rows of one instance, counting those left out in `rejected`."""
        files = self.paths.files()
        schema = self._arrow_schema(files)
        for index in share(len(files), instance, parallelism):
            parser: BlockParser | None = None
            for block in self.blocks(files[index]):
                body = block
                if parser is None:
                    parser, body = self._parser(files[index], block, schema, rejected)
                yield from parser.batches(files[index], body)

    def blocks(self, path: str) -> Iterator[Block]:
        """Yield a file in blocks of whole records."""
        return read_blocks(path)

    @abstractmethod
    def _arrow_schema(self, files: list[str]) -> pa.Schema:
        """Return the columns to deliver."""

    @abstractmethod
    def _parser(
        self, path: str, block: Block, schema: pa.Schema, rejected: dict[str, int]
    ) -> tuple[BlockParser, Block]:
        """Return the parser of a file and its first block without any header."""


def first_block(source: TextSource, files: list[str]) -> tuple[str, Block]:
    """Return the first file that holds anything, and its first block.

    Raises:
        InputError: all files are empty.
    """
    for path in files:
        for block in source.blocks(path):
            if block.data.strip():
                return path, block
    msg = (
        f"{files[0]}: the file is empty, so its columns are unknown; "
        "pass schema=, or leave the file out"
    )
    raise InputError(msg)


def widen(schema: pa.Schema, where: str) -> pa.Schema:
    """Return an inferred schema with room for what later lines may hold.

    Times inferred to the second are read to the microsecond.

    Raises:
        InputError: a column held only nulls, so its type is unknown.
    """
    import pyarrow as pa

    fields = []
    for field in schema:
        kind = field.type
        if pa.types.is_null(kind):
            msg = (
                f"{where}: the column {field.name!r} holds only nulls in the first block, so its "
                "type is unknown; pass schema= (or the columns= wanted)"
            )
            raise InputError(msg)
        if pa.types.is_timestamp(kind) and kind.unit == "s":
            kind = pa.timestamp("us", kind.tz)
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def take_schema(schema: SchemaLike | None) -> Schema | None:
    """Return a schema given as such, as an Arrow schema, or as a mapping of name to type name."""
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
