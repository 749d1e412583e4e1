"""`KeptFields`: where the fields of an accumulator lie, and its state as a dump has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...configs.errors import InputError
from ...state.node_transfer import column_name, takes_exported, write_fields
from .slot_texts import ColumnTexts

if TYPE_CHECKING:
    from ...state.records import RecordField
    from ...transport.wire.batch import Batch
    from ..aggregates.accumulator import Accumulator
    from .slot_objects import SlotObjects
    from .slot_texts import SlotTexts
    from .value_sets import ValueSets

__all__ = ["KeptFields", "states_of_dump", "write_dumped"]


class KeptFields(NamedTuple):
    """Where an accumulator's fields lie: names in the records, objects, sets and texts."""

    accumulator: Accumulator
    names: dict[str, str]
    objects: dict[str, SlotObjects]
    sets: dict[str, ValueSets]
    texts: dict[str, SlotTexts]


def write_dumped(
    records: npt.NDArray[Any],
    slots: npt.NDArray[np.int64],
    kept: Sequence[KeptFields],
    moved: Sequence[RecordField],
    batch: Batch,
) -> None:
    """Write the numbers in a dump into the records of `slots`.

    Args:
        records: of the groups.
        slots: which of them, int64 (n,).
        kept: the fields of each accumulator.
        moved: the fields of records that move with a group.
        batch: the dump, perhaps of an earlier version.

    Raises:
        InputError: an accumulator keeps other fields now, or a narrower type.
    """
    _check_dumped(kept, batch)
    write_fields(records, slots, moved, batch)


def _check_dumped(kept: Sequence[KeptFields], batch: Batch) -> None:
    """Check that accumulators can take the numbers in a dump; raise as `write_dumped`."""
    for number, one in enumerate(kept):
        if not one.names:
            continue
        begin = column_name(f"{number}.")
        dumped = {
            field.name.removeprefix(begin): field.type
            for field in batch.schema
            if field.name.startswith(begin)
        }
        dtypes = {field.name: field.dtype for field in one.accumulator.fields}
        for name in one.names:
            if name in dumped and takes_exported(dtypes[name], dumped[name]):
                continue
            was = f"as {dumped[name]}" if name in dumped else "did not"
            change = f"keeps state[{name!r}] as {dtypes[name]}, and {was} before"
            raise InputError(_changed(one.accumulator, change))
        gone = sorted(dumped.keys() - dtypes.keys())
        for name in gone if not (one.objects or one.sets or one.texts) else ():
            change = f"keeps state[{name!r}] no longer"
            raise InputError(_changed(one.accumulator, change))


def _changed(accumulator: Accumulator, change: str) -> str:
    return (
        f"aggregate {accumulator.name} {change}: declare what it kept, or a type that has all of"
        " its numbers, or give the operator another id to begin anew"
    )


def states_of_dump(
    kept: Sequence[KeptFields], moved: Sequence[RecordField], batch: Batch
) -> list[dict[str, Any]]:
    """Return the numbers and texts in a dump as states, whose slots are its rows.

    Args:
        kept: the fields of each accumulator.
        moved: the fields of records that move with a group.
        batch: the dump, which may lack those that belong to no accumulator.

    Raises:
        InputError: see `write_dumped`.
    """
    _check_dumped(kept, batch)
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
