"""`SlotTexts`: the text or binary values of a field, by slot; they lie in the stores of the slots.

So they are sealed, spilled and freed with the records that refer to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...state.node_transfer import column_name
from ...state.records import VALUE_BYTES_MAX
from ...transport.wire.column import Column
from ...transport.wire.column_rows import rows_of_columns
from ...transport.wire.types import DataType
from ..aggregates.accumulator import OutOfRange

if TYPE_CHECKING:
    from ...state.records import RecordLayout
    from ...state.store import KeyedStore
    from .slice_stores import SliceStores

__all__ = ["ColumnTexts", "SlotTexts", "text_columns"]

Int64s = npt.NDArray[np.int64]


class SlotTexts:
    """The values of one field; see `Texts`.

    Args:
        name: of the field of the records.
        kind: the type of the values.
        stores: those of the groups.
        any_store: one of the same memory.
    """

    def __init__(
        self, name: str, kind: DataType, stores: SliceStores, any_store: KeyedStore
    ) -> None:
        self.name, self.kind = name, kind
        self._stores, self._any_store = stores, any_store

    def read(self, slots: Int64s) -> Column:
        """See `Texts.read`."""
        return self._any_store.values(self.name, slots, self.kind)

    def write(self, slots: Int64s, column: Column, rows: Int64s) -> None:
        """See `Texts.write`; raise OutOfRange, StateFullError."""
        _check(column, rows)
        for store, mine in self._stores.owners(slots):
            store.write_values(self.name, slots[mine], column, rows[mine])

    def pick(
        self, slots: Int64s, column: Column, rows: Int64s, *, greatest: bool, later: bool
    ) -> npt.NDArray[np.bool_]:
        """See `Texts.pick`; raise OutOfRange, StateFullError."""
        _check(column, rows)
        picked = np.zeros(len(slots), np.bool_)
        how = {"greatest": greatest, "later": later}
        for store, mine in self._stores.owners(slots):
            picked[mine] = store.pick_values(self.name, slots[mine], column, rows[mine], **how)
        return picked


def _check(column: Column, rows: Int64s) -> None:
    """Raise OutOfRange if a value is longer than a record can refer to."""
    assert column.offsets is not None
    lengths = np.diff(column.offsets)[rows]
    if len(lengths) and int(lengths.max()) > VALUE_BYTES_MAX:
        at = int(np.argmax(lengths))
        reason = f"a value of {lengths[at]:,} bytes; at most {VALUE_BYTES_MAX:,} fit"
        raise OutOfRange(int(rows[at]), reason)


class ColumnTexts:
    """Values that are in no store: their slots are the rows of a column."""

    def __init__(self, column: Column) -> None:
        self._column = column

    def read(self, slots: Int64s) -> Column:
        """See `Texts.read`."""
        return rows_of_columns([self._column], slots)[0]


def text_columns(
    records: npt.NDArray[Any],
    kinds: Mapping[str, DataType],
    layout: RecordLayout,
    memory: npt.NDArray[np.uint8],
) -> dict[str, Column]:
    """Return the text or binary values of records as columns, as `field_columns` does others.

    Args:
        records: copies, of `layout.dtype`.
        kinds: the type of each field.
        layout: of the records.
        memory: the log, in which their references are positions.
    """
    return {
        column_name(name): layout.value_column(name, kind, records, memory)
        for name, kind in kinds.items()
    }
