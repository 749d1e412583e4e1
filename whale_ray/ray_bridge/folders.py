"""A process' temporary folder for rows on their way between Spark, Ray and whale-ray.

It lies in the system's temporary directory, is made when first used and removed when the process
ends. The process holds a lock on it, which the kernel drops with the process: a folder that nobody
holds belongs to a process that was killed, and the next one that needs a folder removes it.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
from contextlib import suppress

_PREFIX = "whale-ray-handover-"


class _ProcessFolder:
    """The folder, once there is one.

    Attributes:
        lock: held while it is made.
        owner: the process that made it; a forked child needs its own.
        path: where it is.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner = 0
        self.path = ""


_folder = _ProcessFolder()


def new_folder(purpose: str) -> str:
    """Make an empty folder for one hand-over and return its absolute path."""
    return tempfile.mkdtemp(prefix=f"{purpose}-", dir=_process_folder())


def remove_folder(path: str) -> None:
    """Remove a folder made by `new_folder`; gone already is fine."""
    shutil.rmtree(path, ignore_errors=True)


def _process_folder() -> str:
    with _folder.lock:
        if _folder.owner != os.getpid() or not os.path.isdir(_folder.path):
            _sweep()
            path = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # held, on purpose, until the process ends
            atexit.register(_remove_at_exit, os.getpid(), path)
            _folder.owner, _folder.path = os.getpid(), path
        return _folder.path


def _remove_at_exit(process: int, path: str) -> None:
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


def _sweep() -> None:
    """Remove the folders of processes that were killed."""
    parent = tempfile.gettempdir()
    for name in os.listdir(parent):
        if name.startswith(_PREFIX):
            with suppress(OSError):  # another user's, or another sweep was faster
                _remove_unless_held(os.path.join(parent, name))


def _remove_unless_held(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    finally:
        os.close(descriptor)
