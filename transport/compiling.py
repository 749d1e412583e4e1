"""Compiles functions with numba, and finds a place for what was compiled.

numba keeps compiled functions beside their source, else in the user's cache folder, and refuses to
compile at all where neither can be written: in a read-only installation without a writable home,
such as a container that runs as any user. Here they then go to a folder of this user's own in the
temporary directory, else nowhere, and one line says so.

What is loaded from such a folder is run, so nobody else may be able to write into it, or to put
another folder in its place.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core import config

__all__ = ["folder_of_own", "kept_in", "njit"]

_FOLDER_VARIABLE = "NUMBA_CACHE_DIR"
"""numba's own variable: processes started from here keep theirs in the same place."""

_NOT_KEPT_VARIABLE = "WHALE_RAY_KERNELS_NOT_KEPT"
"""Set where there is no place: processes started from here neither look nor say so again."""

_log = logging.getLogger(__name__)


def njit(signature: object = None, *, cache: bool = False, **options: Any) -> Any:
    """Return a decorator that compiles a function as `numba.njit` does.

    All functions of whale-ray are compiled by this.

    Args:
        signature: of the arguments; without one, the first call compiles.
        cache: keep what was compiled for other processes, wherever there is a place for it.
        options: numba's.
    """

    def compiled(function: Any) -> Any:
        kept = cache and _has_place()
        try:
            return _compiled(function, signature, **options, cache=kept)
        except RuntimeError as error:
            if not kept or "no locator available" not in str(error):
                raise
        return _compiled(function, signature, **options, cache=_use_folder_of_own())

    return compiled


def _compiled(function: Any, signature: object, **options: Any) -> Any:
    return (numba.njit(**options) if signature is None else numba.njit(signature, **options))(
        function
    )


def kept_in() -> str | None:
    """Return the folder in which functions of this module are kept; None if there is no place."""
    probe: Any = njit(cache=True)(_nothing)
    path: str | None = probe.stats.cache_path
    return path


def _nothing() -> None:
    """Be compiled by nobody."""


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


def _use_folder_of_own() -> bool:
    """Let numba keep functions in a folder of this user's own; tell whether there is one."""
    parents = dict.fromkeys((os.environ.get("TMPDIR", "/tmp"), "/tmp", "/var/tmp"))
    folders = [folder for parent in parents if (folder := folder_of_own(parent)) is not None]
    if not folders or str(folders[0]) == config.CACHE_DIR:
        os.environ[_NOT_KEPT_VARIABLE] = "1"
        _log.warning(
            "whale-ray: there is no place to keep compiled functions, so every process compiles "
            "them again, for 10 s or more; set %s to a folder that only you can write",
            _FOLDER_VARIABLE,
        )
        return False
    os.environ[_FOLDER_VARIABLE] = config.CACHE_DIR = str(folders[0])
    _log.warning(
        "whale-ray: neither the installation nor your home can be written, so compiled functions "
        "are kept in %s; set %s to choose another folder",
        folders[0],
        _FOLDER_VARIABLE,
    )
    return True


def _has_place() -> bool:
    """Tell whether to ask numba for a place.

    Without any home it would make a folder "~" in the working directory.
    """
    if _NOT_KEPT_VARIABLE in os.environ:
        return False
    at_home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    beside = Path(__file__).parent / "__pycache__"
    if config.CACHE_DIR or os.path.isabs(at_home) or os.access(beside, os.W_OK):
        return True
    return _use_folder_of_own()
