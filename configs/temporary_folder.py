"""The folder for temporary files: the one that a setting names, or the system's.

The system's may not be there, such as on a read-only root.
"""

from __future__ import annotations

import os
import tempfile

from .errors import ResourceError, system_reason
from .file_names import check_encodable

__all__ = ["check_spill_directory", "spill_folder", "temporary_folder"]

NONE_IS_WRITABLE = (
    "a folder for temporary files (none can be written: set TMPDIR or runtime.spill_directory)"
)


def spill_folder(named: str) -> str | None:
    """Return `runtime.spill_directory` as `tempfile` takes it; None: the system's folder."""
    return os.path.expanduser(named) if named else None


def temporary_folder(named: str = "") -> str:
    """Return, for a message, a folder that a setting names, or that for temporary files.

    If no folder for temporary files can be written, a text says so.
    """
    try:
        return spill_folder(named) or tempfile.gettempdir()
    except OSError:
        return NONE_IS_WRITABLE


def check_spill_directory(named: str) -> None:
    """Raise ResourceError if a folder that a setting names takes no files.

    Else a job would fail when it first spills, perhaps hours after its start.
    """
    if not named:
        return
    check_encodable("runtime.spill_directory", named)
    try:
        with tempfile.TemporaryFile(dir=spill_folder(named)):
            pass
    except OSError as error:
        msg = (
            f"no file can be made in {temporary_folder(named)}: {system_reason(error)}; correct"
            " that, or name another folder in runtime.spill_directory"
        )
        raise ResourceError(msg) from None
