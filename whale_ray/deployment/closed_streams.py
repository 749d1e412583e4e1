"""Standard streams that are closed (`>&-`), as a daemon's may be."""

from __future__ import annotations

import os
import sys


def open_closed_descriptors() -> None:
    """Open `/dev/null` where a standard stream is closed.

    Else a socket would get its number, to which C code writes, and which the child's streams get.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one


def open_closed_streams() -> None:
    """Let what is printed be lost where a stream is closed: Python has None for it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # as long as we live
            setattr(sys, name, stream)
