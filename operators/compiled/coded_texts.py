"""What a loop reads of columns whose texts are codes of a dictionary, beside the codes.

What depends on such a column alone is computed once for each text of the dictionary, by the
kernels, and looked up by the code. The row of a table and the code of a key are found in the loop,
once for each text that occurs. All of it is kept for the last few dictionaries, since batches of
several files may come by turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...transport.wire.arrow import type_from_arrow
from ...transport.wire.arrow_dictionaries import DICTIONARIES_KEPT
from ...transport.wire.batch import Batch
from ...transport.wire.coded_column import CodedColumn, Dictionary
from ...transport.wire.types import Field, Schema
from ..expressions.evaluation import Environment

if TYPE_CHECKING:
    from ...transport.wire.column import Column
    from ..expressions.emitters.code import EntryTable

__all__ = ["NOT_CODED", "CodedParts", "KeptForDictionaries", "dictionary_of"]

_UNKNOWN_ROW = np.iinfo(np.int64).max
"""What `row_of_entry` replaces."""


@dataclass(frozen=True)
class CodedParts:
    """What a loop reads by codes.

    Attributes:
        columns: the numbers of the columns whose texts are codes.
        tables: what is computed for each text.
        probes: the column of each look-up in a table by such a text, by the look-up's number.
    """

    columns: frozenset[int]
    tables: tuple[EntryTable, ...]
    probes: Mapping[int, int]

    @property
    def dtypes(self) -> list[np.dtype[Any]]:
        """Of the arrays that `KeptForDictionaries` returns; those of probes are written."""
        found: list[np.dtype[Any]] = []
        for table in self.tables:
            found += _dtypes_of(table)
        return found


NOT_CODED = CodedParts(frozenset(), (), {})


class _OfDictionary(NamedTuple):
    dictionary: Dictionary
    arrays: list[npt.NDArray[Any]]


class KeptForDictionaries:
    """The arrays of one loop for the last few dictionaries of each column."""

    def __init__(self, parts: CodedParts) -> None:
        self._parts = parts
        self._kept: dict[tuple[str, int], list[_OfDictionary]] = {}  # the last used first

    def arrays(self, columns: Mapping[int, Column]) -> list[npt.NDArray[Any]]:
        """Return the loop's arguments, for the columns of a batch by their numbers.

        Of each table the values and whether they are valid, if they may be null; then of each probe
        int64 (codes,): the row of a text, for the loop to fill in.
        """
        found = []
        for number, table in enumerate(self._parts.tables):
            dictionary = dictionary_of(columns[table.column])
            found += self._of(("table", number), dictionary, partial(_computed, table))
        for lookup, column in self._parts.probes.items():
            dictionary = dictionary_of(columns[column])
            found += self._of(("probe", lookup), dictionary, _unknown_rows)
        return found

    def _of(
        self,
        wanted: tuple[str, int],
        dictionary: Dictionary,
        make: Callable[[Dictionary], list[npt.NDArray[Any]]],
    ) -> list[npt.NDArray[Any]]:
        """Return what is kept for a dictionary; make it if there is nothing."""
        kept = self._kept.setdefault(wanted, [])
        for place, one in enumerate(kept):
            if one.dictionary is dictionary:
                kept.insert(0, kept.pop(place))
                return one.arrays
        kept.insert(0, _OfDictionary(dictionary, make(dictionary)))
        del kept[DICTIONARIES_KEPT:]
        return kept[0].arrays


def _unknown_rows(dictionary: Dictionary) -> list[npt.NDArray[Any]]:
    return [np.full(len(dictionary), _UNKNOWN_ROW)]


def dictionary_of(column: Column) -> Dictionary:
    """Return the texts of a column that is coded."""
    assert isinstance(column, CodedColumn)
    return column.dictionary


def _dtypes_of(table: EntryTable) -> list[np.dtype[Any]]:
    storage = type_from_arrow(table.kind, "a table of texts").storage
    return [storage, np.dtype(np.bool_)] if table.nullable else [storage]


def _computed(table: EntryTable, dictionary: Dictionary) -> list[npt.NDArray[Any]]:
    """Return the values of an expression for each text and for null, and whether they are valid."""
    rows = dictionary.rows
    names = sorted(table.expression.columns)
    schema = Schema(tuple(Field(name, rows.type) for name in names))
    values = Environment(Batch(schema, [rows] * len(names))).evaluate(table.expression)
    arrays = [values.data]
    if table.nullable:
        valid = values.validity
        arrays.append(np.ones(len(rows), np.bool_) if valid is None else valid)
    assert [array.dtype for array in arrays] == _dtypes_of(table)
    return arrays
