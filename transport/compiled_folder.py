"""The folder for compiled functions if numba's own folders cannot be written.

This module loads nothing compiled, so that a driver can choose the folder for the processes that it
starts, which inherit it.

Files of such a folder are executed, so no other user may be able to write into it, or to replace
it with another folder.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from ..configs.errors import SettingsError, system_reason

__all__ = [
    "FOLDER_VARIABLE",
    "NOT_KEPT_VARIABLE",
    "choose_folder",
    "folder_of_own",
    "is_needed",
    "why_full",
]

FOLDER_VARIABLE = "NUMBA_CACHE_DIR"
"""numba's own variable: processes started from here keep theirs in the same place."""

NOT_KEPT_VARIABLE = "WHALE_RAY_KERNELS_NOT_KEPT"
"""Set if there is no folder: processes started from here neither search nor warn again."""

_PROBE_BYTES = 64 << 10
"""A compiled function takes about as much."""

_log = logging.getLogger(__name__)

if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):  # told here, before a process starts
    _NOT_INTERPRETED = "NUMBA_DISABLE_JIT is set, but whale-ray's loops run only compiled: unset it"
    raise SettingsError(_NOT_INTERPRETED)


def is_needed() -> bool:
    """Return whether numba will find no folder of its own, judging by permissions."""
    if FOLDER_VARIABLE in os.environ or NOT_KEPT_VARIABLE in os.environ:
        return False
    at_home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    places = (Path(__file__).parent / "__pycache__", Path(at_home))
    return not any(place.is_absolute() and _can_be_written(place) for place in places)


def _can_be_written(folder: Path) -> bool:
    """Return whether a folder can be written, or created."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def choose_folder() -> str | None:
    """Choose a folder of this user's own, also for processes started from here, and log it.

    None if there is no such folder, which is logged as well.
    """
    parents = dict.fromkeys((os.environ.get("TMPDIR", "/tmp"), "/tmp", "/var/tmp"))
    folders = [folder for parent in parents if (folder := folder_of_own(parent)) is not None]
    if not folders or str(folders[0]) == os.environ.get(FOLDER_VARIABLE):
        os.environ[NOT_KEPT_VARIABLE] = "1"
        _log.warning(
            "whale-ray: there is no place to keep compiled functions, so every process compiles "
            "them again, for 10 s or more; set %s to a folder that only you can write",
            FOLDER_VARIABLE,
        )
        return None
    os.environ[FOLDER_VARIABLE] = str(folders[0])
    _log.warning(
        "whale-ray: neither the installation nor your home can be written, so compiled functions "
        "are kept in %s; set %s to choose another folder",
        folders[0],
        FOLDER_VARIABLE,
    )
    return str(folders[0])


def folder_of_own(parent: str | os.PathLike[str]) -> Path | None:
    """Return this user's folder for compiled functions in a directory, made if it is not there.

    None if it cannot be written, or if anyone else could write into it or replace it.
    """
    path = Path(os.path.abspath(parent), f"whale-ray-compiled-{os.geteuid()}")
    try:
        if any(_others_could_replace_entries(directory) for directory in path.parents):
            return None
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        is_private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
        if not stat.S_ISDIR(found.st_mode) or not is_private:
            return None
        tempfile.TemporaryFile(dir=path).close()
    except OSError:
        return None
    return path


def _others_could_replace_entries(directory: Path) -> bool:
    found = directory.stat()
    if found.st_uid not in (0, os.geteuid()):
        return True
    for_others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return bool(for_others) and not found.st_mode & stat.S_ISVTX  # sticky, as /tmp is


def why_full(folder: str) -> str:
    """Return why no more compiled functions can be kept in a folder, "" if it has room.

    A file of a few KiB is written there: where there is no room, an empty one can still be made.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
    except OSError as error:
        return system_reason(error) if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return ""
