"""Percentiles of many values in bounded memory: a sketch of ranks per group.

The sketch is that of Munro and Paterson (1980) as Manku, Rajagopalan and Lindsay describe it
(SIGMOD 1998): full buffers of k values; two of the same weight are merged, and every second value
is kept with twice the weight. One such step moves a rank by at most the weight, so after l of them
in a row ranks are off by at most l · n / (2 k).
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
    merged_objects,
)
from .distinct import split_by_slot

__all__ = ["ApproximatePercentile", "RankSketch"]

_BUFFER_PER_ACCURACY = 8
"""With k = 8 · accuracy, ranks are off by at most n / accuracy up to 2^16 · k values."""


class RankSketch:
    """Values of one group, from which the one at any rank can be told nearly.

    Args:
        capacity: the values of a buffer, k.
    """

    __slots__ = ("_capacity", "_count", "_levels", "_loose", "_loose_count", "_odd")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._loose: list[npt.NDArray[Any]] = []  # values that do not fill a buffer yet
        self._loose_count = 0
        self._levels: list[npt.NDArray[Any] | None] = []  # at level l: weight 2^l, sorted
        self._count = 0
        self._odd = False

    @property
    def nbytes(self) -> int:
        """Bytes of the values that are kept."""
        levels = [level for level in self._levels if level is not None]
        return sum(part.nbytes for part in (*self._loose, *levels))

    def add(self, values: npt.NDArray[Any]) -> None:
        """Add values, shape (n,)."""
        self._count += len(values)
        self._loose.append(values)
        self._loose_count += len(values)
        if self._loose_count >= self._capacity:
            loose = np.concatenate(self._loose)
            whole = len(loose) // self._capacity * self._capacity
            for start in range(0, whole, self._capacity):
                self._carry(np.sort(loose[start : start + self._capacity]), 0)
            self._loose = [loose[whole:].copy()]
            self._loose_count = len(loose) - whole
        elif len(self._loose) > 64:  # many small pieces cost more than their values
            self._loose = [np.concatenate(self._loose)]

    def merge(self, other: RankSketch) -> None:
        """Add the values of another sketch of the same capacity."""
        for loose in other._loose:
            self.add(loose)
        for level, buffer in enumerate(other._levels):
            if buffer is not None:
                self._count += len(buffer) << level
                self._carry(buffer, level)

    def at(self, percentage: float) -> Any:
        """Return the value at rank ⌈percentage · n⌉, at least the first; there must be one."""
        parts = [(np.concatenate(self._loose), 1)] if self._loose_count else []
        parts += [(b, 1 << level) for level, b in enumerate(self._levels) if b is not None]
        values = np.concatenate([part for part, _ in parts])
        weights = np.concatenate([np.full(len(part), weight) for part, weight in parts])
        order = np.argsort(values, kind="stable")  # NaN comes last
        ranks = np.cumsum(weights[order])
        rank = max(1, int(np.ceil(percentage * self._count)))
        return values[order[np.searchsorted(ranks, rank)]]

    def _carry(self, buffer: npt.NDArray[Any], level: int) -> None:
        """Put a full buffer into a level, or merge it with the one that is there."""
        while True:
            if level == len(self._levels):
                self._levels.append(None)
            waiting = self._levels[level]
            if waiting is None:
                self._levels[level] = buffer
                return
            both = np.sort(np.concatenate([waiting, buffer]), kind="stable")
            # Taking turns between the two halves keeps the errors from adding up in one direction.
            buffer = both[int(self._odd) :: 2].copy()
            self._odd = not self._odd
            self._levels[level] = None
            level += 1


class ApproximatePercentile(Accumulator):
    """The value at a rank; of the type of its input, which is numeric or a time."""

    fields = (StateField("sketch", np.dtype(object)),)

    def __init__(self, kind: DataType, percentage: float, accuracy: int) -> None:
        self.output = kind
        self._percentage = percentage
        self._capacity = _BUFFER_PER_ACCURACY * accuracy

    def update(self, state: State, rows: SlottedRows) -> None:
        """See `Accumulator.update`."""
        (values,) = rows.columns
        data, slots = values.data, rows.slots
        if values.validity is not None:
            data, slots = data[values.validity], slots[values.validity]
        sketches = state["sketch"]
        for slot, mine in split_by_slot(slots):
            if sketches[slot] is None:
                sketches[slot] = RankSketch(self._capacity)
            sketches[slot].add(data[mine])

    def merge(self, state: State, slots: Slots, other: State, other_slots: Slots) -> None:
        """See `Accumulator.merge`."""
        sketches = state["sketch"]
        for _, slot, sketch in merged_objects(other["sketch"], slots, other_slots):
            if sketches[slot] is None:
                sketches[slot] = RankSketch(self._capacity)
            sketches[slot].merge(sketch)

    def finish(self, state: State, slots: Slots) -> Column:
        """See `Accumulator.finish`."""
        found = state["sketch"][slots]
        valid = np.array([one is not None for one in found], np.bool_)
        data = np.zeros(len(slots), self.output.storage)
        for row in np.flatnonzero(valid).tolist():
            data[row] = found[row].at(self._percentage)
        return Column(self.output, data, validity=None if valid.all() else valid)

    def object_bytes(self, state: State, slots: Slots) -> int:
        """See `Accumulator.object_bytes`."""
        return sum(one.nbytes for one in state["sketch"][slots] if one is not None)
