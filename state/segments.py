"""The chunks of a store's records, and what is put aside when it is cleared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..configs.errors import StateFullError
from .heap import HeapChunk
from .images import RecordImages
from .index import FREE, LIVE, NEXT, STOP
from .log import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Chunk, ChunkLog

__all__ = ["Cleared", "Extent", "ReachedRecords", "RecordChunks", "ranges_of"]


@dataclass
class Extent:
    """The records of one chunk: first … stop - 1."""

    chunk: Chunk
    first: int
    stop: int


class ReachedRecords(NamedTuple):
    """How far the records reach at a moment: so many chunks, the last one up to a record."""

    chunks: int
    stop: int


@dataclass
class Cleared:
    """What `clear` dropped while a seal could be gone back to: a roll back brings it back.

    Attributes:
        segment: the last one that was sealed by then.
    """

    segment: int
    buckets: npt.NDArray[np.uint64]
    ranks: npt.NDArray[np.int32]
    at: npt.NDArray[np.int64]
    extents: list[Extent]
    heap: tuple[list[HeapChunk], list[HeapChunk]]
    images: RecordImages

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks that it takes beside those of its images."""
        in_use, retired = self.heap
        return [one.chunk for one in self.extents] + [chunk for _, chunk in (*in_use, *retired)]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        chunks = sum(chunk.size for chunk in self.chunks)
        return self.buckets.nbytes + chunks + self.images.nbytes


class RecordChunks:
    """The chunks of a store's records in the order in which they were opened: the last is the tail.

    Args:
        log: the memory of the store.
        at: where the store stands, see `index`. The words `NEXT`, `STOP` and `FREE` are the tail's.
        record_bytes: the width of a record.
        records_max: how many records the log has room for.
        name: the id of the operator whose state it is.
    """

    def __init__(
        self,
        log: ChunkLog,
        at: npt.NDArray[np.int64],
        record_bytes: int,
        records_max: int,
        name: str,
    ) -> None:
        self._log, self._at, self._name = log, at.data, name
        self._record_bytes, self.records_max = record_bytes, records_max
        self._extents: list[Extent] = []
        self._next_chunk_bytes = CHUNK_BYTES_MIN

    def __iter__(self) -> Iterator[Extent]:
        """Return an iterator over the records of each chunk; those of the tail are up to date."""
        self._note_tail()
        return iter(self._extents)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they take."""
        return sum(extent.chunk.size for extent in self._extents)

    def growth_bytes(self, keys: int) -> int:
        """Return how many bytes of chunks are opened for so many new records, at most."""
        lacking = keys - (self._at[STOP] - self._at[NEXT])
        return 0 if lacking <= 0 else lacking * self._record_bytes + self._next_chunk_bytes

    def open_chunk(self) -> None:
        """Open a new tail.

        Raises:
            StateFullError: the worker's memory for state is used up, or there are too many records.
        """
        self.close_tail()
        size, keys = self._record_bytes, self._at[LIVE]
        chunk = self._log.take(max(self._next_chunk_bytes, 4 * size), keys)
        self._next_chunk_bytes = min(2 * self._next_chunk_bytes, CHUNK_BYTES_MAX)
        first, stop = -(-chunk.start // size), chunk.stop // size
        if stop > self.records_max:
            self._log.free(chunk)
            msg = (
                f"operator {self._name!r}: its state of {keys:,} keys on one worker reaches"
                f" the limit of {self.records_max:,} records: run more workers"
            )
            raise StateFullError(msg)
        self._extents.append(Extent(chunk, first, first))
        self._at[NEXT], self._at[STOP] = first, stop

    def close_tail(self) -> None:
        """End the chunk of the tail, and forget its free records: they stay unused."""
        self._note_tail()
        self._at[NEXT] = self._at[STOP] = self._at[FREE] = 0

    @property
    def mark(self) -> ReachedRecords:
        """How far the records reach now."""
        self._note_tail()
        return ReachedRecords(len(self._extents), self._extents[-1].stop if self._extents else 0)

    @property
    def extents(self) -> Sequence[Extent]:
        """The chunks; the list grows, and is another one once they were put aside."""
        return self._extents

    def cut(self, mark: ReachedRecords) -> None:
        """Free what is behind a mark; the words of the tail are the caller's to restore."""
        for extent in self._extents[mark.chunks :]:
            self._log.free(extent.chunk)
        del self._extents[mark.chunks :]
        if self._extents:
            self._extents[-1].stop = mark.stop

    def free(self) -> None:
        """Free all chunks."""
        for extent in self._extents:
            self._log.free(extent.chunk)
        self._extents = []

    def put_aside(self) -> list[Extent]:
        """Return the chunks, which are the caller's now, and begin without any."""
        extents, self._extents = self._extents, []
        self._next_chunk_bytes = CHUNK_BYTES_MIN
        return extents

    def take_back(self, extents: list[Extent]) -> None:
        """Go on with chunks that were put aside."""
        self._extents = extents

    def _note_tail(self) -> None:
        if self._extents and self._at[STOP]:
            self._extents[-1].stop = self._at[NEXT]


def ranges_of(
    extents: Sequence[Extent], until: ReachedRecords, since: ReachedRecords
) -> list[tuple[int, int]]:
    """Return the records between two marks as (first, stop)."""
    found = []
    for number in range(max(since.chunks - 1, 0), until.chunks):
        extent = extents[number]
        first = since.stop if number == since.chunks - 1 else extent.first
        stop = until.stop if number == until.chunks - 1 else extent.stop
        if first < stop:
            found.append((first, stop))
    return found
