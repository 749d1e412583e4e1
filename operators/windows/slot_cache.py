"""A direct-mapped cache of (slice, key) → slot in front of the indexes.

A key is recognised by its hash alone. That is exact where different keys always have different
hashes, which holds for a single column of up to eight bytes (but for instants that nanoseconds
cannot tell, see `exact_hashes_within`), and for no column at all. Other keys, and null, are looked
up in the index every time.

Where many rows miss, since there are more keys than entries, the cache costs more than it saves: it
is bypassed for a while, each time for longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...state.keys import exact_hashes_within
from ...transport.compiling import njit

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.types import DataType, Schema

__all__ = ["SlotCache"]

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_ENTRIES_MIN, _ENTRIES_MAX = 1 << 10, 1 << 14
"""At most what a second-level cache holds: beyond it, an entry is as far away as an index."""
_MISSED_PART = 64
"""If more than this part of the rows miss, there are more entries: some keys may share one."""
_PAUSED_PART = 8
"""If more than this part of the rows miss, it is bypassed: a miss costs what several hits save."""
_PAUSE_MAX = 64
"""For how many batches the cache is bypassed at most."""
_HASH, _SLICE, _SLOT = 0, 1, 2
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NO_VALIDITY = np.empty(0, np.bool_)


class SlotCache:
    """Slots of groups that were looked up lately.

    A slice that was freed never comes back, so entries of freed slots match no row.

    Args:
        keys: the key columns; `hash_keys` hashes them.
    """

    def __init__(self, keys: Schema) -> None:
        fields = list(keys)
        self._column = fields[0].name if fields else None
        self._exact_within = _exact_within([field.type for field in fields])
        self._entries = np.full((_ENTRIES_MIN, 4), -1, np.int64)
        self._pause = 1  # in batches, once many rows of one miss
        self._paused = 0  # so many batches from now on

    def look_up(self, slices: Int64s, hashes: Hashes, keys: Batch) -> tuple[Int64s, Int64s] | None:
        """Return the slot of each row as far as it is known, and the rows where it is not.

        Returns:
            slots: int64 (n,), −1 where unknown.
            missed: int64 (m,), the rows with −1, ascending.
            None if it is bypassed.
        """
        rows = len(hashes)
        if self.is_bypassed:
            self.pass_over()
            return None
        slots, missed = np.empty(rows, np.int64), np.empty(rows, np.int64)
        valid = self._validity(keys)
        count = _look_up(self._entries, slices, hashes, valid, slots, missed)
        self._adapt(rows, count)
        return slots, missed[:count]

    @property
    def is_bypassed(self) -> bool:
        """Whether the next batch is looked up in the index alone."""
        return self._exact_within < 0 or self._paused > 0

    def pass_over(self) -> None:
        """Let one more batch go by without it."""
        self._paused = max(self._paused - 1, 0)

    def enter(
        self, slices: Int64s, hashes: Hashes, keys: Batch, slots: Int64s, rows: Int64s
    ) -> None:
        """Remember the slots of these rows, which `look_up` missed; not of null keys."""
        _enter(self._entries, slices, hashes, self._validity(keys), slots, rows)

    def forget(self) -> None:
        """Forget all slots: those of a sealed store must be looked up before they are written."""
        self._entries.fill(-1)

    def _adapt(self, rows: int, missed: int) -> None:
        """Take more entries, or pass the cache over for a while, if too many rows have missed."""
        entries = len(self._entries)
        if missed > rows // _MISSED_PART and entries < _ENTRIES_MAX:
            self._entries = np.full((4 * entries, 4), -1, np.int64)
        elif missed > rows // _PAUSED_PART:
            self._paused, self._pause = self._pause, min(2 * self._pause, _PAUSE_MAX)
        else:
            self._pause = 1

    def _validity(self, keys: Batch) -> npt.NDArray[np.bool_]:
        """Return which rows have a key whose hash is exact, bool (n,); (0,) if all have."""
        if self._column is None:
            return _NO_VALIDITY
        column, most = keys.column(self._column), self._exact_within
        validity = column.validity
        if most < math.inf and (
            column.data.min(initial=0) < -most or column.data.max(initial=0) > most
        ):
            exact = (-most <= column.data) & (column.data <= most)
            validity = exact if validity is None else exact & validity
        return _NO_VALIDITY if validity is None else validity


def _exact_within(kinds: Sequence[DataType]) -> float:
    """See `exact_hashes_within`, for the types of all key columns."""
    if not kinds:
        return math.inf
    return exact_hashes_within(kinds[0]) if len(kinds) == 1 else -1


@njit(inline="always")
def _place(hashed: Any, slice_: Any, mask: Any) -> Any:
    return np.int64((hashed + np.uint64(slice_) * _GOLDEN) & mask)


@njit(cache=True, nogil=True)
def _look_up(entries: Any, slices: Any, hashes: Any, validity: Any, slots: Any, missed: Any) -> int:
    mask = np.uint64(len(entries) - 1)
    nulls = len(validity) > 0
    count = 0
    for row in range(len(hashes)):
        hashed, slice_ = hashes[row], slices[row]
        at = _place(hashed, slice_, mask)
        slot = entries[at, _SLOT]
        known = np.uint64(entries[at, _HASH]) == hashed and entries[at, _SLICE] == slice_
        if nulls and not validity[row]:
            known = False
        if not known or slot < 0:
            slot = np.int64(-1)
            missed[count] = row
            count += 1
        slots[row] = slot
    return count


@njit(cache=True, nogil=True)
def _enter(entries: Any, slices: Any, hashes: Any, validity: Any, slots: Any, rows: Any) -> None:
    mask = np.uint64(len(entries) - 1)
    nulls = len(validity) > 0
    for number in range(len(rows)):
        row = rows[number]
        if nulls and not validity[row]:
            continue
        at = _place(hashes[row], slices[row], mask)
        entries[at, _HASH] = np.int64(hashes[row])
        entries[at, _SLICE] = slices[row]
        entries[at, _SLOT] = slots[row]
