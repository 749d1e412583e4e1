"""Aggregates that pick one row of a group: min, max, min_by, max_by, first and last.

Each keeps the least or greatest *order* of a group, and the value of the row that has it: for min
and max these are the same, for first and last the order is the event time.

Numbers are fields of a record. All other values are text or binary, or become so (`bytes_values`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...transport.wire.column import Column
from ...transport.wire.types import DataType
from .accumulator import (
    Accumulator,
    Slots,
    SlottedRows,
    State,
    StateField,
    TextField,
    Texts,
    numbers_of,
    validity_of,
)
from .kernels import pick_rows
from .values_as_bytes import bytes_type, bytes_values, values_of_bytes

__all__ = ["Pick", "is_compiled"]

_NO_ROWS = np.empty(0, np.int64)
_INT64 = DataType.parse("int64")


def is_compiled(kind: DataType) -> bool:
    """Whether values of a type are kept in a numeric field; others are text or binary."""
    return kind.kind == "fixed" and kind.storage.kind in "biuf"


class Pick(Accumulator):
    """The value of the row with the least or greatest order.

    Args:
        order: the type of the order, the last input; None: the event time.
        value: the type of the value, the first input; None: the order itself.
        greatest: whether the greatest order counts.
        later: whether of rows with equal orders the later to arrive counts.
        ignore_nulls: leave out rows whose value is null.

    Attributes:
        greatest, later: see above.
        has_value: whether the value is kept beside the order.
        is_of_numbers: whether order and value are kept as numbers, and the order is a column.
    """

    merges_exactly = True

    def __init__(
        self,
        order: DataType | None,
        value: DataType | None,
        *,
        greatest: bool,
        later: bool,
        ignore_nulls: bool = False,
    ) -> None:
        self._by_time = order is None
        self._order_type = order or _INT64
        self._value_type = value
        self.greatest, self.later = greatest, later
        self._ignore_nulls = ignore_nulls
        self.output = value or self._order_type
        fields, texts = [StateField("known", _FLAG)], []
        kept = {"order": self._order_type}
        if value is not None:
            kept["value"] = value
            fields.append(StateField("null", _FLAG))
        for name, kind in kept.items():
            if is_compiled(kind):
                fields.append(StateField(name, _dtype(kind)))
            else:
                texts.append(TextField(name, bytes_type(kind)))
        self.fields, self.texts = tuple(fields), tuple(texts)
        self.has_value = value is not None
        self.is_of_numbers = order is not None and not texts

    @property
    def depends_on_order(self) -> bool:
        """Whether rows with equal orders can be told from one another: by a value, or as ±0.0."""
        return self.has_value or self._order_type.family.startswith("float")

    def update(self, state: State, rows: SlottedRows) -> None:
        """See `Accumulator.update`."""
        slots, columns, times = rows
        valid = validity_of(columns[0]) if self._ignore_nulls else _ALL
        if self._by_time:
            orders: Any = np.zeros(len(slots), np.int64) if times is None else times
        else:
            orders = _values(columns[-1])
            valid = _both(valid, validity_of(columns[-1]))
        picked = self._picked(state, slots, orders, valid)
        if self._value_type is not None and len(picked):
            value = columns[0]
            chosen, picked = self._chosen(slots, picked)
            _write(state["value"], chosen, _values(value), picked)
            validity = value.validity
            state["null"][chosen] = False if validity is None else ~validity[picked]

    def merge(self, state: State, slots: Slots, other: State, other_slots: Slots) -> None:
        """See `Accumulator.merge`."""
        known = other["known"][other_slots].astype(np.bool_)
        picked = self._picked(state, slots, _read(other["order"], other_slots), known)
        if self._value_type is not None and len(picked):
            chosen, picked = self._chosen(slots, picked)
            others = other_slots[picked]
            values = _read(other["value"], others)
            _write(state["value"], chosen, values, np.arange(len(others)))
            state["null"][chosen] = other["null"][others]

    def finish(self, state: State, slots: Slots) -> Column:
        """See `Accumulator.finish`."""
        valid = state["known"][slots] > 0
        values = _read(state["order" if self._value_type is None else "value"], slots)
        if self._value_type is not None:
            valid &= state["null"][slots] == 0
        validity = None if valid.all() else valid
        if is_compiled(self.output):
            data = values.astype(self.output.storage, copy=False)
            return Column(self.output, data, validity=validity)
        return values_of_bytes(self.output, values, validity)

    def _picked(
        self, state: State, slots: Slots, orders: Any, valid: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int64]:
        """Keep orders; return the rows that were kept, the one that counts last for each slot."""
        if not is_compiled(self._order_type):
            return self._picked_texts(state, slots, orders, valid)
        rows = _NO_ROWS if self._value_type is None else np.empty(len(slots), np.int64)
        fields = (state["order"], state["known"])
        picked = pick_rows(*fields, slots, orders, valid, self.greatest, self.later, rows)
        return rows[:picked]

    def _picked_texts(
        self, state: State, slots: Slots, orders: Column, valid: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int64]:
        rows = np.flatnonzero(valid) if len(valid) else np.arange(len(slots))
        texts: Any = state["order"]
        how = {"greatest": self.greatest, "later": self.later}
        picked = rows[texts.pick(slots[rows], orders, rows, **how)]
        state["known"][slots[picked]] = 1
        return picked

    def _chosen(self, slots: Slots, picked: Slots) -> tuple[Slots, Slots]:
        """Return the slots and rows of the values to write, the last one for each slot last.

        Of texts only that one: what is written in place of another leaves garbage behind.
        """
        chosen = slots[picked]
        if is_compiled(self.output):
            return chosen, picked
        found, lasts = np.unique(chosen[::-1], return_index=True)
        return found, picked[::-1][lasts]


_FLAG = np.dtype(np.uint8)
_ALL = np.empty(0, np.bool_)


def _dtype(kind: DataType) -> np.dtype[Any]:
    if kind.storage == np.float16:  # numba has none
        return np.dtype(np.float32)
    return np.dtype(np.uint8) if kind.storage == np.bool_ else kind.storage


def _values(column: Column) -> Any:
    """Return values as they are kept: an array of numbers, or a column of text or binary."""
    if not is_compiled(column.type):
        return bytes_values(column)
    data = numbers_of(column)
    return data.view(np.uint8) if data.dtype == np.bool_ else data


def _read(field: Any, slots: Slots) -> Any:
    """Return what a field holds: an array of numbers, or a column of text or binary."""
    return field[slots] if isinstance(field, np.ndarray) else field.read(slots)


def _write(field: npt.NDArray[Any] | Texts, slots: Slots, values: Any, rows: Slots) -> None:
    if isinstance(field, np.ndarray):
        field[slots] = values[rows]
    else:
        field.write(slots, values, rows)


def _both(one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    if not len(one) or not len(other):
        return one if len(one) else other
    return one & other
