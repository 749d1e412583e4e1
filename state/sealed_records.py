"""The records of a store as they were at a seal, read beside the loop that goes on changing them.

Which records have changed is known by their images, so the thread that writes a snapshot takes
copies: of a record that has not changed since as it is, else the oldest image behind the seal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..transport.deferred_compiling import entry_point
from .history import copy_images, copy_records, count_images
from .images import RecordImages
from .index import ALIVE
from .records import RecordLayout, copy_of_records
from .segments import Extent, ReachedRecords, ranges_of

__all__ = ["SealedRecords", "is_alive", "living", "warm_up"]

Slots = npt.NDArray[np.int64]

_PIECE_RECORDS = 1 << 18


def warm_up() -> None:
    """Load or compile what reads records beside the loop, so that no checkpoint waits for that."""
    for kernel in (copy_records, count_images, copy_images):
        entry_point(kernel)


@dataclass(frozen=True)
class SealedRecords:
    """The records of one store at one seal.

    It is of use until an epoch behind it is released, or the store goes back before it; what has
    changed is known until its own is.

    Attributes:
        layout: of the records.
        memory: the store's log, uint8.
        segment: the last one before the seal.
        extents: the chunks of records, and maybe newer ones behind them.
        mark: how far the records reached at the seal.
        before: how far they reached at the seal before.
    """

    layout: RecordLayout
    memory: npt.NDArray[np.uint8]
    segment: int
    extents: Sequence[Extent]
    mark: ReachedRecords
    before: ReachedRecords
    _images: RecordImages
    _place: npt.NDArray[np.int64]

    @property
    def is_first(self) -> bool:
        """Whether all its records are new, since there was no seal or the store was cleared."""
        return self.before.chunks == 0

    @property
    def new(self) -> list[tuple[int, int]]:
        """The records that were not there at the seal before, as (first, stop)."""
        return ranges_of(self.extents, self.mark, self.before)

    @property
    def changes(self) -> int:
        """How often a record was new, or changed for the first time, in the segment."""
        images = self._images.of(self.segment - 1, self.segment)
        return self._images.count(images) + sum(stop - first for first, stop in self.new)

    def changed(self) -> Slots:
        """Return the records that were written to in the segment, ascending: int64 (n,)."""
        new = [np.arange(first, stop) for first, stop in self.new]
        return np.unique(np.concatenate([self.overwritten(), *new]))

    def overwritten(self) -> Slots:
        """Return the records written to in the segment that were there before it: int64 (n,)."""
        return np.unique(self._images.numbers(self._images.of(self.segment - 1, self.segment)))

    @property
    def count(self) -> int:
        """How many records there were, those without a key too."""
        return sum(stop - first for first, stop in self._ranges)

    @property
    def pieces(self) -> int:
        """In how many parts `piece` returns all records."""
        return -(-self.count // _PIECE_RECORDS)

    def piece(self, number: int) -> Slots:
        """Return a part of all records that were there, those without a key too: int64 (n,)."""
        ranges = self._ranges
        begin, end = number * _PIECE_RECORDS, (number + 1) * _PIECE_RECORDS
        found, passed = [], 0
        for first, stop in ranges:
            here, there = max(begin - passed, 0), min(end - passed, stop - first)
            if here < there:
                found.append(np.arange(first + here, first + there))
            passed += stop - first
        return np.sort(np.concatenate(found))

    def holds(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Return which of some records of the log were the store's: bool (n,)."""
        ranges = np.array(sorted(self._ranges), np.int64).reshape(-1, 2)
        at = np.searchsorted(ranges[:, 0], slots, side="right") - 1
        found = np.zeros(len(slots), np.bool_)
        inside = at >= 0
        found[inside] = slots[inside] < ranges[at[inside], 1]
        return found

    @property
    def _ranges(self) -> list[tuple[int, int]]:
        return ranges_of(self.extents, self.mark, ReachedRecords(0, 0))

    def read(self, slots: Slots, *, before: bool = False) -> npt.NDArray[Any]:
        """Return copies of records at the seal, or at the one before: of `layout.dtype`, (n,).

        Args:
            slots: ascending, int64 (n,).
            before: whether at the seal before. Only of those that `changed` returns.
        """
        segment = self.segment - before
        found = np.empty(len(slots), self.layout.dtype)
        target = found.ctypes.data
        changed = np.empty(len(slots), np.int64)
        count = copy_records(self._place, slots, segment, target, changed)
        rows = changed[:count]
        if count:
            wanted = slots[rows]
            for _, chunk in reversed(self._images.of(segment)):
                begin, stop, size = self._images.bounds(chunk)
                images = count_images(begin, stop, size)
                copy_images(self._place, begin, images, wanted, rows, target)
        if before:
            new = np.zeros(len(slots), np.bool_)
            for first, stop in self.new:
                new |= (slots >= first) & (slots < stop)
            found["#link"][new] = 0
        return found


def is_alive(records: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which records have a key."""
    alive: npt.NDArray[np.bool_] = (records["#link"] & np.uint64(0xFF)) == ALIVE
    return alive


def living(records: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return those records that have a key."""
    return copy_of_records(records, np.flatnonzero(is_alive(records)))
