"""The JSON-lines source: one JSON object per line."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...configs.errors import InputError
from .arrow_reader import carried, check_carried, wanted_columns
from .bad_rows import Good, separate
from .base import Source
from .files import FileSet, PathLike
from .json_values import readable, restore
from .text_blocks import Block, BlockParser, split_records
from .text_source import TextSource, first_block, take_schema, widen

if TYPE_CHECKING:
    import pyarrow as pa

    from .text_source import SchemaLike

_REMEDY = "each line must hold one JSON object that fits schema=; correct it"
_SUFFIXES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class JsonLinesSource(TextSource):
    """Files with one JSON object per line."""

    def describe(self) -> str:
        """Return the paths as the user wrote them."""
        return f"json_lines {self.paths.describe()}"

    def _arrow_schema(self, files: list[str]) -> pa.Schema:
        import pyarrow as pa

        if self.given_schema is not None:
            where, schema = "schema=", carried(self.given_schema.to_arrow())
        else:
            where, block = first_block(self, files)
            schema = carried(_infer(where, block))
        names = wanted_columns(schema.names, self.columns, where)
        schema = pa.schema([schema.field(name) for name in names])
        if self.given_schema is None:
            schema = widen(schema, where)
            check_carried(schema, where)
        return schema

    def _parser(
        self, path: str, block: Block, schema: pa.Schema, rejected: dict[str, int]
    ) -> tuple[BlockParser, Block]:
        chosen = self.given_schema is not None or self.columns is not None

        def parse(data: bytes) -> pa.Table:
            return _parse(data, schema, "ignore" if chosen else "error")

        return BlockParser(parse, self.on_bad_rows, _REMEDY, rejected=rejected), block


def _parse(
    data: bytes, schema: pa.Schema | None, unexpected: Literal["ignore", "error", "infer"]
) -> pa.Table:
    import pyarrow as pa
    import pyarrow.json as pj

    if schema is not None and not data.strip():
        return schema.empty_table()
    known = schema and pa.schema([pa.field(one.name, readable(one.type)) for one in schema])
    read = pj.ReadOptions(use_threads=False, block_size=max(len(data), 1))
    options = pj.ParseOptions(explicit_schema=known, unexpected_field_behavior=unexpected)
    table = pj.read_json(pa.BufferReader(data), read, options)
    if schema is None:
        return table
    columns = [restore(table.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _infer(path: str, block: Block) -> pa.Schema:
    """Infer from the block's lines; what does not fit the lines before is left to the policy."""
    import pyarrow as pa

    def parse(records: Sequence[bytes]) -> pa.Schema:
        return _parse(b"".join(records), None, "infer").schema

    error: Exception | None = None
    schema: pa.Schema | None = None
    records = [one for one in split_records(block.data, quoted=False) if one.strip()]
    for part in separate(records, parse, (pa.ArrowException,)):
        if not isinstance(part, Good):
            error = error or part.error
        elif schema is None:
            schema = part.value
        else:
            with suppress(pa.ArrowException):
                schema = pa.unify_schemas([schema, part.value], promote_options="permissive")
    if schema is None:
        msg = (
            f"{path}: no line of the first block holds a JSON object ({error}); "
            "is it a JSON-lines file?"
        )
        raise InputError(msg)
    return schema


def json_lines(
    path: PathLike | Sequence[PathLike],
    schema: SchemaLike | None = None,
    columns: Sequence[str] | None = None,
) -> Source:
    """Read files with one JSON object per line.

    Types are inferred from the first MiB of the first file unless `schema` gives them; then a
    later line with another field is malformed. With `schema` or `columns`, other fields are
    ignored. A field that a line lacks is null. Files are dealt out whole to instances.

    Args:
        path: a file, a folder (its `.jsonl`, `.ndjson` and `.json` files), a pattern, or a list of
            these; names ending in .gz, .bz2 or .zst are decompressed.
        schema: the columns and their types, as a `Schema`, an Arrow schema or a mapping such as
            `{"vehicle_id": "string", "event_time": "timestamp[ms]"}`. Times are ISO 8601 text.
        columns: the columns to read, in this order; all if left out.

    Raises:
        InputError: a missing file or column; raised when planning or when the file is reached.
        BadRowError: while running: a malformed line, unless `Topology.source` got
            `on_bad_rows="drop"`.
    """
    return JsonLinesSource(
        FileSet.of(path, "JSON-lines", _SUFFIXES),
        take_schema(schema),
        None if columns is None else tuple(columns),
    )
