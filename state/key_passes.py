"""Passes over the records on the disk: many rows, in the order in which their keys' records lie.

A disk reads and writes neighbouring pages at ten times the rate of single ones. So the keys of many
rows are looked up in two sorted passes, as in a sort-based hybrid hash join (Graefe 1993, section
4): one over the index, in the order of the hashes, and one over the records, in the order of their
places. Each page is read once, however many rows need it; the next pages are being read, and the
last ones written, meanwhile. Rows of one key keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import numpy.typing as npt

from ..transport.atomics import kernel, load, prefetch
from .index import (
    ALIVE,
    BASE,
    BLOCK,
    FIXED,
    NODE_BITS,
    READ_U32,
    READ_U64,
    STRIDE,
    TEXTS,
    TYPE_AT,
    TYPE_PLACE,
    TYPE_RANKS,
    home,
    node_of,
)
from .key_comparison import same_key
from .keys import stable_partition

if TYPE_CHECKING:
    from .index_table import IndexTable
    from .log import ChunkLog
    from .page_fetching import PageFetcher
    from .records import PackedKeys

__all__ = ["KeyPasses"]

Slots = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_PART_BUCKETS = 1 << 17
"""Keys are looked up in parts of the index of 1 MiB: the next one is read meanwhile."""


class KeyPasses:
    """Looks the keys of many rows up in one store, whose records are on the disk.

    Args:
        place, at: of the store, see `index`.
        log: where its records are.
        table: its index.
        fetcher: asks for their pages.
    """

    def __init__(
        self,
        place: npt.NDArray[np.int64],
        at: npt.NDArray[np.int64],
        log: ChunkLog,
        table: IndexTable,
        fetcher: PageFetcher,
    ) -> None:
        self._place, self._at, self._log, self._table = place, at, log, table
        self._fetcher = fetcher

    def over(self, hashes: Hashes, keys: PackedKeys) -> Iterator[tuple[Slots, Slots]]:
        """Yield rows in pieces, and the record of each one's key; -1 for keys that are not there.

        Between two pieces records may be added, changed and deleted.

        Args:
            hashes: of the keys, uint64 (n,).
            keys: n of them.
        """
        for rows, places in self._fetcher.pieces(self.places(hashes)):
            self.confirm(hashes, keys, rows, places)
            yield rows, places

    def confirm(self, hashes: Hashes, keys: PackedKeys, rows: Slots, places: Slots) -> None:
        """Let those places be -1 whose record is not that of the row's key."""
        _confirm(self._place, hashes, keys.address, keys.nulls, rows, places)

    def places(self, hashes: Hashes) -> Slots:
        """Return what `PageFetcher.places` does, by a pass over the index if that is on the disk.

        In memory, the buckets of many keys are fetched at once wherever they lie.
        """
        if not self._log.is_on_disk(self._table.buckets):
            return self._fetcher.places(hashes)
        parts = np.empty(len(hashes), np.int64)
        buckets, ranks = self._table.buckets, self._table.ranks
        _parts(self._place, self._at, buckets, ranks, hashes, parts)
        order, counts = stable_partition(parts, -(-len(buckets) // _PART_BUCKETS))
        ends = np.cumsum(counts).tolist()
        places = np.empty(len(hashes), np.int64)
        wanted = np.flatnonzero(counts).tolist()
        if wanted:
            self._read(wanted[0])
        for part, following in pairwise((*wanted, -1)):
            if following >= 0:
                self._read(following)
            rows = order[ends[part] - int(counts[part]) : ends[part]]
            places[rows] = self._fetcher.places(hashes[rows])
        return places

    def _read(self, part: int) -> None:
        first = part * _PART_BUCKETS
        self._log.start_reading_words(self._table.buckets[first : first + _PART_BUCKETS])


@kernel(numba.void(TYPE_PLACE, TYPE_AT, READ_U64, TYPE_RANKS, READ_U64, TYPE_AT), releases_gil=True)
def _parts(place: Any, at: Any, buckets: Any, ranks: Any, hashes: Any, parts: Any) -> None:
    """Write in which part of the index each hash is; no bucket is looked at."""
    bits = np.uint64(place[NODE_BITS])
    for row in range(len(hashes)):
        rank = ranks[node_of(bits, hashes[row])]
        bucket = home(at, bits, rank, hashes[row]) if rank >= 0 else np.int64(0)
        parts[row] = min(bucket, len(buckets) - 1) // _PART_BUCKETS


@kernel(
    numba.void(TYPE_PLACE, READ_U64, numba.int64, READ_U32, TYPE_AT, TYPE_AT), releases_gil=True
)
def _confirm(place: Any, hashes: Any, keys: Any, nulls: Any, rows: Any, places: Any) -> None:
    """Let those places be -1 whose record is not that of the row's key."""
    base, stride, fixed, texts = place[BASE], place[STRIDE], place[FIXED], place[TEXTS]
    width = 8 * (fixed + 2 * texts)
    for first in range(0, len(rows), BLOCK):
        stop = min(first + BLOCK, len(rows))
        for number in range(first, stop):
            prefetch(base + places[number] * stride)
            prefetch(base + places[number] * stride + stride - 1)
        for number in range(first, stop):
            row = rows[number]
            if places[number] < 0:
                continue
            record, words = base + places[number] * stride, keys + row * width
            null = np.int64(nulls[row]) if len(nulls) else np.int64(0)
            is_alive = (load(record + 8) & 0xFF) == ALIVE
            if not is_alive or not same_key(base, fixed, texts, record, hashes[row], words, null):
                places[number] = -1
