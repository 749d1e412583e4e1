"""The system's folder for temporary files, which may not be there: such as on a read-only root."""

from __future__ import annotations

import tempfile

__all__ = ["temporary_folder"]

NONE_IS_WRITABLE = (
    "a folder for temporary files (none can be written: set TMPDIR or runtime.spill_directory)"
)


def temporary_folder(named: str = "") -> str:
    """Return, for a message, a folder that a setting names, or that for temporary files.

    If no folder for temporary files can be written, a text says so.
    """
    if named:
        return named
    try:
        return tempfile.gettempdir()
    except OSError:
        return NONE_IS_WRITABLE
