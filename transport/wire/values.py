"""The type of a column of Python values: that of its first value which is not null.

Whether the other values fit that type, see `value_kinds`.

============================  ====================================================
first value                   column
============================  ====================================================
bool, int, float              bool, int64, float64, numpy's scalars like Python's
str; bytes                    string; binary
Decimal                       decimal128(38, 18), as in Spark
date                          date32
datetime                      timestamp[us] without a zone, or with the value's own
time, timedelta               time64[us], duration[us]
datetime64, timedelta64       date32, timestamp or duration of the value's unit
pandas' Timestamp, Timedelta  timestamp[ns], duration[ns]
============================  ====================================================
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .conversion import column_of
from .types import DataType
from .value_kinds import kind_of

DECIMAL: Final = DataType.parse("decimal128(38, 18)")
"""The type of decimals: 20 digits before the point, 18 after it."""

_FIXED_TYPES: Final = {
    "bool": DataType.parse("bool"),
    "int": DataType.parse("int64"),
    "float": DataType.parse("float64"),
    "text": DataType.parse("string"),
    "bytes": DataType.parse("binary"),
    "decimal": DECIMAL,
    "date": DataType.parse("date32"),
    "time": DataType.parse("time64[us]"),
}
_UNITS = ("s", "ms", "us", "ns")


def type_of_value(value: Any, what: str) -> DataType:
    """Return the type of a column with this first value; `what` names the column in messages.

    Raises:
        InputError: no type holds such a value.
    """
    cls: Any = type(value)
    kind = kind_of(cls)
    if (known := _FIXED_TYPES.get(kind or "")) is not None:
        return known
    if kind in ("datetime64", "timedelta64"):
        return _type_of_numpy_time(value)
    if kind == "timedelta":
        return DataType.parse(f"duration[{'ns' if hasattr(value, 'nanoseconds') else 'us'}]")
    found = column_of([value], what=what).type
    if kind == "datetime" and hasattr(value, "nanosecond"):
        zone = f", tz={found.timezone}" if found.timezone else ""
        return DataType.parse(f"timestamp[ns{zone}]")
    return found


def _type_of_numpy_time(value: np.datetime64 | np.timedelta64) -> DataType:
    unit = np.datetime_data(value.dtype)[0]
    if isinstance(value, np.timedelta64):
        return DataType.parse(f"duration[{unit if unit in _UNITS else 's'}]")
    if unit in ("Y", "M", "W", "D"):
        return DataType.parse("date32")
    return DataType.parse(f"timestamp[{unit if unit in _UNITS else 's'}]")
