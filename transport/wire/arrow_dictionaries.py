"""Arrow's dictionary arrays of text as coded columns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ...configs.errors import InputError
from .arrow import column_from_arrow, schema_from_arrow
from .batch import Batch
from .coded_column import CodedColumn, Dictionary
from .column import Column
from .text_kernels import codes_fit
from .types import SCHEMAS_REMEMBERED, DataType, Schema

__all__ = ["DICTIONARIES_KEPT", "DICTIONARY_TEXTS_MAX", "DictionaryBatches", "is_text_dictionary"]

DICTIONARY_TEXTS_MAX = 1 << 14
"""Columns of more texts are decoded: what is computed for each text would leave the caches."""

DICTIONARIES_KEPT = 4
"""Of each column, so many dictionaries are known again."""

_DECODED_BYTES_MAX = 1 << 30
"""Columns that could be larger than that are decoded where they are read, which may be refused."""


class _Step(NamedTuple):
    """How a column is made of an array: its place, its name and type, what it is cast to."""

    at: int
    name: str
    type: DataType
    cast: pa.DataType | None
    is_coded: bool


class DictionaryBatches:
    """Makes batches of a source's record batches, whose columns of text may be dictionary arrays.

    It remembers the last few dictionaries of each column: where the next has the texts of one, that
    is used again, so that what was computed for its texts is.
    """

    def __init__(self) -> None:
        self._last: dict[str, list[tuple[pa.Array, Dictionary]]] = {}  # the last used first
        self._found = self._wanted = pa.schema([])
        self._schema = Schema(())
        self._steps: list[_Step] = []

    def batch(
        self,
        data: pa.RecordBatch,
        wanted: pa.Schema | None = None,
        check: Callable[[str, pa.Array], None] | None = None,
    ) -> Batch:
        """Return the rows, `owned`; their memory is a source's. See `batch_from_arrow`.

        Args:
            data: the rows, and maybe other columns.
            wanted: the columns and their plain types, to which others are cast; None: those of
                `data`.
            check: takes the name and the array of each column first, and raises if texts lie
                outside its memory; without it, that is looked at here.
        """
        found = data.schema
        wanted = found if wanted is None else wanted
        if not (found.equals(self._found) and wanted.equals(self._wanted)):
            self._found, self._wanted = found, wanted
            self._schema = schema = _plain_schema(wanted)
            self._steps = [
                _step(found, field, plain.type) for field, plain in zip(wanted, schema, strict=True)
            ]
        columns = []
        for step in self._steps:
            array = data.column(step.at)
            if check is not None:
                check(step.name, array)
            columns.append(self._column(array, step, is_checked=check is not None))
        return Batch(self._schema, columns, data.num_rows)

    def _column(self, array: pa.Array, step: _Step, *, is_checked: bool) -> Column:
        what = f"column {step.name!r}"
        if step.is_coded:
            dictionary = self._texts_of(array, step.name, step.type)
            if dictionary is not None and dictionary.longest * len(array) <= _DECODED_BYTES_MAX:
                return _coded(array, dictionary, what)
        if step.cast is not None:
            array = array.cast(step.cast)
        return column_from_arrow(array, step.type, what, of_source=True, is_checked=is_checked)

    def _texts_of(self, array: pa.DictionaryArray, name: str, kind: DataType) -> Dictionary | None:
        """Return the texts of an array; None if it is not worth its while to keep them coded."""
        texts = array.dictionary
        if len(texts) > DICTIONARY_TEXTS_MAX or texts.null_count:
            return None
        last = self._last.setdefault(name, [])
        for place, (before, one) in enumerate(last):
            if texts.equals(before):
                last.insert(0, last.pop(place))
                return one
        if len(texts) > len(array):  # most of its texts would be looked at for nothing
            return None
        values = column_from_arrow(texts, kind, f"column {name!r}", of_source=True)
        last.insert(0, (texts, Dictionary(values)))
        del last[DICTIONARIES_KEPT:]
        return last[0][1]


def is_text_dictionary(kind: pa.DataType) -> bool:
    """Whether arrays of a type can be coded columns."""
    if not pa.types.is_dictionary(kind):
        return False
    return bool(pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type))


def _step(found: pa.Schema, wanted: pa.Field, kind: DataType) -> _Step:
    at = found.get_field_index(wanted.name)
    given, plain = found.field(at).type, wanted.type
    is_coded = is_text_dictionary(given)
    if is_text_dictionary(plain):
        plain = plain.value_type
    return _Step(
        at,
        wanted.name,
        kind,
        None if given == plain else plain,
        is_coded and given.value_type == plain,
    )


def _coded(array: pa.DictionaryArray, dictionary: Dictionary, what: str) -> CodedColumn:
    """Return the column; raise InputError for a code that is none of the dictionary's.

    Loops trust codes, and Arrow does not check them in memory that it is given.
    """
    indices = array.indices if array.indices.type == pa.int32() else array.indices.cast(pa.int32())
    column = column_from_arrow(indices, DataType.parse("int32"), what, of_source=True)
    codes = column.data
    used = codes if column.validity is None else codes[column.validity]
    if not codes_fit(used.__array_interface__["data"][0], used.size, dictionary.null):
        low, high = used.min(), used.max()
        msg = (
            f"{what} holds the code {low if low < 0 else high}, and its dictionary has"
            f" {dictionary.null} texts: the array is damaged, make it again"
        )
        raise InputError(msg)
    if column.validity is not None:  # what a null has as its code may be anything
        codes = np.where(column.validity, codes, np.int32(dictionary.null))
    return CodedColumn(dictionary, codes, column.validity)


@functools.lru_cache(maxsize=SCHEMAS_REMEMBERED)
def _plain_schema(schema: pa.Schema) -> Schema:
    plain = [
        field.with_type(field.type.value_type) if is_text_dictionary(field.type) else field
        for field in schema
    ]
    return schema_from_arrow(pa.schema(plain))
