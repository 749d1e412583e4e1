"""Freed memory stays with a worker, up to a bound, instead of going back to the kernel each time.

Each slice of a source makes arrays of some hundred kilobytes and frees them. By default glibc gives
the end of the heap back to the kernel as soon as a few of them are free, and the next slice faults
every page in again, which the kernel zeroes: a tenth of the processor time of a quick job.
"""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_KEPT_BYTES = 64 << 20
"""At most so much free memory stays at the end of each heap."""
_MAPPED_BYTES = 32 << 20
"""What is as large gets pages of its own, which the kernel takes back: glibc's upper bound."""


def keep_freed_memory() -> None:
    """Let this process keep freed memory for what it allocates next.

    It is for processes that run a member of a job and nothing else. Without glibc it does nothing:
    other allocators have bounds of their own.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
