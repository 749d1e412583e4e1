"""Files that appear only when they are complete, and folders that appear all at once.

An output `out/` of a job passes through these states::

    writing     nameless files (O_TMPFILE) on the file system of `out`; the kernel frees them when
                the process ends, however it ends
    staged      .out.whale-<token>/part-00000.parquet …       linked there when complete
    published   out/part-00000.parquet …                      one rename of the whole folder

Where the file system has no nameless files, a part is written as `part-00000.parquet.open` in the
hidden folder instead. Whoever stages holds a shared lock on the hidden folder until it is published
or discarded; a folder that nobody holds belongs to a dead job, and the next job for the same output
removes it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from ...configs.errors import OutputError

PART_PREFIX = "part-"
_SPARK_MARK = "SUCCESS"
_OPEN_SUFFIX = ".open"
_ASIDE_SUFFIX = "-old"
_NO_NAMELESS = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS}
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class PartFile:
    """A file being written that has no name, or none that matters, until it is linked."""

    def __init__(self, stream: BinaryIO, path: str | None) -> None:
        """Take an open stream; `path` is its name on file systems without nameless files."""
        self.stream = stream
        self._path = path
        self._lock = None if path is None else FolderLock(os.path.dirname(path))

    def link(self, path: str) -> None:
        """Make the bytes durable and give them a name.

        Raises:
            FileExistsError: the name is taken; the file can still be linked under another.
        """
        self.stream.flush()
        os.fsync(self.stream.fileno())
        if self._path is not None:
            os.link(self._path, path)
            os.unlink(self._path)
            self._path = None
            return
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Only linkat follows /proc/self/fd/N to the file; Python calls plain link, which does
            # not, unless a folder's descriptor is passed.
            nameless = f"/proc/self/fd/{self.stream.fileno()}"
            name = os.path.basename(path)
            os.link(nameless, name, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Drop the file, unless it was linked."""
        self.stream.close()
        if self._path is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            self._path = None
        if self._lock is not None:
            self._lock.close()


@dataclass(frozen=True)
class OutputFolder:
    """The folder that a job's output will be.

    Attributes:
        path: its absolute path; folders above it that are missing are made when staging.
        overwrite: whether an existing output is replaced.
    """

    path: str
    overwrite: bool

    def hidden(self, token: str) -> str:
        """Return the folder in which an attempt stages."""
        return os.path.join(self._parent, f"{self._hidden_prefix}{token}")

    def check(self) -> None:
        """Raise `OutputError` if the output exists or cannot be written."""
        place = self._nearest_folder()
        if not os.access(place, os.W_OK | os.X_OK):
            msg = f"no permission to write in {place!r}; change its mode or name another output"
            raise OutputError(msg)
        if os.path.ismount(self.path):
            msg = (
                f"the output {self.path!r} is a mount point, which cannot appear all at once; "
                f"name a folder in it, such as {os.path.join(self.path, 'result')!r}"
            )
            raise OutputError(msg)
        if not self._is_taken():
            return
        if not self.overwrite:
            msg = (
                f"the output {self.path!r} exists; name another, remove it, or have it overwritten "
                "(overwrite=True, --overwrite)"
            )
            raise OutputError(msg)
        stranger = self._stranger()
        if stranger is not None:
            msg = (
                f"overwrite=True replaces only a folder of parts, but {stranger!r} is none; "
                "remove it yourself or name another output"
            )
            raise OutputError(msg)

    def sweep(self) -> None:
        """Remove what jobs that died left beside the output."""
        with suppress(OSError):
            for name in os.listdir(self._parent):
                if name.startswith(self._hidden_prefix):
                    _remove_unless_held(os.path.join(self._parent, name))

    def new_file(self, token: str, name: str) -> PartFile:
        """Open a nameless file on the output's file system."""
        descriptor = _nameless(self._nearest_folder())
        if descriptor is not None:
            return PartFile(os.fdopen(descriptor, "wb"), None)
        path = os.path.join(self.make_hidden(token), name + _OPEN_SUFFIX)
        return PartFile(open(path, "wb"), path)  # closed by PartFile

    def make_hidden(self, token: str) -> str:
        """Make the hidden folder, and those above it, unless they are there."""
        hidden = self.hidden(token)
        os.makedirs(hidden, exist_ok=True)
        return hidden

    def publish(self, token: str) -> None:
        """Give the hidden folder the output's name; an old output is swapped out and removed.

        Raises:
            OutputError: the output has come into being meanwhile.
        """
        hidden = self.make_hidden(token)
        _sync_folder(hidden)
        if self._is_taken():
            self.check()
            _exchange(hidden, self.path)
        else:
            os.rename(hidden, self.path)
        _sync_folder(self._parent)
        self.discard(token)

    def discard(self, token: str) -> None:
        """Remove the hidden folder, and what is left of an old output that was swapped out.

        If a publication was broken off before the new output was there, the old one comes back.
        """
        hidden = self.hidden(token)
        if not os.path.lexists(self.path):
            with suppress(FileNotFoundError):
                os.rename(hidden + _ASIDE_SUFFIX, self.path)
        for folder in (hidden, hidden + _ASIDE_SUFFIX):
            shutil.rmtree(folder, ignore_errors=True)

    def holds(self, parts: Mapping[str, int | None]) -> bool:
        """Tell whether the output is just these files (name: inode number).

        A file keeps its inode when the folder around it is renamed, so another output with parts
        of the same names is not taken for this one.
        """
        try:
            return {one.name: one.stat().st_ino for one in os.scandir(self.path)} == parts
        except (FileNotFoundError, NotADirectoryError):
            return False

    def holds_only(self, name: str, content: bytes) -> bool:
        """Tell whether the output is just one file with this content."""
        path = os.path.join(self.path, name)
        try:
            if os.listdir(self.path) != [name] or os.path.getsize(path) != len(content):
                return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        with open(path, "rb") as stream:
            return stream.read() == content

    def add_part(self, file: PartFile, instance: int, suffix: str, number: int) -> tuple[str, int]:
        """Link a part straight into the output, under the first free number; return both."""
        os.makedirs(self.path, exist_ok=True)
        while True:
            name = f"{PART_PREFIX}{instance:05d}-{number:06d}{suffix}"
            path = os.path.join(self.path, name)
            try:
                file.link(path)
            except FileExistsError:
                number += 1
                continue
            _sync_folder(self.path)
            return path, number

    def remove(self, token: str) -> None:
        """Remove an existing output at once, as far as anybody can see."""
        if not self._is_taken():
            return
        self.check()
        hidden = self.hidden(token) + _ASIDE_SUFFIX
        os.rename(self.path, hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    @property
    def _parent(self) -> str:
        return os.path.dirname(self.path)

    @property
    def _hidden_prefix(self) -> str:
        return f".{os.path.basename(self.path)}.whale-"

    def _nearest_folder(self) -> str:
        place = self._parent
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        return place

    def _is_taken(self) -> bool:
        """Whether an output is in the way; an empty folder is not."""
        if not os.path.isdir(self.path):
            return os.path.lexists(self.path)
        with os.scandir(self.path) as entries:
            return any(True for _ in entries)

    def _stranger(self) -> str | None:
        """Return a path in the output that no sink wrote: nothing but parts is ever removed."""
        if not os.path.isdir(self.path) or os.path.islink(self.path):
            return self.path
        for entry in sorted(os.scandir(self.path), key=lambda entry: entry.name):
            ours = entry.name.lstrip("._").startswith((PART_PREFIX, _SPARK_MARK))
            if not ours or not entry.is_file(follow_symlinks=False):
                return entry.path
        return None


class FolderLock:
    """A shared hold on a hidden folder, which the kernel drops with the process."""

    def __init__(self, folder: str) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def close(self) -> None:
        """Let go; may be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _nameless(folder: str) -> int | None:
    """Return a descriptor of a nameless file, None if the system has none or cannot link it."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in _NO_NAMELESS:
            return None
        raise
    if os.path.exists(f"/proc/self/fd/{descriptor}"):
        return descriptor
    os.close(descriptor)
    return None


def _exchange(one: str, other: str) -> None:
    """Swap two folders in one step; where the file system cannot, put `other` aside of `one`."""
    libc = ctypes.CDLL(None, use_errno=True)
    renameat2 = getattr(libc, "renameat2", None)
    if renameat2 is not None:
        paths = os.fsencode(one), os.fsencode(other)
        if renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in _NO_EXCHANGE:
            raise OSError(code, os.strerror(code), other)
    os.rename(other, one + _ASIDE_SUFFIX)
    os.rename(one, other)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_unless_held(folder: str) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)
