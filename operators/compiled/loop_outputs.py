"""Where each column that comes out of a loop comes from: the input, an expression, or a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .loop_arguments import rows_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...transport.wire.types import DataType
    from .table_lookup import TableLookup

__all__ = ["AtPlace", "Computed", "LookedUp", "Output", "Passed", "by_place", "may_be_at_place"]


@dataclass(frozen=True)
class Passed:
    """An output column that is one of the input: its number, and whether the loop copies it."""

    column: int
    copied: bool


@dataclass(frozen=True)
class Computed:
    """An output column that the loop computes: its type, and whether it may be null."""

    type: DataType
    nullable: bool


@dataclass(frozen=True)
class LookedUp:
    """An output column of a table: the number of the look-up, and the column's name there.

    The loop tells the numbers of the table's rows; the values are gathered behind it.
    """

    lookup: int
    name: str


@dataclass(frozen=True)
class AtPlace:
    """An output column of a table that the loop itself reads, at the place of the row's key.

    Keys are found by distance there, and no value is null; `type` is that of the column.
    """

    lookup: int
    name: str
    type: DataType


Output: TypeAlias = Passed | Computed | LookedUp | AtPlace


def may_be_at_place(lookup: TableLookup, name: str) -> bool:
    """Whether a loop can read a column of a table so: it has numbers, and no nulls."""
    if not lookup.is_dense or not lookup.filters:
        return False
    added = rows_of(lookup).added
    assert added is not None
    column = added.column(name)
    return column.offsets is None and column.validity is None and column.data.dtype.kind in "biuf"


def by_place(lookup: TableLookup, name: str) -> npt.NDArray[Any]:
    """Return the values of such a column, by the places of `UniqueRows.slots`."""
    rows = rows_of(lookup)
    assert rows.added is not None
    return rows.added.column(name).data[np.maximum(rows.slots, 0)]
