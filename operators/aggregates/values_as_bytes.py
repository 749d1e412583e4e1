"""Values that are no numbers, as bytes whose order is theirs: text by its code points, decimals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...transport.wire.column import Column
from ...transport.wire.types import DataType

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["bytes_type", "bytes_values", "values_of_bytes"]

_BINARY = DataType.parse("binary")
_SIGN = np.uint8(0x80)


def bytes_type(kind: DataType) -> DataType:
    """Return the type of the bytes of values of a type: itself if it is text or binary."""
    return kind if kind.kind == "bytes" else _BINARY


def bytes_values(column: Column) -> Column:
    """Return values as text or binary, whose order as bytes is that of the values.

    Of a decimal these are its 16 bytes, the highest first, with the sign turned; bytes of a fixed
    size are binary as they are.
    """
    if column.type.kind == "bytes":
        return column
    rows, width = len(column), column.type.width
    pool = np.ascontiguousarray(column.data).view(np.uint8).reshape(rows, width)
    if column.type.family == "decimal128":
        pool = pool[:, ::-1].copy()
        pool[:, 0] ^= _SIGN
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return Column(_BINARY, pool.reshape(-1), offsets, column.validity)


def values_of_bytes(
    kind: DataType, column: Column, validity: npt.NDArray[np.bool_] | None
) -> Column:
    """Return the values of a type whose bytes `bytes_values` returned.

    Args:
        kind: the type.
        column: the bytes, without any where a value is null.
        validity: where there is a value, bool (n,); None: everywhere.
    """
    if kind.kind == "bytes":
        return Column(kind, column.data, column.offsets, validity)
    pool: npt.NDArray[Any] = np.zeros((len(column), kind.width), np.uint8)
    rows = slice(None) if validity is None else validity
    pool[rows] = column.data.reshape(-1, kind.width)
    if kind.family == "decimal128":
        pool = pool[:, ::-1].copy()
        if validity is not None:
            pool[~validity, -1] = _SIGN
        pool[:, -1] ^= _SIGN
    return Column(kind, pool.reshape(-1).view(kind.storage), None, validity)
