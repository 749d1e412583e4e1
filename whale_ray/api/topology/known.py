"""What is known of a stream's columns before any row has been read.

A file or table tells its columns; a projection makes new ones from them, whose types are known once
rows come; a user's function may make anything. So a stream's columns are a mapping of name → type,
with None for a type that is not known, or None altogether.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

from .checks import describe_value, mistake

if TYPE_CHECKING:
    from ...transport.wire.types import DataType, Schema

KnownColumns: TypeAlias = "Mapping[str, DataType | None]"
SchemaLike: TypeAlias = "Schema | Mapping[str, str] | Mapping[str, str | type]"


def columns_of(schema: Schema | None) -> KnownColumns | None:
    """Return the columns of a schema."""
    return None if schema is None else {field.name: field.type for field in schema.fields}


def as_schema(operator_id: str, schema: object) -> Schema | None:
    """Return the schema that a user wrote as one, or as {'column': 'int64'}; None is left.

    Raises:
        TopologyError: it is neither, or names an unsupported type.
    """
    from ...configs.errors import InputError
    from ...transport.wire.types import Schema

    if schema is None or isinstance(schema, Schema):
        return schema
    if not isinstance(schema, Mapping):
        raise mistake(
            operator_id,
            f"schema is {describe_value(schema)}: pass a whale.Schema or a mapping,"
            " {'column': 'int64'}",
        )
    try:
        return Schema.of(**schema)
    except (InputError, TypeError) as error:
        raise mistake(operator_id, f"schema: {error}") from None


def check_columns(
    operator_id: str, verb: str, names: tuple[str, ...], known: KnownColumns | None
) -> None:
    """Refuse a column that the stream does not have, naming the nearest that it has."""
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
    """Return the kind of values a type holds; keys of different kinds are never equal."""
    numpy_kind = type_.storage.kind
    if type_.family in ("string", "large_string", "binary", "large_binary", "fixed_size_binary"):
        return "bytes"
    if type_.family == "decimal128":
        return "decimal"
    if type_.family.startswith(("date", "time", "duration")):
        return "time"
    return "float" if numpy_kind == "f" else "integer"
