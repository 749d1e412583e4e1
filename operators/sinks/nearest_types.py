"""The types of another system that hold a column's values exactly.

Spark and Delta Lake have the same types. A type that they lack is cast to the smallest one that can
represent all its values: uint8 → int16, uint16 → int32, uint32 → int64, uint64 → decimal(20, 0),
float16 → float32, date64 → date32, fixed-size binary → binary, seconds and milliseconds →
microseconds. Nanoseconds are accepted if they are whole microseconds. Times of day have no
counterpart. A timestamp's zone becomes UTC: the instants are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...configs.errors import OutputError

if TYPE_CHECKING:
    import pyarrow as pa


def in_nearest_types(batch: pa.RecordBatch, system: str) -> pa.RecordBatch:
    """Return a batch with types that a system has, and exactly the same values.

    Raises:
        OutputError: a column's type has no counterpart, or a value cannot be represented exactly.
    """
    import pyarrow as pa

    fields, columns = [], []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        kind = nearest_type(field, system)
        fields.append(pa.field(field.name, kind))
        same = column.type == kind
        columns.append(column if same else exact_cast(column, kind, field.name, system))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def nearest_type(field: pa.Field, system: str) -> pa.DataType:
    """Return the Arrow type that can represent all values of a column and that a system has, too.

    Raises:
        OutputError: the column's type has no counterpart.
    """
    import pyarrow as pa

    kind = field.type
    widened = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
        pa.date64(): pa.date32(),
    }
    if kind in widened:
        return widened[kind]
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_time(kind):
        msg = (
            f"column {field.name!r} has type {kind}, a time of day, which {system} does not have; "
            "cast it to an integer or a string before the sink"
        )
        raise OutputError(msg)
    if pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        msg = (
            f"column {field.name!r} has type {kind}, but {system}'s decimals have between 0 and "
            f"{kind.precision} digits after the point; cast it before the sink"
        )
        raise OutputError(msg)
    return kind


def exact_cast(column: pa.Array, kind: pa.DataType, name: str, system: str) -> pa.Array:
    """Return a column in another type.

    Raises:
        OutputError: a value does not fit.
    """
    import pyarrow as pa

    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        reason = next(iter(str(error).splitlines()), repr(error)).rstrip(".")
        msg = (
            f"column {name!r} is {column.type}, in {system} it is {kind}, where not every value "
            f"fits: {reason}; round it or cast it before the sink"
        )
        raise OutputError(msg) from error
