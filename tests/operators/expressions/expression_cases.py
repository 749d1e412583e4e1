"""Expressions that must mean the same in whale-ray and in PySpark, and the rows to test them on.

A case is Python text, evaluated once with whale-ray's names and once with PySpark's. The cases and
the results of Spark 3.5 (session zone UTC, `spark.sql.ansi.enabled=false`) are in
`spark_goldens.json`, {case: [Spark's type, values in JSON]}, one per line;
`tests/whale_ray/spark/test_expressions_against_spark.py` compares them with Spark itself.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
from pathlib import Path
from typing import Any

from whale_ray.operators.expressions import functions
from whale_ray.operators.expressions.expression import Expression
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

GOLDENS = Path(__file__).with_name("spark_goldens.json")

#: Column → (whale-ray's type, Spark's type).
TYPES = {
    "y": ("int8", "tinyint"),
    "h": ("int16", "smallint"),
    "i": ("int32", "int"),
    "l": ("int64", "bigint"),
    "f": ("float32", "float"),
    "d": ("float64", "double"),
    "m": ("decimal128(10, 2)", "decimal(10,2)"),
    "b": ("bool", "boolean"),
    "s": ("string", "string"),
    "n": ("string", "string"),
    "w": ("string", "string"),
    "x": ("binary", "binary"),
    "day": ("date32", "date"),
    "t": ("timestamp[us, tz=UTC]", "timestamp"),
    "z": ("timestamp[us]", "timestamp_ntz"),
}
_D = decimal.Decimal
_NAN = math.nan


def _time(*parts: Any) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=datetime.UTC)


COLUMNS: dict[str, list[Any]] = {
    "y": [1, -128, 127, 0, None, 7],
    "h": [1, -32768, 32767, 0, None, 300],
    "i": [1, -7, 2147483647, 0, None, -2147483648],
    "l": [5, 0, -3, 9007199254740993, 12, None],
    "f": [0.1, -2.5, _NAN, 16777216.0, None, 3.0],
    "d": [2.5, _NAN, -0.0, 1e20, None, -1.35],
    "m": [_D("1.25"), _D("-2.50"), _D("99999999.99"), _D("0.00"), None, _D("7.00")],
    "b": [True, False, None, True, False, None],
    "s": ["whale ray", "  Straße ", "", "a%b_c", None, "MANTA-ray x"],
    "n": ["12", " -7.9 ", "abc", "1e3", None, "99999999999"],
    "w": [
        "2008-05-17",
        "2008-05-17 10:00:04.5",
        "2020-2-9T1:2",
        "nonsense",
        None,
        "1969-12-31 23:59:59",
    ],
    "x": [b"\x00\xff", b"", b"whale", b"\xc3\x9f", None, b"ray"],
    "day": [
        datetime.date(2008, 5, 17),
        datetime.date(1969, 12, 31),
        datetime.date(2024, 2, 29),
        datetime.date(2000, 1, 1),
        None,
        datetime.date(2026, 12, 28),
    ],
    "t": [
        _time(2008, 5, 17, 10, 0, 4, 500000),
        _time(1960, 1, 1, 0, 0, 0, 1),
        _time(2024, 2, 29, 23, 59, 59, 999999),
        _time(1970, 1, 1),
        None,
        _time(2008, 5, 17, 9, 59, 59),
    ],
    "z": [
        datetime.datetime(2008, 5, 17, 10, 0, 4),  # noqa: DTZ001 - a timestamp without a zone
        datetime.datetime(1960, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001 - as above
        datetime.datetime(2024, 2, 29, 23, 59, 59, 999999),  # noqa: DTZ001 - as above
        datetime.datetime(1970, 1, 1),  # noqa: DTZ001 - as above
        None,
        datetime.datetime(2008, 5, 17, 9, 59, 59),  # noqa: DTZ001 - as above
    ],
}

#: Functions whose results in Java and C may differ in the last bit.
ROUGH = ("exp", "log", "pow", "sin", "cos", "tan", "atan", "radians", "degrees", "hypot", "**")


def batch() -> Batch:
    """Return the rows."""
    return Batch.from_pydict(
        COLUMNS, Schema.of(**{name: kind for name, (kind, _) in TYPES.items()})
    )


def built(case: str) -> Expression:
    """Build the expression of a case."""
    names: dict[str, Any] = {name: functions.col(name) for name in TYPES}
    names |= {"F": functions, "lit": functions.lit, "when": functions.when}
    return eval(case, names | {"datetime": datetime, "decimal": decimal})  # noqa: S307 - our own


def whale_type(kind: str) -> str:
    """Return whale-ray's name for one of Spark's types."""
    if kind.startswith("decimal"):
        return kind.replace("decimal", "decimal128").replace(",", ", ")
    here = {there: here for here, there in TYPES.values()}
    return "duration[us]" if kind.startswith("interval") else here[kind]


def goldens() -> dict[str, tuple[str, list[Any]]]:
    """Return case → Spark's type and plain values."""
    return {
        case: (kind, values) for case, (kind, values) in json.loads(GOLDENS.read_text()).items()
    }


def plain(value: Any) -> Any:
    """Return a value for JSON: instants as microseconds, decimals and dates as text."""
    if isinstance(value, datetime.datetime):
        epoch = datetime.datetime(1970, 1, 1, tzinfo=value.tzinfo)
        return (value - epoch) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(microseconds=1)
    if isinstance(value, (datetime.date, decimal.Decimal)):
        return str(value)
    return value.hex() if isinstance(value, (bytes, bytearray)) else value


def same(left: Any, right: Any, rough: bool) -> bool:
    """Return whether two plain values are equal, floats exactly unless `rough`."""
    if isinstance(left, float) and isinstance(right, float):
        if rough and math.isfinite(left):
            return math.isclose(left, right, rel_tol=1e-14, abs_tol=1e-300)
        return repr(left) == repr(right)
    return type(left) is type(right) and bool(left == right)
