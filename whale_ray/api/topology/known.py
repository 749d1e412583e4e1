"""The columns of a stream, as far as they are known before any row has been read.

The columns of a file or table are known. Of a projection only the names are known, since the type
of an expression depends on the rows. Of a user's function nothing is known. So the columns are a
mapping of name → type, in which the type may be None, or None instead of a mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

from .checks import describe_value, mistake

if TYPE_CHECKING:
    from ...transport.wire.types import DataType, Schema

KnownColumns: TypeAlias = "Mapping[str, DataType | None]"


def columns_of(schema: Schema | None) -> KnownColumns | None:
    """Return the columns of a schema."""
    return None if schema is None else {field.name: field.type for field in schema.fields}


def as_known_schema(columns: KnownColumns | None) -> Schema | None:
    """Return the schema of columns if the types of all of them are known."""
    from ...transport.wire.types import Field, Schema

    if columns is None or None in columns.values():
        return None
    return Schema(tuple(Field(name, kind) for name, kind in columns.items() if kind is not None))


def as_schema(operator_id: str, schema: object) -> Schema | None:
    """Return the schema that a user passed: ours, Arrow's, a mapping {'column': 'int64'}, or None.

    Raises:
        TopologyError: it is none of these, or names an unsupported type.
    """
    import pyarrow as pa

    from ...configs.errors import InputError
    from ...operators.sources.text_source import take_schema
    from ...transport.wire.types import Schema

    if not (schema is None or isinstance(schema, Schema | Mapping | pa.Schema)):
        raise mistake(
            operator_id,
            f"schema is {describe_value(schema)}: pass a whale.Schema or a mapping,"
            " {'column': 'int64'}",
        )
    try:
        return take_schema(schema)
    except (InputError, TypeError) as error:
        raise mistake(operator_id, f"schema: {error}") from None


def check_columns(
    operator_id: str, verb: str, names: tuple[str, ...], known: KnownColumns | None
) -> None:
    """Refuse a column that the stream does not have; the message names a similar one."""
    if known is None:
        return
    for name in names:
        if name in known:
            continue
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "name one of its columns"
        raise mistake(
            operator_id,
            f"{verb} names column {name!r}, which the stream does not have:"
            f" {hint} (columns: {', '.join(known)})",
        )


def kind_of_key(type_: DataType) -> str:
    """Return the kind of a type's values; keys of different kinds are never equal."""
    numpy_kind = type_.storage.kind
    if type_.family in ("string", "large_string", "binary", "large_binary", "fixed_size_binary"):
        return "bytes"
    if type_.family == "decimal128":
        return "decimal"
    if type_.family.startswith(("date", "time", "duration")):
        return "time"
    return "float" if numpy_kind == "f" else "integer"
