"""`DumpedGroups`: groups of an aggregation outside of any store, as a dump or deltas have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...state.node_transfer import field_columns
from ...state.records import RecordField
from ..aggregates.accumulator import Accumulator, OutOfRange, State

if TYPE_CHECKING:
    from ...transport.wire.column import Column

__all__ = ["DumpedGroups", "numbered"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DumpedGroups:
    """Groups that are in no store: their slots are the rows of the dump."""

    accumulators: Sequence[Accumulator]
    states: Sequence[State]

    def finish(self, number: int, slots: Int64s) -> Column:
        """See `GroupState.finish`."""
        with numbered(number):
            return self.accumulators[number].finish(self.states[number], slots)

    def columns(self, slots: Int64s) -> dict[str, Column]:
        """Return the state of groups as `GroupState.dump` does; all fields have a fixed width."""
        found: Any = {}
        fields = []
        for number, (one, state) in enumerate(zip(self.accumulators, self.states, strict=True)):
            for field in one.fields:
                name = f"{number}.{field.name}"
                found[name] = state[field.name][slots]
                fields.append(RecordField(name, field.dtype))
        return field_columns(found, fields)

    def merge(self, slots: Int64s, other: DumpedGroups) -> None:
        """Add all groups of another dump to those of these slots; raise as `GroupState.merge`."""
        rows = np.arange(len(slots))
        for number, accumulator in enumerate(self.accumulators):
            with numbered(number):
                accumulator.merge(self.states[number], slots, other.states[number], rows)


@contextmanager
def numbered(number: int) -> Iterator[None]:
    """Note in an `OutOfRange` of which accumulator it is."""
    try:
        yield
    except OutOfRange as error:
        error.number = number
        raise
