"""What users call types, beside the names that travel: Spark's names, Python's types, numpy's.

A name means what it means to Spark ("int" has 32 bits), a Python type what its values need (`int`
has 64).
"""

from __future__ import annotations

import datetime
from typing import Any

from ...configs.errors import InputError

#: Spark's name → whale-ray's, where they differ.
SPARK_TYPES = {
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
_PYTHON: dict[object, str] = {
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "string",
    bytes: "binary",
    datetime.date: "date32",
    datetime.datetime: "timestamp[us]",
    datetime.timedelta: "duration[us]",
    datetime.time: "time64[us]",
}


def canonical_name(name: str) -> str:
    """Return whale-ray's own name for a type, for one of Spark's or its own; others are left."""
    text = name.strip()
    lowered = text.lower()
    if lowered.startswith("decimal"):
        text = lowered.replace("decimal128", "decimal").replace("decimal", "decimal128", 1)
        return "decimal128(10, 0)" if text == "decimal128" else text
    return SPARK_TYPES.get(lowered, text)


def name_of_type(kind: object) -> str:
    """Return whale-ray's name for a type as users may give it.

    Args:
        kind: a name; or bool, int, float, str, bytes, or a class of `datetime`; or a type of numpy,
            pyarrow or pyspark.

    Raises:
        InputError: it is none of these.
    """
    if isinstance(kind, str):
        return canonical_name(kind)
    if kind in _PYTHON:
        return _PYTHON[kind]
    package = getattr(kind, "__module__", "").partition(".")[0]
    if package == "pyspark" or type(kind).__module__.startswith("pyspark."):
        made: Any = kind() if isinstance(kind, type) else kind
        return canonical_name(str(made.simpleString()))
    if type(kind).__module__.startswith("pyarrow."):
        return str(kind)
    if package == "numpy" or type(kind).__module__.startswith("numpy."):
        return _numpy_name(kind)
    shown = kind.__name__ if isinstance(kind, type) else repr(kind)
    msg = (
        f"{shown} is no type of a column: pass a name such as 'int64' or 'bigint', or int, float,"
        " str, bool"
    )
    raise InputError(msg)


def _numpy_name(kind: object) -> str:
    import numpy as np

    dtype = np.dtype(kind)  # type: ignore[call-overload] # a class or object of numpy's
    if dtype.kind in "mM":
        unit = np.datetime_data(dtype)[0]
        return f"{'timestamp' if dtype.kind == 'M' else 'duration'}[{unit}]"
    return {"U": "string", "S": "binary"}.get(dtype.kind, dtype.name)
