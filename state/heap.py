"""Values of variable size, text and binary: chunks of bytes in a store's log."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..configs.errors import InputError
from .index import GARBAGE, HEAP_NEXT, HEAP_STOP, LIVE, SEGMENT
from .log import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Chunk, ChunkLog
from .records import LENGTH_BITS, VALUE_BYTES_MAX

__all__ = ["HeapChunk", "ValueHeap"]

HeapChunk = tuple[int, Chunk]
"""The segment of the store in which a chunk was opened, and the chunk."""

_COMPACTED_FROM_BYTES = 1 << 20
"""A heap is worth compacting when more than half of it, and so much, is of no use."""


class ValueHeap:
    """The values to which the records of a store refer; it does not read the records.

    A reference is position in the log's mapping (40 bits) │ length (24 bits). A value is written
    once and never changed: to replace one is to put another and to discard the first.

    Args:
        log: the memory of the store.
        at: where the store stands, see `index`. The words `HEAP_NEXT`, `HEAP_STOP` and `GARBAGE`
            are the heap's; compiled loops put values in there by themselves.
    """

    def __init__(self, log: ChunkLog, at: npt.NDArray[np.int64]) -> None:
        self._log, self._at = log, at.data
        self._bytes = log.memory.data
        self.chunks: list[HeapChunk] = []
        self.retired: list[HeapChunk] = []  # what images, or a thread that reads, may refer to
        self._next_chunk_bytes = CHUNK_BYTES_MIN

    @property
    def nbytes(self) -> int:
        """Bytes of memory that its chunks take."""
        return sum(chunk.size for _, chunk in (*self.chunks, *self.retired))

    @property
    def is_mostly_garbage(self) -> bool:
        """Whether enough of it is of no use that `compact` is worth its time."""
        garbage = self._at[GARBAGE]
        return garbage >= _COMPACTED_FROM_BYTES and 2 * garbage >= self._bytes_in_use

    def put(self, value: bytes, instead_of: int = 0) -> int:
        """Put one value in and return the reference to it, or -1 if a chunk must be opened first.

        Args:
            value: its bytes.
            instead_of: the reference of the value that it replaces, if any.

        Raises:
            InputError: the value is longer than 16 MiB.
        """
        at, size = self._at, len(value)
        if size > VALUE_BYTES_MAX:
            msg = f"a value of {size:,} bytes; at most {VALUE_BYTES_MAX:,} fit"
            raise InputError(msg)
        start = at[HEAP_NEXT]
        if start + size > at[HEAP_STOP]:
            return -1
        self._bytes[start : start + size] = value
        at[HEAP_NEXT] = start + (size + 7 & ~7)
        at[GARBAGE] += (instead_of & VALUE_BYTES_MAX) + 7 & ~7
        return start << LENGTH_BITS | size

    def get(self, reference: int) -> bytes:
        """Return the value that a reference points to."""
        start = reference >> LENGTH_BITS
        return bytes(self._bytes[start : start + (reference & VALUE_BYTES_MAX)])

    def discard(self, reference: int) -> None:
        """Tell that no record has this reference any more."""
        self._at[GARBAGE] += (reference & VALUE_BYTES_MAX) + 7 & ~7

    def open_chunk(self, nbytes: int) -> None:
        """Open a chunk in which a value of `nbytes` fits.

        Raises:
            StateFullError: the worker's memory for state is used up.
        """
        self._take(max(nbytes, self._next_chunk_bytes))
        self._next_chunk_bytes = min(2 * self._next_chunk_bytes, CHUNK_BYTES_MAX)

    def compact(
        self, living_bytes: int, nbytes: int, move: Callable[[], None], *, retires: bool
    ) -> None:
        """Move the values that are in use into one chunk and free the others.

        Args:
            living_bytes: what they take.
            nbytes: the size of a value that must fit behind them.
            move: puts every value to which a record refers in anew.
            retires: whether the others are kept until `release`, since there is a seal.

        Raises:
            StateFullError: the worker's memory for state is used up.
        """
        self._take(living_bytes + nbytes)
        move()
        assert self._at[HEAP_NEXT] + nbytes <= self._at[HEAP_STOP]
        *old, only = self.chunks
        if retires:
            self.retired += [(only[0], chunk) for _, chunk in old]
        else:
            self._free(old)
        self.chunks = [only]
        self._at[GARBAGE] = 0

    def release(self, segment: int) -> None:
        """Free what was retired up to a segment."""
        self._free([one for one in self.retired if one[0] <= segment])
        self.retired = [one for one in self.retired if one[0] > segment]

    def cut(self, segment: int) -> bool:
        """Free the chunks of the segments behind one; the words of `at` are the caller's.

        Returns:
            whether that could not be done, since values that are older were moved there: then all
            chunks stay, those too that were retired, and `GARBAGE` is to be counted.
        """
        if any(retired > segment for retired, _ in self.retired):
            self.chunks = [*self.retired, *self.chunks]
            self.retired = []
            return True
        self._free([one for one in self.chunks if one[0] > segment])
        self.chunks = [one for one in self.chunks if one[0] <= segment]
        return False

    def free(self) -> None:
        """Free all chunks."""
        self._free([*self.chunks, *self.retired])
        self.put_aside()

    def put_aside(self) -> tuple[list[HeapChunk], list[HeapChunk]]:
        """Return the chunks, which are the caller's now, and begin without any."""
        chunks, retired = self.chunks, self.retired
        self.chunks, self.retired = [], []
        self._next_chunk_bytes = CHUNK_BYTES_MIN
        self._at[HEAP_NEXT] = self._at[HEAP_STOP] = self._at[GARBAGE] = 0
        return chunks, retired

    def take_back(self, aside: tuple[list[HeapChunk], list[HeapChunk]]) -> None:
        """Go on with chunks that were put aside."""
        self.chunks, self.retired = aside

    def count_garbage(self, living_bytes: int) -> None:
        """Take note of how many bytes of values records refer to."""
        room = self._at[HEAP_STOP] - self._at[HEAP_NEXT]  # of the chunk that is filled next
        self._at[GARBAGE] = self._bytes_in_use - living_bytes - room

    @property
    def _bytes_in_use(self) -> int:
        return sum(chunk.size for _, chunk in self.chunks)

    def _free(self, chunks: list[HeapChunk]) -> None:
        for _, chunk in chunks:
            self._log.free(chunk)

    def _take(self, nbytes: int) -> None:
        chunk = self._log.take(nbytes, self._at[LIVE])
        self.chunks.append((self._at[SEGMENT], chunk))
        self._at[HEAP_NEXT], self._at[HEAP_STOP] = chunk.start, chunk.stop
