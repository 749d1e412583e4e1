"""Removes functions that were kept and that nobody has used for longest, so that few are kept.

A file's time of change says when it was used last: whoever uses it sets it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from .clock import SystemClock

__all__ = ["mark_used", "remove_unused"]

IN_USE_NS: Final = 3_600_000_000_000
"""Younger files stay in any case: other processes are about to compile or load them."""


def mark_used(path: Path) -> None:
    """Note that a file is used now."""
    with suppress(OSError):
        os.utime(path)


def remove_unused(folder: Path, places: Iterable[Path], keep: int) -> None:
    """Remove all but the sources used last, with what they were compiled to.

    Args:
        folder: of the sources, `NAME.py`, and of files that a killed process has left.
        places: the folders in which numba has `NAME.*.nbi` and `NAME.*.nbc`.
        keep: how many sources stay.
    """
    until_ns = SystemClock().wall_ns() - IN_USE_NS
    used: list[tuple[int, str]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        used = [(entry.stat().st_mtime_ns, entry.name) for entry in entries if entry.is_file()]
    sources = sorted((one for one in used if one[1].endswith(".py")), reverse=True)
    left = [one for one in used if one[1].startswith("tmp")]
    gone = [name for at_ns, name in (*sources[keep:], *left) if at_ns < until_ns]
    compiled = {name.removesuffix(".py") for name in gone}
    for place in places if gone else ():
        for path in _files_in(place):
            if path.name.partition(".")[0] in compiled and path.suffix in (".nbi", ".nbc"):
                path.unlink(missing_ok=True)
    for name in gone:
        (folder / name).unlink(missing_ok=True)


def _files_in(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
