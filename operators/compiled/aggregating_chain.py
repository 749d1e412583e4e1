"""`AggregatingChain`: a chain of operators and the partial aggregate behind it, as one loop.

Batches go in, and what is in the groups of the partial aggregate changes. The loop takes a batch if
it takes all of the chain; else, as for rows that may be late, the operators themselves do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...transport.wire.arrow import column_from_arrow, column_to_arrow, numbers_from_arrow
from ...transport.wire.batch import Batch
from ..expressions.emitters.code import NotCompilable
from ..transform_bases import Transform
from .aggregating_text import AggregatingText, CodedKey, write_aggregating_loop
from .compiled_chain import (
    COMPILE_AFTER_ROWS,
    LookupTable,
    Mode,
    compiled_or_none,
    input_arrays,
    is_kept,
    made,
    passed_by_each,
    rows_of,
    taken,
    types_of_inputs,
)
from .loop_function import Begin, LoopFunction, begin_beside

if TYPE_CHECKING:
    from ...transport.wire.column import Column
    from ...transport.wire.types import Schema
    from ..windows.loop_groups import LoopGroups
    from ..windows.partial_windows import PartialWindows
    from .loop_text import Step
    from .table_lookup import TableLookup

__all__ = ["Aggregated", "AggregatingChain"]

_NO_TIMES = np.empty(0, np.int64)


class Aggregated(NamedTuple):
    """What became of a batch.

    Attributes:
        counts: how many rows came out of each operator of the chain.
        schemas: what they were.
        rows: how many were aggregated.
        before: the columns of those.
        deltas: what had to leave to make room.
    """

    counts: tuple[int, ...]
    schemas: tuple[Schema, ...]
    rows: int
    before: Schema
    deltas: list[Batch]


class _Coded(NamedTuple):
    """The code of each value of a column, int32 (n,), and the value of each code."""

    codes: npt.NDArray[np.int32]
    values: Column


class AggregatingChain:
    """The loops of a chain that end in a partial aggregate.

    Args:
        operators: in the order in which rows pass them, maybe none; a table join as its table.
        partial: the aggregate.
        mode: as for `CompiledChain`.
        begin: as for `CompiledChain`.
    """

    def __init__(
        self,
        operators: Sequence[Transform | LookupTable],
        partial: PartialWindows,
        mode: Mode,
        begin: Begin = begin_beside,
    ) -> None:
        self._begin = begin
        self._operators, self._partial, self._mode = tuple(operators), partial, mode
        self._has_tables = not all(isinstance(one, Transform) for one in operators)
        self._steps: tuple[Step, ...] = ()
        self._rows_seen = 0
        self._variants: dict[tuple[Schema, bool, bool], _AggregatingLoop] = {}
        self._coded: dict[CodedKey, _Coded] = {}

    def aggregate(self, batch: Batch) -> Aggregated | None:
        """Aggregate what comes of a batch; None if the operators themselves must take it.

        Raises:
            StateFullError: the worker's memory for state is used up.
        """
        if self._mode == "interpreted" or not batch.num_rows:
            return None
        self._rows_seen += batch.num_rows
        is_due = self._mode == "compiled" or self._rows_seen > COMPILE_AFTER_ROWS
        if (self._has_tables and not is_due) or not self._partial.takes_from_loop(batch):
            return None
        self._look_at_tables()
        variant = self._variant(batch.schema, nullable=False, has_times=batch.has_times)
        if variant.text is None:
            return None
        columns = [batch.column(name) for name in variant.names]
        if any(column.validity is not None for column in columns):
            variant = self._variant(batch.schema, nullable=True, has_times=batch.has_times)
            if variant.text is None:
                return None
            columns = [batch.column(name) for name in variant.names]
        loop = variant.function.get(at_once=self._mode == "compiled", is_due=is_due)
        if loop is None:
            return None
        variant.find_codes(self._code)
        return variant.run(loop, batch, columns, self._partial)

    def warm_up(self, schema: Schema, *, has_times: bool) -> bool:
        """Load or compile the loop of rows that are to come; see `CompiledChain.warm_up`.

        Returns whether there is one, as far as is known before tables are there.
        """
        if self._mode == "interpreted" or self._has_tables:
            return False
        self._look_at_tables()
        plain, nullable = (
            self._variant(schema, nullable=nullable, has_times=has_times)
            for nullable in (False, True)
        )
        plain.function.get(at_once=self._mode == "compiled", is_due=False)
        nullable.function.get(at_once=False, is_due=False)
        return plain.text is not None

    def _look_at_tables(self) -> None:
        """Forget all loops if a table has other rows."""
        steps = tuple(one if isinstance(one, Transform) else one.lookup for one in self._operators)
        if steps != self._steps:
            self._steps = steps
            self._variants.clear()
            self._coded.clear()

    def _code(self, lookup: TableLookup, key: CodedKey) -> _Coded:
        """Return the codes of a table's column; the same ones for all loops."""
        found = self._coded.get(key)
        if found is None:
            added = rows_of(lookup).added
            assert added is not None
            found = self._coded[key] = _coded(added.column(key.name))
        return found

    def _variant(self, schema: Schema, *, nullable: bool, has_times: bool) -> _AggregatingLoop:
        key = schema, nullable, has_times
        found = self._variants.get(key)
        if found is None:
            try:
                text = write_aggregating_loop(
                    self._steps,
                    self._partial.asked,
                    schema,
                    nullable=nullable,
                    has_times=has_times,
                )
            except NotCompilable:
                text = None
            found = self._variants[key] = _AggregatingLoop(schema, text, self._begin)
        return found


class _AggregatingLoop:
    """One loop: for rows of one schema, with or without nulls, with or without event times."""

    def __init__(self, schema: Schema, text: AggregatingText | None, begin: Begin) -> None:
        self.text = text
        self.names = () if text is None else tuple(schema.names[at] for at in text.columns)
        self.function = LoopFunction(
            self._make, is_kept=text is not None and is_kept(text), begin=begin
        )
        self._schema = schema
        self._codes: list[npt.NDArray[np.int32]] = []
        self._values: dict[int, Column] = {}

    def _make(self) -> Any:
        return (
            None if self.text is None else compiled_or_none(self.text, self._signature(self.text))
        )

    def find_codes(self, code: Callable[[TableLookup, CodedKey], _Coded]) -> None:
        """Learn the codes of keys that are columns of tables, before the first run."""
        assert self.text is not None
        if len(self._codes) == len(self.text.codes):
            return
        for number, key in self.text.codes.items():
            codes, self._values[number] = code(self.text.lookups[key.lookup], key)
            self._codes.append(codes)

    def _signature(self, text: AggregatingText) -> tuple[Any, ...]:
        import numba

        types = [numba.int64, numba.int64, made(np.int64), made(np.int64), taken(np.int64)]
        types += types_of_inputs(text, self._schema)
        types += [taken(np.int32) for _ in text.codes]
        for _ in text.texts:
            types += [made(np.int32), made(np.uint8), made(np.int32), made(np.int64)]
        return (*types, made(np.int32), made(text.record))

    def run(
        self, loop: Any, batch: Batch, read: Sequence[Column], partial: PartialWindows
    ) -> Aggregated:
        """Aggregate a batch, of which `read` are the columns that `names` names."""
        text = self.text
        assert text is not None
        counts = np.zeros(text.filters, np.int64)
        times = _NO_TIMES if batch.times is None else batch.times
        inputs = [*input_arrays(text, read), *self._codes]
        deltas = partial.make_room(text.before, text.record, self._values)
        start, rows, before = 0, batch.num_rows, 0
        while True:
            groups: LoopGroups = partial.loop_groups
            codes = [array for one in text.texts for array in groups.texts[one].arrays]
            found = groups.index, groups.records
            stop = loop(start, rows, counts, groups.marks, times, *inputs, *codes, *found)
            passed = int(counts[-1]) if text.filters else stop
            partial.note_aggregated(batch, passed - before)
            if stop == rows:
                break
            start, before = stop, passed
            deltas += partial.make_room(text.before, text.record, self._values)
        deltas += partial.flush_if_due()
        return Aggregated(
            passed_by_each(text, counts, rows), text.schemas, passed, text.before, deltas
        )


def _coded(column: Column) -> _Coded:
    encoded = column_to_arrow(column).dictionary_encode(null_encoding="encode")
    codes = numbers_from_arrow(encoded.indices).astype(np.int32)
    return _Coded(codes, column_from_arrow(encoded.dictionary, column.type, "a table"))
