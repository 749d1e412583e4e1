"""Conversion from and to Arrow, without loss for every supported type; others raise InputError.

Fixed data, pools and int32 offsets are shared. Booleans and validity are converted between bits and
bytes, 64-bit offsets of large strings to 32 bits. An Arrow array made from a received batch keeps
the ring's frame alive, as any other view does.
"""

from __future__ import annotations

import functools
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...configs.errors import InputError
from .batch import Batch
from .column import Column, SourceMemory, trusted_column
from .types import SCHEMAS_REMEMBERED, DataType, Field, Schema, shared_schema

if TYPE_CHECKING:
    import numpy.typing as npt

_UNIT_FAMILIES = {"time32": pa.time32, "time64": pa.time64, "duration": pa.duration}
_POOL_BYTES_MAX = (1 << 31) - 1
_TYPE_NAME_MAX = 100


@functools.lru_cache(maxsize=SCHEMAS_REMEMBERED)
def schema_from_arrow(schema: pa.Schema) -> Schema:
    """See `Schema.from_arrow`; the same object for the same schema."""
    return shared_schema(
        tuple(
            Field(one.name, type_from_arrow(one.type, f"column {one.name!r}"), one.nullable)
            for one in schema
        )
    )


@functools.lru_cache(maxsize=SCHEMAS_REMEMBERED)
def schema_to_arrow(schema: Schema) -> pa.Schema:
    """See `Schema.to_arrow`."""
    return pa.schema([pa.field(one.name, type_to_arrow(one.type), one.nullable) for one in schema])


def type_from_arrow(kind: pa.DataType, what: str) -> DataType:
    """Return whale-ray's type for Arrow's.

    Raises:
        InputError: it is not supported; the message names `what` and the type.
    """
    try:
        return DataType.parse(str(kind))
    except InputError:
        name = textwrap.shorten(str(kind), _TYPE_NAME_MAX, placeholder=" …")
        msg = f"{what} has type {name}, which whale-ray does not support; {_remedy(kind)}"
        raise InputError(msg) from None


@functools.lru_cache(maxsize=SCHEMAS_REMEMBERED)
def type_to_arrow(kind: DataType) -> pa.DataType:
    """Return Arrow's type for whale-ray's."""
    if kind.family == "timestamp":
        return pa.timestamp(kind.unit, kind.timezone)
    if kind.family in _UNIT_FAMILIES:
        return _UNIT_FAMILIES[kind.family](kind.unit)
    if kind.family == "decimal128":
        return pa.decimal128(kind.precision, kind.scale)
    if kind.family == "fixed_size_binary":
        return pa.binary(kind.width)
    return pa.type_for_alias(kind.name)


def batch_from_arrow(data: pa.RecordBatch | pa.Table) -> Batch:
    """See `Batch.from_arrow`."""
    schema = schema_from_arrow(data.schema)
    columns = [
        column_from_arrow(array, field.type, f"column {field.name!r}")
        for field, array in zip(schema, data.columns, strict=True)
    ]
    return Batch(schema, columns, data.num_rows)


def batch_to_arrow(batch: Batch) -> pa.RecordBatch:
    """See `Batch.to_arrow`."""
    arrays = [column_to_arrow(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_to_arrow(batch.schema))


def column_from_arrow(
    array: pa.Array | pa.ChunkedArray,
    kind: DataType,
    what: str,
    *,
    of_source: bool = False,
    is_checked: bool = False,
) -> Column:
    """Return a column of an Arrow array's values; `kind` is the array's own type.

    `of_source`: its memory is a source's, and so no ring's, and the column is `owned`;
    `is_checked`: texts are known to lie within it.

    Raises:
        InputError: it holds more than 2 GiB of text; the message names `what`.
    """
    if isinstance(array, pa.ChunkedArray):
        array = _one_array(array, what)
    rows, start, buffers = len(array), array.offset, array.buffers()
    validity = None
    if array.null_count and buffers[0] is not None:
        validity = _from_bits(buffers[0], start, rows)
    if kind.kind == "fixed":
        if kind.family == "bool":
            return Column(kind, _from_bits(buffers[1], start, rows), None, validity)
        values = _from_buffer(buffers[1], kind.storage, start, rows, of_source)
        make = trusted_column if of_source else Column
        return make(kind, values, None, validity)
    if rows == 0:
        return Column(kind, np.empty(0, np.uint8), np.zeros(1, np.int32), validity)
    pool_bytes = buffers[2].size if buffers[2] else 0
    pool = _from_buffer(buffers[2], np.dtype(np.uint8), 0, pool_bytes, of_source)
    if not kind.family.startswith("large"):
        offsets = _from_buffer(buffers[1], np.dtype(np.int32), start, rows + 1, of_source)
        make = trusted_column if of_source and is_checked else Column
        return make(kind, pool, offsets, validity)
    wide = _from_buffer(buffers[1], np.dtype(np.int64), start, rows + 1, of_source)
    first, last = int(wide[0]), int(wide[-1])
    if last - first > _POOL_BYTES_MAX:
        raise InputError(_too_large(what, last - first))
    return Column(kind, pool[first:last], (wide - first).astype(np.int32), validity)


def column_to_arrow(column: Column) -> pa.Array:
    """Return the column in Arrow; it shares the memory where layouts agree."""
    kind, rows = column.type, len(column)
    validity = None if column.validity is None else _to_bits(column.validity)
    buffers = [validity]
    if kind.family == "bool":
        buffers.append(_to_bits(column.data))
    elif column.offsets is None:
        buffers.append(_to_buffer(column.data))
    else:
        offsets = column.offsets
        if kind.family.startswith("large"):
            offsets = offsets.astype(np.int64)
        buffers += [_to_buffer(offsets), _to_buffer(column.data)]
    return pa.Array.from_buffers(type_to_arrow(kind), rows, buffers, null_count=column.null_count)


def numbers_from_arrow(array: pa.Array) -> npt.NDArray[Any]:
    """Return an Arrow array of integers or floats, none of them null, as a view.

    Unlike Arrow's `to_numpy` it loads no pandas, where that is installed: 0.3 s of a processor for
    each process of a job.
    """
    kind = type_from_arrow(array.type, "numbers")
    return _from_buffer(array.buffers()[1], kind.storage, array.offset, len(array), False)


def _one_array(array: pa.ChunkedArray, what: str) -> pa.Array:
    if array.num_chunks == 1:
        return array.chunk(0)
    size = array.nbytes if pa.types.is_string(array.type) or pa.types.is_binary(array.type) else 0
    if size > _POOL_BYTES_MAX:
        raise InputError(_too_large(what, size))
    return pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)


def _too_large(what: str, size: int) -> str:
    return (
        f"{what} holds {size / (1 << 30):.1f} GiB of text in one batch, more than 2 GiB; "
        f"read it in smaller batches"
    )


def _from_buffer(
    buffer: pa.Buffer | None, dtype: np.dtype[Any], start: int, count: int, of_source: bool
) -> npt.NDArray[Any]:
    if count == 0 or buffer is None:
        return np.empty(0, dtype)
    if not of_source:
        return np.frombuffer(buffer, dtype, count, start * dtype.itemsize)
    begin, size = start * dtype.itemsize, count * dtype.itemsize
    if begin + size > buffer.size:
        msg = f"an array of Arrow's has {buffer.size} bytes where its values end at {begin + size}"
        raise InputError(msg)
    array = np.asarray(SourceMemory(buffer.address + begin, count, dtype, buffer))
    if not array.flags.aligned:
        array = array.copy()
        array.flags.writeable = False
    return array


def _from_bits(buffer: pa.Buffer | None, start: int, count: int) -> npt.NDArray[np.bool_]:
    if count == 0 or buffer is None:
        return np.empty(0, np.bool_)
    first = start // 8
    last = (start + count + 7) // 8
    bits = np.frombuffer(buffer, np.uint8, last - first, first)
    skipped = start - 8 * first
    found = np.unpackbits(bits, count=skipped + count, bitorder="little")[skipped:].view(np.bool_)
    found.setflags(write=False)  # as other columns: operators share them
    return found


def _to_buffer(array: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(array.view(np.uint8))


def _to_bits(array: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(array, bitorder="little"))


def _remedy(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return f"cast it to {kind.value_type}"
    if str(kind) in ("string_view", "binary_view"):
        return f"cast it to {str(kind).removesuffix('_view')}"
    if pa.types.is_decimal(kind):
        return f"cast it to decimal128({min(kind.precision, 38)}, {kind.scale})"
    if pa.types.is_null(kind):
        return "declare the type of its nulls (of pandas' column: astype('string'), for example)"
    if pa.types.is_nested(kind):
        return "make its parts columns of their own, or turn it into a string"
    return "cast it to one of the supported types"
