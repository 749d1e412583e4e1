"""`SealedPool`: the windows of a `WindowPool` as they were sealed, as rows of a snapshot.

A thread makes the rows, beside the loop that goes on changing the windows. It cannot use indexes,
so it follows the chains: from keys to their windows, from windows to the values of their sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...state.node_transfer import column_name, with_columns
from ...state.records import copy_of_records
from ...state.sealed_records import SealedRecords, living
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import DataType
from ..keyed.changed_keys import FindSlots, pieces_of
from .sealed_groups import SealedGroups, value_columns
from .value_sets import ValueSets

__all__ = ["BOUNDS", "LAST", "NONE", "ROWS", "START", "SealedPool"]

Int64s = npt.NDArray[np.int64]
Records = npt.NDArray[Any]

NONE = -1
"""In the place of a window: there is none."""

BOUNDS = ("start", "last")
"""Fields of a window: the event times of its first and last row, ns."""
START, LAST, ROWS = (column_name(name) for name in (*BOUNDS, "rows"))
"""Columns of dumped windows: their bounds, and how many rows the window of a key has."""

_BINARY = DataType.parse("binary")


@dataclass(frozen=True)
class SealedPool:
    """The windows of one operator at one seal; see `SealedRows`."""

    keys: SealedRecords
    groups: SealedGroups

    @property
    def parts(self) -> int:
        """The windows, then the values of each field of sets."""
        return 1 + len(self.groups.sets)

    def pieces(self, part: int) -> Sequence[FindSlots]:
        """See `SealedRows.pieces`."""
        return pieces_of(self.keys)

    def rows(self, slots: Int64s, part: int) -> Batch:
        """See `SealedRows.rows`: the windows of a key in the order of their opening."""
        records = self.keys.read(slots)
        records = living(records)
        owners, windows, found = _chained(self._windows, records["first"])
        if part:
            return self._values(
                list(self.groups.sets)[part - 1], copy_of_records(records, owners), found
            )
        data = {column_name(name): found[name] for name in BOUNDS}
        data[ROWS] = records["rows"][owners]
        columns = {name: Column.of(np.ascontiguousarray(one)) for name, one in data.items()}
        columns |= self.groups.columns(found, self._windows)
        for name, objects in self.groups.objects.items():
            columns[name] = Column.of(list(objects.read(windows)), _BINARY)
        return with_columns(self._keys_of(copy_of_records(records, owners)), columns)

    def _values(self, name: str, keys: Records, windows: Records) -> Batch:
        """Return the values of a field of sets, with the key and start of their window."""
        first, _ = ValueSets.fields(name.removeprefix(column_name("")))
        sealed = self.groups.sets[name]
        owners, _, records = _chained(sealed, windows[first.name])
        start = {START: Column.of(np.ascontiguousarray(windows["start"][owners]))}
        _, *values = sealed.layout.key_columns(records, slice(None), sealed.memory)
        return with_columns(
            self._keys_of(copy_of_records(keys, owners)), start | value_columns(name, values)
        )

    def _keys_of(self, records: Records) -> Batch:
        layout = self.keys.layout
        columns = layout.key_columns(records, slice(None), self.keys.memory)
        return Batch(layout.keys, columns, len(records))

    @property
    def _windows(self) -> SealedRecords:
        (store,) = self.groups.stores.values()  # windows are not divided into slices
        return store.records


def _chained(sealed: SealedRecords, firsts: Int64s) -> tuple[Int64s, Int64s, Records]:
    """Follow chains, the last record of each first.

    Args:
        sealed: the records, whose field `next` has the one that follows.
        firsts: where the chains begin, `NONE` for one without records: int64 (n,).

    Returns:
        (chain, slot, copy) of each record.
    """
    chains, slots = np.arange(len(firsts)), firsts
    found = [(chains[:0], slots[:0], np.empty(0, sealed.layout.dtype))]
    while True:
        there = slots != NONE
        chains, slots = chains[there], slots[there]
        if not len(slots):
            break
        order = np.argsort(slots)
        chains, slots = chains[order], slots[order]
        records = sealed.read(slots)
        found.append((chains, slots, records))
        slots = records["next"]
    owners, numbers, records = (np.concatenate(one) for one in zip(*reversed(found), strict=True))
    return owners, numbers, records
