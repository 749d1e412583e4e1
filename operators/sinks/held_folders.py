"""Locks on hidden and temporary folders, by which folders of dead processes are recognized.

A process that uses such a folder holds a shared lock (flock) on it, which the kernel releases when
the process dies; a cleaner removes only folders that it can lock exclusively. A cleaner may get its
lock between the creation of a folder and its locking. So a lock is only valid if the path still
refers to the locked folder afterwards: a cleaner removes the folder before it releases its lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class FolderHold:
    """A shared lock on a folder; the kernel releases it when the process dies."""

    def __init__(self, descriptor: int) -> None:
        """Take over the descriptor of a locked folder; internal, see `hold` and `take`."""
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: str) -> FolderHold | None:
        """Lock an existing folder; None if it was removed and must not be used."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        # If the file system has no locks, `remove_unless_held` gets none and removes nothing.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not leads_to(path, descriptor):
            os.close(descriptor)
            return None
        return cls(descriptor)

    @classmethod
    def make(cls, path: str) -> FolderHold:
        """Create a folder and its parents unless they exist, and lock it."""
        while True:
            os.makedirs(path, exist_ok=True)
            hold = cls.take(path)
            if hold is not None:
                return hold

    def is_at(self, path: str) -> bool:
        """Return whether a path leads to the folder that is locked."""
        return leads_to(path, self._descriptor)

    def close(self) -> None:
        """Release the lock; may be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def remove_unless_held(path: str, *, unless: Callable[[str], bool] | None = None) -> bool:
    """Remove a folder that no process has locked; return whether it is gone.

    Args:
        path: the folder.
        unless: called with the path once the folder is locked; the folder stays if it returns true.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # it belongs to another user, or was removed meanwhile
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not leads_to(path, descriptor):
            return False  # the path refers to another folder by now
        if unless is not None and unless(path):
            return False
        shutil.rmtree(path, ignore_errors=True)
        return not os.path.lexists(path)
    except OSError:  # locked, or the file system has no locks
        return False
    finally:
        os.close(descriptor)


@contextmanager
def opened_folder(path: str) -> Iterator[int]:
    """Yield the descriptor of a folder.

    Raises:
        FileNotFoundError: there is none.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def leads_to(path: str, descriptor: int) -> bool:
    """Return whether a path still refers to the folder with this descriptor."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def device_of(path: str) -> int:
    """Return the number of the device of a path, or of the nearest folder above it that exists."""
    while True:
        try:
            return os.stat(path).st_dev
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)
