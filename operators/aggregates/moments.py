"""Variances and standard deviations, by Welford's method."""

from __future__ import annotations

import numpy as np

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
from .kernels import add_moments, merge_moments

__all__ = ["Moments"]

_FLOAT64 = DataType.parse("float64")


class Moments(Accumulator):
    """A variance, or its root.

    Args:
        sample: whether it is that of a sample, divided by n − 1 instead of n.
        root: whether it is a standard deviation.
    """

    fields = (
        StateField("count", np.dtype(np.int64)),
        StateField("mean", np.dtype(np.float64)),
        StateField("squares", np.dtype(np.float64)),
    )
    output = _FLOAT64

    def __init__(self, sample: bool, root: bool) -> None:
        self._sample = sample
        self._root = root

    def update(self, state: State, rows: SlottedRows) -> None:
        """See `Accumulator.update`."""
        (values,) = rows.columns
        add_moments(*self.arrays(state), rows.slots, numbers_of(values), validity_of(values))

    def merge(self, state: State, slots: Slots, other: State, other_slots: Slots) -> None:
        """See `Accumulator.merge`."""
        merge_moments(*self.arrays(state), slots, *self.arrays(other), other_slots)

    def finish(self, state: State, slots: Slots) -> Column:
        """See `Accumulator.finish`."""
        count, squares = state["count"][slots], state["squares"][slots]
        # Of values further apart than the greatest float, as in Spark; else it would be -inf.
        squares = np.where(squares < 0, np.nan, squares)
        divisor = count - 1 if self._sample else count
        valid = divisor > 0
        result = squares / np.maximum(divisor, 1)
        result = np.sqrt(result) if self._root else result
        return Column(_FLOAT64, result, validity=None if valid.all() else valid)
