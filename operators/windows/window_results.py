"""`WindowResults`: the rows that leave a windowed aggregation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...configs.errors import BadRowError
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ..aggregates.accumulator import OutOfRange

if TYPE_CHECKING:
    from ...transport.wire.types import Schema
    from .aggregation import Aggregation
    from .group_state import GroupState

__all__ = ["WindowResults"]

Int64s = npt.NDArray[np.int64]

_NS_PER_US = 1_000


class WindowResults:
    """Makes rows of the groups of an aggregation.

    Args:
        aggregation: what was asked for.
        schema: the columns of the result.
        operator: the operator's id, for messages.
    """

    def __init__(self, aggregation: Aggregation, schema: Schema, operator: str) -> None:
        self._aggregation = aggregation
        self._schema = schema
        self._operator = operator

    def rows(
        self, keys: Batch, groups: GroupState, slots: Int64s, starts_ns: Int64s, ends_ns: Int64s
    ) -> Batch:
        """Return one row per group.

        Args:
            keys: the key columns of the groups.
            groups: where the groups are.
            slots: the groups, int64 (n,).
            starts_ns, ends_ns: the bounds of their windows, int64 (n,); not used where the result
                has no columns for them.

        Raises:
            BadRowError: a result does not fit its type; the message names operator, key and window.
        """
        columns: list[Column] = []
        if self._aggregation.has_window_columns:
            kind = self._schema.fields[0].type
            columns = [Column(kind, bounds // _NS_PER_US) for bounds in (starts_ns, ends_ns)]
        columns += keys.columns
        for number, aggregate in enumerate(self._aggregation.aggregates):
            try:
                columns.append(groups.finish(number, slots))
            except OutOfRange as error:
                row = error.row
                where = f" of key {keys.preview(row)}" if len(keys.schema) else ""
                if self._aggregation.has_window_columns:
                    start, end = _text(int(starts_ns[row])), _text(int(ends_ns[row]))
                    where += f" in the window {start} to {end}"
                msg = f"operator {self._operator!r}: {aggregate}{where}: {error.reason}"
                raise BadRowError(msg) from None
        return Batch(self._schema, columns, len(slots))


def _text(time_ns: int) -> str:
    return str(np.datetime64(time_ns // _NS_PER_US, "us"))
