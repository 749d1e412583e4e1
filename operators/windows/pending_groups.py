"""`PendingGroups`: rows, or deltas, that wait for a pass over their groups, which are on the disk.

Each group on the disk that a row changes costs a page read and a page written, if rows are taken
one batch at a time: keys are met at random. So once groups come from the disk, rows are gathered in
a part of the memory, then wait on the disk, and are taken together (`PendingRows`).

The operator takes them before anything asks for the groups: a window that ends, rows that are due,
a marker. So nobody sees a difference, and checkpoints need not know of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...state.budget import SETTING
from ...state.memory_for_rows import MemoryForRows
from ...state.pending_rows import PendingRows
from ...transport.wire.batch import Batch
from .group_records import slices_in

if TYPE_CHECKING:
    from ..process import InstanceContext
    from .group_state import GroupState

__all__ = ["PendingGroups", "report_none"]

_log = logging.getLogger(__name__)

Int64s = npt.NDArray[np.int64]

_BYTES_MIN = 1 << 17
"""With less, each pass would serve too few rows to be of use."""
_BYTES_MAX = 1 << 30
"""They are joined to one batch: a column of it holds at most 2 GiB of text."""
_COPIES = 2
"""The rows that are gathered are copied, to join them and by region."""
_BYTES_PER_ROW = 40
"""What is made for each row beside: its place, twice, its region, twice, and its order."""
_ROWS_MIN = 64


class PendingGroups:
    """The rows of one operator on one worker that wait; all have the same columns.

    Args:
        groups: that the rows change.
        memory: for the rows, see `open`.
        context: of the operator.
    """

    def __init__(self, groups: GroupState, memory: MemoryForRows, context: InstanceContext) -> None:
        self._memory = memory
        self._records = records = groups.records_of_rows()
        self._waiting = PendingRows(
            context.operator_id, context.state_budget, records, records.memory
        )
        self._gathered: list[Batch] = []
        self._gathered_bytes = 0
        self._first: Batch | None = None
        self.earliest_slice: int | None = None
        """The earliest slice of which rows wait; None if none do."""

    @classmethod
    def open(cls, groups: GroupState, context: InstanceContext) -> PendingGroups | None:
        """Return a new one for groups on the disk; None if they leave no memory for it."""
        memory = MemoryForRows(
            groups,
            context.state_budget.limit_bytes,
            bytes_min=_BYTES_MIN,
            bytes_max=_BYTES_MAX,
        )
        return cls(groups, memory, context) if memory.take() else None

    def __len__(self) -> int:
        """Return the number of rows that wait."""
        return len(self._waiting) + sum(batch.num_rows for batch in self._gathered)

    def rows_max(self, rows: Batch) -> int:
        """Return how many rows like these may be added at a time."""
        return max(_ROWS_MIN, self._memory.nbytes * rows.num_rows // _taken_bytes(rows))

    def fits(self, rows: Batch) -> bool:
        """Return whether rows have the columns of those that wait."""
        first = self._first
        return first is None or (first.schema == rows.schema and first.has_times == rows.has_times)

    def has_room(self, rows: Batch) -> bool:
        """Return whether rows may be added to those in memory."""
        return (
            not self._gathered or self._gathered_bytes + _taken_bytes(rows) <= self._memory.nbytes
        )

    def add(self, rows: Batch) -> None:
        """Let rows wait in memory.

        Args:
            rows: which fit; what the aggregates read, and the column `SLICE`, or deltas.
        """
        earliest = int(slices_in(rows).min())
        if self._first is None or self.earliest_slice is None:
            self._first = rows.slice(0, 0).copy()
            self.earliest_slice = earliest
        self.earliest_slice = min(self.earliest_slice, earliest)
        self._gathered.append(rows.copy())  # it may be a view of a ring, or of much more memory
        self._gathered_bytes += _taken_bytes(rows)

    def put_off(self) -> Iterator[tuple[Batch, Int64s]] | None:
        """Let the rows in memory wait on the disk, but not those without a group.

        Returns: the latter and the slots of their groups, which are being made; None: there is no
            room on the disk, and all rows are still here.
        """
        rows = Batch.concat(self._gathered)
        self._gathered = [rows]
        new = self._waiting.put_off(rows, new_wait=False)
        if new is None:
            return None
        self._gathered, self._gathered_bytes = [], 0
        return self._records.in_pieces(new)

    def leave_room(self) -> None:
        """Give memory back that the index of the groups needs."""
        self._memory.leave_room()

    def taken(self) -> Iterator[tuple[Batch, Int64s]]:
        """Yield all that waits in parts, and the slot of each row's group; then it waits no more.

        Rows of one group keep their order.
        """
        if self._first is None:
            return
        last = Batch.concat(self._gathered) if self._gathered else self._first
        self._forget_gathered()
        yield from self._waiting.taken(last)

    def close(self) -> None:
        """Forget all rows, and give the memory back."""
        self._forget_gathered()
        self._waiting.close()
        self._memory.close()

    def _forget_gathered(self) -> None:
        self._gathered, self._gathered_bytes = [], 0
        self._first, self.earliest_slice = None, None


def _taken_bytes(rows: Batch) -> int:
    return _COPIES * rows.nbytes + _BYTES_PER_ROW * rows.num_rows


def report_none(operator: str) -> None:
    """Log that an operator has groups on the disk and no memory for rows that wait for a pass."""
    _log.warning(
        "whale-ray: operator %r: its state lies on the disk, and the memory that is left suffices"
        " only to find it there, so each batch reads and writes the pages of its groups one by one:"
        " raise %s, or run more workers",
        operator,
        SETTING,
    )
