"""The table of a store's index: how large it is, and what it is filled from.

It doubles while there is memory for that, old records giving way to the disk. Then it is filled
more densely, and grows by a quarter. A large table is replaced step by step, so that nothing waits
for it: the new one lies behind the old one, and some keys are moved whenever others are looked up.
They are moved in the order of their hashes, so that one comparison tells in which table a key is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from . import index, index_kernels
from .bucket_groups import GROUP_BUCKETS
from .keys import virtual_node_of
from .page_file import release_pages

if TYPE_CHECKING:
    from .log import ChunkLog

__all__ = ["IndexTable"]

_BUCKETS_MIN = 64
_NO_BUCKETS = np.empty(0, np.uint64)
_LARGE_BUCKETS = 1 << 18
"""From so many buckets on, 2 MiB, a table is replaced step by step."""
_MOVED_PER_KEY = 8
"""Buckets whose keys are moved for each key that is looked up: the old table hardly fills up."""
_MOVED_AT_LEAST = 1 << 14
"""So many are at each look-up, in less than a millisecond, that few rows a second end it, too."""
_RELEASED_BUCKETS = 1 << 20
"""So many buckets of an old table are entered into the new one before their memory goes."""


class IndexTable:
    """The buckets of one store.

    Args:
        place, at: of the store, see `index`.
        log: its memory.

    Attributes:
        buckets: uint64 (n,), as kernels take them: of the table that is being replaced, if any, and
            of the table.
        ranks: of each virtual node among those that were seen, int32; -1 if it was not.
        usual_buckets: to which size the table grows in one step.
        is_growing: whether keys are being moved from one table to another.
    """

    def __init__(
        self, place: npt.NDArray[np.int64], at: npt.NDArray[np.int64], log: ChunkLog
    ) -> None:
        self._place, self._at, self._log = place, at, log
        self.buckets: npt.NDArray[np.uint64] = _NO_BUCKETS
        self.ranks: npt.NDArray[np.int32] = np.full(1 << int(place[index.NODE_BITS]), -1, np.int32)
        self.usual_buckets = _BUCKETS_MIN
        self.is_growing = False
        self._side_by_side = _NO_BUCKETS  # where large tables lie one behind the other
        self._end = 0  # of the last one of these

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are counted: as many as the new table takes in the end."""
        return self.buckets.nbytes - 8 * int(self._at[index.START])

    def start_empty(self) -> None:
        """Take a table without keys; the one before is not given back."""
        self.take_back(_NO_BUCKETS, self.ranks)
        self.replace(_BUCKETS_MIN)

    def take_back(self, buckets: npt.NDArray[np.uint64], ranks: npt.NDArray[np.int32]) -> None:
        """Go on with a whole table that was put aside; the one before is not given back."""
        self.buckets, self.ranks, self.is_growing = buckets, ranks, False
        self._side_by_side, self._end = _NO_BUCKETS, 0

    def give_back(self) -> None:
        """Give the memory back; `start_empty` must follow."""
        self._log.give_back_words(self.buckets[int(self._at[index.START]) :])

    def see_nodes(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Give the virtual nodes of these hashes buckets of their own."""
        seen = self.ranks >= 0
        seen[virtual_node_of(hashes, len(self.ranks))] = True
        self.finish()
        self.ranks = np.where(seen, np.cumsum(seen) - 1, -1).astype(np.int32)
        self.replace(len(self.buckets))

    def grow(self) -> None:
        """Make room for more keys.

        Raises:
            StateFullError: the worker's memory for state is used up.
        """
        count = self.nbytes // 8
        larger = max(2 * count, self.usual_buckets)
        if self.is_growing:
            self.finish()
            if self._at[index.USED] < self._at[index.LIMIT]:
                return
        if not self._log.may_spill or self._log.has_room_for_words(larger):
            self._begin(larger)
        elif self._at[index.LIMIT] < _limit_of(count, dense=True):
            self._at[index.LIMIT] = _limit_of(count, dense=True)
        else:
            self._begin(count * 5 // 4 // GROUP_BUCKETS * GROUP_BUCKETS, dense=True)

    @property
    def has_room_to_grow(self) -> bool:
        """Whether there is memory for the next larger table, if the densest one."""
        return self._log.has_room_for_words(self.nbytes // 8 // 4)

    def growth_bytes(self, keys: int) -> int:
        """Return by how much the table grows if so many keys are added, once at most."""
        if int(self._at[index.USED]) + keys <= int(self._at[index.LIMIT]):
            return 0
        count = self.nbytes // 8
        return 8 * (max(2 * count, self.usual_buckets) - count)

    def replace(self, count: int, *, dense: bool = False) -> None:
        """Take a table of `count` buckets for the one that there is; raise as `grow`."""
        self.finish()
        old = self.buckets
        self._side_by_side, self._end = _NO_BUCKETS, 0
        self.buckets = self._log.words(count, self._keys, old if len(old) else None)
        self._fill_from(old, dense=dense)

    def advance(self, keys: int) -> None:
        """Move some keys to the new table, as so many others are looked up."""
        before = int(self._at[index.MOVED])
        known = (self._place, self._at, self.buckets, self.ranks)
        index_kernels.move_some(*known, max(_MOVED_PER_KEY * keys, _MOVED_AT_LEAST))
        size, moved = int(self._at[index.START]), int(self._at[index.MOVED])
        if moved < size:
            first = (int(self._at[index.OLD_FIRST]) + before) % size
            release_pages(self.buckets[first : min(first + moved - before, size)])
            return
        release_pages(self.buckets[:size])
        self.buckets = self.buckets[size:]
        self._at[index.START] = self._at[index.MOVED] = 0
        self.is_growing = False

    def finish(self) -> None:
        """Move all keys that are still in the old table."""
        if self.is_growing:
            self.advance(int(self._at[index.START]))

    def _begin(self, count: int, *, dense: bool = False) -> None:
        """Replace the table, step by step if it is large and both are in memory."""
        old = self.buckets
        if count < _LARGE_BUCKETS or self._log.is_on_disk(old):
            self.replace(count, dense=dense)
            return
        if self._end + count > len(self._side_by_side):
            self._side_by_side, self._end = self._log.addresses_of_words(), len(old)
            self._side_by_side[: len(old)] = old
            old = self.buckets = self._side_by_side[: len(old)]
        stop = self._end + count
        new = self._side_by_side[self._end : stop]
        taken = self._log.words(count, self._keys, old, new)
        if taken is not new:  # there was room on the disk only
            self.take_back(taken, self.ranks)
            self._fill_from(old, dense=dense)
            return
        self.buckets = self._side_by_side[self._end - len(old) : stop]
        self._end = stop
        self._at[index.OLD_SPREAD] = self._at[index.SPREAD]
        self._at[index.START] = len(old)
        self._at[index.OLD_FIRST] = index_kernels.end_of_gap(old)
        self.is_growing = True
        self._spread_homes(dense=dense)

    def _fill_from(self, old: npt.NDArray[np.uint64], *, dense: bool) -> None:
        """Enter all keys of another table, whose memory goes as that of this one comes."""
        self._spread_homes(dense=dense)
        for start in range(0, len(old), _RELEASED_BUCKETS):
            part = old[start : start + _RELEASED_BUCKETS]
            index_kernels.rehash(self._place, self._at, part, self.buckets, self.ranks)
            if len(part) == _RELEASED_BUCKETS:
                release_pages(part)

    @property
    def _keys(self) -> int:
        return int(self._at[index.LIVE])

    def _spread_homes(self, *, dense: bool) -> None:
        """Let the homes of all keys be in the buckets that there are now."""
        count, node_bits = self.nbytes // 8, int(self._place[index.NODE_BITS])
        seen = max(1, int(self.ranks.max()) + 1)
        self._at[index.SPREAD] = (count << 32) // (seen << (32 - node_bits))
        self._at[index.LIMIT] = _limit_of(count, dense=dense)


def _limit_of(buckets: int, *, dense: bool) -> int:
    """Return how many buckets may be in use; dense tables take less memory and more time."""
    return buckets * 4 // 5 if dense else buckets * 5 // 8
