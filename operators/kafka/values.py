"""From Kafka's messages to rows: the value by its format, and what else a user asks for.

Columns are built for all messages of a partition at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from ...configs.errors import BadRowError, InputError
from ..arguments import names
from ..sources.bad_rows import Bad, separate
from ..sources.block_parser import reason_of
from ..sources.json_lines_files import parse_objects

if TYPE_CHECKING:
    import pyarrow as pa

    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..sources.base import BadRows
    from .partitions import Partition

    Messages: TypeAlias = Sequence[Any]  # confluent_kafka.Message

__all__ = ["RowFormat", "take_columns"]

Decode: TypeAlias = "Callable[[Batch], Batch | pa.RecordBatch | pa.Table | Mapping[str, Any]]"

HEADER = "header:"
_TYPES = {
    "key": "binary",
    "topic": "string",
    "partition": "int32",
    "offset": "int64",
    "timestamp": "timestamp[ms, tz=UTC]",
    "headers": "string",
}
_MALFORMED = "malformed message"
_PREVIEW_BYTES = 80


def take_columns(columns: Sequence[str] | Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return (name of the column, what it holds) of what a user asks for beside the value.

    Raises:
        UsageError: neither a list nor a mapping.
        InputError: something that a message does not have.
    """
    if isinstance(columns, Mapping):
        taken = tuple((name, str(what)) for name, what in columns.items())
    else:
        wanted = "a list, such as ['key', 'timestamp'], or a mapping"
        taken = tuple(
            (one, one) for one in names("kafka", "columns", columns, wanted, or_one=False)
        )
    for name, what in taken:
        if what not in _TYPES and not (what.startswith(HEADER) and len(what) > len(HEADER)):
            msg = (
                f"columns= of the Kafka source asks for {what!r} as {name!r}; a message has "
                f"{', '.join(_TYPES)} and 'header:NAME'"
            )
            raise InputError(msg)
    return taken


@dataclass(frozen=True)
class RowFormat:
    """How messages become rows.

    Attributes:
        value: "json", "bytes", or a function of a batch.
        fields: the columns of the value, None if a function's are not declared.
        columns: (name, what it holds) of the others.
        on_bad_rows: what to do with a value that cannot be read.
    """

    value: str | Decode
    fields: Schema | None
    columns: tuple[tuple[str, str], ...]
    on_bad_rows: BadRows = "fail"

    VALUE: ClassVar[str] = "value"

    @property
    def schema(self) -> Schema | None:
        """The columns of the rows, None if they are not known."""
        from ...transport.wire.types import Schema

        if self.fields is None or callable(self.value):
            return self.fields
        types = {field.name: field.type.name for field in self.fields}
        return Schema.of(**types, **{name: _type(what) for name, what in self.columns})

    def only(self, names: Sequence[str]) -> RowFormat:
        """Return the format with these columns alone; that of a function is left as it is."""
        if callable(self.value) or self.fields is None:
            return self
        fields = self.fields.select([field.name for field in self.fields if field.name in names])
        return replace(
            self, fields=fields, columns=tuple(one for one in self.columns if one[0] in names)
        )

    def rows(
        self, partition: Partition, messages: Messages, rejected: dict[str, int]
    ) -> Batch | None:
        """Return the rows of messages of one partition, None if none of them can be read.

        Raises:
            BadRowError: a value cannot be read, and the policy is to fail.
            InputError: a function's columns are not those that were declared.
        """
        import pyarrow as pa

        from ...transport.wire.batch import Batch

        arrays: dict[str, Any] = {}
        if self.value == "json":
            assert self.fields is not None
            if len(self.fields):
                table, messages = self._objects(partition, messages, rejected)
                if not messages:
                    return None
                combined = table.combine_chunks()
                arrays = dict(zip(combined.column_names, map(_one, combined.columns), strict=True))
        elif callable(self.value) or self.fields:
            values = [message.value() for message in messages]
            arrays[self.VALUE] = pa.array(values, pa.binary())
        for name, what in self.columns:
            arrays[name] = _column(what, partition, messages)
        batch = Batch.from_arrow(pa.RecordBatch.from_pydict(arrays))
        return self._decoded(batch) if callable(self.value) else batch

    def _objects(
        self, partition: Partition, messages: Messages, rejected: dict[str, int]
    ) -> tuple[pa.Table, Messages]:
        """Parse the values as objects; return the rows, and the messages that they are of."""
        import pyarrow as pa

        assert self.fields is not None
        schema = self.fields.to_arrow()
        values = [message.value() for message in messages]
        tables: list[pa.Table] = []
        good: list[Any] = []

        def parse(some: Sequence[bytes | None]) -> pa.Table:
            return _parsed(some, schema)

        for part in separate(values, parse, (pa.ArrowException,)):
            if not isinstance(part, Bad):
                tables.append(part.value)
                good += messages[part.first : part.first + part.value.num_rows]
            elif self.on_bad_rows == "drop":
                rejected[_MALFORMED] = rejected.get(_MALFORMED, 0) + 1
            else:
                bad = messages[part.index]
                msg = (
                    f"topic {partition.topic!r}, partition {partition.number}, offset "
                    f"{bad.offset()}: {reason_of(part.error)}: {_preview(bad.value())}; its value "
                    "must be one JSON object that fits schema=; correct it, or pass "
                    "on_bad_rows='drop' to leave such messages out and count them"
                )
                raise BadRowError(msg)
        if not tables:
            return schema.empty_table(), []
        return pa.concat_tables(tables), good

    def _decoded(self, batch: Batch) -> Batch | None:
        """Let the user's function make the rows."""
        import pyarrow as pa

        from ...transport.wire.batch import Batch

        assert callable(self.value)
        made = self.value(batch)
        if isinstance(made, pa.RecordBatch | pa.Table):
            made = Batch.from_arrow(made)
        elif isinstance(made, Mapping):
            made = Batch.from_pydict(made, self.fields)
        if not isinstance(made, Batch):
            msg = (
                f"the function that decodes Kafka's messages returned a {type(made).__name__}; "
                "return a Batch, an Arrow table or columns by name"
            )
            raise InputError(msg)
        if self.fields is not None and made.schema != self.fields:
            msg = (
                f"the function that decodes Kafka's messages returned {made.schema}, but schema= "
                f"says {self.fields}"
            )
            raise InputError(msg)
        return made if made.num_rows else None


def _type(what: str) -> str:
    return "binary" if what.startswith(HEADER) else _TYPES[what]


def _parsed(values: Sequence[bytes | None], schema: pa.Schema) -> pa.Table:
    """Parse one object per value; a null (a tombstone) is a row of nulls."""
    import pyarrow as pa

    lines = [b"{}" if value is None else value for value in values]
    data = b"\n".join(lines)
    if data.count(b"\n") != len(lines) - 1 or b"\r" in data:
        # A line end is a blank between JSON's tokens, and never stands inside one.
        data = b"\n".join(one.replace(b"\n", b" ").replace(b"\r", b" ").strip() for one in lines)
    table = parse_objects(data + b"\n", schema, "ignore")
    if table.num_rows != len(values):
        msg = "not one JSON object"
        raise pa.ArrowInvalid(msg)
    return table


def _one(column: pa.ChunkedArray) -> pa.Array:
    """Return the only chunk of a column."""
    import pyarrow as pa

    return column.chunk(0) if column.num_chunks == 1 else pa.array([], column.type)


def _column(what: str, partition: Partition, messages: Messages) -> pa.Array:
    """Return a column of what messages have beside their value."""
    import numpy as np
    import pyarrow as pa

    rows = len(messages)
    match what:
        case "key":
            return pa.array([message.key() for message in messages], pa.binary())
        case "topic":
            return pa.array([partition.topic], pa.string()).take(pa.array(np.zeros(rows, np.int32)))
        case "partition":
            return pa.array(np.full(rows, partition.number, np.int32))
        case "offset":
            return pa.array([message.offset() for message in messages], pa.int64())
        case "timestamp":
            stamps = [message.timestamp() for message in messages]
            values = [time_ms if kind else None for kind, time_ms in stamps]
            return pa.array(values, pa.timestamp("ms", "UTC"))
        case "headers":
            return pa.array([_headers(message.headers()) for message in messages], pa.string())
    name = what.removeprefix(HEADER)
    return pa.array([_header(message.headers(), name) for message in messages], pa.binary())


def _header(headers: Sequence[tuple[str, bytes | None]] | None, name: str) -> bytes | None:
    """Return the last value of a header, None without one."""
    for key, value in reversed(headers or ()):
        if key == name:
            return value
    return None


def _headers(headers: Sequence[tuple[str, bytes | None]] | None) -> str | None:
    if headers is None:
        return None
    pairs = [
        [key, None if value is None else value.decode("utf-8", "backslashreplace")]
        for key, value in headers
    ]
    return json.dumps(pairs, ensure_ascii=False)


def _preview(value: bytes | None) -> str:
    text = (value or b"").decode("utf-8", "replace")
    return repr(text if len(text) <= _PREVIEW_BYTES else text[:_PREVIEW_BYTES] + "…")
