"""Hidden and temporary folders, told from what dead processes left by a lock that the kernel drops.

Whoever uses such a folder holds a shared lock on it; whoever cleans up removes only what it can
lock alone. Between making a folder and locking it there is a moment in which a cleaner may come
first. So a lock counts only if the path still leads to the locked folder afterwards: a cleaner
removes the folder before it lets go of its own lock, and the loser of that race sees it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class FolderHold:
    """A shared hold on a folder, which the kernel drops with the process."""

    def __init__(self, descriptor: int) -> None:
        """Take over the descriptor of a locked folder; internal, see `hold` and `take`."""
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: str) -> FolderHold | None:
        """Hold an existing folder; None if somebody has removed it, nothing may be put there."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        # Where the file system has no locks, `remove_unless_held` gets none either.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not leads_to(path, descriptor):
            os.close(descriptor)
            return None
        return cls(descriptor)

    @classmethod
    def make(cls, path: str) -> FolderHold:
        """Make a folder, and those above it, unless it is there, and hold it."""
        while True:
            os.makedirs(path, exist_ok=True)
            hold = cls.take(path)
            if hold is not None:
                return hold

    def close(self) -> None:
        """Let go; may be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def remove_unless_held(path: str) -> bool:
    """Remove a folder that nobody holds; tell whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # another user's, or somebody else was faster
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not leads_to(path, descriptor):
            return False  # another folder bears its name by now
        shutil.rmtree(path, ignore_errors=True)
        return not os.path.lexists(path)
    except OSError:  # held, or the file system has no locks: then nobody knows
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
    """Tell whether a path is that of the folder with this descriptor, not of another by now."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))
