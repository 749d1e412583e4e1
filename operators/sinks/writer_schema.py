"""Checks that all batches of a writer, and all writers of a sink, have the same schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...configs.errors import OutputError

if TYPE_CHECKING:
    import pyarrow as pa

    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from .base import Staged

_REMEDY = "declare schema= on the function that makes these rows, so that all its instances agree"


class WriterSchema:
    """The schema of a writer: the columns of its first batch, all nullable.

    Later batches may have the same columns in another order.
    """

    def __init__(self, operator_id: str) -> None:
        self._operator_id = operator_id
        self._last: Schema | None = None
        self.schema: pa.Schema | None = None

    def conform(self, batch: Batch) -> pa.RecordBatch:
        """Return the batch in Arrow, its columns in the order of the first batch.

        Raises:
            OutputError: its columns are not those of the first batch.
        """
        import pyarrow as pa

        record = batch.to_arrow()
        if self.schema is None:
            self.schema = nullable(record.schema)
        elif batch.schema is not self._last:
            here = nullable(record.schema)
            difference = differing(self.schema, here)
            if difference:
                msg = (
                    f"sink {self._operator_id!r}: {difference} in later rows than the first; "
                    f"{_REMEDY}"
                )
                raise OutputError(msg)
        self._last = batch.schema
        if record.schema.names != self.schema.names:
            record = record.select(self.schema.names)
        return pa.RecordBatch.from_arrays(record.columns, schema=self.schema)


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with every field nullable, since parts must not differ in that."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, field.type) for field in schema])


def differing(expected: pa.Schema, found: pa.Schema) -> str:
    """Describe how two schemas differ, ignoring the order of columns; "" if they do not."""
    here = {field.name: str(field.type) for field in found}
    there = {field.name: str(field.type) for field in expected}
    return " and ".join(
        f"column {name!r} is {here.get(name, 'missing')} instead of {there.get(name, 'missing')}"
        for name in {**there, **here}
        if here.get(name) != there.get(name)
    )


def check_same_columns(expected: bytes, found: bytes, output: str) -> None:
    """Raise `OutputError` unless two serialized schemas are the same.

    Args:
        expected: of the parts that the output has already.
        found: of the rows to be added.
        output: its path, for the message.
    """
    import pyarrow as pa

    if expected == found:
        return
    schemas = [pa.ipc.read_schema(pa.py_buffer(one)) for one in (expected, found)]
    if schemas[0] != schemas[1]:
        difference = differing(*schemas) or "the columns are in another order"
        msg = (
            f"the output {output!r} has other columns than the rows to be added: {difference}; go "
            "on with the code that wrote it, or start the job anew with another output"
        )
        raise OutputError(msg)


def common_schema(staged: Sequence[Staged], output: str) -> pa.Schema | None:
    """Return the schema of all parts, None if no instance saw a row or an empty batch.

    `output` names the sink in messages.

    Raises:
        OutputError: the instances have different columns.
    """
    import pyarrow as pa

    first: tuple[int, pa.Schema] | None = None
    for part in staged:
        if part.schema is None:
            continue
        schema = pa.ipc.read_schema(pa.py_buffer(part.schema))
        if first is None:
            first = part.instance, schema
        elif schema != first[1]:
            difference = differing(first[1], schema) or "the columns are in another order"
            msg = (
                f"the parts of {output} do not fit together: {difference} "
                f"(instance {part.instance} against instance {first[0]}); {_REMEDY}"
            )
            raise OutputError(msg)
    return first[1] if first is not None else None
