"""`AggregatingChain`: a chain of operators and the partial aggregate behind it, as one loop.

Batches go in, and what is in the groups of the partial aggregate changes. The loop takes a batch if
it takes all of the chain; else, as for rows that may be late, the operators themselves do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...transport.wire.arrow import column_from_arrow, column_to_arrow, numbers_from_arrow
from ..expressions.emitters.code import NotCompilable
from ..windows.block_times import BLOCK_ROWS, NO_BLOCK_TIMES, BlockTimes
from ..windows.loop_groups import GOLDEN
from .aggregating_text import AggregatingText, CodedKey, write_aggregating_loop
from .chain_loops import ChainLoops, LookupTable, LoopVariant, Mode
from .coded_texts import dictionary_of
from .loop_arguments import input_arrays, made, passed_by_each, rows_of, taken, types_of_inputs

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.column import Column
    from ...transport.wire.types import Schema
    from ..transform_bases import Transform
    from ..windows.loop_groups import LoopGroups
    from ..windows.partial_windows import PartialWindows
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
    """The codes of a column as loops read them, int32 (n,), and the value of each code."""

    codes: npt.NDArray[np.int32]
    values: Column


class AggregatingChain(ChainLoops["_AggregatingLoop"]):
    """The loops of a chain that end in a partial aggregate.

    Args:
        operators: in the order in which rows pass them, maybe none; a table join as its table.
        partial: the aggregate.
        mode: as for `ChainLoops`.
    """

    def __init__(
        self, operators: Sequence[Transform | LookupTable], partial: PartialWindows, mode: Mode
    ) -> None:
        super().__init__(operators, mode)
        self._partial = partial
        self._coded: dict[CodedKey, _Coded] = {}
        self._block_times: BlockTimes | None = NO_BLOCK_TIMES

    def aggregate(self, batch: Batch, *, may_begin: bool = True) -> Aggregated | None:
        """Aggregate what comes of a batch; None if the operators themselves must take it.

        `may_begin`: whether a loop may begin to be compiled beside the rows.

        Raises:
            StateFullError: the worker's memory for state is used up.
        """
        found = self._fitting(batch, may_begin)
        if found is None:
            return None
        found.variant.find_codes(self._code)
        assert self._block_times is not None
        return found.variant.run(found.loop, batch, self._block_times, found.columns, self._partial)

    def warm_up(self, schema: Schema, *, has_times: bool, coded: Collection[str] = ()) -> bool:
        """Load or compile the loop of rows that are to come; see `CompiledChain.warm_up`.

        Returns whether there is one, as far as is known before tables are there.
        """
        plain = self._prepared(schema, has_times=has_times, coded=coded)
        return plain is not None and plain.text is not None

    def _takes(self, batch: Batch) -> bool:
        self._block_times = self._partial.takes_from_loop(batch)
        return self._block_times is not None

    def _forget_loops(self) -> None:
        super()._forget_loops()
        self._coded.clear()

    def _code(self, lookup: TableLookup, key: CodedKey) -> _Coded:
        """Return the codes of a table's column; the same ones for all loops."""
        found = self._coded.get(key)
        if found is None:
            added = rows_of(lookup).added
            assert added is not None
            coded = _coded(added.column(key.name))
            if lookup.is_dense:  # by place
                rows = rows_of(lookup).slots + (0 if lookup.filters else 1)
                coded = coded._replace(codes=coded.codes[np.maximum(rows, 0)])
            found = self._coded[key] = coded
        return found

    def _write(
        self, schema: Schema, *, nullable: bool, has_times: bool, coded: frozenset[int]
    ) -> _AggregatingLoop:
        asked = self._partial.asked
        try:
            text = write_aggregating_loop(
                self._steps, asked, schema, nullable=nullable, has_times=has_times, coded=coded
            )
        except NotCompilable:
            text = None
        return _AggregatingLoop(schema, text)


class _AggregatingLoop(LoopVariant[AggregatingText]):
    def __init__(self, schema: Schema, text: AggregatingText | None) -> None:
        super().__init__(schema, text)
        self._codes: list[npt.NDArray[np.int32]] = []
        self._values: dict[int, Column] = {}
        self._selected = np.empty(BLOCK_ROWS, np.uint32)

    def find_codes(self, code: Callable[[TableLookup, CodedKey], _Coded]) -> None:
        """Learn the codes of keys that are columns of tables, before the first run."""
        assert self.text is not None
        if len(self._codes) == len(self.text.codes):
            return
        for number, key in self.text.codes.items():
            codes, self._values[number] = code(self.text.lookups[key.lookup], key)
            self._codes.append(codes)

    def signature(self, text: AggregatingText) -> tuple[Any, ...]:
        """See `LoopVariant`."""
        import numba

        types = [numba.int64, made(np.int64), made(np.int64), made(np.int64), made(np.uint32)]
        types += [taken(np.int64) for _ in ("times", *BlockTimes._fields)]
        types += types_of_inputs(text, self._schema)
        types += [taken(np.int32) for _ in text.codes]
        for one in text.texts:
            types += [made(np.int32), made(np.uint8), made(np.int32), made(np.int64)]
            if one in text.coded_keys:
                types.append(made(np.int32))
        return (*types, made(np.int32), made(np.int32), made(text.record))

    def run(
        self,
        loop: Any,
        batch: Batch,
        block_times: BlockTimes,
        read: Sequence[Column],
        partial: PartialWindows,
    ) -> Aggregated:
        """Aggregate a batch, of which `read` are the columns that `names` names."""
        text = self.text
        assert text is not None
        counts, progress = np.zeros(text.filters, np.int64), np.zeros(3, np.int64)
        times = _NO_TIMES if batch.times is None else batch.times, *block_times
        inputs = [*input_arrays(text, read, self.kept), *self._codes]
        entries = {
            number: dictionary_of(read[text.columns.index(at)])
            for number, at in text.coded_keys.items()
        }
        places = 0 if text.direct is None else len(rows_of(text.lookups[text.direct]).slots)
        room = text.before, text.record, self._values, places
        deltas = partial.make_room(*room)
        rows, noted, done = batch.num_rows, 0, False
        while not done:
            groups: LoopGroups = partial.loop_groups
            codes = [
                array
                for one in text.texts
                for array in groups.texts[one].arrays_for(entries.get(one))
            ]
            arrays = [*inputs, *codes, groups.direct, groups.index, groups.records]
            done = loop(rows, counts, groups.marks, progress, self._selected, *times, *arrays)
            passed = int(counts[-1] if text.filters else progress[0])
            partial.note_aggregated(batch, passed - noted)
            noted = passed
            if not done:
                deltas += partial.make_room(*room)
        deltas += partial.flush_if_due()
        return Aggregated(
            passed_by_each(text, counts, rows), text.schemas, passed, text.before, deltas
        )


def _coded(column: Column) -> _Coded:
    encoded = column_to_arrow(column).dictionary_encode(null_encoding="encode")
    codes = numbers_from_arrow(encoded.indices).astype(np.uint32) * np.uint32(GOLDEN)
    return _Coded(
        codes.view(np.int32), column_from_arrow(encoded.dictionary, column.type, "a table")
    )
