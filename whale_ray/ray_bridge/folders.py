"""A process' temporary folder for rows on their way between Spark, Ray and whale-ray.

It lies in the system's temporary directory, is made when first used and removed when the process
ends. The process holds it (`held_folders`): a folder that nobody holds belongs to a process that
was killed, and the next one that needs a folder removes it.
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
from ..operators.sinks.held_folders import FolderHold, remove_unless_held

_PREFIX = "whale-ray-handover-"

REMEDY = "make room there, or name another folder in the environment variable TMPDIR"
"""What helps where the temporary directory cannot be written."""


class _ProcessFolder:
    """The folder, once there is one.

    Attributes:
        lock: held while it is made.
        owner: the process that made it; a forked child needs its own.
        path: where it is.
        hold: kept until the process ends.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner = 0
        self.path = ""
        self.hold: FolderHold | None = None


_folder = _ProcessFolder()


def new_folder(purpose: str) -> str:
    """Make an empty folder for one hand-over and return its absolute path.

    Raises:
        ResourceError: the temporary directory cannot be written.
    """
    with writing_there():
        return tempfile.mkdtemp(prefix=f"{purpose}-", dir=_process_folder())


def remove_folder(path: str) -> None:
    """Remove a folder made by `new_folder`; gone already is fine."""
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def writing_there() -> Iterator[None]:
    """Tell in one line what keeps the block from writing to the temporary directory.

    Raises:
        ResourceError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        place = tempfile.tempdir or "the temporary directory"
        msg = f"cannot hand rows over in {place}: {system_reason(error)}; {REMEDY}"
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
    """Make a folder that is ours: another process may sweep it before it is held."""
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
