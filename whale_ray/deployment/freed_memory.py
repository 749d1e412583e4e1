"""Freed memory stays with a worker, up to a bound, instead of going back to the kernel each time.

Each slice of a source makes arrays of some hundred kilobytes and frees them. By default glibc gives
the end of the heap back to the kernel as soon as a few of them are free, and the next slice faults
every page in again, which the kernel zeroes: a tenth of the processor time of a quick job.
"""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_KEPT_BYTES = 64 << 20
"""At most so much free memory stays at the end of each heap."""
_MAPPED_BYTES = 32 << 20
"""What is as large gets pages of its own, which the kernel takes back: glibc's upper bound."""
_CHOSEN_BY = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> None:
    """Let this process, which runs a member of a job, keep freed memory for what it allocates next.

    Where a user has chosen glibc's bounds by the environment, these stay. Without glibc nothing
    changes: other allocators have bounds of their own.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not any(name in os.environ for name in _CHOSEN_BY):
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
