"""Keys of both sides of a join in one type, where they may be equal and have different types."""

from __future__ import annotations

from collections.abc import Sequence

from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import DataType, Field, Schema

__all__ = ["as_type", "common_keys", "common_type"]

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def common_type(kind: DataType) -> DataType:
    """Return the widest type whose values may equal those of a type.

    The integers that fit into int64 have one, floats, texts and bytes of variable size each have
    one. Any other type stands for itself: its keys equal none of another type.
    """
    if kind.kind == "bytes":
        return DataType.parse("string" if kind.is_text else "binary")
    if kind.family in _INTEGERS:
        return DataType.parse("int64")
    return DataType.parse("double") if kind.storage.kind == "f" else kind


def as_type(column: Column, kind: DataType) -> Column:
    """Return the same values in another type that can hold them; see `common_type`."""
    if column.type == kind:
        return column
    data = column.data if kind.kind == "bytes" else column.data.astype(kind.storage, copy=False)
    return Column(kind, data, column.offsets, column.validity)


def common_keys(batch: Batch, columns: Sequence[str]) -> Batch:
    """Return the key columns of rows, of common types, named by their position."""
    made = []
    for name in columns:
        column = batch.column(name)
        made.append(as_type(column, common_type(column.type)))
    fields = tuple(Field(str(at), column.type) for at, column in enumerate(made))
    return Batch(Schema(fields), made, batch.num_rows)
