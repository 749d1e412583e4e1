"""Reading pages of the disk ahead: those with the records of many keys, all at once.

A loop that meets a page on the disk waits for it alone, and a disk serves many requests in the time
of one. So before a loop goes over keys, the pages that it will touch are asked for in their order.

Who may choose in which order keys are met takes them in the order in which their records lie
(`in_order`). Then a page is read once for all of its keys, and pages that lie near each other with
one request: of a disk that serves 20,000 requests or 1 GB a second, that is ten times as much.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from ..transport.atomics import kernel
from .index import (
    BLOCK,
    NODE_BITS,
    READ_U64,
    STRIDE,
    TYPE_AT,
    TYPE_BUCKETS,
    TYPE_PLACE,
    TYPE_RANKS,
    first_with_tag,
    node_of,
    prefetch_home,
)
from .log import CHUNK_BYTES_MIN
from .page_advice import (
    GAP_PAGES_MAX,
    GAP_PAGES_MAX_IN_ORDER,
    MADV_WILLNEED,
    PAGE_SHIFT,
    advise_pages,
)
from .page_file import MADV_POPULATE_WRITE

if TYPE_CHECKING:
    from .index_table import IndexTable
    from .log import ChunkLog

__all__ = ["PageFetcher"]

FETCHED_ROWS_MAX = 8192
"""For so many keys pages are fetched at a time: 32 MiB at most, which stay until they are used."""

_UNFETCHED_ROWS_MAX = 1024
"""After so many keys for which no pages are fetched is looked whether they had to be read."""

_PATIENCE = 64
"""For so many batches after one that read from the disk pages are fetched ahead."""

PIECE_BYTES = 4 << 20
"""Keys in the order of their records come in pieces of so much of the log at most."""
_NEW_RECORDS_MAX = 1 << 16
"""Of those without a record so many are a piece."""

_NO_PLACE = _ROWS_MAX = (1 << 32) - 1
_ROW_MASK = np.uint64(_ROWS_MAX)
"""A record's number and a row are one word while they are sorted."""

_GRANULE_PAGES = CHUNK_BYTES_MIN >> PAGE_SHIFT


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
        if not self._log.spills:
            yield 0, len(hashes)
            return
        start = 0
        if not self._is_useful():
            while start < len(hashes) and not self._has_read():
                yield start, min(start + _UNFETCHED_ROWS_MAX, len(hashes))
                start += _UNFETCHED_ROWS_MAX
        for first in range(start, len(hashes), FETCHED_ROWS_MAX):
            stop = min(first + FETCHED_ROWS_MAX, len(hashes))
            self._fetch(hashes[first:stop])
            yield first, stop

    def _is_useful(self) -> bool:
        """Return whether this thread has read from the disk lately; call it once a batch."""
        if not self._has_read():
            self._patience = max(0, self._patience - 1)
        return self._patience > 0

    def _has_read(self) -> bool:
        """Return whether this thread has read from the disk since the last call."""
        before, self._reads = self._reads, resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
        if self._reads == before:
            return False
        self._patience = _PATIENCE
        return True

    def places(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return which record is that of each key, int64 (n,), as the index alone tells.

        It is -1 where there is none, and seldom that of another key: no record is looked at.
        """
        found = np.empty(len(hashes), np.int64)
        _find_places(self._place, self._at, self._table.buckets, self._table.ranks, hashes, found)
        return found

    def regions(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return which piece of the log each record is in, int64 (n,); -1 for those without one."""
        found: npt.NDArray[np.int64] = places // self._per_piece
        return found

    def passed(self, regions: Iterable[int]) -> Iterator[int]:
        """Yield pieces of the log by number; see `KeyedStore.passed`."""
        if not self._log.spills or not self._is_useful():
            yield from sorted(regions)
            return
        for region, following in pairwise((*sorted(regions), -1)):
            if following >= 0:
                self._log.start_reading(following * self._region_bytes, self._region_bytes)
            if region >= 0:
                self._log.populate(region * self._region_bytes, self._region_bytes)
            yield region
            if region >= 0:
                self._start_writing(region)

    @property
    def _per_piece(self) -> int:
        return PIECE_BYTES // int(self._place[STRIDE])

    @property
    def region_pages(self) -> int:
        """How many pages a region has."""
        return self._region_bytes >> PAGE_SHIFT

    @property
    def _region_bytes(self) -> int:
        return self._per_piece * int(self._place[STRIDE])

    def _start_writing(self, region: int) -> None:
        """Let the kernel write the pages of a region, which are not needed for a while.

        It takes the right to write to them away, so it costs a fault for each that is written to
        again: not worth it as long as the kernel has memory for all.
        """
        self._log.start_writing(region * self._region_bytes, self._region_bytes)

    def in_order(self, places: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the rows in the order of their places, in pieces whose pages have been asked for.

        Without chunks on the disk the rows are yielded as they are; else as `pieces` does.

        Args:
            places: records, int64 (n,); -1 for those that are not there yet, which come last. They
                are sorted in place, since they may be many: the caller's array is overwritten.
        """
        if not self._log.spills:
            yield np.arange(len(places))
            return
        for rows, _ in self.pieces(places):
            yield rows

    def pieces(
        self, places: npt.NDArray[np.int64]
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield rows in the order of their places, and these, -1 last; rows of one place ascend.

        If pages come from the disk, the next piece's are asked for before one is yielded, so they
        come meanwhile; those of the piece before are being written. The argument is overwritten.
        """
        packed = places.view(np.uint64)
        _pack(packed)
        packed.sort()
        is_useful = self._is_useful()
        start, stop = 0, self._stop(packed, 0)
        if is_useful:
            self._ask_for(packed[start:stop])
        while start < len(packed):
            following = self._stop(packed, stop)
            if is_useful:
                self._ask_for(packed[stop:following])
            piece = packed[start:stop]
            found = (piece >> np.uint64(32)).view(np.int64)
            is_there = found[0] != _NO_PLACE
            goes_ahead = is_useful and is_there
            if goes_ahead:
                self._populate(found)
            region = int(found[0]) // self._per_piece
            yield (piece & _ROW_MASK).view(np.int64), found if is_there else np.full_like(found, -1)
            if goes_ahead:
                self._start_writing(region)
            start, stop = stop, following

    def _stop(self, packed: npt.NDArray[np.uint64], start: int) -> int:
        """Return where the piece that begins at `start` ends."""
        if start == len(packed):
            return start
        per_piece = self._per_piece
        last = (int(packed[start]) >> 32) // per_piece * per_piece + per_piece - 1
        stop = int(np.searchsorted(packed, np.uint64(min(last, _NO_PLACE - 1) << 32 | _ROWS_MAX)))
        if stop <= start:  # records that are not there yet
            return min(start + _NEW_RECORDS_MAX, len(packed))
        return stop

    def _ask_for(self, piece: npt.NDArray[np.uint64]) -> None:
        """Ask for the pages of a piece; none if its records are not there yet."""
        if len(piece) and int(piece[0]) >> 32 != _NO_PLACE:
            self._ask((piece >> np.uint64(32)).view(np.int64), GAP_PAGES_MAX_IN_ORDER)

    def _fetch(self, hashes: npt.NDArray[np.uint64]) -> None:
        self._ask(np.sort(self.places(hashes)), GAP_PAGES_MAX)

    def _populate(self, places: npt.NDArray[np.int64]) -> None:
        """Let the pages on disk of records, which ascend, be there to be written to."""
        self._ask(places, GAP_PAGES_MAX_IN_ORDER)  # again: the kernel may have had no memory before
        log, stride = self._log, int(self._place[STRIDE])
        places = np.ascontiguousarray(places)
        _advise(log.address, log.on_disk, stride, places, 1, MADV_POPULATE_WRITE)

    def _ask(self, places: npt.NDArray[np.int64], gap_pages: int) -> None:
        """Ask the kernel for the pages on disk of records, which ascend."""
        log, stride = self._log, int(self._place[STRIDE])
        _advise(
            log.address,
            log.on_disk,
            stride,
            np.ascontiguousarray(places),
            gap_pages,
            MADV_WILLNEED,
        )


@kernel(numba.void(numba.uint64[::1]), releases_gil=True)
def _pack(places: Any) -> None:
    """Put the row after the number of a record; -1 becomes the greatest number."""
    for row in range(len(places)):
        places[row] = (places[row] << np.uint64(32)) | np.uint64(row)


@kernel(
    numba.void(TYPE_PLACE, TYPE_AT, TYPE_BUCKETS, TYPE_RANKS, READ_U64, TYPE_AT), releases_gil=True
)
def _find_places(place: Any, at: Any, buckets: Any, ranks: Any, hashes: Any, places: Any) -> None:
    """Write the record that may be that of each key, -1 where there is none."""
    bits, table = np.uint64(place[NODE_BITS]), buckets.ctypes.data
    for first in range(0, len(hashes), BLOCK):
        stop = min(first + BLOCK, len(hashes))
        for row in range(first, stop):
            rank = ranks[node_of(bits, hashes[row])]
            places[row] = prefetch_home(at, bits, rank, hashes[row], table) if rank >= 0 else -1
        for row in range(first, stop):
            if places[row] >= 0:
                places[row] = first_with_tag(at, buckets, places[row], hashes[row])


@kernel(
    numba.void(
        numba.int64,
        types.Array(numba.uint8, 1, "C", readonly=True),
        numba.int64,
        types.Array(numba.int64, 1, "C", readonly=True),
        numba.int64,
        numba.int32,
    ),
    releases_gil=True,
)
def _advise(base: int, on_disk: Any, stride: int, places: Any, gap_pages: int, advice: int) -> None:
    """Advise the kernel of the pages on disk of records, ascending, and small gaps between them."""
    begin, first, last = base >> PAGE_SHIFT, -1, -1
    for row in range(len(places)):
        if places[row] < 0:
            continue
        start = places[row] * stride
        for page in range(start >> PAGE_SHIFT, ((start + stride - 1) >> PAGE_SHIFT) + 1):
            if page <= last or not on_disk[page // _GRANULE_PAGES]:
                continue
            if last >= 0 and page - last > gap_pages:
                advise_pages(begin + first, begin + last, advice)
                first = page
            elif last < 0:
                first = page
            last = page
    if last >= 0:
        advise_pages(begin + first, begin + last, advice)
