"""The files of a checkpoint store in a local directory: each appears whole, and is on the disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ...configs.errors import InputError, OutputError, system_reason
from ...configs.file_names import check_encodable

__all__ = ["LocalFiles"]

_OPEN_SUFFIX = ".open"
"""Of a file that is being written; a crash may leave it, and nobody ever reads it."""

_REMEDIES = {
    errno.ENOSPC: "make room there, or keep fewer checkpoints",
    errno.EDQUOT: "make room in the quota, or keep fewer checkpoints",
    errno.EROFS: "name a folder that can be written to",
    errno.EACCES: "give this user the right to it, or name another folder",
    errno.EPERM: "give this user the right to it, or name another folder",
    errno.ENOENT: "it was there before: bring it back (is a disk no longer mounted?)",
    errno.ENOTDIR: "name a folder",
}
_ANOTHER = "correct that, or name another folder"


class LocalFiles:
    """Files below a local folder, which is created when the first one is written."""

    def __init__(self, path: str) -> None:
        check_encodable("the checkpoint folder", path)
        self._path = os.path.abspath(os.path.expanduser(path))
        self._was_there = os.path.isdir(self._path)
        self._was_filled = not self._is_empty()

    @property
    def url(self) -> str:
        """Return the folder's absolute path."""
        return self._path

    def put(self, name: str, data: bytes) -> None:
        """Write a file under another name, then give it its own; both are on the disk then."""
        with self._writing(name):
            written = self._write(name, data)
            try:
                os.replace(written, self._path_of(name))
            except OSError:
                _remove(written)
                raise
            _sync_folder(os.path.dirname(written))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless there is one; return whether it was written."""
        with self._writing(name):
            written = self._write(name, data)
            try:
                os.link(written, self._path_of(name))
            except FileExistsError:
                return False
            finally:
                _remove(written)
            _sync_folder(os.path.dirname(written))
            return True

    def get(self, name: str) -> bytes | None:
        """Return a file's bytes; None if there is none."""
        try:
            with open(self._path_of(name), "rb") as stream:
                return stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unreadable(error, name) from None

    def names(self, folder: str) -> list[str]:
        """Return the names of all files in a folder, and in those below it, sorted."""
        return [name for name in self._all(folder) if not name.endswith(_OPEN_SUFFIX)]

    def unfinished(self, folder: str) -> list[str]:
        """Return what was begun in a folder and has not got its name, which comes first in it."""
        return [name for name in self._all(folder) if name.endswith(_OPEN_SUFFIX)]

    def _all(self, folder: str) -> list[str]:
        return sorted(self._walk(folder))

    def remove(self, name: str) -> None:
        """Remove a file, and the folders above it that are empty then."""
        path = self._path_of(name)
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._unwritable(error, name) from None
        self._was_filled = False  # this may have been the last one
        above = os.path.dirname(path)
        with suppress(OSError):  # not empty
            while above != self._path:
                os.rmdir(above)
                above = os.path.dirname(above)

    def lock_file(self, name: str) -> int:
        """Open a file to be locked, and created if there is none; return its descriptor."""
        with self._writing(name):
            self._make_folder(os.path.dirname(self._path_of(name)))
            return os.open(self._path_of(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def is_open_in(self, name: str, pid: int) -> bool:
        """Return whether a process of this machine is seen to have a file open."""
        try:
            wanted = os.stat(self._path_of(name))
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # no such file or process, or it is another user's
            return False
        for number in numbers:
            with suppress(OSError):  # closed meanwhile
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{number}"), wanted):
                    return True
        return False

    def _walk(self, folder: str) -> Iterator[str]:
        try:
            with os.scandir(self._path_of(folder)) as found:
                entries = list(found)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._unreadable(error, folder) from None
        for entry in entries:
            name = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(name)
            else:
                yield name

    def _write(self, name: str, data: bytes) -> str:
        """Write a file that is not there yet for anybody else; return its path."""
        path = f"{self._path_of(name)}.{os.getpid()}-{os.urandom(4).hex()}{_OPEN_SUFFIX}"
        self._make_folder(os.path.dirname(path))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with open(descriptor, "wb", buffering=0) as stream:
                left = memoryview(data)
                while left.nbytes:
                    left = left[stream.write(left) :]
                os.fsync(descriptor)
        except OSError:
            _remove(path)
            raise
        return path

    def _make_folder(self, path: str) -> None:
        """Create a folder, and those above it; all of them are on the disk then."""
        if os.path.isdir(path):
            self._was_there = True
            self._was_filled = self._was_filled or path != self._path
            return
        if self._is_lost():
            # To create it anew would hide what was in it, and fill the disk below its mount point.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        above = os.path.dirname(path)
        if not os.path.isdir(above):
            self._make_folder(above)
        with suppress(FileExistsError):  # created by another process meanwhile
            os.mkdir(path)
        _sync_folder(above)
        self._was_there = self._was_there or path == self._path
        self._was_filled = self._was_filled or path != self._path

    def _is_lost(self) -> bool:
        """Return whether the folder, or what was in it, is gone."""
        is_gone = self._was_there and not os.path.isdir(self._path)
        return is_gone or (self._was_filled and self._is_empty())

    def _is_empty(self) -> bool:
        """Return whether nothing is in the folder, or there is no folder."""
        try:
            with os.scandir(self._path) as found:
                return next(found, None) is None
        except OSError:
            return True

    def _path_of(self, name: str) -> str:
        return os.path.join(self._path, name)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unwritable(error, name) from None

    def _unwritable(self, error: OSError, name: str) -> OutputError:
        remedy = _REMEDIES.get(error.errno or 0, _ANOTHER)
        if error.errno == errno.ENOENT and not self._is_lost():  # such as below /proc
            remedy = "nothing can be created there: name another folder"
        return OutputError(
            f"the checkpoint folder {self._path!r} cannot be written to: {system_reason(error)}"
            f" ({name}); {remedy}"
        )

    def _unreadable(self, error: OSError, name: str) -> InputError:
        remedy = _REMEDIES.get(error.errno or 0, _ANOTHER)
        return InputError(
            f"the checkpoint folder {self._path!r} cannot be read: {system_reason(error)}"
            f" ({name}); {remedy}"
        )


def _remove(path: str) -> None:
    with suppress(OSError):  # what cannot be removed is a leftover, which nobody reads
        os.unlink(path)


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
