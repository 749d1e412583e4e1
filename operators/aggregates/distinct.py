"""Counting different values: exactly, with a set per group, and estimated, by HyperLogLog."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import DataType, Field, Schema
from .accumulator import (
    Accumulator,
    SetField,
    Slots,
    SlottedRows,
    State,
    StateField,
    validity_of,
)
from .kernels import add_registers, merge_registers

__all__ = ["ApproximateDistinct", "ExactDistinct", "split_by_slot"]

_INT64 = DataType.parse("int64")


class ExactDistinct(Accumulator):
    """The number of different values, or of combinations of values without a null.

    Args:
        types: of the columns.
    """

    output = _INT64

    def __init__(self, types: tuple[DataType, ...]) -> None:
        self.sets = (SetField("values", types),)

    def update(self, state: State, rows: SlottedRows) -> None:
        """See `Accumulator.update`."""
        sets: Any = state["values"]
        sets.add(rows.slots, rows.columns)

    def merge(self, state: State, slots: Slots, other: State, other_slots: Slots) -> None:
        """See `Accumulator.merge`."""
        sets: Any = state["values"]
        sets.merge(slots, other["values"], other_slots)

    def finish(self, state: State, slots: Slots) -> Column:
        """See `Accumulator.finish`."""
        sets: Any = state["values"]
        return Column(_INT64, sets.sizes(slots))


class ApproximateDistinct(Accumulator):
    """An estimate of the number of different values.

    The registers are those of HyperLogLog (Flajolet et al. 2007) over the hash of keys; the
    estimator is Ertl's improved raw one (arXiv:1702.01284, algorithm 6), which needs no table of
    corrections.

    Args:
        kind: the type of the values.
        rsd: the relative standard deviation, 1.106 / √registers, which chooses their number.
    """

    output = _INT64

    def __init__(self, kind: DataType, rsd: float) -> None:
        self._schema = Schema((Field("value", kind),))
        self._index_bits = max(4, math.ceil(2 * math.log2(1.106 / rsd)))
        registers = np.dtype((np.uint8, (1 << self._index_bits,)))
        self.fields = (StateField("registers", registers),)

    def update(self, state: State, rows: SlottedRows) -> None:
        """See `Accumulator.update`."""
        (values,) = rows.columns
        hashes, _ = hash_keys(Batch(self._schema, [values]), ("value",))
        add_registers(state["registers"], rows.slots, hashes, validity_of(values), self._index_bits)

    def merge(self, state: State, slots: Slots, other: State, other_slots: Slots) -> None:
        """See `Accumulator.merge`."""
        merge_registers(state["registers"], slots, other["registers"], other_slots)

    def finish(self, state: State, slots: Slots) -> Column:
        """See `Accumulator.finish`."""
        bits = 64 - self._index_bits
        estimates = np.empty(len(slots), np.int64)
        for row, registers in enumerate(state["registers"][slots]):
            counts = np.bincount(registers, minlength=bits + 2).tolist()
            estimates[row] = round(_estimate(counts, bits))
        return Column(_INT64, estimates)


def _estimate(counts: list[int], bits: int) -> float:
    """Return the number of different values.

    Args:
        counts: how many registers hold each rank, 0 … bits + 1.
        bits: of a hash that are ranked.
    """
    registers = sum(counts)
    if counts[0] == registers:
        return 0.0
    total = registers * _tau(1 - counts[bits + 1] / registers)
    for rank in range(bits, 0, -1):
        total = 0.5 * (total + counts[rank])
    total += registers * _sigma(counts[0] / registers)
    return registers * registers / (2 * math.log(2) * total)


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    weight, total = 1.0, x
    while True:
        x *= x
        before = total
        total += x * weight
        weight += weight
        if total == before:
            return total


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    weight, total = 1.0, 1 - x
    while True:
        x = math.sqrt(x)
        before = total
        weight *= 0.5
        total -= (1 - x) ** 2 * weight
        if total == before:
            return total / 3


def split_by_slot(slots: Slots) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """Return each slot with the rows that have it, in order."""
    if not len(slots):
        return []
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    bounds = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    firsts = ordered[np.concatenate([[0], bounds])].tolist()
    return list(zip(firsts, np.split(order, bounds), strict=True))
