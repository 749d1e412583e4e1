"""`CompiledChain`: filters, projections and table look-ups in a row, as one loop per batch.

A loop is made for rows of one schema, with or without nulls. Which operators a chain holds is
settled by the schema of its rows, and by what the tables hold: from the first operator on, as many
as can be compiled. The rest,
and all before the loop is there, is done by the operators themselves, with the same results.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ..expressions.emitters.code import NotCompilable
from ..transform_bases import Transform
from .loop_function import Begin, LoopFunction, begin_beside
from .loop_text import (
    Computed,
    LookedUp,
    LoopText,
    NothingToCompute,
    Output,
    Passed,
    Step,
    write_loop,
)

if TYPE_CHECKING:
    from ...transport.wire.types import Schema
    from ..expressions.compiled_function import CompiledFunction
    from ..joins.unique_rows import UniqueRows
    from .table_lookup import TableLookup

__all__ = [
    "COMPILE_AFTER_ROWS",
    "CompiledChain",
    "LookupTable",
    "LoopInputs",
    "Mode",
    "Passing",
    "compiled_or_none",
    "input_arrays",
    "is_kept",
    "longest_loop",
    "made",
    "may_be_kept",
    "passed_by_each",
    "rows_of",
    "taken",
    "types_of_inputs",
]

Mode: TypeAlias = Literal["auto", "compiled", "interpreted"]

COMPILE_AFTER_ROWS = 1 << 20
"""After how many rows a loop is worth being compiled: that takes as long as some million rows."""

_log = logging.getLogger(__name__)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NO_ROWS = np.empty(0, np.int64)
_SMALL_SHARE = 4
"""Columns are copied if they fill less than one part in so many of their memory."""


class Passing(NamedTuple):
    """What became of a batch: the rows that came out, and how many after each operator."""

    rows: Batch | None
    counts: tuple[int, ...]
    schemas: tuple[Schema, ...]


class LookupTable(Protocol):
    """A table that rows of a chain are joined with."""

    @property
    def lookup(self) -> TableLookup:
        """The join; another object whenever the rows of the table are others."""


class CompiledChain:
    """The loops of a chain.

    Args:
        operators: in the order in which rows pass them; a table join as its table.
        mode: `auto` compiles once enough rows have come, while they go on by the operators, and
            loads at once what was compiled before; with tables always after so many rows, since
            these are indexed for the loop first.
        begin: lets a loop be compiled beside the rows.
    """

    def __init__(
        self,
        operators: Sequence[Transform | LookupTable],
        mode: Mode,
        begin: Begin = begin_beside,
    ) -> None:
        self._operators = tuple(operators)
        self._mode = mode
        self._begin = begin
        self._has_tables = not all(isinstance(one, Transform) for one in operators)
        self._steps: tuple[Step, ...] = ()
        self._rows_seen = 0
        self._variants: dict[tuple[Schema, bool, bool], _Variant] = {}

    def pass_through(self, batch: Batch) -> Passing | None:
        """Return what comes of a batch; None if the operators themselves must take it."""
        if self._mode == "interpreted" or not batch.num_rows:
            return None
        self._rows_seen += batch.num_rows
        is_due = self._mode == "compiled" or self._rows_seen > COMPILE_AFTER_ROWS
        if self._has_tables and not is_due:
            return None
        self._look_at_tables()
        variant = self._variant(batch.schema, nullable=False, has_times=batch.has_times)
        if variant.text is None:
            return None
        columns = [batch.column(name) for name in variant.names]
        if any(column.validity is not None for column in columns):
            # of fewer operators, or none, at times
            variant = self._variant(batch.schema, nullable=True, has_times=batch.has_times)
            if variant.text is None:
                return None
            columns = [batch.column(name) for name in variant.names]
        loop = variant.function.get(at_once=self._mode == "compiled", is_due=is_due)
        return None if loop is None else variant.run(loop, batch, columns)

    def warm_up(self, schema: Schema, *, has_times: bool) -> int:
        """Load or compile the loop of rows that are to come, as far as the mode says so.

        Returns how many operators it takes; none if it depends on tables, which are not there yet.
        """
        if self._mode == "interpreted" or self._has_tables:
            return 0
        self._look_at_tables()
        plain, nullable = (
            self._variant(schema, nullable=nullable, has_times=has_times)
            for nullable in (False, True)
        )
        plain.function.get(at_once=self._mode == "compiled", is_due=False)
        nullable.function.get(at_once=False, is_due=False)
        return 0 if plain.text is None else len(plain.text.schemas)

    def _look_at_tables(self) -> None:
        """Forget all loops if a table has other rows."""
        steps = tuple(one if isinstance(one, Transform) else one.lookup for one in self._operators)
        if steps != self._steps:
            self._steps = steps
            self._variants.clear()

    def _variant(self, schema: Schema, *, nullable: bool, has_times: bool) -> _Variant:
        key = schema, nullable, has_times
        found = self._variants.get(key)
        if found is None:
            text, _ = longest_loop(self._steps, schema, nullable=nullable, has_times=has_times)
            found = self._variants[key] = _Variant(schema, text, self._begin)
        return found


class _Variant:
    """One loop: for rows of one schema, with or without nulls, with or without event times."""

    def __init__(self, schema: Schema, text: LoopText | None, begin: Begin) -> None:
        self.text = text
        self.names = () if text is None else tuple(schema.names[at] for at in text.columns)
        self._schema = schema
        self.function = LoopFunction(
            self._make, is_kept=text is not None and is_kept(text), begin=begin
        )

    def _make(self) -> Any:
        if self.text is None:
            return None
        return compiled_or_none(self.text, _signature(self.text, self._schema))

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
        arrays = input_arrays(text, read)
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


def longest_loop(
    steps: Sequence[Step], schema: Schema, *, nullable: bool, has_times: bool
) -> tuple[LoopText | None, str]:
    """Return the loop of as many operators as can be in one, and why the next is not.

    The loop is None if there is none; the reason is empty if all operators are in it.
    """
    found, why = None, ""
    for count in range(1, len(steps) + 1):
        try:
            found = write_loop(steps[:count], schema, nullable=nullable, has_times=has_times)
            why = ""
        except NothingToCompute as reason:
            why = str(reason)
        except NotCompilable as reason:
            return found, str(reason)
    return found, why


class LoopModule(Protocol):
    """What is compiled; attributes as of `LoopText`."""

    @property
    def text(self) -> str:
        """See `LoopText`."""

    @property
    def helpers(self) -> tuple[str, ...]:
        """See `LoopText`."""

    @property
    def functions(self) -> Mapping[str, CompiledFunction]:
        """See `LoopText`."""


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


def compiled_or_none(loop: LoopModule, signature: tuple[Any, ...]) -> Any:
    """Return the function `loop` of a module; None, with a warning, if numba refuses it."""
    from numba.core.errors import NumbaError

    from ...transport import generated

    functions = {name: one.dispatcher for name, one in loop.functions.items()}
    try:
        return generated.compile_text(
            loop.text,
            "loop",
            signature,
            {"np": np, **functions},
            loop.helpers,
            keep=may_be_kept(loop.functions),
        )
    except NumbaError as error:
        reason = " ".join(_COLOURS.sub("", str(error)).split())[:300]
        _log.warning("whale-ray: a loop cannot be compiled and is interpreted: %s", reason)
        return None


def is_kept(loop: LoopModule) -> bool:
    """Return whether a process of this user has compiled a loop before."""
    from ...transport import generated

    return may_be_kept(loop.functions) and generated.is_kept(loop.text)


def may_be_kept(functions: Mapping[str, CompiledFunction]) -> bool:
    """Return whether the text of a loop says all that its machine code depends on."""
    return all(one.fingerprint() is not None for one in functions.values())


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
        if text.nullable:
            types.append(taken(np.bool_))
    return [*types, *(taken(array.dtype) for array in _table_arrays(text))]


def _signature(text: LoopText, schema: Schema) -> tuple[Any, ...]:
    import numba

    types = [numba.int64, made(np.int64), made(np.int64), taken(np.int64), made(np.int64)]
    types += types_of_inputs(text, schema)
    types += [made(np.int64) for _ in text.numbered]
    for output in text.outputs:
        for array in _memory(text, output, schema, 0):
            if array is not None:
                types.append(made(array.dtype))
    return tuple(types)


def _table_arrays(text: LoopInputs) -> list[npt.NDArray[Any]]:
    """Return what the loop reads of tables."""
    return [array for one in text.lookups for array in rows_of(one).arrays]


def rows_of(lookup: TableLookup) -> UniqueRows:
    """Return the rows of a table that a loop reads."""
    assert lookup.rows is not None  # else its loop is not written
    return lookup.rows


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
    else:
        storage, nullable = output.type.storage, output.nullable
    return np.empty(rows, storage), np.empty(rows, np.bool_) if nullable else None


def input_arrays(text: LoopInputs, read: Sequence[Column]) -> list[npt.NDArray[Any]]:
    """Return what the loop reads: the columns that it names, then what is of tables."""
    arguments: list[npt.NDArray[Any]] = []
    for column in read:
        if column.offsets is None:
            arguments.append(_aligned(column.data))
        else:
            arguments += (_pool(column.data, text.text_bytes), _aligned(column.offsets))
        if text.nullable:
            valid = column.validity
            arguments.append(np.ones(len(column), np.bool_) if valid is None else valid)
    return [*arguments, *_table_arrays(text)]


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
            output.type if isinstance(output, Computed) else batch.schema.fields[output.column].type
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
