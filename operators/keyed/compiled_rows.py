"""Runs a compiled `on_row` over batches: one loop of numba's, called once per batch."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...configs.errors import InputError, TopologyError, UsageError
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import DataType, Schema
from ..expressions.compiled_function import first_reason
from ..expressions.function_parts import fingerprint_of, outer_values
from .handles import Handle
from .keyed_state import KeyedState, TimerCall
from .translation import DONE, FIRE, LEFT, Translation

if TYPE_CHECKING:
    from ..process import Output

__all__ = ["CompiledRows"]


_NUMPYS = ("np_float64", "np_int64", "np_uint64", "np_uint8", "np_zeros", "np_inf")
"""What a translated loop calls numpy's functions."""

_LOOPS: weakref.WeakKeyDictionary[Any, dict[str, tuple[Mapping[str, Any], Any]]]
_LOOPS = weakref.WeakKeyDictionary()
"""The compiled loops of this process, by the method and the text that they were made from.

With each are the outer values that it was compiled with. Classes with other state may share a
method, and then not its text.
"""


class CompiledRows:
    """The loop of one object.

    Args:
        owner: the name of the class, for messages.
        translation: of its `on_row`.
        state: of the object; all values that the loop uses are of fixed width.
        schema: the types of what it emits.

    Raises:
        TopologyError: it emits rows, and `schema` does not say their types.
    """

    def __init__(
        self, owner: str, translation: Translation, state: KeyedState, schema: Schema | None
    ) -> None:
        self._owner = owner
        self._translation = translation
        self._state = state
        self._schema = schema
        if translation.emitted and (schema is None or schema.names != (*translation.emitted,)):
            msg = (
                f"{owner}.on_row is compiled and emits {', '.join(translation.emitted)}: declare"
                " their types, schema = whale.Schema.of(…), in this order"
            )
            raise TopologyError(msg)
        records = state.store.records
        self._fields = tuple(
            records[name if isinstance(handle, Handle) else "#hash"]
            for name, handle in state.handles.items()
        )
        self._bits = records["#set" if state.store.layout.bits else "#hash"]
        self._template = state.store.layout.template.view(state.store.layout.dtype)
        self._loop = _compiled(owner, translation)

    def run(
        self,
        batch: Batch,
        slots: npt.NDArray[np.int64],
        in_order: bool,
        call: TimerCall,
    ) -> None:
        """Call the loop for the rows of a batch.

        Args:
            batch: the rows.
            slots: the record of each row's key.
            in_order: whether timers of event time fire before a later row of their key.
            call: what they do; it gets the number of the row whose key they belong to, and its
                output receives what the rows emit, too.

        Raises:
            UsageError: a value left its type, a column has nulls, a uint64 is 2^63 or more, or a
                handle is given times of another unit than its own, or with another zone.
            InputError: a column has no fixed width, or there is none of that name.
        """
        found = self._translation
        for name, column in found.kept:
            self._check_times(name, column, batch.column(column).type)
        columns = tuple(self._column(batch, name) for name in found.columns)
        times = self._times(batch)
        limits = np.array([in_order and batch.times is not None], np.bool_)
        room = max(found.emits_per_row * batch.num_rows, 1)
        emitted = np.empty(room, np.int64)
        outputs = self._outputs(room)
        start, reason = 0, FIRE
        while reason != DONE:
            start, count, reason = self._call(
                start, slots, times, limits, emitted, columns, tuple(outputs.values())
            )
            self._emit(batch, emitted[:count], outputs, call.out)
            if reason >= 0:
                name = list(self._state.handles)[reason]
                kind = self._state.handles[name].declaration.type
                row = batch.preview(start)
                msg = f"{name!r} leaves its type {kind} at {row}: declare a wider one"
                raise UsageError(msg)
            if reason == LEFT:
                msg = (
                    f"{self._owner}.on_row is compiled, and a whole number leaves 64 bits or has"
                    " no value (int of NaN, a negative shift or power), or what is emitted does not"
                    f" fit its column, at {batch.preview(start)}: compute with floats, declare a"
                    " wider column, or remove @whale.compiled"
                )
                raise UsageError(msg)
            if reason == FIRE:
                self._state.cursor[0] = int(slots[start])
                call.bind(start)
                self._state.fire_before(int(slots[start]), int(times[start]), call)

    def _call(
        self,
        start: int,
        slots: Any,
        times: Any,
        limits: Any,
        emitted: Any,
        columns: tuple[Any, ...],
        outputs: tuple[Any, ...],
    ) -> tuple[int, int, int]:
        from numba.core.errors import NumbaError

        try:
            result: tuple[int, int, int] = self._loop(
                start,
                slots,
                times,
                limits,
                emitted,
                self._bits,
                self._template,
                *columns,
                *self._fields,
                *outputs,
            )
        except NumbaError as error:
            msg = f"{self._owner}.on_row cannot be compiled: {first_reason(str(error))}"
            raise TopologyError(msg) from error
        return result

    def _column(self, batch: Batch, name: str) -> npt.NDArray[Any]:
        column = batch.column(name)
        if column.type.kind == "bytes" or column.data.dtype.kind == "V":
            msg = (
                f"{self._owner}.on_row is compiled and computes with {name!r}, a {column.type}:"
                " compiled code knows numbers, dates and times"
            )
            raise InputError(msg)
        if column.null_count:
            assert column.validity is not None
            row = int(np.argmin(column.validity))
            msg = (
                f"{self._owner}.on_row is compiled, which knows no nulls, and {name!r} is null in"
                f" {batch.preview(row)}: fill or filter such rows before"
            )
            raise UsageError(msg)
        if column.type.name == "uint64":
            return self._signed(batch, name, column.data)
        return column.data

    def _check_times(self, name: str, column: str, given: DataType) -> None:
        """Refuse a column of times that a handle would keep as times of another unit or zone."""
        declared = self._state.handles[name].declaration
        kept = declared.type
        if not (_is_time(kept) and _is_time(given)):
            return
        same_zone = (kept.timezone is None) == (given.timezone is None)
        if (kept.family, kept.unit) == (given.family, given.unit):
            if same_zone or declared.kind == "timer":
                return
        remedy = "compute it in ns" if declared.kind == "timer" else f"declare {given}"
        msg = (
            f"{self._owner}.on_row is compiled, in which times are numbers: {name!r} keeps {kept},"
            f" and {column!r} is {given}: {remedy}, or remove @whale.compiled"
        )
        raise UsageError(msg)

    def _signed(self, batch: Batch, name: str, data: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return a uint64 column as int64: numba mixes the two by wrapping, or in floats."""
        values: npt.NDArray[np.int64] = data.view(np.int64)
        if len(values) and values.min() < 0:
            row = int(np.argmin(values))
            msg = (
                f"{self._owner}.on_row is compiled, which computes with whole numbers below 2^63,"
                f" and {name!r} is {data[row]} in {batch.preview(row)}: filter such rows before, or"
                " remove @whale.compiled"
            )
            raise UsageError(msg)
        return values

    def _times(self, batch: Batch) -> npt.NDArray[np.int64]:
        if batch.times is not None:
            return batch.times
        if self._translation.reads_time:
            msg = f"{self._owner}.on_row reads out.time_ns, and the rows have no event times"
            raise UsageError(msg)
        return np.zeros(0, np.int64)

    def _outputs(self, room: int) -> dict[str, npt.NDArray[Any]]:
        schema, found = self._schema, self._translation
        return {
            name: np.empty(room, schema.field(name).type.storage)
            for name, source in found.emitted.items()
            if source is None and schema is not None
        }

    def _emit(
        self,
        batch: Batch,
        rows: npt.NDArray[np.int64],
        outputs: dict[str, npt.NDArray[Any]],
        out: Output,
    ) -> None:
        """Emit the rows so far: computed columns, and those of the input at `rows`."""
        if not len(rows) or self._schema is None:
            return
        kept = {source for source in self._translation.emitted.values() if source is not None}
        taken = batch.select(sorted(kept)).take(rows) if kept else None
        columns = []
        for name, source in self._translation.emitted.items():
            kind = self._schema.field(name).type
            if source is None or taken is None:
                columns.append(Column(kind, outputs[name][: len(rows)].copy()))
            else:
                columns.append(Column.of(taken.column(source), kind))
        emitted = Batch(self._schema, columns, len(rows))
        out.emit(emitted, None if batch.times is None else batch.times[rows])


def _is_time(kind: DataType) -> bool:
    return kind.unit is not None or kind.family.startswith("date")


def _compiled(owner: str, translation: Translation) -> Any:
    """Return the loop; its types, and so machine code, are settled by the first call."""
    function = translation.function
    assert function is not None
    made_of, values = fingerprint_of(function), outer_values(function)
    text = f"# {owner}.on_row: {made_of}\n{translation.source}"
    known, loop = _LOOPS.setdefault(function, {}).get(text, ({}, None))
    if loop is None or any(value is not known.get(name) for name, value in values.items()):
        from ...transport import generated
        from .checked_integers import CHECKED

        numpys = {name: getattr(np, name[3:]) for name in _NUMPYS}
        namespace = {**values, **numpys, **CHECKED}
        keep = made_of is not None
        loop = generated.compile_text(text, "loop", None, namespace, keep=keep, of_rows=True)
        _LOOPS[function][text] = values, loop
    return loop
