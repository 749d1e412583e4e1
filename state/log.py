"""The log of a store: chunks of memory out of one reserved anonymous mapping.

The mapping is as large as all chunks could ever become, but only pages that are written to take
memory (MAP_NORESERVE). So its address never changes: compiled loops take it as one array, in which
a record has a number, and no chunk is ever moved. A freed chunk goes back to the kernel at once
(MADV_DONTNEED), and its place to a free list.

Chunks beyond the memory budget are pages of a file, at the same addresses (`page_file`).

Keys are met at random, so with pages of 4 KiB nearly every key of a large store misses the TLB;
the kernel is allowed pages of 2 MiB where the log is large enough that one more does not matter.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..configs.errors import ResourceError, StateFullError, system_reason
from ..configs.units import format_mib
from .budget import SETTING, StateBudget
from .disk_traffic import DiskTraffic
from .page_file import MAP_NORESERVE, PageFile

__all__ = ["CHUNK_BYTES_MAX", "CHUNK_BYTES_MIN", "Chunk", "ChunkLog"]

CHUNK_BYTES_MIN = 64 << 10
CHUNK_BYTES_MAX = 1 << 20

_RESERVED_PER_BUDGET = 6
"""Address space is reserved for each of the five sizes of chunks, and one more: places of freed
chunks are only used for chunks of the same size or smaller ones."""

_RESERVED_BYTES_MAX = 1 << 40
"""References to values have 40 bits for a position."""

_SMALL_PAGES_BYTES = 32 << 20
"""So much of the log has small pages in any case: a huge one takes its 2 MiB at the first byte."""

_LINE_WORDS = 8
"""Words of a line of the cache."""


@dataclass(frozen=True)
class Chunk:
    """A part of the mapping, in bytes from its start; both are multiples of 64 KiB."""

    start: int
    size: int

    @property
    def stop(self) -> int:
        """The end of the chunk."""
        return self.start + self.size


class ChunkLog:
    """The reserved memory of one operator's state on one worker.

    Args:
        budget: the worker's; it is charged for every chunk, or says that it must lie on the disk.
        operator: the operator's id.

    Attributes:
        memory: the mapping, uint8; bytes of chunks that were not taken are zero.
        address: of its first byte.
        on_disk: uint8, one for each 64 KiB: whether it is pages of the file.
        traffic: what rows that change what is on the disk move there.

    Raises:
        ResourceError: the kernel does not reserve so much address space.
    """

    def __init__(self, budget: StateBudget, operator: str) -> None:
        self._budget = budget
        self._operator = operator
        bytes_max = budget.limit_bytes + budget.disk_bytes_max
        granules = _RESERVED_PER_BUDGET * (bytes_max // CHUNK_BYTES_MIN + 1)
        granules = min(granules, _RESERVED_BYTES_MAX // CHUNK_BYTES_MIN)
        self._reserved_bytes = granules * CHUNK_BYTES_MIN
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        try:
            self._mapping = mmap.mmap(-1, self._reserved_bytes, flags=flags)
        except OSError as error:
            msg = (
                f"operator {operator!r}: cannot reserve {format_mib(self._reserved_bytes)} of"
                f" addresses for its state: {system_reason(error)}; lower {SETTING}"
            )
            raise ResourceError(msg) from None
        _allow_huge_pages(self._mapping, _SMALL_PAGES_BYTES)
        self.memory: npt.NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8)
        self.address: int = self.memory.ctypes.data
        self._pages = PageFile(operator, budget.disk_folder)
        self.traffic = DiskTraffic(lambda: budget.spilled_by(operator))
        self.on_disk: npt.NDArray[np.uint8] = np.zeros(granules, np.uint8)
        self._in_memory: dict[int, int] = {}  # chunks in memory, the oldest first: start, size
        self._spilled: set[int] = set()  # the starts of chunks on disk
        self._spilled_words: set[int] = set()  # the addresses of words on disk
        self._end = 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self.nbytes = 0

    def take(self, nbytes: int, keys: int) -> Chunk:
        """Return a chunk of at least `nbytes`, zeroed.

        Raises:
            StateFullError: the budget is used up; `keys` is for the message.
        """
        size = max(CHUNK_BYTES_MIN, -(-nbytes // CHUNK_BYTES_MIN) * CHUNK_BYTES_MIN)
        on_disk = self._budget.take_or_spill(self._operator, size, keys)
        chunk = self._place(size)
        if chunk is None:
            self._budget.give_back(self._operator, size, on_disk=on_disk)
            msg = (
                f"operator {self._operator!r}: no place for a value of {format_mib(size)} in what"
                f" is left of its memory; raise {SETTING}"
            )
            raise StateFullError(msg)
        if on_disk:
            self._pages.back(self.address + chunk.start, chunk.start, size)
            self._note_on_disk(chunk)
        else:
            self._in_memory[chunk.start] = size
        self.nbytes += size
        return chunk

    def free(self, chunk: Chunk) -> None:
        """Give a chunk's memory, or its room on the disk, back to the kernel."""
        on_disk = chunk.start in self._spilled
        if on_disk:
            self._spilled.remove(chunk.start)
            self.on_disk[_granules(chunk)] = 0
            self._pages.give_back(self.address + chunk.start, chunk.start, chunk.size)
        else:
            del self._in_memory[chunk.start]
            self._mapping.madvise(mmap.MADV_DONTNEED, chunk.start, chunk.size)
        self._free[chunk.size].append(chunk.start)
        self.nbytes -= chunk.size
        self._budget.give_back(self._operator, chunk.size, on_disk=on_disk)

    def words(
        self,
        count: int,
        keys: int,
        instead_of: npt.NDArray[np.uint64] | None = None,
        memory: npt.NDArray[np.uint64] | None = None,
    ) -> npt.NDArray[np.uint64]:
        """Return zeroed memory beside the mapping, for an index: uint64 (count,); raise as `take`.

        It begins with a line of the cache.
        An index is met at random, so it is in memory as long as chunks can make room for it.
        `give_back_words` gives it back.

        Args:
            count: how many.
            keys: for the message.
            instead_of: words that are given back by this, if there is room for the new ones. Their
                memory goes as that of the new ones comes, so it is not counted beside it.
            memory: what is returned, if the words are in memory.
        """
        old_bytes = 0 if instead_of is None else instead_of.nbytes
        was_on_disk = instead_of is not None and self.is_on_disk(instead_of)
        self._budget.give_back(self._operator, old_bytes, on_disk=was_on_disk)
        self._spill_chunks(8 * count)
        try:
            on_disk = self._budget.take_or_spill(self._operator, 8 * count, keys)
        except StateFullError:
            self._budget.charge(self._operator, old_bytes, on_disk=was_on_disk)
            raise
        if instead_of is not None and was_on_disk:
            self._spilled_words.remove(instead_of.ctypes.data)
        if not on_disk:
            return _words_in_lines(count) if memory is None else memory
        words = self._pages.words(count)
        self._spilled_words.add(words.ctypes.data)
        return words

    def addresses_of_words(self) -> npt.NDArray[np.uint64]:
        """Return zeroed words, as many as an index could ever need: only used ones take memory."""
        count = _RESERVED_PER_BUDGET * (self._budget.limit_bytes // mmap.PAGESIZE + 1)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        mapping = mmap.mmap(-1, count * mmap.PAGESIZE, flags=flags)
        _allow_huge_pages(mapping, 0)
        return np.frombuffer(mapping, np.uint64)

    def give_back_words(self, words: npt.NDArray[np.uint64]) -> None:
        """Take back what `words` returned, which nobody uses any more."""
        on_disk = self.is_on_disk(words)
        self._spilled_words.discard(words.ctypes.data)
        self._budget.give_back(self._operator, words.nbytes, on_disk=on_disk)

    def is_on_disk(self, words: npt.NDArray[np.uint64]) -> bool:
        """Return whether words lie on the disk."""
        return words.ctypes.data in self._spilled_words

    @property
    def spills(self) -> bool:
        """Whether any chunk is on the disk."""
        return bool(self._spilled)

    def has_room_for_words(self, count: int) -> bool:
        """Return whether so many more words would be in memory, with all chunks on the disk."""
        return 8 * count <= self._budget.free_bytes + sum(self._in_memory.values())

    def set_aside(self, nbytes: int) -> bool:
        """Charge memory that the operator takes elsewhere, for which chunks go to the disk.

        Returns: whether there is so much; else nothing is charged. `StateBudget.give_back` ends it.
        """
        self._spill_chunks(nbytes)
        has_room = nbytes <= self._budget.free_bytes
        if has_room:
            self._budget.charge(self._operator, nbytes, on_disk=False)
        return has_room

    def start_reading(self, start: int, nbytes: int) -> None:
        """Let the kernel read what lies on the disk of a part of the mapping."""
        for first, size in self._parts_on_disk(start, nbytes):
            self._pages.start_reading(self.address + first, size)

    def populate(self, start: int, nbytes: int) -> None:
        """Let what lies on the disk of a part of the mapping be there to be written to."""
        self.start_reading(start, nbytes)  # again: the kernel may have had no memory before
        for first, size in self._parts_on_disk(start, nbytes):
            self._pages.populate(self.address + first, size)

    def start_reading_words(self, words: npt.NDArray[np.uint64]) -> None:
        """Let the kernel read some words of an index that lie on the disk."""
        self._pages.start_reading(words.ctypes.data, words.nbytes)

    def start_writing(self, start: int, nbytes: int) -> None:
        """Let the kernel write what has changed on the disk of a part of the mapping.

        Else it writes page by page once it needs the memory, and what needs it waits. These pages
        are the first that it may take: else it takes those that are being read.
        """
        for first, size in self._parts_on_disk(start, nbytes):
            self._pages.start_writing(first, size)
            self._pages.let_go(self.address + first, size)

    def _parts_on_disk(self, start: int, nbytes: int) -> list[tuple[int, int]]:
        """Return the parts of a part of the mapping that are pages of the file: start, bytes."""
        first = start // CHUNK_BYTES_MIN
        on_disk = self.on_disk[first : -(-(start + nbytes) // CHUNK_BYTES_MIN)]
        edges = np.flatnonzero(np.diff(on_disk, prepend=0, append=0))
        begins, ends = ((first + edges[one::2]) * CHUNK_BYTES_MIN for one in (0, 1))
        return list(zip(begins.tolist(), (ends - begins).tolist(), strict=True))

    @property
    def may_spill(self) -> bool:
        """Whether the worker's state may take room on the disk at all."""
        return self._budget.disk_bytes_max > 0

    def _spill_chunks(self, nbytes: int) -> None:
        """Put the oldest chunks on the disk until so much memory is free, if that suffices."""
        if nbytes > self._budget.free_bytes + sum(self._in_memory.values()):
            return
        while nbytes > self._budget.free_bytes:
            start, size = next(iter(self._in_memory.items()))
            if not self._budget.move_to_disk(self._operator, size):
                return
            self._pages.take_over(self.address + start, start, size)
            del self._in_memory[start]
            self._note_on_disk(Chunk(start, size))

    def _note_on_disk(self, chunk: Chunk) -> None:
        self._spilled.add(chunk.start)
        self.on_disk[_granules(chunk)] = 1

    def _place(self, size: int) -> Chunk | None:
        """Return a free place: of this size, else at the end, else the begin of a larger one."""
        if self._free[size]:
            return Chunk(self._free[size].pop(), size)
        if self._end + size <= self._reserved_bytes:
            self._end += size
            return Chunk(self._end - size, size)
        found = self._begin_of_larger(size)
        if found is None:
            self._join_neighbours()
            found = self._begin_of_larger(size)
        return found

    def _begin_of_larger(self, size: int) -> Chunk | None:
        """Return the begin of the smallest free place that has this size, or a larger one."""
        for larger in sorted(self._free):
            if larger >= size and self._free[larger]:
                start = self._free[larger].pop()
                if larger > size:
                    self._free[larger - size].append(start + size)
                return Chunk(start, size)
        return None

    def _join_neighbours(self) -> None:
        """Make one place of free ones that touch each other.

        Heaps take chunks of any size when they are compacted, so places are cut up.
        """
        places = sorted((start, size) for size, starts in self._free.items() for start in starts)
        self._free.clear()
        begin = stop = 0
        for start, size in [*places, (self._reserved_bytes, 0)]:
            if start != stop:
                if stop > begin:
                    self._free[stop - begin].append(begin)
                begin = start
            stop = start + size


def _granules(chunk: Chunk) -> slice:
    """Return which 64 KiB of the mapping a chunk has."""
    return slice(chunk.start // CHUNK_BYTES_MIN, chunk.stop // CHUNK_BYTES_MIN)


def _words_in_lines(count: int) -> npt.NDArray[np.uint64]:
    """Return zeroed words that begin with a line of the cache."""
    words = np.zeros(count + _LINE_WORDS - 1, np.uint64)
    first = -(words.ctypes.data // 8) % _LINE_WORDS
    return words[first : first + count]


def _allow_huge_pages(mapping: mmap.mmap, start: int) -> None:
    """Let the kernel take huge pages from a place on; it may be built without them."""
    if start < len(mapping):
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE, start, len(mapping) - start)
