"""The JSON-lines source: one JSON object per line."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...configs.errors import InputError
from ..arguments import columns_to_read
from .arrow_reader import check_supported, supported_schema, wanted_columns
from .bad_rows import Bad, separate
from .base import Source
from .block_parser import BlockParser, Fault, no_line, reason_of
from .files import FileSet, PathLike
from .inference import (
    has_fractions,
    may_be_changed,
    number_type,
    refuse_changed,
    refuse_long_decimals,
    text_type,
    widen,
)
from .json_values import readable, restore
from .malformed_records import suspicious_objects
from .text_blocks import TextBlock
from .text_encoding import UTF_8, check_encoding, undecodable
from .text_source import TextSource, take_schema

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from .text_source import SchemaLike

_REMEDY = "each line must hold one JSON object that fits schema=; correct it"
_SUFFIXES = (".jsonl", ".ndjson", ".json")
_BLANKS = b" \t\r\n"
_NO_OBJECT = "not one JSON object"
_DEEP = "lists or objects within one another too deeply"
_NULL_BEHIND_BRACE = re.compile(rb"\}\s*null")
_INFERRED_PARTS_MAX = 256
"""The number of parts into which inference bisects a block whose lines do not fit together."""
_DEPTH_MAX = 100
"""How many lists and objects within one another inference takes; each takes stack in Arrow."""
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True)
class JsonLinesSource(TextSource):
    """A source of files with one JSON object per line."""

    position_kind = "JSON lines"

    def describe(self) -> str:
        """Return the paths as the user wrote them."""
        return f"json_lines {self.paths.describe()}"

    def _arrow_schema(self, files: list[str]) -> pa.Schema:
        import pyarrow as pa

        if self.given_schema is not None:
            where, schema = "schema=", supported_schema(self.given_schema.to_arrow())
        else:
            where, block = self._first_rows(files)
            schema = supported_schema(_infer(where, block, self.encoding))
        names = wanted_columns(schema.names, self.columns, where)
        schema = pa.schema([schema.field(name) for name in names])
        if self.given_schema is None:
            schema = widen(schema, where)
            check_supported(schema, where)
        return schema

    def _first_rows(self, files: list[str]) -> tuple[str, TextBlock]:
        for path in files:
            for block in self.blocks(path):
                if block.data.strip():
                    return path, block
        msg = (
            f"{files[0]}: the file is empty, so its columns' types are unknown; "
            "pass schema=, or leave the file out"
        )
        raise InputError(msg)

    def _parser(
        self, path: str, block: TextBlock, schema: pa.Schema, rejected: dict[str, int]
    ) -> tuple[BlockParser, TextBlock]:
        chosen = self.given_schema is not None or self.columns is not None

        def parse(data: bytes) -> pa.Table:
            return parse_objects(data, schema, "ignore" if chosen else "error")

        def find_suspicious(records: Sequence[bytes]) -> npt.NDArray[np.bool_]:
            return suspicious_objects(records, schema, others=chosen)

        parser = BlockParser(
            parse,
            self.on_bad_rows,
            _REMEDY,
            self.encoding,
            rejected,
            find_suspicious=find_suspicious,
        )
        return parser, block


def parse_objects(
    data: bytes, schema: pa.Schema, unexpected: Literal["ignore", "error"]
) -> pa.Table:
    """Parse lines of one object each; blank lines are no rows.

    Raises:
        pyarrow.ArrowException: a line is something else, or does not fit the schema.
    """
    import pyarrow as pa

    if not data.strip():
        return schema.empty_table()
    known = pa.schema([pa.field(one.name, readable(one.type)) for one in schema])
    raw = _read(data, known, unexpected)
    columns = [restore(raw.column(field.name), field.type) for field in schema]
    table = pa.Table.from_arrays(columns, schema=schema)
    refuse_long_decimals(table)
    for field in schema:
        column = table.column(field.name)
        if pa.types.is_floating(field.type) and may_be_changed(column, data):
            double = pa.schema([pa.field(field.name, pa.float64())])
            wider = _read(data, double, "ignore").column(0)
            refuse_changed(column, field.name, wider)
    return table


def _read(
    data: bytes, known: pa.Schema | None, unexpected: Literal["ignore", "error", "infer"]
) -> pa.Table:
    """Parse whole lines, each of which must be blank or one object."""
    import pyarrow as pa
    import pyarrow.json as pj

    if undecodable(data):
        msg = "not UTF-8"
        raise pa.ArrowInvalid(msg)
    lines = _count_objects(data)
    _refuse_null_between_objects(data, lines)
    if unexpected == "infer":
        _refuse_deep(data)
    read = pj.ReadOptions(use_threads=False, block_size=max(len(data), 1))
    options = pj.ParseOptions(explicit_schema=known, unexpected_field_behavior=unexpected)
    table = pj.read_json(pa.BufferReader(data), read, options)
    if table.num_rows != lines:
        raise pa.ArrowInvalid(_NO_OBJECT)
    return table


def _count_objects(data: bytes) -> int:
    """Return the number of lines that are not blank, each of which must look like one object.

    Arrow accepts several objects on a line, and objects over several lines. But if every line
    begins and ends with a brace, each line begins with a new object: inside an object or a list, a
    comma or a colon would separate the braces. So if Arrow finds as many objects as there are
    lines, each line is one object.

    Raises:
        pyarrow.ArrowInvalid: a line begins or ends with something else.
    """
    import pyarrow as pa

    text = np.frombuffer(data, np.uint8)
    stop = len(data)
    while stop and data[stop - 1] in b"\r\n":
        stop -= 1
    ends = np.flatnonzero(text[:stop] == ord("\n"))
    before, alone = text[ends - 1], False
    if b"\r" in data:
        returns = before == ord("\r")
        before = np.where(returns, text[ends - 2], before)
        alone = int(np.count_nonzero(returns)) < data.count(b"\r", 0, stop)
    if (
        data.startswith(b"{")
        and data.endswith(b"}", 0, stop)
        and np.all(text[ends + 1] == ord("{"))
        and np.all(before == ord("}"))
        and not alone
    ):
        return len(ends) + 1
    lines = [line for one in data.splitlines() if (line := one.strip(_BLANKS))]
    if not all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
        raise pa.ArrowInvalid(_NO_OBJECT)
    return len(lines)


def _refuse_null_between_objects(data: bytes, lines: int) -> None:
    """Refuse a null after an object, which crashes Arrow's reader and with it the process.

    https://github.com/apache/arrow/issues/47409
    """
    import pyarrow as pa

    braces = np.count_nonzero(np.frombuffer(data, np.uint8) == ord("}"))
    if braces == lines or not _NULL_BEHIND_BRACE.search(data):
        return  # the common case: every closing brace ends its line
    for line in data.splitlines():
        try:
            json.loads(line.strip(_BLANKS) or b"{}")
        except ValueError:
            raise pa.ArrowInvalid(_NO_OBJECT) from None
        except RecursionError:
            raise pa.ArrowInvalid(_DEEP) from None


def _refuse_deep(data: bytes) -> None:
    """Refuse lines with a value too deep for a schema, at which Arrow overflows the stack."""
    import pyarrow as pa

    for line in data.splitlines():
        if line.count(b"[") + line.count(b"{") > _DEPTH_MAX:
            text = np.frombuffer(_TEXT.sub(b"", line), np.uint8)
            opened = (text == ord("[")) | (text == ord("{"))
            closed = (text == ord("]")) | (text == ord("}"))
            if np.max(np.cumsum(opened.astype(np.int64) - closed), initial=0) > _DEPTH_MAX:
                raise pa.ArrowInvalid(_DEEP)


def _infer(path: str, block: TextBlock, encoding: str) -> pa.Schema:
    """Infer the schema of a block; lines that do not fit those before them are skipped here.

    They are malformed when the block is parsed.
    """
    import pyarrow as pa

    def parse(records: Sequence[bytes]) -> tuple[pa.Schema, Sequence[bytes]]:
        found = _read(b"".join(records), None, "infer").schema
        return pa.schema([(one.name, _undecided(one.type)) for one in found]), records

    fault: Fault | None = None
    schema: pa.Schema | None = None
    good: list[bytes] = []
    records = [one for one in block.split()[0] if one.strip()]
    parts = separate(records, parse, (pa.ArrowException,))
    for part in itertools.islice(parts, _INFERRED_PARTS_MAX):
        if isinstance(part, Bad):
            no_json = Fault(reason_of(part.error), "is it a JSON-lines file?")
            fault = fault or Fault.of(records[part.index], encoding, no_json)
            continue
        found, lines = part.value
        with suppress(pa.ArrowException):
            known = [found] if schema is None else [schema, found]
            schema = pa.unify_schemas(known, promote_options="permissive")
            good += lines
    if schema is None:
        assert fault is not None
        raise InputError(no_line(path, block, fault))
    if not schema.names:
        msg = f"{path}: the objects of the first block have no fields; pass schema="
        raise InputError(msg)
    return _without_loss(schema, good, path)


def _undecided(kind: pa.DataType) -> pa.DataType:
    """Return text for a timestamp, since other lines may have texts that are not timestamps."""
    import pyarrow as pa

    return pa.string() if pa.types.is_timestamp(kind) else kind


class _Number(str):
    """A number as written in the file."""

    __slots__ = ()


def _without_loss(schema: pa.Schema, lines: list[bytes], path: str) -> pa.Schema:
    """Return the schema with lossless types for numbers and times."""
    import pyarrow as pa

    texts = [one for one in schema if pa.types.is_string(one.type)]
    floats = [one for one in schema if pa.types.is_floating(one.type)]
    types = {one.name: pa.string() for one in texts} | {one.name: one.type for one in floats}
    if not types:
        return schema
    table = _read(b"".join(lines), pa.schema(types), "ignore")
    for field in texts:
        types[field.name] = text_type(table.column(field.name))
    doubtful = [one for one in floats if not has_fractions(table.column(one.name))]
    values = list(_values(lines)) if doubtful else []
    for field in doubtful:
        numbers = [one for row in values if isinstance(one := row.get(field.name), _Number)]
        column = pa.chunked_array([pa.array(map(str, numbers), pa.string())])
        types[field.name] = number_type(column, field.type, f"{path}: the column {field.name!r}")
    return pa.schema([(one.name, types.get(one.name, one.type)) for one in schema])


def _values(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    for line in lines:
        yield decoder.decode(line.decode("utf-8"))


def json_lines(
    path: PathLike | Sequence[PathLike],
    schema: SchemaLike | None = None,
    columns: Sequence[str] | None = None,
    *,
    encoding: str = UTF_8,
) -> Source:
    """Read files with one JSON object per line.

    Types are inferred from the first MiB of the first file with rows, unless `schema` gives them;
    a later value of another type, or another field, makes its line malformed. Integers of more
    than 64 bits become decimal128(38, 0), never floats; a column with fractions or exponents is
    float64, and a number out of its type's range is malformed. A column whose texts are all ISO
    8601 dates, times or timestamps gets that type, as in CSV. With `schema` or `columns`, other
    fields are ignored. A missing field is null; a field that occurs twice makes its line malformed.
    NaN and infinities are as Python's json writes them. Lists and objects within objects are
    refused, except in fields that are ignored. Lines end with LF, CR LF or CR; empty ones are
    skipped. Each file is read by one instance.

    Args:
        path: a file, a folder (its `.jsonl`, `.ndjson` and `.json` files), a pattern, or a list of
            these; names ending in .gz, .bz2 or .zst are decompressed.
        schema: the columns and their types, as a `Schema`, an Arrow schema or a mapping such as
            `{"vehicle_id": "string", "event_time": "timestamp[ms]"}`. Times are ISO 8601 text.
        columns: the columns to read, in this order; all if left out.
        encoding: the files' encoding as Python names it, such as "latin-1". A line that cannot be
            decoded is malformed.

    Raises:
        InputError: a missing file or column; raised when planning or when the file is reached.
        BadRowError: while running: a malformed line, unless `Topology.source` got
            `on_bad_rows="drop"`.
    """
    return JsonLinesSource(
        FileSet.of(path, "JSON-lines", _SUFFIXES),
        take_schema(schema),
        columns_to_read("json_lines", columns),
        encoding=check_encoding(encoding),
    )
