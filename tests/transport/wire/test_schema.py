"""Types and schemas: names, the same to Arrow and back, bytes that never change, widening."""

from __future__ import annotations

import datetime
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from whale_ray.configs.errors import CorruptedMessageError, InputError
from whale_ray.testing.strategies import data_types, schemas
from whale_ray.transport.wire.arrow import type_from_arrow, type_to_arrow
from whale_ray.transport.wire.types import DataType, Field, Schema, accepted_types

GOLDEN = bytes.fromhex(
    "0300"  # three columns
    "0100 0a00 0600 76656869636c655f6964 737472696e67"  # nullable vehicle_id: string
    "0000 0600 0500 6c61745f6535 696e743332"  # not null lat_e5: int32
    "0100 0100 1500 74 74696d657374616d705b6d732c20747a3d5554435d"
)
GOLDEN_ID = 0x82F9EB82


def golden_schema() -> Schema:
    return Schema(
        (
            Field("vehicle_id", DataType.parse("string")),
            Field("lat_e5", DataType.parse("int32"), nullable=False),
            Field("t", DataType.parse("timestamp[ms, tz=UTC]")),
        )
    )


def test_golden_bytes_of_a_schema():
    assert golden_schema().to_bytes() == GOLDEN
    assert golden_schema().schema_id == GOLDEN_ID
    assert Schema.from_bytes(GOLDEN) == golden_schema()


@given(schemas())
def test_a_schema_survives_bytes_pickle_and_arrow(schema):
    assert Schema.from_bytes(schema.to_bytes()) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert Schema.from_arrow(schema.to_arrow()) == schema
    assert 0 < schema.schema_id < 2**32


@given(data_types())
def test_a_type_is_its_name(kind):
    assert DataType.parse(kind.name) == kind
    assert type_from_arrow(type_to_arrow(kind), "x") == kind
    assert kind.width == (kind.storage.itemsize if kind.kind == "fixed" else 0)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("float", "float32"),
        ("double", "float64"),
        ("halffloat", "float16"),
        ("date32[day]", "date32"),
        ("decimal128(10,2)", "decimal128(10, 2)"),
        ("fixed_size_binary[16]", "fixed_size_binary(16)"),
    ],
)
def test_arrows_spellings_are_understood(alias, name):
    assert DataType.parse(alias).name == name


@pytest.mark.parametrize(
    "name",
    ["int", "time32[us]", "time64[s]", "decimal128(39, 0)", "fixed_size_binary(0)", "list", ""]
    + ["duration[s, tz=UTC]", "timestamp[days]"],
)
def test_an_unknown_type_is_refused_with_the_known_ones(name):
    with pytest.raises(InputError) as error:
        DataType.parse(name)
    listed = ", ".join(accepted_types())
    assert str(error.value) == f"whale-ray has no type {name!r}; it supports {listed}"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("DOUBLE", "float64"),
        ("Double", "float64"),
        ("STRING", "string"),
        (" Int64 ", "int64"),
        ("BIGINT", "int64"),
        ("varchar", "string"),
        ("VARCHAR(20)", "string"),
        ("char(3)", "string"),
        ("NUMERIC(10,2)", "decimal128(10, 2)"),
        ("Dec", "decimal128(10, 0)"),
        ("DECIMAL (5, 1)", "decimal128(5, 1)"),
        ("Decimal128(5, 1)", "decimal128(5, 1)"),
        ("Timestamp", "timestamp[us, tz=UTC]"),
        ("TIMESTAMP[MS, TZ=Europe/Berlin]", "timestamp[ms, tz=Europe/Berlin]"),
        ("str", "string"),
        ("Bytes", "binary"),
        ("datetime", "timestamp[us]"),
        ("timedelta", "duration[us]"),
    ],
)
def test_users_names_of_types_in_any_case(name, kind):
    assert Schema.of(x=name).field("x").type.name == kind


@pytest.mark.parametrize(
    ("name", "proposed"),
    [
        ("doubel", "double"),
        ("Strng", "string"),
        ("float46", "float64"),
        ("text", "string"),
        ("object", "string"),
        ("datetime64[ns]", "timestamp[ns]"),
    ],
)
def test_an_unknown_name_of_a_type_is_answered_with_a_near_one(name, proposed):
    with pytest.raises(InputError) as error:
        Schema.of(price=name)
    assert str(error.value) == (
        f"column 'price': whale-ray has no type {name!r}; did you mean {proposed!r}?"
    )


def test_a_list_is_no_type_of_a_column():
    with pytest.raises(InputError, match=r"^column 'x': \['int64'\] is no type of a column: pass"):
        Schema.of(x=["int64"])


def test_a_column_that_is_not_there():
    schema = Schema.of(vehicle_id="string", lat_e5="int32")
    with pytest.raises(InputError) as error:
        schema.index("vehicel_id")
    assert str(error.value) == "no column 'vehicel_id'; did you mean 'vehicle_id'?"
    with pytest.raises(InputError) as error:
        schema.field("xyz")
    assert str(error.value) == "no column 'xyz'; it has vehicle_id, lat_e5"


def test_two_columns_of_one_name():
    with pytest.raises(InputError) as error:
        Schema.from_arrow(pa.schema([("a", pa.int8()), ("b", pa.int8()), ("a", pa.string())]))
    assert str(error.value) == "two columns are called 'a'; rename one of them"


def test_other_columns():
    schema = Schema.of(a="int8", b="string", c="bool")
    assert schema.select(["c", "a"]) == Schema.of(c="bool", a="int8")
    assert schema.select(["c", "a"]) is schema.select(["c", "a"])
    assert schema.drop(["b"]) == Schema.of(a="int8", c="bool")
    assert schema.rename({"a": "x"}).names == ("x", "b", "c")
    added = schema.with_field(Field("b", DataType.parse("int64")))
    assert added == Schema.of(a="int8", b="int64", c="bool")
    assert schema.with_field(Field("d", DataType.parse("int64"))).names == ("a", "b", "c", "d")
    assert str(schema) == "a: int8, b: string, c: bool"


@pytest.mark.parametrize(
    ("left", "right", "wider"),
    [
        ("int32", "int64", "int64"),
        ("int8", "uint8", "int16"),
        ("int32", "float64", "float64"),
        ("int16", "float16", "float32"),
        ("string", "large_string", "large_string"),
        ("large_binary", "binary", "large_binary"),
    ],
)
def test_numbers_and_strings_widen(left, right, wider):
    assert Schema.of(x=left).unify(Schema.of(x=right)) == Schema.of(x=wider)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("int64", "float64"),
        ("int64", "uint64"),
        ("int32", "string"),
        ("string", "binary"),
        ("bool", "int8"),
        ("date32", "int64"),
        ("timestamp[ms]", "timestamp[us]"),
        ("decimal128(3, 1)", "decimal128(4, 1)"),
    ],
)
def test_what_would_lose_something_does_not_widen(left, right):
    with pytest.raises(InputError) as error:
        Schema.of(x=left).unify(Schema.of(x=right))
    expected = f"column 'x' is {left} in one batch and {right} in another; cast one of them"
    assert str(error.value) == expected


def test_other_names_do_not_unify():
    with pytest.raises(InputError) as error:
        Schema.of(x="int8").unify(Schema.of(y="int8"))
    expected = "columns differ: [x: int8] and [y: int8]; select the same ones, in the same order"
    assert str(error.value) == expected


@pytest.mark.parametrize("cut", [0, 1, 5, len(GOLDEN) - 1])
def test_bytes_that_are_no_schema(cut):
    with pytest.raises(CorruptedMessageError, match="bytes of a schema message are not a schema"):
        Schema.from_bytes(GOLDEN[:cut])


def test_types_need_neither_numba_nor_arrow():
    code = (
        "import sys; from whale_ray.transport.wire.types import Schema; "
        "Schema.of(a='int8').schema_id; "
        "assert not {'numba', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        ("bigint", "int64"),
        ("long", "int64"),
        ("int", "int32"),
        ("integer", "int32"),
        ("smallint", "int16"),
        ("tinyint", "int8"),
        ("boolean", "bool"),
        ("timestamp", "timestamp[us, tz=UTC]"),
        ("timestamp_ntz", "timestamp[us]"),
        ("decimal(12,3)", "decimal128(12, 3)"),
        (int, "int64"),
        (float, "float64"),
        (str, "string"),
        (bool, "bool"),
        (bytes, "binary"),
        (datetime.date, "date32"),
        (datetime.datetime, "timestamp[us]"),
        (datetime.timedelta, "duration[us]"),
        (np.int16, "int16"),
        (np.dtype("float32"), "float32"),
        (np.dtype("datetime64[ms]"), "timestamp[ms]"),
        (np.str_, "string"),
        (pa.int8(), "int8"),
        (pa.timestamp("ns", tz="Asia/Tokyo"), "timestamp[ns, tz=Asia/Tokyo]"),
        (pa.decimal128(12, 3), "decimal128(12, 3)"),
    ],
    ids=str,
)
def test_types_by_the_names_and_classes_that_users_know(given: Any, carried: str) -> None:
    assert Schema.of(x=given) == Schema.of(x=carried)
    assert Schema.of(x=given).fields[0].type.name == carried


@pytest.mark.parametrize("given", [list, 7, None, object(), "list<int>", pa.list_(pa.int8())])
def test_what_is_no_type_is_refused_with_what_there_is(given: Any) -> None:
    with pytest.raises(InputError, match="it supports bool, int8|pass a name such as 'int64'"):
        Schema.of(x=given)
