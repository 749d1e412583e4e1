"""What a loop is called with: the arrays of columns and of tables, and their types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ...transport.wire.coded_column import CodedColumn
from ...transport.wire.column import Column

if TYPE_CHECKING:
    from ...transport.wire.types import Schema
    from ..joins.unique_rows import UniqueRows
    from .coded_texts import CodedParts, KeptForDictionaries
    from .table_lookup import TableLookup

__all__ = [
    "LoopInputs",
    "input_arrays",
    "made",
    "passed_by_each",
    "rows_of",
    "taken",
    "types_of_inputs",
]


class LoopInputs(Protocol):
    """What a loop reads; attributes as of `LoopText`."""

    @property
    def nullable(self) -> bool:
        """See `LoopText`."""

    @property
    def is_filter(self) -> tuple[bool, ...]:
        """See `LoopText`."""

    @property
    def lookups(self) -> tuple[TableLookup, ...]:
        """See `LoopText`."""

    @property
    def columns(self) -> tuple[int, ...]:
        """See `LoopText`."""

    @property
    def text_bytes(self) -> int:
        """See `LoopText`."""

    @property
    def coded(self) -> CodedParts:
        """See `LoopText`."""


def taken(dtype: np.dtype[Any] | type) -> Any:
    """Return numba's type of an array that a loop reads."""
    import numba

    return numba.types.Array(numba.from_dtype(np.dtype(dtype)), 1, "C", readonly=True)


def made(dtype: np.dtype[Any] | type) -> Any:
    """Return numba's type of an array that a loop writes."""
    import numba

    return numba.types.Array(numba.from_dtype(np.dtype(dtype)), 1, "C")


def types_of_inputs(text: LoopInputs, schema: Schema) -> list[Any]:
    """Return numba's types of `input_arrays` of rows of a schema."""
    types = []
    for at in text.columns:
        type_ = schema.fields[at].type
        types.append(taken(type_.storage))
        if type_.kind == "bytes":
            types.append(taken(np.int32))
        if at in text.coded.columns:
            types.append(taken(np.int32))
        if text.nullable:
            types.append(taken(np.bool_))
    types += [taken(array.dtype) for array in _table_arrays(text)]
    types += [taken(dtype) for dtype in text.coded.dtypes]
    return [*types, *(made(np.int64) for _ in text.coded.probes)]


def _table_arrays(text: LoopInputs) -> list[npt.NDArray[Any]]:
    """Return what the loop reads of tables."""
    return [array for one in text.lookups for array in rows_of(one).arrays]


def rows_of(lookup: TableLookup) -> UniqueRows:
    """Return the rows of a table that a loop reads."""
    assert lookup.rows is not None  # else its loop is not written
    return lookup.rows


def input_arrays(
    text: LoopInputs, read: Sequence[Column], kept: KeptForDictionaries
) -> list[npt.NDArray[Any]]:
    """Return what the loop reads: the columns that it names, then what is of tables, then `kept`.

    `kept`: what is computed for each text of a dictionary.
    """
    arguments: list[npt.NDArray[Any]] = []
    for column in read:
        if isinstance(column, CodedColumn):
            texts = column.dictionary.values
            assert texts.offsets is not None
            arguments += (_pool(texts.data, text.text_bytes), _aligned(texts.offsets))
            arguments.append(_aligned(column.codes))
        elif column.offsets is None:
            arguments.append(_aligned(column.data))
        else:
            arguments += (_pool(column.data, text.text_bytes), _aligned(column.offsets))
        if text.nullable:
            valid = column.validity
            arguments.append(np.ones(len(column), np.bool_) if valid is None else valid)
    by_number = dict(zip(text.columns, read, strict=True))
    return [*arguments, *_table_arrays(text), *kept.arrays(by_number)]


def _aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array if array.flags.aligned else array.copy()


def _pool(data: npt.NDArray[np.uint8], least: int) -> npt.NDArray[np.uint8]:
    """Return a pool that can be read up to the length of a literal, whatever it holds."""
    if data.size >= least:
        return data
    return np.concatenate([data, np.zeros(least - data.size, np.uint8)])


def passed_by_each(text: LoopInputs, counts: npt.NDArray[np.int64], rows: int) -> tuple[int, ...]:
    """Return how many rows came out of each operator."""
    found, passing = [], rows
    after = iter(counts.tolist())
    for filters in text.is_filter:
        passing = next(after) if filters else passing
        found.append(passing)
    return tuple(found)
