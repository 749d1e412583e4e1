"""The CSV source."""

from __future__ import annotations

import codecs
import csv as std_csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...configs.errors import InputError
from .arrow_reader import carried, check_carried, wanted_columns
from .base import Source
from .files import FileSet, PathLike
from .text_blocks import Block, BlockParser, read_blocks, split_records
from .text_source import TextSource, first_block, take_schema, widen

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.csv as pc

    from .text_source import SchemaLike

_REMEDY = "correct it, pass schema= with another type"
_REMEDY_LINES = _REMEDY + ", or newlines_in_values=True if values hold line ends"


@dataclass(frozen=True)
class CsvSource(TextSource):
    """CSV files, each with a header line."""

    delimiter: str = ","
    null_values: tuple[str, ...] = ("",)
    newlines_in_values: bool = False

    def describe(self) -> str:
        """Return the paths as the user wrote them."""
        return f"csv {self.paths.describe()}"

    def blocks(self, path: str) -> Iterator[Block]:
        """Yield a file in blocks of whole records."""
        return read_blocks(path, quoted=self.newlines_in_values)

    def _arrow_schema(self, files: list[str]) -> pa.Schema:
        if self.given_schema is not None:
            import pyarrow as pa

            schema = carried(self.given_schema.to_arrow())
            names = wanted_columns(schema.names, self.columns, "schema=")
            return pa.schema([schema.field(name) for name in names])
        path, block = first_block(self, files)
        names, body = self._header(path, block)
        wanted = wanted_columns(names, self.columns, path)
        schema = widen(carried(self._infer(path, names, wanted, body)), path)
        check_carried(schema, path)
        return schema

    def _parser(
        self, path: str, block: Block, schema: pa.Schema, rejected: dict[str, int]
    ) -> tuple[BlockParser, Block]:
        names, body = self._header(path, block)
        wanted_columns(names, schema.names, path)

        def parse(data: bytes) -> pa.Table:
            return self._parse(data, names, schema)

        remedy = _REMEDY if self.newlines_in_values else _REMEDY_LINES
        quoted = self.newlines_in_values
        return BlockParser(parse, self.on_bad_rows, remedy, quoted, rejected), body

    def _header(self, path: str, block: Block) -> tuple[list[str], Block]:
        """Take the header line off a file's first block."""
        header = split_records(block.data, self.newlines_in_values)[0]
        try:
            text = header.removeprefix(codecs.BOM_UTF8).decode("utf-8")
        except UnicodeDecodeError:
            msg = f"{path}: the header is not UTF-8; convert the file"
            raise InputError(msg) from None
        names = next(iter(std_csv.reader([text.strip("\r\n")], delimiter=self.delimiter)), [])
        if not names:
            msg = f"{path}: the header line is empty; name the columns there"
            raise InputError(msg)
        rest = Block(block.data[len(header) :], block.first_line + header.count(b"\n"))
        return names, rest

    def _infer(self, path: str, names: list[str], wanted: list[str], body: Block) -> pa.Schema:
        import pyarrow as pa
        import pyarrow.csv as pc

        options = self._convert(pc.ConvertOptions(include_columns=wanted))
        parse = self._layout(names)
        # A line of another length must not stop the inference: the policy deals with it later.
        parse.invalid_row_handler = lambda row: "skip"
        read = pc.ReadOptions(column_names=names, use_threads=False, block_size=1 << 30)
        try:
            return pc.read_csv(pa.BufferReader(body.data), read, parse, options).schema
        except pa.ArrowException as error:
            msg = f"{path}: cannot infer the columns ({error}); pass schema="
            raise InputError(msg) from error

    def _parse(self, data: bytes, names: list[str], schema: pa.Schema) -> pa.Table:
        import pyarrow as pa
        import pyarrow.csv as pc

        if not data:
            return schema.empty_table()
        read = pc.ReadOptions(column_names=names, use_threads=False, block_size=1 << 30)
        types = {field.name: _readable(field.type) for field in schema}
        convert = self._convert(pc.ConvertOptions(column_types=types, include_columns=schema.names))
        table = pc.read_csv(pa.BufferReader(data), read, self._layout(names), convert)
        return table.cast(schema)

    def _convert(self, options: pc.ConvertOptions) -> pc.ConvertOptions:
        options.null_values = list(self.null_values)
        options.strings_can_be_null = True
        options.quoted_strings_can_be_null = False
        return options

    def _layout(self, names: list[str]) -> pc.ParseOptions:
        import pyarrow.csv as pc

        return pc.ParseOptions(
            delimiter=self.delimiter,
            newlines_in_values=self.newlines_in_values,
            # With a single column an empty line is a row that holds a null.
            ignore_empty_lines=len(names) > 1,
        )


def _readable(kind: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow's CSV reader takes a column of this type."""
    import pyarrow as pa

    return pa.float32() if pa.types.is_float16(kind) else kind


def csv(
    path: PathLike | Sequence[PathLike],
    schema: SchemaLike | None = None,
    columns: Sequence[str] | None = None,
    *,
    delimiter: str = ",",
    null_values: Sequence[str] = ("",),
    newlines_in_values: bool = False,
) -> Source:
    """Read CSV files in UTF-8 with a header line each.

    Types are inferred from the first MiB of the first file unless `schema` gives them. An empty
    field is a null, a quoted empty field an empty text. Files are dealt out whole to instances.

    Args:
        path: a file, a folder (its `.csv` files), a pattern, or a list of these; names ending in
            .gz, .bz2 or .zst are decompressed.
        schema: the columns and their types, as a `Schema`, an Arrow schema or a mapping such as
            `{"vehicle_id": "string", "event_time": "timestamp[ms]"}`; columns of the files that
            it does not name are left out.
        columns: the columns to read, in this order; all if left out.
        delimiter: the one character between fields.
        null_values: unquoted fields that mean null, such as `("", "NA")`.
        newlines_in_values: quoted fields may hold line ends.

    Raises:
        InputError: a missing file or column; raised when planning or when the file is reached.
        BadRowError: while running: a malformed line, unless `Topology.source` got
            `on_bad_rows="drop"`.
    """
    if len(delimiter) != 1:
        msg = f"delimiter={delimiter!r} must be one character, such as ';' or '\\t'"
        raise InputError(msg)
    return CsvSource(
        FileSet.of(path, "CSV", (".csv",)),
        take_schema(schema),
        None if columns is None else tuple(columns),
        delimiter=delimiter,
        null_values=tuple(null_values),
        newlines_in_values=newlines_in_values,
    )
