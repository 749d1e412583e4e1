"""Spark's names for types beside whale-ray's own."""

from __future__ import annotations

from ..configs.errors import ExpressionError, InputError
from ..transport.wire.types import DataType

__all__ = ["parse_type"]

_SPARK_TYPES = {
    "boolean": "bool",
    "byte": "int8",
    "tinyint": "int8",
    "short": "int16",
    "smallint": "int16",
    "int": "int32",
    "integer": "int32",
    "long": "int64",
    "bigint": "int64",
    "real": "float32",
    "str": "string",
    "date": "date32",
    "timestamp": "timestamp[us, tz=UTC]",
    "timestamp_ntz": "timestamp[us]",
}


def parse_type(name: str | DataType) -> DataType:
    """Return a type by whale-ray's or Spark's name; raise ExpressionError if there is none."""
    if isinstance(name, DataType):
        return name
    text = str(name).strip()
    lowered = text.lower()
    if lowered.startswith("decimal"):
        text = lowered.replace("decimal128", "decimal").replace("decimal", "decimal128", 1)
        text = "decimal128(10, 0)" if text == "decimal128" else text
    try:
        return DataType.parse(_SPARK_TYPES.get(lowered, text))
    except InputError as error:
        msg = f"cannot cast to {name!r}: {error}"
        raise ExpressionError(msg) from None
