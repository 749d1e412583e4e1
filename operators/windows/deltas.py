"""Deltas: what partial aggregates send to the operator that merges them (late merge).

A delta is a row: a key, a slice, and the state of each accumulator for the rows of that group since
the last delta. Deltas travel over the ordinary edge, between batches of plain rows. One column is
named so that it says what they are, and of which columns the accumulators were made: the merging
operator may get deltas before any row.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import SCHEMAS_REMEMBERED, DataType, Field, Schema, shared_schema

if TYPE_CHECKING:
    import numpy.typing as npt

    from .aggregation import Aggregation
    from .group_state import GroupState
    from .loop_groups import Groups, LoopGroups

__all__ = ["DeltaForm", "delta_columns", "deltas_of", "deltas_of_loop", "mark_of"]

_MARK = "#slice of "
_INT64 = DataType.parse("int64")


class DeltaForm(NamedTuple):
    """What the columns of deltas say.

    Attributes:
        slice: the name of the column with the slice of each, int64.
        inputs: the columns that the accumulators and the keys were made of, without others.
    """

    slice: str
    inputs: Schema


@functools.lru_cache(maxsize=SCHEMAS_REMEMBERED)
def delta_columns(schema: Schema) -> DeltaForm | None:
    """Return what the columns of deltas say; None if these are columns of plain rows."""
    name = next((name for name in schema.names if name.startswith(_MARK)), None)
    if name is None:
        return None
    read = [Field(one, DataType.parse(kind)) for one, kind in json.loads(name[len(_MARK) :])]
    keys = schema.fields[: schema.index(name)]
    others = (field for field in read if field.name not in {key.name for key in keys})
    return DeltaForm(name, Schema((*keys, *others)))


def deltas_of(
    groups: GroupState, slots: npt.NDArray[np.int64], slices: npt.NDArray[np.int64], mark: str
) -> Batch:
    """Return groups as deltas, owned.

    Args:
        groups: where they are.
        slots: the groups, int64 (n,).
        slices: the slice of each, int64 (n,).
        mark: what `mark_of` returned for the aggregation.
    """
    return _deltas(groups.keys_of(slots), slices, groups.dump(slots), mark)


def deltas_of_loop(groups: LoopGroups, numbers: Groups, mark: str) -> Batch:
    """Return groups of a compiled loop as deltas, as `deltas_of` does."""
    slices = groups.slices(numbers)
    return _deltas(groups.keys(numbers), slices, groups.states(numbers), mark)


def _deltas(
    keys: Batch, slices: npt.NDArray[np.int64], states: dict[str, Column], mark: str
) -> Batch:
    fields = [*keys.schema, Field(mark, _INT64)]
    fields += [Field(name, column.type) for name, column in states.items()]
    columns = [*keys.columns, Column(_INT64, slices), *states.values()]
    return Batch(shared_schema(tuple(fields)), columns, len(slices))


def mark_of(aggregation: Aggregation, schema: Schema) -> str:
    """Return the name of the column that marks deltas made of rows with this schema."""
    names = dict.fromkeys(name for one in aggregation.aggregates for name in one.columns)
    return _MARK + json.dumps([[name, schema.field(name).type.name] for name in names])
