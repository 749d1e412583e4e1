"""The types in which Delta Lake holds columns: those of Spark, without intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...configs.errors import OutputError
from .nearest_types import in_nearest_types, nearest_type

if TYPE_CHECKING:
    import pyarrow as pa

_SYSTEM = "Delta Lake"


def in_delta_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with types that Delta Lake has, and exactly the same values.

    Raises:
        OutputError: a column's type has no counterpart, or a value cannot be represented exactly.
    """
    return in_nearest_types(batch, _SYSTEM)


def delta_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the types in which Delta Lake holds its columns.

    Raises:
        OutputError: a column's type has no counterpart, or two names differ only in their case.
    """
    import pyarrow as pa

    seen: dict[str, str] = {}
    for name in schema.names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            msg = (
                f"columns {other!r} and {name!r} are the same to {_SYSTEM}, which does not tell "
                "capital letters from small ones; rename one with select() before the sink"
            )
            raise OutputError(msg)
    return pa.schema([pa.field(one.name, delta_type(one)) for one in schema])


def delta_type(field: pa.Field) -> pa.DataType:
    """Return the type in which Delta Lake holds a column.

    Raises:
        OutputError: it has none.
    """
    import pyarrow as pa

    if pa.types.is_duration(field.type):
        msg = (
            f"column {field.name!r} has type {field.type}, which {_SYSTEM} does not have; cast it "
            "to an integer before the sink"
        )
        raise OutputError(msg)
    return nearest_type(field, _SYSTEM)
