"""`CompiledChain`: filters, projections and table look-ups in a row, as one loop per batch.

A loop begins with the first operator and takes as many as can be compiled, which depends on the
schema of the rows and on what the tables hold. The operators themselves do the rest, and everything
until the loop is compiled, with the same results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ..expressions.emitters.code import NotCompilable
from .chain_loops import ChainLoops, LoopVariant
from .loop_arguments import input_arrays, made, passed_by_each, rows_of, taken, types_of_inputs
from .loop_outputs import AtPlace, LookedUp, Output, Passed, by_place
from .loop_text import LoopText, NothingToCompute, Step, write_loop

if TYPE_CHECKING:
    from ...transport.wire.types import Schema

__all__ = ["CompiledChain", "Passing", "longest_loop"]

_NO_ROWS = np.empty(0, np.int64)
_SMALL_SHARE = 4
"""Columns are copied if they fill less than one part in so many of their memory."""


class Passing(NamedTuple):
    """What became of a batch: the rows that came out, and how many after each operator."""

    rows: Batch | None
    counts: tuple[int, ...]
    schemas: tuple[Schema, ...]


class CompiledChain(ChainLoops["_Variant"]):
    """The loops of a chain, from batches to batches."""

    def pass_through(self, batch: Batch, *, may_begin: bool = True) -> Passing | None:
        """Return what comes of a batch; None if the operators themselves must take it.

        `may_begin`: whether a loop may begin to be compiled beside the rows.
        """
        found = self._fitting(batch, may_begin)
        return None if found is None else found.variant.run(found.loop, batch, found.columns)

    def warm_up(self, schema: Schema, *, has_times: bool, coded: Collection[str] = ()) -> int:
        """Load or compile the loop of rows that are to come, as far as the mode says so.

        `coded`: the columns whose texts will be codes of a dictionary.

        Returns how many operators it takes; none if it depends on tables that are not there yet.
        """
        plain = self._prepared(schema, has_times=has_times, coded=coded)
        return 0 if plain is None or plain.text is None else len(plain.text.schemas)

    def _write(
        self, schema: Schema, *, nullable: bool, has_times: bool, coded: frozenset[int]
    ) -> _Variant:
        text, _ = longest_loop(
            self._steps, schema, nullable=nullable, has_times=has_times, coded=coded
        )
        return _Variant(schema, text)


class _Variant(LoopVariant[LoopText]):
    def __init__(self, schema: Schema, text: LoopText | None) -> None:
        super().__init__(schema, text)
        self._by_place: list[npt.NDArray[Any]] | None = None

    def signature(self, text: LoopText) -> tuple[Any, ...]:
        """See `LoopVariant`."""
        import numba

        types = [numba.int64, made(np.int64), made(np.int64), taken(np.int64), made(np.int64)]
        types += types_of_inputs(text, self._schema)
        types += [taken(one.type.storage) for one in text.outputs if isinstance(one, AtPlace)]
        types += [made(np.int64) for _ in text.numbered]
        for output in text.outputs:
            for array in _memory(text, output, self._schema, 0):
                if array is not None:
                    types.append(made(array.dtype))
        return tuple(types)

    def run(self, loop: Any, batch: Batch, read: Sequence[Column]) -> Passing | None:
        """Return what comes of a batch, of which `read` are the columns that `names` names.

        None if a user's function raised for one of its rows.
        """
        text = self.text
        assert text is not None
        rows, filters = batch.num_rows, text.filters
        counts = np.zeros(filters, np.int64)
        selected = np.empty(rows, np.int64) if text.selects else _NO_ROWS
        times, times_out = _NO_ROWS, _NO_ROWS
        if batch.times is not None:
            times = batch.times
            times_out = np.empty(rows, np.int64) if filters else _NO_ROWS
        outputs = [_memory(text, one, self._schema, rows) for one in text.outputs]
        written = [array for pair in outputs for array in pair if array is not None]
        arrays = [*input_arrays(text, read, self.kept), *self._values_by_place(text)]
        numbers = {lookup: np.empty(rows, np.int64) for lookup in text.numbered}
        try:
            loop(rows, counts, selected, times, times_out, *arrays, *numbers.values(), *written)
        except Exception:
            if text.functions:  # one of the user's raised: its operator says for what
                return None
            raise
        kept = int(counts[-1]) if filters else rows
        passing = passed_by_each(text, counts, rows)
        if not kept:
            return Passing(None, passing, text.schemas)
        times_kept = batch.times if kept == rows or not text.has_times else _cut(times_out, kept)
        looked_up = {at: _looked_up(text, at, one[:kept]) for at, one in numbers.items()}
        columns = _columns(text, batch, outputs, selected, looked_up, kept)
        made = Batch(text.schemas[-1], columns, kept, times_kept, batch.origin_ns)
        return Passing(made, passing, text.schemas)

    def _values_by_place(self, text: LoopText) -> Sequence[npt.NDArray[Any]]:
        """Return the columns of tables that the loop reads at places."""
        if self._by_place is None:
            self._by_place = [
                by_place(text.lookups[one.lookup], one.name)
                for one in text.outputs
                if isinstance(one, AtPlace)
            ]
        return self._by_place


def longest_loop(
    steps: Sequence[Step],
    schema: Schema,
    *,
    nullable: bool,
    has_times: bool,
    coded: frozenset[int] = frozenset(),
) -> tuple[LoopText | None, str]:
    """Return the loop of as many operators as can be in one, and why the next is not.

    `coded` as for `write_loop`. The loop is None if there is none; the reason is empty if all
    operators are in it.
    """
    found, why = None, ""
    for count in range(1, len(steps) + 1):
        try:
            found = write_loop(
                steps[:count], schema, nullable=nullable, has_times=has_times, coded=coded
            )
            why = ""
        except NothingToCompute as reason:
            why = str(reason)
        except NotCompilable as reason:
            return found, str(reason)
    return found, why


def _looked_up(text: LoopText, lookup: int, numbers: npt.NDArray[np.int64]) -> dict[str, Column]:
    """Return the columns of a table that the chain passes on, for these of its rows."""
    added = rows_of(text.lookups[lookup]).added
    assert added is not None
    wanted = {
        one.name: None for one in text.outputs if isinstance(one, LookedUp) and one.lookup == lookup
    }
    rows = added.select(list(wanted)).take(numbers)
    return dict(zip(wanted, rows.columns, strict=True))


def _memory(
    text: LoopText, output: Output, schema: Schema, rows: int
) -> tuple[npt.NDArray[Any] | None, npt.NDArray[np.bool_] | None]:
    """Return memory for a column that the loop writes, and for its validity."""
    if isinstance(output, LookedUp):
        return None, None
    if isinstance(output, Passed):
        if not output.copied:
            return None, None
        storage, nullable = schema.fields[output.column].type.storage, text.nullable
    elif isinstance(output, AtPlace):
        storage, nullable = output.type.storage, False
    else:
        storage, nullable = output.type.storage, output.nullable
    return np.empty(rows, storage), np.empty(rows, np.bool_) if nullable else None


def _columns(
    text: LoopText,
    batch: Batch,
    outputs: Sequence[tuple[npt.NDArray[Any] | None, npt.NDArray[np.bool_] | None]],
    selected: npt.NDArray[np.int64],
    looked_up: Mapping[int, Mapping[str, Column]],
    kept: int,
) -> list[Column]:
    gathered = _gathered(text, batch, selected, kept)
    columns = []
    for output, (data, validity) in zip(text.outputs, outputs, strict=True):
        if isinstance(output, LookedUp):
            columns.append(looked_up[output.lookup][output.name])
            continue
        if isinstance(output, Passed) and (data is None or kept == batch.num_rows):
            columns.append(gathered[output.column])
            continue
        assert data is not None
        kind = (
            batch.schema.fields[output.column].type if isinstance(output, Passed) else output.type
        )
        valid = None if validity is None else _cut(validity, kept)
        if valid is not None and bool(valid.all()):
            valid = None
        columns.append(Column(kind, _cut(data, kept), None, valid))
    return columns


def _gathered(
    text: LoopText, batch: Batch, selected: npt.NDArray[np.int64], kept: int
) -> dict[int, Column]:
    """Return the columns that the loop does not write, by their number in the batch."""
    passed = [one for one in text.outputs if isinstance(one, Passed)]
    if kept == batch.num_rows:
        return {one.column: batch.column(batch.schema.names[one.column]) for one in passed}
    numbers = list(dict.fromkeys(one.column for one in passed if not one.copied))
    if not numbers:
        return {}
    names = [batch.schema.names[at] for at in numbers]
    rows = batch.select(names).with_times(None).take(selected[:kept])
    return dict(zip(numbers, rows.columns, strict=True))


def _cut(array: npt.NDArray[Any], kept: int) -> npt.NDArray[Any]:
    """Return the first values, in memory of their own if most of the array's would be idle."""
    return array[:kept].copy() if kept * _SMALL_SHARE < len(array) else array[:kept]
