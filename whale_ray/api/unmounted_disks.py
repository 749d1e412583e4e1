"""Which disk of this machine is not mounted now: what is written there would be hidden by it."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["unmounted_disk"]

_FSTAB = Path("/etc/fstab")
_OCTAL = re.compile(r"\\([0-7]{3})")
"""How spaces and the like are written in that file."""


def unmounted_disk(folder: str) -> str:
    """Return the mount point above a folder that `/etc/fstab` lists and nothing is mounted on.

    "" if there is none, or if the file cannot be read, as in most containers.
    """
    try:
        lines = _FSTAB.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    fields = [line.split() for line in lines if not line.lstrip().startswith("#")]
    named = (_OCTAL.sub(lambda m: chr(int(m[1], 8)), one[1]) for one in fields if len(one) > 1)
    points = {os.path.normpath(name) for name in named if name.startswith("/")}
    place = os.path.realpath(folder)
    above = [one for one in points if os.path.commonpath((one, place)) == one]
    return next((one for one in sorted(above) if not os.path.ismount(one)), "")
