"""The table of a store's index: how large it is, and what it is filled from.

It doubles while there is memory for that, old records giving way to the disk. Then it is filled
more densely, and grows by a quarter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..configs.errors import StateFullError
from . import index, index_kernels
from .keys import virtual_node_of

if TYPE_CHECKING:
    from .log import ChunkLog
    from .segments import Extent

__all__ = ["IndexTable"]

_BUCKETS_MIN = 64
_NO_BUCKETS = np.empty(0, np.uint64)


class IndexTable:
    """The buckets of one store.

    Args:
        place, at: of the store, see `index`.
        log: its memory.
        chunks: its records, the oldest first.

    Attributes:
        buckets: uint64 (n,).
        ranks: of each virtual node among those that were seen, int32; -1 if it was not.
        usual_buckets: to which size the table grows in one step.
    """

    def __init__(
        self,
        place: npt.NDArray[np.int64],
        at: npt.NDArray[np.int64],
        log: ChunkLog,
        chunks: Iterable[Extent],
    ) -> None:
        self._place, self._at, self._log, self._chunks = place, at, log, chunks
        self.buckets: npt.NDArray[np.uint64] = _NO_BUCKETS
        self.ranks: npt.NDArray[np.int32] = np.full(1 << int(place[index.NODE_BITS]), -1, np.int32)
        self.usual_buckets = _BUCKETS_MIN

    def start_empty(self) -> None:
        """Take a table without keys; the one before is not given back."""
        self.buckets = _NO_BUCKETS
        self.replace(_BUCKETS_MIN)

    def see_nodes(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Give the virtual nodes of these hashes buckets of their own."""
        seen = self.ranks >= 0
        seen[virtual_node_of(hashes, len(self.ranks))] = True
        self.ranks = np.where(seen, np.cumsum(seen) - 1, -1).astype(np.int32)
        self.replace(len(self.buckets))

    def grow(self) -> None:
        """Make room for more keys.

        Raises:
            StateFullError: the worker's memory for state is used up.
        """
        count = len(self.buckets)
        larger = max(2 * count, self.usual_buckets)
        if not self._log.may_spill or self._log.has_room_for_words(larger):
            self.replace(larger)
        elif self._at[index.LIMIT] < _limit_of(count, dense=True):
            self._at[index.LIMIT] = _limit_of(count, dense=True)
        else:
            self.replace(count * 5 // 4, dense=True)

    def replace(self, count: int, *, dense: bool = False) -> None:
        """Take a table of `count` buckets for the one that there is; raise as `grow`."""
        old = self.buckets
        if len(old) and self._log.spills:
            del old  # so that nothing holds it when the other one is taken
            self._fill_from_log(count, dense=dense)
            return
        self.buckets = self._log.words(count, self._keys)
        self._spread_homes(dense=dense)
        index_kernels.rehash(self._place, self._at, old, self.buckets, self.ranks)
        self._log.give_back_words(old)

    def _fill_from_log(self, count: int, *, dense: bool) -> None:
        """Give the table back before another one takes its memory."""
        before = len(self.buckets)
        self._log.give_back_words(self.buckets)
        self.buckets = _NO_BUCKETS
        try:
            self.buckets = self._log.words(count, self._keys)
        except StateFullError:
            self.buckets = self._log.words(before, self._keys)
            raise
        finally:
            self._spread_homes(dense=dense or len(self.buckets) == before)
            for extent in self._chunks:
                self._log.fetch(extent.chunk)
                index_kernels.enter_records(
                    *(self._place, self._at, self.buckets, self.ranks),
                    *(extent.first, extent.stop),
                )

    @property
    def _keys(self) -> int:
        return int(self._at[index.LIVE])

    def _spread_homes(self, *, dense: bool) -> None:
        """Let the homes of all keys be in the buckets that there are now."""
        count, node_bits = len(self.buckets), int(self._place[index.NODE_BITS])
        seen = max(1, int(self.ranks.max()) + 1)
        self._at[index.SPREAD] = (count << 32) // (seen << (32 - node_bits))
        self._at[index.LIMIT] = _limit_of(count, dense=dense)


def _limit_of(buckets: int, *, dense: bool) -> int:
    """Return how many buckets may be in use; dense tables take less memory and more time."""
    return buckets * 4 // 5 if dense else buckets * 5 // 8
