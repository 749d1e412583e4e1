"""Runs Python as a user who may write nothing: not beside the sources, and not at home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

UID = 54321
NO_HOME = "/proc/nowhere"  # not even root can make a folder there

_READS_ONLY = "-all,+dac_read_search"
_AS_STRANGER = (
    "setpriv",
    *(f"--reuid={UID}", f"--regid={UID}", "--clear-groups"),
    # Root's Python may lie where only root can read.
    *(
        f"--inh-caps={_READS_ONLY}",
        f"--ambient-caps={_READS_ONLY}",
        f"--bounding-set={_READS_ONLY}",
    ),
)


def place_for_all(folder: Path) -> Path:
    """Make a temporary directory as /tmp is: everyone writes, nobody replaces another's files."""
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def make_read_only(folder: Path) -> None:
    """Take the right to write from everyone, in all folders below, too."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o555)


def run_as_stranger(
    *arguments: str | Path, temporary: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments, as another user if this one is root.

    Args:
        arguments: of Python.
        temporary: the user's TMPDIR, also the working directory.
        environment: further variables, or other values.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in {"NUMBA_CACHE_DIR", "XDG_CACHE_HOME"}
    }
    return subprocess.run(
        [*(_AS_STRANGER if os.geteuid() == 0 else ()), sys.executable, *map(str, arguments)],
        env={**inherited, "HOME": NO_HOME, "TMPDIR": str(temporary), **environment},
        cwd=temporary,
        capture_output=True,
        text=True,
        check=False,
    )
