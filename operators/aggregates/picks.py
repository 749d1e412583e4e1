"""Aggregates that pick one row of a group: min, max, min_by, max_by, first and last.

Each keeps the least or greatest *order* of a group, and the value of the row that has it: for min
and max these are the same, for first and last the order is the event time.
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
    numbers_of,
    validity_of,
)
from .kernels import pick_rows

__all__ = ["Pick", "is_compiled"]

_NO_ROWS = np.empty(0, np.int64)
_INT64 = DataType.parse("int64")


def is_compiled(kind: DataType) -> bool:
    """Whether values of a type are kept in a numeric field; others are Python objects."""
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
        fields = [StateField("order", _dtype(self._order_type)), StateField("known", _FLAG)]
        if value is not None:
            fields += [StateField("value", _dtype(value)), StateField("null", _FLAG)]
        self.fields = tuple(fields)
        self.has_value = value is not None
        self.is_of_numbers = order is not None and all(one.dtype != object for one in fields)

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
            last = columns[-1]
            orders = _values(last)
            valid = _both(valid, validity_of(last))
        picked = self._picked(state, slots, orders, valid)
        if self._value_type is None or not len(picked):
            return
        value = columns[0]
        chosen = slots[picked]
        if is_compiled(value.type):
            state["value"][chosen] = _values(value)[picked]
        else:
            found = _values(value)
            for slot, row in zip(chosen.tolist(), picked.tolist(), strict=True):
                state["value"][slot] = found[row]
        validity = value.validity
        state["null"][chosen] = False if validity is None else ~validity[picked]

    def merge(self, state: State, slots: Slots, other: State, other_slots: Slots) -> None:
        """See `Accumulator.merge`."""
        known = other["known"][other_slots].astype(np.bool_)
        orders = other["order"][other_slots]
        rows = self._picked(state, slots, orders, known)
        if self._value_type is not None and len(rows):
            for name in ("value", "null"):
                state[name][slots[rows]] = other[name][other_slots[rows]]

    def finish(self, state: State, slots: Slots) -> Column:
        """See `Accumulator.finish`."""
        valid = state["known"][slots] > 0
        values = state["order" if self._value_type is None else "value"][slots]
        if self._value_type is not None:
            valid &= state["null"][slots] == 0
        if is_compiled(self.output):
            data = values.astype(self.output.storage, copy=False)
            return Column(self.output, data, validity=None if valid.all() else valid)
        values[~valid] = None
        return Column.of(values.tolist(), self.output)

    def object_bytes(self, state: State, slots: Slots) -> int:
        """See `Accumulator.object_bytes`."""
        names = [field.name for field in self.fields if field.dtype == object]
        return sum(_bytes_of(one) for name in names for one in state[name][slots])

    def _picked(
        self, state: State, slots: Slots, orders: Any, valid: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int64]:
        """Keep orders; return the rows that were kept, the one that counts last for each slot."""
        if not is_compiled(self._order_type):
            return self._picked_objects(state, slots, orders, valid)
        rows = _NO_ROWS if self._value_type is None else np.empty(len(slots), np.int64)
        fields = (state["order"], state["known"])
        picked = pick_rows(*fields, slots, orders, valid, self.greatest, self.later, rows)
        return rows[:picked]

    def _picked_objects(
        self, state: State, slots: Slots, orders: Any, valid: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int64]:
        kept, known = state["order"], state["known"]
        rows = []
        for row, (slot, order) in enumerate(zip(slots.tolist(), orders, strict=True)):
            if len(valid) and not valid[row]:
                continue
            if known[slot]:
                best = kept[slot]
                better = order > best if self.greatest else order < best
                if not better and not (self.later and order == best):
                    continue
            kept[slot] = order
            known[slot] = 1
            rows.append(row)
        return np.array(rows, np.int64)


_FLAG = np.dtype(np.uint8)
_ALL = np.empty(0, np.bool_)


def _dtype(kind: DataType) -> np.dtype[Any]:
    if not is_compiled(kind):
        return np.dtype(object)
    if kind.storage == np.float16:  # numba has none
        return np.dtype(np.float32)
    return np.dtype(np.uint8) if kind.storage == np.bool_ else kind.storage


def _values(column: Column) -> Any:
    """Return values as they are kept: an array of numbers, or a list of Python objects."""
    if not is_compiled(column.type):
        return column.to_pylist()
    data = numbers_of(column)
    return data.view(np.uint8) if data.dtype == np.bool_ else data


def _both(one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    if not len(one) or not len(other):
        return one if len(one) else other
    return one & other


def _bytes_of(value: object) -> int:
    return 0 if value is None else value.__sizeof__()
