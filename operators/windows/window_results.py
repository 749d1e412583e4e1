"""`WindowResults`: the rows that leave a windowed aggregation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...configs.errors import BadRowError
from ...configs.units import NS_PER_US
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ..aggregates.accumulator import OutOfRange

if TYPE_CHECKING:
    from ...transport.wire.types import Schema
    from .aggregation import Aggregation
    from .dumped_groups import DumpedGroups
    from .group_state import GroupState

__all__ = ["WindowResults"]

Int64s = npt.NDArray[np.int64]


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
        self,
        keys: Batch,
        groups: GroupState | DumpedGroups,
        slots: Int64s,
        starts_ns: Int64s,
        ends_ns: Int64s,
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
            columns = [Column(kind, bounds // NS_PER_US) for bounds in (starts_ns, ends_ns)]
        columns += keys.columns

        def window_of(row: int) -> str:
            if not self._aggregation.has_window_columns:
                return ""
            return f" in the window {_text(int(starts_ns[row]))} to {_text(int(ends_ns[row]))}"

        with self.naming(lambda: keys, window_of):
            columns += [groups.finish(n, slots) for n in range(len(self._aggregation.aggregates))]
        return Batch(self._schema, columns, len(slots))

    @contextmanager
    def naming(
        self, keys: Callable[[], Batch], window_of: Callable[[int], str] = lambda _: ""
    ) -> Iterator[None]:
        """Let an `OutOfRange` in the block name the operator, the aggregate and the group.

        Args:
            keys: returns the key columns, a row for each of the groups of the block.
            window_of: says in which window the group of a row is.

        Raises:
            BadRowError: in place of `OutOfRange`.
        """
        try:
            yield
        except OutOfRange as error:
            found = keys()
            of_key = f" of key {found.preview(error.row)}" if len(found.schema) else ""
            aggregate = self._aggregation.aggregates[error.number]
            msg = (
                f"operator {self._operator!r}: {aggregate}{of_key}{window_of(error.row)}:"
                f" {error.reason}"
            )
            raise BadRowError(msg) from None


def _text(time_ns: int) -> str:
    return str(np.datetime64(time_ns // NS_PER_US, "us"))
