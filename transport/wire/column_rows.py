"""`rows_of_columns`: takes rows of columns that are no batch, as `Batch.take` does of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .batch import Batch
from .types import Field, Schema

if TYPE_CHECKING:
    import numpy.typing as npt

    from .column import Column

__all__ = ["rows_of_columns"]


def rows_of_columns(columns: Sequence[Column], rows: npt.NDArray[Any]) -> Sequence[Column]:
    """Return rows of columns of one length; owned.

    Args:
        columns: at least one.
        rows: integers (m,), in the order in which they are wanted.
    """
    fields = [Field(str(number), column.type) for number, column in enumerate(columns)]
    return Batch(Schema(tuple(fields)), list(columns), len(columns[0])).take(rows).columns
