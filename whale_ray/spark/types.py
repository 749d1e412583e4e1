"""Conversions between Spark's types and whale-ray's, which preserve every value exactly.

From Spark (`columns_of`)::

    boolean, byte, short, int, long, float, double     bool, int8 … int64, float32, float64
    string, char, varchar / binary                     string / binary
    date                                               date32
    timestamp                                          timestamp[us, tz=the session's zone]
    timestamp_ntz                                      timestamp[us]
    decimal(p, s)                                      decimal128(p, s)
    interval day to second                             duration[us]

To Spark (`spark_schema`, `to_spark_values`): the reverse. A type that Spark lacks is cast to the
smallest one that can represent all its values: uint8 → short, uint16 → int, uint32 → long, uint64 →
decimal(20, 0), float16 → float, date64 → date, fixed-size binary → binary, seconds and milliseconds
→ microseconds. Nanoseconds are accepted if they are whole microseconds. Times of day have no
counterpart. A timestamp's zone is lost: Spark shows instants in its session's zone.
"""

from __future__ import annotations

import re
import zoneinfo
from typing import TYPE_CHECKING

from ..configs.errors import InputError
from ..operators.sinks.nearest_types import in_nearest_types, nearest_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from ..transport.wire.types import Schema

_SYSTEM = "Spark"
_OFFSET = re.compile(r"[+-]\d\d:\d\d")
_REMEDIES = {
    "array": "explode it into rows, or join it into a string",
    "map": "select the entries that you need as columns",
    "struct": "select its fields as columns",
    "void": "cast it to the type that it should have",
    "interval": "convert it to a number or a day-time interval",
}


def columns_of(frame: StructType, zone: str) -> Schema:
    """Return whale-ray's columns for a Spark schema; `zone` is that of Spark's session.

    Raises:
        InputError: a column has an unsupported type, or two columns have the same name.
    """
    from ..transport.wire.types import DataType as WhaleType
    from ..transport.wire.types import Field, Schema

    fields = []
    for field in frame.fields:
        name = _whale_type_name(field.dataType, zone)
        if name is None:
            kind = field.dataType.simpleString()
            remedy = _REMEDIES.get(re.split(r"\W", kind)[0], "cast it to one that is")
            msg = (
                f"column {field.name!r} has Spark's type {kind}, which whale-ray does not support; "
                f"{remedy}"
            )
            raise InputError(msg)
        fields.append(Field(field.name, WhaleType.parse(name)))
    return Schema(tuple(fields))


def _whale_type_name(kind: DataType, zone: str) -> str | None:
    from pyspark.sql import types

    plain = {
        types.BooleanType: "bool",
        types.ByteType: "int8",
        types.ShortType: "int16",
        types.IntegerType: "int32",
        types.LongType: "int64",
        types.FloatType: "float32",
        types.DoubleType: "float64",
        types.StringType: "string",
        types.CharType: "string",
        types.VarcharType: "string",
        types.BinaryType: "binary",
        types.DateType: "date32",
        types.TimestampType: f"timestamp[us, tz={_zone(zone)}]",
        types.TimestampNTZType: "timestamp[us]",
        types.DayTimeIntervalType: "duration[us]",
    }
    if isinstance(kind, types.DecimalType):
        return f"decimal128({kind.precision}, {kind.scale})"
    return plain.get(type(kind))


def _zone(zone: str) -> str:
    """Return Arrow's name of a Java zone, or UTC: the instants are the same in every zone."""
    if _OFFSET.fullmatch(zone):
        return zone
    return zone if zone in zoneinfo.available_timezones() else "UTC"


def to_spark_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with types that Spark has, and exactly the same values.

    Raises:
        OutputError: a column's type has no counterpart, or a value cannot be represented exactly.
    """
    return in_nearest_types(batch, _SYSTEM)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's schema for an Arrow schema, with the types that `to_spark_values` casts to.

    Raises:
        OutputError: a column's type has no counterpart in Spark.
    """
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, _spark_type(field)) for field in schema])


def _spark_type(field: pa.Field) -> DataType:
    import pyarrow as pa
    from pyspark.sql import types

    kind = nearest_type(field, _SYSTEM)
    if pa.types.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return types.TimestampNTZType() if kind.tz is None else types.TimestampType()
    plain = {
        pa.bool_(): types.BooleanType,
        pa.int8(): types.ByteType,
        pa.int16(): types.ShortType,
        pa.int32(): types.IntegerType,
        pa.int64(): types.LongType,
        pa.float32(): types.FloatType,
        pa.float64(): types.DoubleType,
        pa.string(): types.StringType,
        pa.large_string(): types.StringType,
        pa.binary(): types.BinaryType,
        pa.large_binary(): types.BinaryType,
        pa.date32(): types.DateType,
        pa.duration("us"): types.DayTimeIntervalType,
    }
    made: DataType = plain[kind]()
    return made
