"""Types into and out of Spark, without a Spark session."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from whale_ray.errors import InputError, OutputError
from whale_ray.spark.types import columns_of, spark_schema, to_spark_values
from whale_ray.transport.wire.types import Schema


def frame(**kinds: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in kinds.items()])


def batch(column: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column], names=["x"])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (spark.BooleanType(), "bool"),
        (spark.ByteType(), "int8"),
        (spark.ShortType(), "int16"),
        (spark.IntegerType(), "int32"),
        (spark.LongType(), "int64"),
        (spark.FloatType(), "float32"),
        (spark.DoubleType(), "float64"),
        (spark.StringType(), "string"),
        (spark.VarcharType(3), "string"),
        (spark.BinaryType(), "binary"),
        (spark.DateType(), "date32"),
        (spark.TimestampType(), "timestamp[us, tz=Europe/Paris]"),
        (spark.TimestampNTZType(), "timestamp[us]"),
        (spark.DecimalType(38, 10), "decimal128(38, 10)"),
        (spark.DayTimeIntervalType(), "duration[us]"),
    ],
    ids=str,
)
def test_into_whale_ray(kind: spark.DataType, name: str) -> None:
    assert columns_of(frame(x=kind), "Europe/Paris").field("x").type.name == name


@pytest.mark.parametrize(
    ("zone", "carried"),
    [("UTC", "UTC"), ("+02:00", "+02:00"), ("GMT+1", "UTC"), ("Europe/Paris", "Europe/Paris")],
)
def test_zones_that_only_java_knows_become_utc(zone: str, carried: str) -> None:
    kind = columns_of(frame(x=spark.TimestampType()), zone).field("x").type
    assert kind.timezone == carried


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            spark.ArrayType(spark.IntegerType()),
            "column 'x' has Spark's type array<int>, which whale-ray does not support; "
            "explode it into rows, or join it into a string",
        ),
        (
            spark.MapType(spark.StringType(), spark.IntegerType()),
            "column 'x' has Spark's type map<string,int>, which whale-ray does not support; "
            "select the entries that you need as columns",
        ),
        (
            frame(a=spark.IntegerType()),
            "column 'x' has Spark's type struct<a:int>, which whale-ray does not support; "
            "select its fields as columns",
        ),
        (
            spark.NullType(),
            "column 'x' has Spark's type void, which whale-ray does not support; "
            "cast it to the type that it should have",
        ),
        (
            spark.YearMonthIntervalType(),
            "column 'x' has Spark's type interval year to month, which whale-ray does not support; "
            "convert it to a number or a day-time interval",
        ),
    ],
    ids=["array", "map", "struct", "void", "interval"],
)
def test_types_that_are_not_carried(kind: spark.DataType, message: str) -> None:
    with pytest.raises(InputError) as raised:
        columns_of(frame(x=kind), "UTC")
    assert str(raised.value) == message


def test_two_columns_of_one_name() -> None:
    twice = spark.StructType([spark.StructField("x", spark.LongType())] * 2)
    with pytest.raises(InputError, match="two columns are called 'x'"):
        columns_of(twice, "UTC")


@pytest.mark.parametrize(
    ("column", "stored", "shown"),
    [
        (pa.array([255, None], pa.uint8()), pa.int16(), "smallint"),
        (pa.array([65_535, None], pa.uint16()), pa.int32(), "int"),
        (pa.array([2**32 - 1, None], pa.uint32()), pa.int64(), "bigint"),
        (pa.array([2**64 - 1, None], pa.uint64()), pa.decimal128(20, 0), "decimal(20,0)"),
        (pa.array([1.5, None], pa.float16()), pa.float32(), "float"),
        (pa.array([86_400_000, None], pa.date64()), pa.date32(), "date"),
        (pa.array([b"ab", None], pa.binary(2)), pa.binary(), "binary"),
        (pa.array(["ab", None], pa.large_string()), pa.large_string(), "string"),
        (pa.array([5, None], pa.timestamp("s")), pa.timestamp("us"), "timestamp_ntz"),
        (
            pa.array([5, None], pa.timestamp("ms", "Asia/Tokyo")),
            pa.timestamp("us", "UTC"),
            "timestamp",
        ),
        (pa.array([5000, None], pa.timestamp("ns")), pa.timestamp("us"), "timestamp_ntz"),
        (pa.array([5, None], pa.duration("s")), pa.duration("us"), "interval day to second"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_what_spark_lacks_goes_into_the_next_wider_type(
    column: pa.Array, stored: pa.DataType, shown: str
) -> None:
    out = to_spark_values(batch(column))
    assert out.schema.field("x").type == stored
    assert out.column("x").cast(column.type).equals(column)
    assert spark_schema(pa.schema([("x", column.type)]))["x"].dataType.simpleString() == shown


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            pa.array([1], pa.time64("us")),
            "column 'x' has type time64[us], a time of day, which Spark does not have; "
            "cast it to an integer or a string before the sink",
        ),
        (
            pa.array([100], pa.decimal128(5, -2)),
            "column 'x' has type decimal128(5, -2), but Spark's decimals have between 0 and 5 "
            "digits after the point; cast it before the sink",
        ),
        (
            pa.array([1001], pa.timestamp("ns")),
            "column 'x' is timestamp[ns], in Spark it is timestamp[us], where not every value "
            "fits: Casting from timestamp[ns] to timestamp[us] would lose data: 1001; "
            "round it or cast it before the sink",
        ),
        (
            pa.array([2**62], pa.duration("s")),
            "column 'x' is duration[s], in Spark it is duration[us], where not every value fits: "
            "Casting from duration[s] to duration[us] would result in out of bounds timestamp: "
            "4611686018427387904; round it or cast it before the sink",
        ),
    ],
    ids=["time", "decimal", "nanoseconds", "overflow"],
)
def test_what_spark_cannot_hold_is_refused(column: Any, message: str) -> None:
    with pytest.raises(OutputError) as raised:
        to_spark_values(batch(column))
    assert str(raised.value) == message


@pytest.mark.parametrize("named", [str, type, object])
def test_spark_types_are_known_to_schemas_as_pyspark_says(named: type) -> None:
    """By name ("bigint", "long"), class and object; Arrow's type is the one that PySpark takes."""
    from pyspark.sql.pandas.types import to_arrow_type

    kinds = (
        *(spark.BooleanType, spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType),
        *(spark.FloatType, spark.DoubleType, spark.StringType, spark.BinaryType, spark.DateType),
        *(spark.TimestampType, spark.TimestampNTZType),
    )
    for kind in kinds:
        names = {str: [kind().simpleString(), kind.typeName()], type: [kind], object: [kind()]}
        for given in names[named]:
            found = Schema.of(x=given).to_arrow().field("x").type
            assert found == to_arrow_type(kind())
