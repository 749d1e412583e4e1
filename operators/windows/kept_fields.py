"""`KeptFields`: where the fields of an accumulator lie, and its state as a dump has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...state.node_transfer import column_name, write_fields
from .slot_texts import ColumnTexts

if TYPE_CHECKING:
    from ...state.records import RecordField
    from ...transport.wire.batch import Batch
    from ..aggregates.accumulator import Accumulator
    from .slot_objects import SlotObjects
    from .slot_texts import SlotTexts
    from .value_sets import ValueSets

__all__ = ["KeptFields", "states_of_dump"]


class KeptFields(NamedTuple):
    """Where an accumulator's fields lie: names in the records, objects, sets and texts."""

    accumulator: Accumulator
    names: dict[str, str]
    objects: dict[str, SlotObjects]
    sets: dict[str, ValueSets]
    texts: dict[str, SlotTexts]


def states_of_dump(
    kept: Sequence[KeptFields], moved: Sequence[RecordField], batch: Batch
) -> list[dict[str, Any]]:
    """Return the numbers and texts in a dump as states, whose slots are its rows.

    Args:
        kept: the fields of each accumulator.
        moved: the fields of records that move with a group.
        batch: the dump, which may lack those that belong to no accumulator.
    """
    numbers = np.empty(batch.num_rows, np.dtype([(field.name, field.dtype) for field in moved]))
    dumped = [one for one in moved if column_name(one.name) in batch.schema]
    write_fields(numbers, np.arange(batch.num_rows), dumped, batch)
    states = []
    for one in kept:
        state: dict[str, Any] = {name: numbers[at] for name, at in one.names.items()}
        for name, texts in one.texts.items():
            state[name] = ColumnTexts(batch.column(column_name(texts.name)))
        states.append(state)
    return states
