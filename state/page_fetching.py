"""Reading pages of the disk ahead: those with the records of many keys, all at once.

A loop that meets a page on the disk waits for it alone, and a disk serves many requests in the time
of one. So before a loop goes over keys, the pages that it will touch are asked for in their order.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from ..transport.compiling import njit
from .index import (
    NODE_BITS,
    READ_U64,
    SLOT_MASK,
    STRIDE,
    TYPE_AT,
    TYPE_BUCKETS,
    TYPE_PLACE,
    TYPE_RANKS,
    after,
    home,
    node_of,
)
from .log import CHUNK_BYTES_MIN

if TYPE_CHECKING:
    from .index_table import IndexTable
    from .log import ChunkLog

__all__ = ["PageFetcher"]

FETCHED_ROWS_MAX = 8192
"""For so many keys pages are fetched at a time: 32 MiB at most, which stay until they are used."""

_PATIENCE = 64
"""For so many batches after one that read from the disk pages are fetched ahead."""

_PAGE_SHIFT = 12
_GAP_PAGES_MAX = 4
"""Pages between two that are wanted are read with them if they are not more."""

_MADV_WILLNEED = 3
_GRANULE_PAGES = CHUNK_BYTES_MIN >> _PAGE_SHIFT

_madvise: Any = types.ExternalFunction(
    "madvise", types.int32(types.int64, types.uint64, types.int32)
)


class PageFetcher:
    """Fetches the pages of one store's records, as long as they come from the disk.

    Args:
        place, at: of the store, see `index`.
        log: where its records are.
        table: its index.
    """

    def __init__(
        self,
        place: npt.NDArray[np.int64],
        at: npt.NDArray[np.int64],
        log: ChunkLog,
        table: IndexTable,
    ) -> None:
        self._place, self._at, self._log, self._table = place, at, log, table
        self._reads = 0
        self._patience = 0

    def fetched(self, hashes: npt.NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
        """Yield pieces of some keys, as (start, stop), whose pages have been asked for."""
        if not self._log.spills or not self._is_useful():
            yield 0, len(hashes)
            return
        for start in range(0, len(hashes), FETCHED_ROWS_MAX):
            stop = min(start + FETCHED_ROWS_MAX, len(hashes))
            self._fetch(hashes[start:stop])
            yield start, stop

    def _is_useful(self) -> bool:
        """Return whether this thread has read from the disk lately; call it once a batch."""
        reads = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
        if reads != self._reads:
            self._reads, self._patience = reads, _PATIENCE
        else:
            self._patience = max(0, self._patience - 1)
        return self._patience > 0

    def _fetch(self, hashes: npt.NDArray[np.uint64]) -> None:
        pages = np.empty(2 * len(hashes), np.int64)
        known = (self._place, self._at, self._table.buckets, self._table.ranks)
        count = _pages_of(*known, self._log.on_disk, hashes, pages)
        _advise(self._log.address, np.unique(pages[:count]))


@njit(
    numba.int64(
        *(TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_RANKS),
        *(types.Array(numba.uint8, 1, "C", readonly=True), READ_U64, TYPE_AT),
    ),
    cache=True,
    nogil=True,
    boundscheck=False,
)
def _pages_of(
    place: Any, at: Any, buckets: Any, ranks: Any, on_disk: Any, hashes: Any, pages: Any
) -> int:
    """Write the pages on disk with records that may be those of the keys; return how many."""
    bits, stride = np.uint64(place[NODE_BITS]), place[STRIDE]
    count = 0
    for row in range(len(hashes)):
        rank = ranks[node_of(bits, hashes[row])]
        if rank < 0:
            continue
        bucket, tag = home(at, bits, rank, hashes[row]), hashes[row] >> np.uint64(32)
        while buckets[bucket] != 0 and (buckets[bucket] >> np.uint64(32)) != tag:
            bucket = after(at, bucket, buckets)
        if buckets[bucket] == 0:
            continue
        start = (np.int64(buckets[bucket] & SLOT_MASK) - 1) * stride
        first, last = start >> _PAGE_SHIFT, (start + stride - 1) >> _PAGE_SHIFT
        if on_disk[first // _GRANULE_PAGES]:
            pages[count] = first
            count += 1
        if last != first and on_disk[last // _GRANULE_PAGES]:
            pages[count] = last
            count += 1
    return count


@njit(
    numba.void(numba.int64, types.Array(numba.int64, 1, "C", readonly=True)),
    cache=True,
    nogil=True,
    boundscheck=False,
)
def _advise(base: int, pages: Any) -> None:
    """Ask the kernel for pages, ascending, with small gaps between them."""
    row = 0
    while row < len(pages):
        first = last = pages[row]
        row += 1
        while row < len(pages) and pages[row] - last <= _GAP_PAGES_MAX:
            last = pages[row]
            row += 1
        nbytes = np.uint64((last - first + 1) << _PAGE_SHIFT)
        _madvise(base + (first << _PAGE_SHIFT), nbytes, _MADV_WILLNEED)
