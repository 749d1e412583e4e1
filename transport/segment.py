"""Pieces of memory that several processes map, and that the kernel frees by itself.

A segment starts with one line of its own; its creator lays out the rest::

    byte 0       8               16           24           32                    128
         +-------+---------------+------------+------------+---------------------+-----
         | magic | layout version| generation | size, bytes| zero                | user's
         +-------+---------------+------------+------------+---------------------+-----

All words are little-endian int64. The magic is written last. The generation is a random number
drawn when the segment is created: a process that attaches with an old handle, or to another segment
with the same name or file descriptor, finds a different one and is refused.

Three kinds, chosen by the creator:

- ``memfd``: anonymous shared memory. Others attach through ``/proc/PID/fd/FD`` of the creator
  while it lives; the kernel frees it when the last process that maps it ends, however it ends.
- ``named``: a file in ``/dev/shm``, for containers that hide ``/proc/PID/fd``. It appears under
  its name complete and locked (`flock`); the kernel drops the lock when the creator ends, so
  `sweep_stale` tells the living from the dead whatever became of their process ids.
- ``private``: not shared, for rings within one process.

Python's `multiprocessing.shared_memory` is not used: in Python 3.11 its resource tracker unlinks
a segment when any process that attached it ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ..configs.errors import ResourceError, SegmentGoneError
from ..configs.units import MIB

SegmentKind: TypeAlias = Literal["memfd", "named", "private"]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Words: TypeAlias = npt.NDArray[np.int64]

SEGMENT_HEADER_BYTES: Final = 128
_MAGIC: Final = int.from_bytes(b"WHALESEG", "little")
_LAYOUT_VERSION: Final = 1
_MAGIC_WORD, _VERSION_WORD, _GENERATION_WORD, _SIZE_WORD = range(4)
SHM_DIRECTORY: Final = Path("/dev/shm")
_MEMORY_INFO: Final = Path("/proc/meminfo")
_NAME_PREFIX: Final = "whale-ray-"
_NOT_ALLOWED: Final = {
    errno.EPERM,
    errno.EACCES,
    errno.ENOSYS,
    errno.ENOENT,
    errno.EISDIR,
    errno.EOPNOTSUPP,
}
"""Where a container refuses a call, or a file system cannot do it (EISDIR: O_TMPFILE)."""


@dataclass(frozen=True, slots=True)
class SegmentHandle:
    """What another process of the same host and user needs to attach; picklable."""

    kind: SegmentKind
    pid: int
    """The creator's process."""
    fd: int
    """The creator's file descriptor (memfd)."""
    path: str
    """The file (named); the label for messages otherwise."""
    size: int
    """Bytes, the segment's own line included."""
    generation: int
    """Distinguishes this segment from any other with its name."""


class Segment:
    """One mapped segment. Use `create` or `attach`; `close` unmaps it.

    numpy views of `buffer` keep the memory mapped, also after `close`.
    """

    def __init__(self, memory: mmap.mmap, handle: SegmentHandle, fd: int, *, owned: bool) -> None:
        """Take over a mapping; internal, see `create` and `attach`."""
        self.handle: Final = handle
        self._memory: mmap.mmap | None = memory
        self._fd = fd
        self._owned = owned
        self._buffer: Bytes = np.frombuffer(memory, np.uint8)
        self._address = int(self._buffer.ctypes.data)

    @classmethod
    def create(cls, nbytes: int, label: str, job: str, kind: SegmentKind = "memfd") -> Segment:
        """Create a zeroed segment of `nbytes`, its own line included, whose memory is reserved.

        `label` and `job` only name it, for people and for `sweep_stale`. Raises ResourceError
        if the machine has no memory for it.
        """
        name = f"{_NAME_PREFIX}{_clean(job)}-{os.getpid()}-{_clean(label)}"
        _check_room(name, nbytes)
        generation = secrets.randbits(62) | 1
        if kind == "private":
            handle = SegmentHandle(kind, os.getpid(), -1, name, nbytes, generation)
            return cls._initialised(mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE), handle, -1)
        path = name if kind == "memfd" else str(SHM_DIRECTORY / name)
        fd = _create_file(name, nbytes, kind)
        try:
            handle = SegmentHandle(kind, os.getpid(), fd, path, nbytes, generation)
            segment = cls._initialised(_map(fd, nbytes), handle, fd)
            if kind == "named":
                # Locked and complete before it can be seen: a sweep never finds it half-made.
                fcntl.flock(fd, fcntl.LOCK_EX)
                # The directory descriptor is not used with an absolute path, but makes Python
                # call linkat, which follows the link as asked; plain link does not.
                os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
        except BaseException:
            os.close(fd)
            raise
        return segment

    @classmethod
    def _initialised(cls, memory: mmap.mmap, handle: SegmentHandle, fd: int) -> Segment:
        segment = cls(memory, handle, fd, owned=True)
        words = segment.words(0, SEGMENT_HEADER_BYTES)
        words[_VERSION_WORD] = _LAYOUT_VERSION
        words[_GENERATION_WORD] = handle.generation
        words[_SIZE_WORD] = handle.size
        words[_MAGIC_WORD] = _MAGIC
        return segment

    @classmethod
    def attach(cls, handle: SegmentHandle) -> Segment:
        """Map a segment that another process (or this one) created.

        Raises SegmentGoneError if it has vanished, or if another one has taken its place;
        ResourceError if this process may not open it.
        """
        fd = _open_file(handle)
        try:
            if os.fstat(fd).st_size != handle.size:
                raise _replaced(handle)
            memory = _map(fd, handle.size)
        finally:
            os.close(fd)
        segment = cls(memory, handle, -1, owned=False)
        words = segment.words(0, SEGMENT_HEADER_BYTES)
        found = (words[_MAGIC_WORD], words[_VERSION_WORD], words[_GENERATION_WORD])
        if found != (_MAGIC, _LAYOUT_VERSION, handle.generation):
            segment.close()
            raise _replaced(handle)
        return segment

    def share(self) -> Segment:
        """Return an independent hold on the same mapping, for another user in this process.

        The memory is unmapped when all holds are closed.
        """
        if self._memory is None:
            raise self._is_closed()
        return Segment(self._memory, self.handle, -1, owned=False)

    def _is_closed(self) -> ValueError:
        return ValueError(f"segment {self.handle.path!r} is closed")

    @property
    def buffer(self) -> Bytes:
        """The whole segment, its own line included."""
        return self._buffer

    @property
    def address(self) -> int:
        """The address of `buffer` in this process."""
        return self._address

    def memory(self, start: int, stop: int) -> memoryview:
        """Return bytes `start:stop`, writable; an array made of it is its own root."""
        if self._memory is None:
            raise self._is_closed()
        return memoryview(self._memory)[start:stop]

    def words(self, start: int, stop: int) -> Words:
        """Return bytes `start:stop` as int64 words; both are multiples of 8."""
        return self._buffer[start:stop].view(np.int64)

    def close(self) -> None:
        """Unmap the segment and, if it was created here, remove it; may be called again.

        While views of it are alive, the memory stays mapped until the last of them is gone.
        """
        memory, self._memory = self._memory, None
        if memory is None:
            return
        self._buffer = np.empty(0, np.uint8)
        # While views are alive, the mapping stays until the last of them is gone: they refer to it.
        with contextlib.suppress(BufferError):
            memory.close()
        if self._owned and self.handle.kind == "named":
            Path(self.handle.path).unlink(missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)


def sweep_stale() -> list[str]:
    """Remove the named segments whose creator has ended; return their paths, sorted.

    Those of other users, and those in use, stay.
    """
    found = sorted(SHM_DIRECTORY.glob(f"{_NAME_PREFIX}?*"))
    return [str(path) for path in found if _remove_if_stale(path)]


def _remove_if_stale(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # another user's, or gone meanwhile
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), path.stat()):
            return False  # removed and created again under its name before the lock was taken
        path.unlink()
    except (BlockingIOError, FileNotFoundError):
        return False  # its creator lives, or has just removed it
    finally:
        os.close(fd)
    return True


def _clean(text: str) -> str:
    """Return `text` as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", text)[:80] or "_"


def _check_room(name: str, nbytes: int) -> None:
    """Refuse sizes that the kernel would grant, and later kill a process for."""
    if nbytes < SEGMENT_HEADER_BYTES:
        msg = f"segment {name!r}: {nbytes} bytes cannot hold its header"
        raise ValueError(msg)
    for line in _MEMORY_INFO.read_text(encoding="ascii").splitlines():
        name_of_line, _, value = line.partition(":")
        if name_of_line == "MemAvailable" and nbytes > int(value.split()[0]) * 1024:
            raise _no_room(name, nbytes, f"{value.strip()} of memory are available")


def _no_room(name: str, nbytes: int, finding: str) -> ResourceError:
    msg = (
        f"no room for segment {name!r} of {max(1, nbytes // MIB)} MiB: {finding}; "
        "free some memory or lower transport.ring_bytes"
    )
    return ResourceError(msg)


def _not_allowed(name: str, kind: SegmentKind, error: OSError) -> ResourceError:
    what, other = "memfd_create", "named"
    if kind == "named":
        what, other = f"a file without a name in {SHM_DIRECTORY}", "memfd"
    msg = (
        f"no segment {name!r}: {what} is refused here ({error.strerror});"
        f" set transport.segment_kind={other}"
    )
    return ResourceError(msg)


def _create_file(name: str, nbytes: int, kind: SegmentKind) -> int:
    try:
        if kind == "memfd":
            fd = os.memfd_create(name, os.MFD_CLOEXEC)
        else:
            fd = os.open(SHM_DIRECTORY, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NOT_ALLOWED:
            raise
        raise _not_allowed(name, kind, error) from error
    try:
        # Reserved now: a page missing later would be a SIGBUS in the middle of a job.
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        if error.errno not in {errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EINVAL}:
            raise
        where = "memory" if kind == "memfd" else str(SHM_DIRECTORY)
        raise _no_room(name, nbytes, f"{where} is full") from error
    return fd


def _map(fd: int, nbytes: int) -> mmap.mmap:
    """Map a file whose pages exist, all at once: no page fault in the middle of a job."""
    return mmap.mmap(fd, nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)


def _open_file(handle: SegmentHandle) -> int:
    """Open the file of a handle, and refuse another that has taken its place."""
    if handle.kind == "private":
        msg = (
            f"segment {handle.path!r} is private to process {handle.pid}; attach is for shared ones"
        )
        raise ResourceError(msg)
    path = handle.path
    try:
        if handle.kind == "memfd":
            path = f"/proc/{handle.pid}/fd/{handle.fd}"
            # Checked first: that descriptor may be a pipe by now, and opening it would block.
            if not os.readlink(path).startswith(f"/memfd:{handle.path}"):
                raise _replaced(handle)
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _gone(handle) from error
    except PermissionError as error:
        if handle.kind == "memfd" and _has_ended(handle.pid):
            raise _gone(handle) from error  # not yet waited for: its /proc is root's by now
        msg = (
            f"segment {handle.path!r} of process {handle.pid} may not be opened: "
            "all workers of a job must run as the same user"
        )
        raise ResourceError(msg) from error


def _has_ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in {"Z", "X"}


def _gone(handle: SegmentHandle) -> SegmentGoneError:
    msg = (
        f"segment {handle.path!r} is gone: process {handle.pid}, which created it, "
        "has closed it or has ended"
    )
    return SegmentGoneError(msg)


def _replaced(handle: SegmentHandle) -> SegmentGoneError:
    msg = (
        f"segment {handle.path!r} of process {handle.pid} is not the one announced "
        "(another size or generation): it belongs to an earlier or a later attempt"
    )
    return SegmentGoneError(msg)
