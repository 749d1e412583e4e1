"""The JSON representation of each column type, for reading and writing.

::

    bool, integers, floats    true, 12, 1.5 (NaN and infinities as Python's json writes them)
    string                    text
    timestamp                 ISO 8601 text; with a zone as an instant in UTC: 2008-05-31T07:00:00Z
    date                      ISO 8601 text: 2008-05-31
    time                      ISO 8601 text: 07:00:00.250
    duration                  an integer in the column's unit
    decimal                   text with all digits
    binary                    Base64 text

Arrow's JSON reader supports only some of them; `readable` returns the nearest type that it
supports, and `restore` converts a column of that type.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def is_binary(kind: pa.DataType) -> bool:
    """Return whether values of the type are bytes."""
    import pyarrow as pa

    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in checks) and not pa.types.is_decimal(kind)


def readable(kind: pa.DataType) -> pa.DataType:
    """Return the type to pass to Arrow's JSON reader for a column of this type."""
    import pyarrow as pa

    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_duration(kind):
        return pa.int64()
    # Arrow would silently drop a timestamp's zone, or add one.
    is_time = pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_date(kind)
    if is_time or is_binary(kind):
        return pa.string()
    return kind


def restore(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column that was read as `readable(kind)`, converted to its own type.

    Raises:
        pyarrow.ArrowInvalid: a text is not a time, or not Base64.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type == kind:
        return column
    if pa.types.is_time(kind):
        timestamps = pc.binary_join_element_wise("1970-01-01", column, " ")
        return timestamps.cast(pa.timestamp(kind.unit)).cast(kind)
    if is_binary(kind):
        return pa.chunked_array([pa.array([_unbase(value) for value in column.to_pylist()], kind)])
    if pa.types.is_date64(kind):
        column = column.cast(pa.date32())
    return column.cast(kind)


def _unbase(text: str | None) -> bytes | None:
    import pyarrow as pa

    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except ValueError as error:
        msg = f"not Base64: {error}"
        raise pa.ArrowInvalid(msg) from None


def jsonable(column: pa.Array) -> list[Any]:
    """Return Python values that `json` writes as documented above, None for null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if is_binary(kind):
        values = column.to_pylist()
        return [None if one is None else base64.b64encode(one).decode() for one in values]
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            column = column.cast(pa.timestamp(kind.unit, "UTC"))
        return list(pc.replace_substring(column.cast(pa.string()), " ", "T").to_pylist())
    if pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_decimal(kind):
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_duration(kind):
        return list(column.cast(pa.int64()).to_pylist())
    return list(column.to_pylist())
