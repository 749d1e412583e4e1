"""Hypothesis strategies for schemas, columns and batches of every supported type.

Import them from ``whale_ray.testing.strategies``; they need Hypothesis, which whale-ray does not
install.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from ..transport.wire.batch import Batch
from ..transport.wire.column import Column
from ..transport.wire.types import DataType, Field, Schema

_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "date32", "date64", "time32[s]", "time32[ms]"),
    *("time64[us]", "time64[ns]", "timestamp[s]", "timestamp[ms, tz=UTC]", "timestamp[us]"),
    *("timestamp[ns, tz=America/Los_Angeles]", "duration[s]", "duration[ns]", "decimal128(38, 9)"),
    *("string", "large_string", "binary", "large_binary", "fixed_size_binary(3)"),
)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = 86_400
_SPAN_S = 2**31
"""Instants and durations are within 68 years of 0, which every unit can represent."""


def data_types() -> st.SearchStrategy[DataType]:
    """Draw one of the supported types."""
    return st.sampled_from(_NAMES).map(DataType.parse)


@st.composite
def schemas(draw: st.DrawFn, max_columns: int = 4) -> Schema:
    """Draw a schema of one column or more, with any names."""
    names = draw(st.lists(st.text(max_size=5), min_size=1, max_size=max_columns, unique=True))
    return Schema(tuple(Field(name, draw(data_types()), draw(st.booleans())) for name in names))


@st.composite
def columns(draw: st.DrawFn, type: DataType, rows: int) -> Column:
    """Draw a column of that many rows; some have nulls, some are slices of a longer column."""
    skipped = draw(st.integers(0, 2))
    total = rows + skipped
    validity = None
    if draw(st.booleans()):
        flags = draw(st.lists(st.booleans(), min_size=total, max_size=total))
        validity = np.array(flags, np.bool_)
    if type.kind == "bytes":
        texts = st.text(max_size=20).map(str.encode)
        value = texts if type.is_text else st.binary(max_size=20)
        values = draw(st.lists(value, min_size=total, max_size=total))
        offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
        pool = np.frombuffer(b"".join(values) + draw(st.binary(max_size=3)), np.uint8)
        return Column(type, pool, offsets, validity).slice(skipped, total)
    if type.storage.kind in "fV" and type.family != "decimal128":
        raw = draw(st.binary(min_size=total * type.width, max_size=total * type.width))
        return Column(type, np.frombuffer(raw, type.storage), None, validity).slice(skipped, total)
    low, high = _bounds(type)
    numbers = draw(st.lists(st.integers(low, high), min_size=total, max_size=total))
    return Column(type, _stored(type, numbers), None, validity).slice(skipped, total)


@st.composite
def batches(
    draw: st.DrawFn,
    schema: Schema | None = None,
    max_rows: int = 12,
    with_times: bool | None = None,
) -> Batch:
    """Draw a batch of the given or any schema, with or without event times."""
    schema = schema or draw(schemas())
    rows = draw(st.integers(0, max_rows))
    parts = [draw(columns(field.type, rows)) for field in schema]
    times = None
    if draw(st.booleans()) if with_times is None else with_times:
        values = draw(st.lists(st.integers(-(2**62), 2**62), min_size=rows, max_size=rows))
        times = np.array(values, np.int64)
    origin_ns = draw(st.integers(0, 2**62))
    return Batch(schema, parts, rows, times, origin_ns)


def _bounds(type: DataType) -> tuple[int, int]:
    """Return the least and the greatest integer that represents a value of the type."""
    per_second = _PER_SECOND[type.unit or "s"]
    if type.family == "bool":
        return 0, 1
    if type.family == "date32":
        return -_SPAN_S // _DAY_S, _SPAN_S // _DAY_S
    if type.family == "decimal128":
        return -(10**38) + 1, 10**38 - 1
    if type.family in ("time32", "time64"):
        return 0, _DAY_S * per_second - 1
    if type.family in ("timestamp", "duration"):
        return -_SPAN_S * per_second, _SPAN_S * per_second
    if type.family == "date64":
        return -_SPAN_S // _DAY_S, _SPAN_S // _DAY_S
    limits = np.iinfo(type.storage)
    return int(limits.min), int(limits.max)


def _stored(type: DataType, numbers: list[int]) -> np.ndarray[Any, Any]:
    if type.family == "decimal128":
        raw = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
        return np.frombuffer(raw, type.storage)
    if type.family == "date64":
        numbers = [number * _DAY_S * 1000 for number in numbers]
    return np.array(numbers, type.storage)
