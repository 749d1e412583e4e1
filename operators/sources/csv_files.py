"""The CSV source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

from ...configs.errors import InputError
from ..arguments import check_bool, check_type, columns_to_read, names
from .arrow_reader import check_supported, supported_schema, wanted_columns
from .base import Source
from .block_parser import BAD_QUOTES, BlockParser, Fault, no_line
from .files import FileSet, PathLike
from .inference import (
    has_fractions,
    may_be_changed,
    number_type,
    refuse_changed,
    refuse_long_decimals,
    widen,
)
from .malformed_records import malformed_values, of_all_records, suspicious_values
from .text_blocks import Quoting, TextBlock
from .text_encoding import UTF_8, check_encoding, encoding_remedy, undecodable
from .text_source import TextSource, take_schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    import pyarrow.csv as pc

    from .block_parser import FindRecords
    from .malformed_records import FindValues
    from .text_source import SchemaLike

_REMEDY = "correct it, pass schema= with another type"
_BLOCK_BYTES_MAX = 1 << 30


@dataclass(frozen=True)
class CsvSource(TextSource):
    """A source of CSV files, each with a header line."""

    position_kind = "CSV"

    delimiter: str = ","
    null_values: tuple[str, ...] = ("",)
    newlines_in_values: bool = True

    def describe(self) -> str:
        """Return the paths as the user wrote them."""
        return f"csv {self.paths.describe()}"

    def _quoting(self) -> Quoting:
        return Quoting(self.delimiter, self.newlines_in_values)

    def _arrow_schema(self, files: list[str]) -> pa.Schema:
        if self.given_schema is not None:
            import pyarrow as pa

            schema = supported_schema(self.given_schema.to_arrow())
            names = wanted_columns(schema.names, self.columns, "schema=")
            return pa.schema([schema.field(name) for name in names])
        path, names, body = self._first_rows(files)
        wanted = wanted_columns(names, self.columns, path)
        schema = widen(supported_schema(self._infer(path, names, wanted, body)), path)
        check_supported(schema, path)
        return schema

    def _first_rows(self, files: list[str]) -> tuple[str, list[str], TextBlock]:
        """Return the first file with a row, its column names, and its first block of rows."""
        headed: str | None = None
        for path in files:
            names: list[str] | None = None
            for block in self.blocks(path):
                body = block
                if names is None:
                    names, body = self._header(path, block)
                    headed = headed or path
                if body.data.strip():
                    return path, names, body
        what = "has a header but no rows" if headed else "is empty"
        msg = (
            f"{headed or files[0]}: the file {what}, so its columns' types are unknown; "
            "pass schema=, or leave the file out"
        )
        raise InputError(msg)

    def _parser(
        self, path: str, block: TextBlock, schema: pa.Schema, rejected: dict[str, int]
    ) -> tuple[BlockParser, TextBlock]:
        import pyarrow as pa

        names, body = self._header(path, block)
        wanted_columns(names, schema.names, path)
        if self.given_schema is None and self.columns is None:
            self._refuse_another_column(path, names, schema)

        def parse(data: bytes) -> pa.Table:
            try:
                return self._parse(data, names, schema)
            except pa.ArrowInvalid as error:
                raise pa.ArrowInvalid(_with_name(str(error), names)) from error

        def finder(of_values: FindValues) -> FindRecords:
            return lambda records: self._records_with(of_values, records, names, schema)

        parser = BlockParser(
            parse,
            self.on_bad_rows,
            _REMEDY,
            self.encoding,
            rejected,
            find_malformed=finder(malformed_values),
            find_suspicious=finder(suspicious_values),
        )
        return parser, body

    def _refuse_another_column(self, path: str, names: list[str], schema: pa.Schema) -> None:
        known = set(schema.names)
        for name in names:
            if name not in known:
                msg = (
                    f"{path}: the column {name!r} is missing in the first file; "
                    "name the columns= wanted, or pass schema="
                )
                raise InputError(msg)

    def _header(self, path: str, block: TextBlock) -> tuple[list[str], TextBlock]:
        """Return the column names of a file's first block, and the block without the header."""
        import pyarrow as pa
        import pyarrow.csv as pc

        header, bad_quotes, rest = block.split_first()
        if undecodable(header):
            msg = (
                f"{path}: the header is not {self.encoding.upper()}; "
                f"{encoding_remedy(self.encoding)}"
            )
            raise InputError(msg)
        if not header.strip(b"\r\n"):
            msg = f"{path}: the header line is empty; name the columns there"
            raise InputError(msg)
        if bad_quotes:
            msg = f"{path}: the header has a quote that is not closed correctly; correct it"
            raise InputError(msg)
        read = pc.ReadOptions(use_threads=False, block_size=len(header) + 1)
        line = pa.BufferReader(header.rstrip(b"\r\n") + b"\n")
        table = pc.read_csv(line, read, self._layout(0))
        return table.column_names, rest

    def _infer(self, path: str, names: list[str], wanted: list[str], body: TextBlock) -> pa.Schema:
        """Infer the types of the wanted columns from the good records of a file's first block."""
        data = self._good_records(path, body)
        table = self._read(data, names, {}, wanted, skipped=[])
        if not table.num_rows:
            msg = (
                f"{path}: no line of the first block has {len(names)} fields, as the header has; "
                f"correct it, or pass the delimiter= (now {self.delimiter!r})"
            )
            raise InputError(msg)
        return self._lossless(path, names, table, data)

    def _good_records(self, path: str, body: TextBlock) -> bytes:
        """Return the block without records whose quotes or encoding are bad."""
        if not body.has_bad_quotes and not undecodable(body.data):
            return body.data
        records, bad_quotes = body.split()
        pairs = zip(records, bad_quotes, strict=True)
        good = [not (bad or undecodable(one)) for one, bad in pairs]
        data = b"".join(compress(records, good))
        if not data.strip():
            first = records[good.index(False)]
            fault = Fault.of(first, self.encoding, Fault(BAD_QUOTES, "correct it"))
            raise InputError(no_line(path, body, fault))
        return data

    def _lossless(self, path: str, names: list[str], table: pa.Table, data: bytes) -> pa.Schema:
        """Return the schema of a parsed table, with lossless types for its numbers."""
        import pyarrow as pa

        numbers = [
            field.name
            for field in table.schema
            if pa.types.is_integer(field.type)
            or (pa.types.is_floating(field.type) and not has_fractions(table.column(field.name)))
        ]
        if not numbers:
            return table.schema
        types = dict.fromkeys(numbers, pa.string())
        texts = self._read(data, names, types, numbers, skipped=[])
        found = dict(zip(table.schema.names, table.schema.types, strict=True))
        for name, column in zip(numbers, texts.columns, strict=True):
            found[name] = number_type(column, found[name], f"{path}: the column {name!r}")
        return pa.schema(found.items())

    def _parse(self, data: bytes, names: list[str], schema: pa.Schema) -> pa.Table:
        import pyarrow as pa

        if not data:
            return schema.empty_table()
        types = {field.name: _readable(field.type) for field in schema}
        table = self._read(data, names, types, schema.names).cast(schema)
        refuse_long_decimals(table)
        for field in schema:
            column = table.column(field.name)
            if may_be_changed(column, data):
                texts = self._read(data, names, {field.name: pa.string()}, [field.name])
                refuse_changed(column, field.name, texts.column(0))
        return table

    def _records_with(
        self,
        of_values: FindValues,
        records: Sequence[bytes],
        names: list[str],
        schema: pa.Schema,
    ) -> npt.NDArray[np.bool_] | None:
        """Return which records have a wrong number of fields, or values that `of_values` finds.

        None if that cannot be decided.
        """
        import pyarrow as pa

        as_bytes = {field.name: pa.binary() for field in schema}
        wrong_lengths: list[int] = []
        try:
            data = b"".join(records)
            fields = self._read(data, names, as_bytes, schema.names, skipped=wrong_lengths)
        except pa.ArrowException:
            return None
        values = of_values(fields, schema)
        return of_all_records(records, wrong_lengths, values, blank=len(names) == 1)

    def _read(
        self,
        data: bytes,
        names: list[str],
        types: dict[str, pa.DataType],
        wanted: list[str],
        *,
        skipped: list[int] | None = None,
    ) -> pa.Table:
        """Parse whole records.

        Records with more or fewer fields than the header are malformed: an error, or with `skipped`
        left out, and their numbers, counted from 1, appended to it.
        """
        import pyarrow as pa
        import pyarrow.csv as pc

        layout = self._layout(len(names))
        if skipped is not None:

            def skip(row: pc.InvalidRow) -> str:
                skipped.append(row.number)
                return "skip"

            layout.invalid_row_handler = skip
        convert = pc.ConvertOptions(
            column_types=types,
            include_columns=wanted,
            null_values=list(self.null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        read = pc.ReadOptions(column_names=names, use_threads=False, block_size=_BLOCK_BYTES_MAX)
        if not data.endswith((b"\n", b"\r")):  # else Arrow takes an empty last field for quoted if
            data += b"\n"  # the one before is
        return pc.read_csv(pa.BufferReader(data), read, layout, convert)

    def _layout(self, columns: int) -> pc.ParseOptions:
        import pyarrow.csv as pc

        return pc.ParseOptions(
            delimiter=self.delimiter,
            newlines_in_values=self.newlines_in_values,
            # In a file of a single column, an empty line is a row with a null.
            ignore_empty_lines=columns > 1,
        )


def _with_name(message: str, names: list[str]) -> str:
    """Return Arrow's message with the column's name instead of its number."""
    return re.sub(
        r"^In CSV column #(\d+)", lambda found: f"column {names[int(found[1])]!r}", message
    )


def _readable(kind: pa.DataType) -> pa.DataType:
    """Return the type to pass to Arrow's CSV reader for a column of this type."""
    import pyarrow as pa

    return pa.float32() if pa.types.is_float16(kind) else kind


def csv(
    path: PathLike | Sequence[PathLike],
    schema: SchemaLike | None = None,
    columns: Sequence[str] | None = None,
    *,
    delimiter: str = ",",
    null_values: str | Sequence[str] = ("",),
    newlines_in_values: bool = True,
    encoding: str = UTF_8,
) -> Source:
    r"""Read CSV files with a header line each.

    Types are inferred from the first MiB of the first file with rows, unless `schema` gives them;
    a later value of another type makes its line malformed. Integers of more than 64 bits become
    decimal128(38, 0), never floats. A column whose integers have a leading zero, a plus or 0x is
    text, since `007` and `+4930…` are codes; where the type is an integer, `007` is 7 and `0x1f` is
    31. A column with fractions or exponents is float64. `nan` and `inf` are floats, a number out of
    its type's range is malformed, and spaces around numbers are ignored.

    An empty field is a null, a quoted empty field an empty text. Quotes are as in RFC 4180: two
    within a quoted field stand for one, a quote inside an unquoted field is a plain character, and
    a line is malformed if a quote is not closed, or if text follows the closing quote within the
    field. A line with more or fewer fields than the header is malformed, too. Lines end with LF,
    CR LF or CR; empty lines are skipped, or nulls if there is one column. Each file is read by one
    instance. Later files may have their columns in another order, but must have the same columns,
    unless `schema` or `columns` names those to read.

    Args:
        path: a file, a folder (its `.csv` files), a pattern, or a list of these; names ending in
            .gz, .bz2 or .zst are decompressed.
        schema: the columns and their types, as a `Schema`, an Arrow schema or a mapping such as
            `{"vehicle_id": "string", "event_time": "timestamp[ms]"}`; columns of the files that
            it does not name are left out.
        columns: the columns to read, in this order; all if left out.
        delimiter: the one ASCII character between fields.
        null_values: unquoted fields that mean null, such as `("", "NA")`, or one of them.
        newlines_in_values: quoted fields may hold line ends. If false, every line is a row, so an
            unclosed quote affects its own line only.
        encoding: the files' encoding as Python names it, such as "latin-1". A line that cannot be
            decoded is malformed.

    Raises:
        UsageError: an argument has another type.
        InputError: a missing file or column; raised when planning or when the file is reached.
        BadRowError: while running: a malformed line, unless `Topology.source` got
            `on_bad_rows="drop"`.
    """
    check_type("csv", "delimiter", delimiter, str, "one ASCII character, such as ';'")
    check_bool("csv", "newlines_in_values", newlines_in_values)
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        msg = f"delimiter={delimiter!r} must be one ASCII character, such as ';' or '\\t'"
        raise InputError(msg)
    return CsvSource(
        FileSet.of(path, "CSV", (".csv",)),
        take_schema(schema),
        columns_to_read("csv", columns),
        encoding=check_encoding(encoding),
        delimiter=delimiter,
        null_values=names("csv", "null_values", null_values, "a list of texts", or_one=True),
        newlines_in_values=newlines_in_values,
    )
