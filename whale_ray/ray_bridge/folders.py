"""A process' temporary folder for rows that Spark, Ray and whale-ray exchange by files.

It is created in the system's temporary directory at first use, and removed when the process ends.
The process locks it (`held_folders`): a folder without a lock belongs to a process that was killed,
and the next process that needs a folder removes it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..configs.errors import ResourceError, system_reason
from ..configs.temporary_folder import temporary_folder
from ..operators.sinks.held_folders import FolderHold, remove_unless_held

_PREFIX = "whale-ray-handover-"

REMEDY = "make room there, or name another folder in the environment variable TMPDIR"
"""The remedy if the temporary directory cannot be written."""


class _ProcessFolder:
    """The folder of this process, after its creation.

    Attributes:
        lock: held while the folder is created.
        owner: the id of the process that created it; a forked child needs its own.
        path: its absolute path.
        hold: the lock on the folder, kept until the process ends.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner = 0
        self.path = ""
        self.hold: FolderHold | None = None


_folder = _ProcessFolder()


def new_folder(purpose: str) -> str:
    """Create an empty folder for one exchange of rows and return its absolute path.

    Raises:
        ResourceError: the temporary directory cannot be written.
    """
    with writing_there():
        return tempfile.mkdtemp(prefix=f"{purpose}-", dir=_process_folder())


def remove_folder(path: str) -> None:
    """Remove a folder that `new_folder` returned, if it still exists."""
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def writing_there() -> Iterator[None]:
    """Turn an OSError of the block, which writes to the temporary directory, into one clear line.

    Raises:
        ResourceError: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        msg = f"cannot hand rows over in {temporary_folder()}: {system_reason(error)}; {REMEDY}"
        raise ResourceError(msg) from None


def _process_folder() -> str:
    with _folder.lock:
        if _folder.owner != os.getpid() or not os.path.isdir(_folder.path):
            _sweep()
            _folder.path, _folder.hold = _make()
            _folder.owner = os.getpid()
            atexit.register(_remove_at_exit, _folder.owner, _folder.path)
        return _folder.path


def _make() -> tuple[str, FolderHold]:
    """Create a folder and lock it; try again if another process has removed it in between."""
    while True:
        path = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
        hold = FolderHold.take(path)
        if hold is not None:
            return path, hold


def _remove_at_exit(process: int, path: str) -> None:
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


def _sweep() -> None:
    """Remove the folders of processes that were killed."""
    parent = tempfile.gettempdir()
    for name in os.listdir(parent):
        if name.startswith(_PREFIX):
            remove_unless_held(os.path.join(parent, name))
