"""Runs a user's `AggregateFunction` as an accumulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...configs.errors import ExpressionError, InputError, UsageError
from ...transport.wire.column import Column
from ...transport.wire.types import DataType, as_type
from .accumulator import Accumulator, Slots, SlottedRows, State, StateField
from .user_defined import AggregateFunction

__all__ = ["UserAccumulator"]


class UserAccumulator(Accumulator):
    """Gathers the state of the groups in a call, lets the function change it, writes it back."""

    def __init__(self, function: AggregateFunction) -> None:
        self._function = function
        self._name = type(function).__name__
        initial = function.init()
        unknown = [name for name in initial if name not in function.state]
        if unknown:
            msg = f"{self._name}.init returns {unknown[0]!r}, which is no field of its state"
            raise ExpressionError(msg)
        self.output = self._type(function.output, "output")
        self.fields = tuple(
            StateField(name, self._type(kind, f"state[{name!r}]").storage, initial.get(name, 0))
            for name, kind in function.state.items()
        )

    @property
    def name(self) -> str:
        """The name of the user's class."""
        return self._name

    def update(self, state: State, rows: SlottedRows) -> None:
        """See `Accumulator.update`."""
        slots, columns, _ = rows
        validity = columns[0].validity
        if validity is not None and not validity.all():
            valid = np.flatnonzero(validity)
            slots = slots[valid]
            columns = [_taken(column, valid) for column in columns]
        if not len(slots):
            return
        mine, groups = np.unique(slots, return_inverse=True)
        gathered = self._gathered(state, mine)
        self._call("update", gathered, groups.astype(np.int64), *[c.to_numpy() for c in columns])
        self._write_back(state, mine, gathered)

    def merge(self, state: State, slots: Slots, other: State, other_slots: Slots) -> None:
        """See `Accumulator.merge`."""
        left = np.arange(len(slots))
        while len(left):  # a slot may occur several times: one of each in turn
            _, firsts = np.unique(slots[left], return_index=True)
            now = left[firsts]
            gathered = self._gathered(state, slots[now])
            self._call("merge", gathered, self._gathered(other, other_slots[now]))
            self._write_back(state, slots[now], gathered)
            left = np.delete(left, firsts)

    def finish(self, state: State, slots: Slots) -> Column:
        """See `Accumulator.finish`."""
        returned = self._function.finish(self._gathered(state, slots))
        try:
            column = Column.of(returned, self.output)
        except InputError as error:
            msg = f"{self._name}.finish returned values that are no {self.output}: {error}"
            raise UsageError(msg) from error
        if len(column) != len(slots):
            msg = f"{self._name}.finish returned {len(column)} values for {len(slots)} groups"
            raise UsageError(msg)
        return column

    def _gathered(self, state: State, slots: Slots) -> dict[str, npt.NDArray[Any]]:
        return {field.name: state[field.name][slots] for field in self.fields}

    def _write_back(self, state: State, slots: Slots, gathered: State) -> None:
        for field in self.fields:
            state[field.name][slots] = gathered[field.name]

    def _call(self, method: str, gathered: dict[str, npt.NDArray[Any]], *arguments: Any) -> None:
        before = dict(gathered)
        returned = getattr(self._function, method)(gathered, *arguments)
        if returned is not None:
            msg = f"{self._name}.{method} returned a value: change the state in place instead"
            raise UsageError(msg)
        for name, array in before.items():
            # `state["x"] += …` puts the same array back; anything else must fit as it did.
            now = gathered.get(name)
            if now is not array:
                if not isinstance(now, np.ndarray) or now.shape != array.shape:
                    msg = (
                        f"{self._name}.{method} left state[{name!r}] with another shape: it must"
                        f" have one element per group, shape {array.shape}"
                    )
                    raise UsageError(msg)
                array[...] = now
                gathered[name] = array

    def _type(self, name: str, where: str) -> DataType:
        try:
            kind = as_type(name)
        except InputError as error:
            msg = f"{self._name}.{where}: {error}"
            raise ExpressionError(msg) from None
        if where != "output" and (kind.kind != "fixed" or kind.storage.kind not in "biuf"):
            msg = f"{self._name}.{where} is {kind}: use a number, bool, date or time"
            raise ExpressionError(msg)
        return kind


def _taken(column: Column, rows: npt.NDArray[np.int64]) -> Column:
    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Field, Schema

    schema = Schema((Field("value", column.type),))
    return Batch(schema, [column]).take(rows).column("value")
