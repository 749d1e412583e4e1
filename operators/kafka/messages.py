"""From rows to Kafka's messages: value, key, headers, timestamp; and to bytes, until they are sent.

Messages are made where the rows are, by column; what waits for its commit is an Arrow stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ...configs.errors import OutputError
from ..sinks.formats import json_texts

if TYPE_CHECKING:
    import pyarrow as pa

    from ...transport.wire.batch import Batch

__all__ = ["Encode", "MessageFormat", "MessageTable"]

Encode: TypeAlias = "Callable[[Batch], Sequence[bytes | None]]"

_HEADER = "header:"
_ORIGIN = b"whale-ray"


@dataclass(frozen=True)
class MessageTable:
    """Messages as columns: `value`, `key` (binary), `timestamp` (int64 ms), `header:NAME` (binary).

    Attributes:
        table: the columns.
    """

    table: pa.Table

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the arguments of `Producer.produce`, without the topic."""
        headers = [name for name in self.table.column_names if name.startswith(_HEADER)]
        timed = "timestamp" in self.table.column_names
        for batch in self.table.to_batches():
            values, keys = (batch.column(name).to_pylist() for name in ("value", "key"))
            columns = [batch.column(name).to_pylist() for name in headers]
            if not headers and not timed:
                for value, key in zip(values, keys, strict=True):
                    yield {"value": value, "key": key}
                continue
            names = [name.removeprefix(_HEADER) for name in headers]
            times = batch.column("timestamp").to_pylist() if timed else [None] * len(values)
            told = zip(*columns, strict=True) if columns else [()] * len(values)
            for value, key, time_ms, row in zip(values, keys, times, told, strict=True):
                message = {
                    "value": value,
                    "key": key,
                    "headers": list(zip(names, row, strict=True)),
                }
                if time_ms is not None:
                    message["timestamp"] = time_ms
                yield message

    def to_bytes(self, origin: Mapping[str, Any]) -> bytes:
        """Return the messages and where they come from as bytes."""
        import pyarrow as pa

        schema = self.table.schema.with_metadata({_ORIGIN: json.dumps(dict(origin)).encode()})
        stream = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(stream, schema, options=options) as writer:
            writer.write_table(self.table.replace_schema_metadata(schema.metadata))
        return stream.getvalue().to_pybytes()

    @classmethod
    def of_bytes(cls, payload: bytes) -> tuple[MessageTable, dict[str, Any]]:
        """Return the messages that `to_bytes` has written, and where they come from."""
        import pyarrow as pa

        table = pa.ipc.open_stream(payload).read_all()
        return cls(table), json.loads(table.schema.metadata[_ORIGIN])


@dataclass(frozen=True)
class MessageFormat:
    """How rows become messages.

    Attributes:
        value: "json": an object of all columns but those in headers; "bytes": the column `value`;
            or a function of a batch that returns the value of each row.
        key: the column of the key, None for none.
        headers: (name, column) of each header.
        timestamp: the column of the timestamp; None: the time of sending.
    """

    value: str | Encode
    key: str | None
    headers: tuple[tuple[str, str], ...]
    timestamp: str | None

    def messages(self, batch: Batch, operator_id: str) -> pa.RecordBatch:
        """Return the messages of rows; see `MessageTable` for the columns.

        Raises:
            OutputError: a column is missing or of an unsuitable type.
        """
        import pyarrow as pa

        rows = batch.num_rows
        record = batch.to_arrow()
        names = [self.key, self.timestamp, *(column for _, column in self.headers)]
        names += ["value"] if self.value == "bytes" else []
        for name in names:
            if name is not None and name not in record.schema.names:
                msg = (
                    f"sink {operator_id!r}: no column {name!r} for Kafka's messages; the rows have "
                    f"{', '.join(record.schema.names)}"
                )
                raise OutputError(msg)
        arrays = {"value": self._values(batch, record, operator_id)}
        arrays["key"] = pa.nulls(rows, pa.binary())
        if self.key is not None:
            arrays["key"] = _binary(record.column(self.key))
        if self.timestamp is not None:
            arrays["timestamp"] = _milliseconds(record.column(self.timestamp), self.timestamp)
        for name, column in self.headers:
            arrays[_HEADER + name] = _binary(record.column(column))
        return pa.RecordBatch.from_pydict(arrays)

    def _values(self, batch: Batch, record: pa.RecordBatch, operator_id: str) -> pa.Array:
        import pyarrow as pa

        if self.value == "bytes":
            return _binary(record.column("value"))
        if self.value == "json":
            hidden = {column for _, column in self.headers}
            shown = [name for name in record.schema.names if name not in hidden]
            return pa.array(json_texts(record.select(shown)), pa.string()).cast(pa.binary())
        assert callable(self.value)
        values = list(self.value(batch))
        if len(values) != batch.num_rows:
            msg = (
                f"sink {operator_id!r}: the function that encodes Kafka's messages returned "
                f"{len(values)} values for {batch.num_rows} rows; return one for each"
            )
            raise OutputError(msg)
        return pa.array(values, pa.binary())


def _binary(column: pa.Array) -> pa.Array:
    """Return values as bytes: texts in UTF-8, what is neither as its text."""
    import pyarrow as pa

    if pa.types.is_binary(column.type):
        return column
    if pa.types.is_large_binary(column.type) or pa.types.is_fixed_size_binary(column.type):
        return column.cast(pa.binary())
    return column.cast(pa.string()).cast(pa.binary())


def _milliseconds(column: pa.Array, name: str) -> pa.Array:
    """Return times in ms since 1970.

    Raises:
        OutputError: not a column of times, or one that Kafka does not have. Its clients take 0 for
            no time, and write the present one instead; Java's refuse what is before.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    where = f"timestamp={name!r} of sinks.kafka"
    try:
        if pa.types.is_timestamp(column.type):
            times = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        elif pa.types.is_integer(column.type):
            times = column.cast(pa.int64())
        else:
            msg = f"{where} is of type {column.type}; name a timestamp, or int64 ms"
            raise OutputError(msg)
        first = pc.min(times).as_py()
    except pa.ArrowInvalid as error:
        msg = f"{where} has a time beyond 64 bits of ms; correct it, or leave such rows out"
        raise OutputError(msg) from error
    if first is not None and first <= 0:
        msg = (
            f"{where} has a time {first:,} ms after the beginning of 1970, but Kafka's times are "
            "later; correct it, make it null (the time of sending), or leave such rows out"
        )
        raise OutputError(msg)
    return times
