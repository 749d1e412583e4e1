"""Memory whose pages lie in a nameless file: for state that exceeds its budget.

The kernel keeps as many of these pages in memory as there is room for, writes them to the disk and
reads them back. So state on disk is used like state in memory, and no code but this knows where it
lies. Room on the disk is taken beforehand: a page for which the disk has no room when it is written
would end the process (SIGBUS). The file has no name, so that nothing is left behind.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from ..configs.errors import ResourceError, system_reason
from ..configs.temporary_folder import spill_folder, temporary_folder

__all__ = ["MADV_POPULATE_WRITE", "MAP_NORESERVE", "PageFile", "release_pages", "start_writing"]

_MAP_FIXED = 0x10
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # known to Python from 3.13 on
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_REQUESTED_BYTES = 256 << 10
"""So much is asked for at a time: kernels have a limit, and silently read no more."""
_MADV_COLD = 20  # from Linux 5.4 on
MADV_POPULATE_WRITE = 23  # from Linux 5.14 on
_SYNC_FILE_RANGE_WRITE = 2
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2


class PageFile:
    """A file that takes the place of parts of an anonymous mapping.

    Args:
        owner: the operator's id, for messages.
        directory: where the file is made; empty for the system's temporary directory.
    """

    def __init__(self, owner: str, directory: str = "") -> None:
        self._owner, self._directory = owner, directory
        self._fd = -1

    def back(self, address: int, offset: int, nbytes: int) -> None:
        """Let the memory at an address be pages of the file, zeroed.

        Args:
            address: of memory that was mapped, on a page's start.
            offset: where it lies in the file, on a page's start; nothing else does.
            nbytes: whole pages.

        Raises:
            ResourceError: there is no room on the disk, or the file cannot be made.
        """
        try:
            self._open()
            os.posix_fallocate(self._fd, offset, nbytes)
            _map(address, nbytes, mmap.MAP_SHARED | _MAP_FIXED, self._fd, offset)
        except OSError as error:
            raise self._error(error) from None
        self.populate(address, nbytes)

    def take_over(self, address: int, offset: int, nbytes: int) -> None:
        """Let memory be pages of the file that hold what it holds; else as `back`."""
        held = (ctypes.c_uint8 * nbytes).from_address(address)
        try:
            self._open()
            os.posix_fallocate(self._fd, offset, nbytes)
            _write_all(self._fd, memoryview(held), offset)
            _map(address, nbytes, mmap.MAP_SHARED | _MAP_FIXED, self._fd, offset)
        except OSError as error:
            raise self._error(error) from None

    def give_back(self, address: int, offset: int, nbytes: int) -> None:
        """Let the memory be anonymous again, zeroed, and free the room on the disk."""
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        try:
            _map(address, nbytes, anonymous | _MAP_FIXED, -1, 0)
        except OSError as error:
            raise self._error(error) from None
        _libc().fallocate(self._fd, _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, offset, nbytes)

    def start_writing(self, offset: int, nbytes: int) -> None:
        """Let the kernel begin to write pages that have changed; nothing waits for it."""
        start_writing(self._fd, offset, nbytes)

    def start_reading(self, address: int, nbytes: int) -> None:
        """Let the kernel begin to read the pages of some mapped memory; nothing waits for it.

        It may leave some out for want of memory, and then all that follow of the same request.
        """
        stop = address + nbytes
        for start in range(address // mmap.PAGESIZE * mmap.PAGESIZE, stop, _REQUESTED_BYTES):
            size = min(_REQUESTED_BYTES, stop - start)
            _libc().madvise(start, size, mmap.MADV_WILLNEED)

    def let_go(self, address: int, nbytes: int) -> None:
        """Let the kernel take the pages of some mapped memory before others."""
        _libc().madvise(address, nbytes, _MADV_COLD)

    def populate(self, address: int, nbytes: int) -> None:
        """Let pages of mapped memory be there to be written to: else each is asked for when it is.

        A kernel that does not know of it leaves them to that.
        """
        _libc().madvise(address, nbytes, MADV_POPULATE_WRITE)

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Return zeroed memory as `array` does, uint64 (count,)."""
        words: npt.NDArray[np.uint64] = self.array(count, np.uint64)
        return words

    def array(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return zeroed memory in a file of its own, freed with the array; raise as `back`.

        It is one mapping, of which a process has so many.

        Returns:
            of this type, (count,).
        """
        kind = np.dtype(dtype)
        nbytes = max(-(-kind.itemsize * count // mmap.PAGESIZE), 1) * mmap.PAGESIZE
        try:
            fd = _nameless(self._directory)
            try:
                os.posix_fallocate(fd, 0, nbytes)
                mapping = _mapping_of(fd, nbytes)
            finally:
                os.close(fd)
        except OSError as error:
            raise self._error(error) from None
        return np.frombuffer(mapping, kind, count)

    def holding(self, content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the same bytes in a file of their own, freed with the array; raise as `back`.

        They are being written to the disk from now on, and can only be read: uint8 (n,).
        """
        nbytes = -(-content.size // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            fd = _nameless(self._directory)
            try:
                os.posix_fallocate(fd, 0, nbytes)
                _write_all(fd, content.data, 0)
                start_writing(fd, 0, nbytes)
                held = np.frombuffer(_mapping_of(fd, nbytes), np.uint8, content.size)
                held.flags.writeable = False
                return held
            finally:
                os.close(fd)
        except OSError as error:
            raise self._error(error) from None

    def close(self) -> None:
        """Free the file once nothing is mapped any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """Free the file: a store is dropped, not closed."""
        self.close()

    def _open(self) -> None:
        if self._fd < 0:
            self._fd = _nameless(self._directory)

    def _error(self, error: OSError) -> ResourceError:
        folder = temporary_folder(self._directory)
        remedy = "make room or correct that, or name another folder in runtime.spill_directory"
        if error.errno == errno.ENOMEM:
            remedy = (
                "the process has as many mappings or as much memory as the system allows: raise"
                " vm.max_map_count or that limit, or runtime.state_bytes, or run more workers"
            )
        return ResourceError(
            f"operator {self._owner!r} cannot spill its state to {folder}: {system_reason(error)};"
            f" {remedy}"
        )


def _mapping_of(fd: int, nbytes: int) -> mmap.mmap:
    """Return a mapping of a whole file that needs no descriptor any more.

    Python's own keeps one open as long as it lives, and a process may have but 1,024 by default.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    mapping = mmap.mmap(-1, nbytes, flags=flags)
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    _map(address, nbytes, mmap.MAP_SHARED | _MAP_FIXED, fd, 0)
    return mapping


def release_pages(words: npt.NDArray[np.uint64]) -> None:
    """Give the memory of words back that nobody reads any more; they may be zero then."""
    address = -(-words.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (words.ctypes.data + words.nbytes - address) // mmap.PAGESIZE * mmap.PAGESIZE
    _libc().madvise(address, max(whole, 0), mmap.MADV_DONTNEED)


def start_writing(fd: int, offset: int, nbytes: int) -> None:
    """Let the kernel begin to write pages of a file that have changed; nothing waits for it."""
    _libc().sync_file_range(fd, offset, nbytes, _SYNC_FILE_RANGE_WRITE)


def _write_all(fd: int, content: memoryview, offset: int) -> None:
    written = 0
    while written < content.nbytes:
        written += os.pwrite(fd, content[written:], offset + written)


def _nameless(directory: str) -> int:
    folder = spill_folder(directory)
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # only its descriptor
    try:
        return os.dup(file.fileno())
    finally:
        file.close()


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_uint)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    return libc


def _map(address: int, nbytes: int, flags: int, fd: int, offset: int) -> None:
    """Map memory at an address that is mapped already; Python's mmap cannot."""
    if _libc().mmap(address, nbytes, _READ_WRITE, flags, fd, offset) != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if fd >= 0:  # keys are met at random: what lies around a page is of no use
        _libc().madvise(address, nbytes, mmap.MADV_RANDOM)
