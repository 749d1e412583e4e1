"""`GroupMemtable`: groups of the rows that came lately, in memory, in front of groups on the disk.

Each group on the disk that a row changes costs a page read and a page written, if rows are taken
one batch at a time: keys are met at random. So once groups lie on the disk, rows are first added to
groups in memory, as many as a part of the budget holds. When it is full, these are merged into the
others in the order in which those lie: the disk is read and written from one end to the other,
each page once for all of its groups, and frequent groups hardly ever cause it. This is the first
component of an LSM-tree (O'Neil et al. 1996), with records that stay in place instead of runs.

The operator empties it before anything asks for the groups: a window that ends, rows that are due,
a marker. So nobody sees a difference, and checkpoints need not know of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...state.budget import SETTING, StateBudget

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from .group_state import GroupState

__all__ = ["GroupMemtable", "report_none"]

_log = logging.getLogger(__name__)

Int64s = npt.NDArray[np.int64]

_SHARE_OF_BUDGET = 4
"""It takes this part of the worker's memory for state."""
_BYTES_MIN = 1 << 20
"""It is of no use with less: chunks of memory have 64 KiB at least."""
_BEYOND_BYTES = 16 << 20
"""So much address space is reserved beyond it: `has_room` estimates."""
_ROWS_MIN, _PARTS = 64, 16
"""Rows are added in parts of it that are so small, since each may have a group of its own."""
_SORTED_BYTES = 16
"""What a group takes while all are sorted, to be merged."""
_INDEX_BYTES = 32
"""What a new group takes beside its record, at most."""


class GroupMemtable:
    """The memory in front of the groups of one operator on one worker.

    Args:
        stored: the groups that are on the disk; its memory is taken from theirs, see `open`.
        nbytes: how much.
        make: makes groups of the same kind, within a budget.

    Attributes:
        groups: those of the rows that came lately.
    """

    def __init__(
        self, stored: GroupState, nbytes: int, make: Callable[[StateBudget], GroupState]
    ) -> None:
        self._stored, self._nbytes = stored, nbytes
        self._budget = StateBudget(nbytes + _BEYOND_BYTES)  # `has_room` is asked before
        self.groups = make(self._budget)

    @classmethod
    def open(
        cls, stored: GroupState, limit_bytes: int, make: Callable[[StateBudget], GroupState]
    ) -> GroupMemtable | None:
        """Return a new one for groups on the disk; None if they leave no memory for it.

        Args:
            stored: the groups.
            limit_bytes: the worker's memory for state.
            make: makes groups of the same kind, within a budget.
        """
        nbytes = limit_bytes // _SHARE_OF_BUDGET
        if nbytes < _BYTES_MIN or not stored.set_aside(nbytes):
            return None
        return cls(stored, nbytes, make)

    @property
    def rows_max(self) -> int:
        """How many rows are to be added at a time at most."""
        return max(_ROWS_MIN, self._nbytes // _PARTS // self._group_bytes)

    def has_room(self, batch: Batch) -> bool:
        """Whether each of these rows may have a group of its own that is not there yet."""
        used = self._budget.used_bytes + _SORTED_BYTES * len(self.groups)
        added = batch.nbytes + batch.num_rows * self._group_bytes
        return used + added + self.groups.growth_bytes(batch.num_rows) <= self._nbytes

    @property
    def _group_bytes(self) -> int:
        """Bytes that a new group takes at most, beside text in its key."""
        return self.groups.record_bytes + _INDEX_BYTES

    def emptied(self) -> Iterator[tuple[int, Int64s]]:
        """Yield all groups, in pieces, in the order of those on the disk; then forget them.

        Yields:
            their slice, and where they are in `groups`: int64 (n,).
        """
        for slice_ in self.groups.slices:
            for slots in self._stored.like_ours(self.groups, slice_):
                yield slice_, slots
        self.groups.clear()

    def close(self) -> None:
        """Forget all groups, and give the memory back."""
        self.groups.drop()
        self._stored.give_back(self._nbytes)


def report_none(operator: str) -> None:
    """Log that an operator has groups on the disk and no memory for a memtable in front of them."""
    _log.warning(
        "whale-ray: operator %r: its state lies on the disk, and the memory that is left suffices"
        " only to find it there, so each batch reads and writes the pages of its groups one by one:"
        " raise %s, or run more workers",
        operator,
        SETTING,
    )
