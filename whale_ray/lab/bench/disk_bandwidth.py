"""How fast the disk below a folder reads and writes, beside which its use is reported."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

__all__ = ["disk_bytes_per_s"]

_BLOCK_BYTES = 4 << 20
_BLOCKS = 64


def disk_bytes_per_s(folder: Path) -> float | None:
    """Return the mean rate of writing and reading a file of 256 MiB, past the kernel's cache.

    None if the file system below the folder allows no such access (O_DIRECT).
    """
    path = folder / "bandwidth"
    block = mmap.mmap(-1, _BLOCK_BYTES)  # begins on a page, as O_DIRECT demands
    block.write(os.urandom(_BLOCK_BYTES))
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    except OSError:
        return None
    try:
        begin_s = time.perf_counter()
        for number in range(_BLOCKS):
            os.pwrite(fd, block, number * _BLOCK_BYTES)
        for number in range(_BLOCKS):
            os.preadv(fd, [block], number * _BLOCK_BYTES)
        return 2 * _BLOCKS * _BLOCK_BYTES / (time.perf_counter() - begin_s)
    except OSError:
        return None
    finally:
        os.close(fd)
        path.unlink()
