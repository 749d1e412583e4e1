"""Other names that users may give for types: Spark's names, Python's types, numpy's.

A name means the same as in Spark ("int" has 32 bits); a Python type is as wide as its values need
(`int` has 64). Case does not matter, except in the name of a time zone.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Iterable
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
    "date": "date32",
    "timestamp": "timestamp[us, tz=UTC]",
    "timestamp_ltz": "timestamp[us, tz=UTC]",
    "timestamp_ntz": "timestamp[us]",
    "varchar": "string",
    "char": "string",
}
#: Python's name → whale-ray's, of types that Spark calls otherwise.
_PYTHON_NAMES = {
    "str": "string",
    "bytes": "binary",
    "datetime": "timestamp[us]",
    "timedelta": "duration[us]",
    "time": "time64[us]",
}
#: Names from other systems that are ambiguous here → the type to propose in the error.
_ELSEWHERE = {
    "text": "string",
    "utf8": "string",
    "object": "string",
    "number": "float64",
    "blob": "binary",
}
_DECIMAL = re.compile(r"(?:decimal128|decimal|numeric|dec)(?= *\(|$)")
_TEXT_OF_LENGTH = re.compile(r"(?:varchar|char) ?\(\d+\)")
_DATETIME64 = re.compile(r"(datetime|timedelta)64\[(\w+)\]")
_PYTHON: dict[type, str] = {
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
    """Return whale-ray's own name for a type, for one of Spark's, Python's or its own.

    Other names are returned in lower case. In Spark, the length of a varchar or char is checked
    when writing; here they are strings of any length.
    """
    text, equals, zone = name.strip().partition("=")
    text = text.lower()
    if equals:
        return text + equals + zone
    if decimal := _DECIMAL.match(text):
        parameters = text[decimal.end() :].lstrip()
        return "decimal128" + (parameters or "(10, 0)")
    if _TEXT_OF_LENGTH.fullmatch(text):
        return "string"
    return SPARK_TYPES.get(text) or _PYTHON_NAMES.get(text) or text


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the type that a user probably meant by an unknown name; None if nothing is near.

    Args:
        name: as the user wrote it.
        known: the names of whale-ray's own types.
    """
    text = name.strip().lower()
    if of_numpy := _DATETIME64.fullmatch(text):
        family = "timestamp" if of_numpy[1] == "datetime" else "duration"
        return f"{family}[{of_numpy[2]}]"
    if text in _ELSEWHERE:
        return _ELSEWHERE[text]
    names = [*known, *SPARK_TYPES, *_PYTHON_NAMES]
    return next(iter(difflib.get_close_matches(text, names, n=1, cutoff=0.7)), None)


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
    if isinstance(kind, type) and kind in _PYTHON:
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
