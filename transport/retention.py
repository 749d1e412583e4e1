"""Retention: bytes of a stream older than its ring, for hosts that may need them again.

The source's host keeps contiguous bytes, from `first` up to the ring's tail: whole frames, copied
out of the ring before it releases them::

    first                                            stop = the ring's tail
    ──┼── chunk ──┼── chunk ──┼── chunk (spilled) ──┼── chunk ──┼──── ring ────► head

New bytes go into memory while there is room, else into an unnamed file, which the kernel frees when
the process ends, however it ends. So the oldest bytes, which are requested and released first, tend
to be in memory. When both are full nothing more is copied: the ring stays full, the source waits.
"""

from __future__ import annotations

import errno
import os
import tempfile
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import IO, Final

import numpy as np
import numpy.typing as npt

from ..configs.errors import CorruptedMessageError, ResourceError
from ..configs.temporary_folder import spill_folder, temporary_folder
from . import mirror_kernels as kernels

CHUNK_BYTES: Final = 1 << 20
_READ_AHEAD_CHUNKS: Final = 4
"""Spilled chunks cached in memory while hosts read them: enough for so many hosts at once."""


@dataclass(slots=True)
class _Chunk:
    """Positions [first, stop) of the stream: in memory, or in a slot of the file."""

    first: int
    stop: int
    memory: npt.NDArray[np.uint8] | None
    slot: int = -1


class Retention:
    """Bytes of a stream that its ring has no room for. One thread uses it."""

    def __init__(
        self,
        memory_bytes: int,
        spill_bytes_max: int,
        capacity: int,
        directory: str = "",
        label: str = "",
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """Keep nothing yet; at most `memory_bytes` in memory and `spill_bytes_max` in a file.

        `capacity`: bytes of the ring; `directory`: where the file is made, "" for the system's
        folder for temporary files; `label` names the stream in messages.
        """
        self._capacity = capacity
        # The largest frame, its padding included, takes half of a ring.
        self.chunk_bytes: Final = max(chunk_bytes, capacity // 2)
        """Bytes of one chunk: no more can be appended at once."""
        self._memory_chunks_max = memory_bytes // self.chunk_bytes
        self._spill_chunks_max = spill_bytes_max // self.chunk_bytes
        self._directory = directory
        self._label = label
        self._chunks: list[_Chunk] = []
        self._in_memory = 0
        self._file: IO[bytes] | None = None
        self._free_slots: list[int] = []
        self._slots = 0
        self._read: OrderedDict[int, npt.NDArray[np.uint8]] = OrderedDict()  # by slot
        self._is_full = False
        self.refused = 0
        """Times that it became full, so that the source had to wait."""
        self.last_failure = ""
        """Why the file could not be written, in words; empty if it never failed."""

    @property
    def empty(self) -> bool:
        """Whether nothing is kept."""
        return not self._chunks

    @property
    def first(self) -> int:
        """The first position that is kept, where a frame begins. IndexError if it is empty."""
        return self._chunks[0].first

    @property
    def stop(self) -> int:
        """The position after the last byte that is kept. IndexError if it is empty."""
        return self._chunks[-1].stop

    @property
    def spilled_bytes(self) -> int:
        """Bytes that are kept in the file."""
        return sum(chunk.stop - chunk.first for chunk in self._chunks if chunk.memory is None)

    # --- writing -------------------------------------------------------------------------------

    def append(self, start: int, pieces: tuple[memoryview, ...]) -> bool:
        """Keep whole frames, `chunk_bytes` at most, from position `start`; False if it is full.

        ValueError unless they follow what is kept.
        """
        nbytes = sum(len(piece) for piece in pieces)
        if nbytes > self.chunk_bytes or (self._chunks and start != self.stop):
            msg = f"{nbytes:,} bytes from {start:,} cannot be kept behind {self._chunks[-1:]}"
            raise ValueError(msg)
        taken = self._add(start, nbytes, pieces)
        self.refused += not (taken or self._is_full)
        self._is_full = not taken
        return taken

    def _add(self, start: int, nbytes: int, pieces: tuple[memoryview, ...]) -> bool:
        chunk = self._chunks[-1] if self._chunks else None
        is_new = chunk is None or start + nbytes - chunk.first > self.chunk_bytes
        if chunk is None or is_new:
            made = self._new_chunk(start)
            if made is None:
                return False
            chunk = made
        offset = start - chunk.first
        if chunk.memory is None:
            if not self._write(chunk.slot, offset, pieces):
                if is_new:
                    self._free(chunk)
                return False
        else:
            for piece in pieces:
                chunk.memory[offset : offset + len(piece)] = piece
                offset += len(piece)
        chunk.stop = start + nbytes
        if is_new:
            self._chunks.append(chunk)
        return True

    def _new_chunk(self, first: int) -> _Chunk | None:
        """Return a chunk in memory, in the file if there is no room, None if neither has any."""
        if self._in_memory < self._memory_chunks_max:
            self._in_memory += 1
            return _Chunk(first, first, np.empty(self.chunk_bytes, np.uint8))
        if self._free_slots:
            return _Chunk(first, first, None, self._free_slots.pop())
        if self._slots < self._spill_chunks_max:
            self._slots += 1
            return _Chunk(first, first, None, self._slots - 1)
        return None

    def _write(self, slot: int, offset: int, pieces: tuple[memoryview, ...]) -> bool:
        """Write to the file; False if the disk takes no more."""
        self._read.pop(slot, None)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(  # noqa: SIM115 - until `close`
                    dir=spill_folder(self._directory), buffering=0
                )
            place = slot * self.chunk_bytes + offset
            for piece in pieces:
                done = 0
                while done < len(piece):
                    done += os.pwrite(self._file.fileno(), piece[done:], place + done)
                place += len(piece)
        except OSError as error:
            self.last_failure = (
                f"cannot spill to {temporary_folder(self._directory)}: {error.strerror}"
            )
            return False
        return True

    def release(self, position: int) -> None:
        """Free the chunks that end at `position` or before."""
        count = 0
        while count < len(self._chunks) and self._chunks[count].stop <= position:
            self._free(self._chunks[count])
            count += 1
        if count:
            del self._chunks[:count]
            self._is_full = False
            if self._file is not None and len(self._free_slots) == self._slots:
                self._free_slots.clear()
                self._slots = 0
                self._file.truncate(0)

    def _free(self, chunk: _Chunk) -> None:
        if chunk.memory is not None:
            self._in_memory -= 1
        else:
            self._read.pop(chunk.slot, None)
            self._free_slots.append(chunk.slot)

    # --- reading -------------------------------------------------------------------------------

    def whole_frames(self, start: int, limit: int, max_bytes: int) -> int:
        """Return the end of the whole frames from `start` on, as `RingTap.whole_frames` does.

        Not beyond the chunk of `start`. Raises ResourceError if the file cannot be read,
        CorruptedMessageError if it does not hold what was written.
        """
        chunk = self._chunk_of(start)
        content = self._content(chunk)
        origin = int(content.ctypes.data) - chunk.first
        stop = kernels.whole_frames_copied(
            origin, self._capacity, start, min(limit, chunk.stop), max_bytes
        )
        if stop == kernels.NOT_A_FRAME:
            msg = f"the retention of {self._label} holds no frame after position {start}"
            raise CorruptedMessageError(msg)
        return int(stop)

    def frame_before(self, position: int) -> int:
        """Return the beginning of a frame, at most `position`, from which to walk there."""
        return self._chunk_of(position).first

    def pieces(self, start: int, stop: int) -> tuple[memoryview, ...]:
        """Return [start, stop), read-only; it stays unchanged, also after `release`.

        Raises ResourceError if the file cannot be read.
        """
        pieces = []
        while start < stop:
            chunk = self._chunk_of(start)
            end = min(stop, chunk.stop)
            content = self._content(chunk)
            pieces.append(content[start - chunk.first : end - chunk.first].data.toreadonly())
            start = end
        return tuple(pieces)

    def _chunk_of(self, position: int) -> _Chunk:
        """Return the chunk that holds `position`. ValueError if it is not kept."""
        index = bisect_right(self._chunks, position, key=lambda chunk: chunk.first) - 1
        if index < 0 or position >= self._chunks[index].stop:
            msg = f"position {position:,} is not kept"
            raise ValueError(msg)
        return self._chunks[index]

    def _content(self, chunk: _Chunk) -> npt.NDArray[np.uint8]:
        """Return the bytes of a chunk, from its first on."""
        if chunk.memory is not None:
            return chunk.memory
        content = self._read.pop(chunk.slot, None)
        if content is None:
            content = self._load(chunk)
        self._read[chunk.slot] = content
        if len(self._read) > _READ_AHEAD_CHUNKS:
            self._read.popitem(last=False)
        return content

    def _load(self, chunk: _Chunk) -> npt.NDArray[np.uint8]:
        assert self._file is not None, "a spilled chunk is in the file"
        content = np.empty(chunk.stop - chunk.first, np.uint8)
        view, place = content.data, chunk.slot * self.chunk_bytes
        done = 0
        try:
            while done < len(view):
                count = os.preadv(self._file.fileno(), [view[done:]], place + done)
                if count == 0:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                done += count
        except OSError as error:
            folder = temporary_folder(self._directory)
            msg = (
                f"spilled bytes of {self._label} in {folder} cannot be read: "
                f"{error.strerror}; name another folder in runtime.spill_directory"
            )
            raise ResourceError(msg) from error
        return content

    def close(self) -> None:
        """Release everything; calling it again does nothing."""
        self._chunks.clear()
        self._read.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
