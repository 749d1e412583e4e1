"""Which types of Postgres hold a column's values exactly.

The first is that of a table that whale-ray creates; a table that is there may have any of them::

    bool                              boolean
    int8, int16, uint8                smallint, integer, bigint
    int32, uint16                     integer, bigint
    int64, uint32                     bigint
    uint64                            numeric(20, 0), numeric
    float16, float32                  real, double precision
    float64                           double precision
    decimal128(p, s)                  numeric(p, s), or any numeric with as many digits
    string, large_string              text, character varying, json, jsonb
    binary, large_binary              bytea
    fixed_size_binary(n)              bytea; of 16 bytes also uuid
    date32, date64                    date
    time32, time64                    time
    timestamp without, with a zone    timestamp, timestamptz; in microseconds
    duration                          interval
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: of the column.
        kind: Postgres' name of the type without parameters, such as `character varying`.
        declared: the type with its parameters, such as `character varying(20)`.
        required: null is refused.
        has_default: rows need not have it.
        is_generated: rows must not have it: the server alone says what is in it.
    """

    name: str
    kind: str
    declared: str
    required: bool = False
    has_default: bool = False
    is_generated: bool = False


def created_as(field: pa.Field) -> TableColumn:
    """Return the column that whale-ray creates."""
    kinds = fitting(field.type)
    declared = kinds[0]
    if kinds[0] == "numeric":
        digits, scale = _digits(field.type)
        declared = f"numeric({digits},{scale})"
    return TableColumn(field.name, kinds[0], declared)


def fits(column: TableColumn, kind: pa.DataType) -> bool:
    """Return whether a column of a table holds all values of an Arrow type exactly."""
    if column.kind not in fitting(kind):
        return False
    found = _NUMERIC.fullmatch(column.declared)
    if found is None:
        return True
    digits, scale = _digits(kind)
    return int(found[2]) >= scale and int(found[1]) - int(found[2]) >= digits - scale


def fitting(kind: pa.DataType) -> tuple[str, ...]:
    """Return Postgres' names of the types that hold all values of an Arrow type."""
    import pyarrow as pa

    plain = {
        pa.bool_(): ("boolean",),
        pa.int8(): ("smallint", "integer", "bigint"),
        pa.int16(): ("smallint", "integer", "bigint"),
        pa.uint8(): ("smallint", "integer", "bigint"),
        pa.int32(): ("integer", "bigint"),
        pa.uint16(): ("integer", "bigint"),
        pa.int64(): ("bigint",),
        pa.uint32(): ("bigint",),
        pa.uint64(): ("numeric",),
        pa.float16(): ("real", "double precision"),
        pa.float32(): ("real", "double precision"),
        pa.float64(): ("double precision",),
        pa.string(): ("text", "character varying", "json", "jsonb"),
        pa.large_string(): ("text", "character varying", "json", "jsonb"),
        pa.binary(): ("bytea",),
        pa.large_binary(): ("bytea",),
        pa.binary(16): ("bytea", "uuid"),
        pa.date32(): ("date",),
        pa.date64(): ("date",),
    }
    if kind in plain:
        return plain[kind]
    if pa.types.is_decimal(kind):
        return ("numeric",)
    if pa.types.is_fixed_size_binary(kind):
        return ("bytea",)
    if pa.types.is_time(kind):
        return ("time without time zone",)
    if pa.types.is_duration(kind):
        return ("interval",)
    assert pa.types.is_timestamp(kind)  # whale-ray has no other types
    return (f"timestamp {'without' if kind.tz is None else 'with'} time zone",)


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Return the digits of an Arrow type in all, and those after the point."""
    import pyarrow as pa

    if not pa.types.is_decimal(kind):
        return 20, 0  # of uint64
    if kind.scale < 0:
        return kind.precision - kind.scale, 0
    return max(kind.precision, kind.scale), kind.scale
