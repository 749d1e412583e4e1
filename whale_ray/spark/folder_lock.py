"""A lock on a folder, held by one process at a time; the system frees it when the process dies."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..configs.errors import InputError
from ..transport.clock import Clock, SystemClock

_NAME = ".lock"
_POLL_NS = 50_000_000
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def locked(folder: str, wait_s: float, told: str, clock: Clock | None = None) -> Iterator[None]:
    """Hold the lock of a folder; go on without it where the file system has no locks.

    Args:
        folder: one that is there.
        wait_s: how long to wait for another holder.
        told: the message if it is still held then.
        clock: the system's, if not given.

    Raises:
        InputError: it is still held.
        OSError: the folder cannot be written.
    """
    descriptor = os.open(os.path.join(folder, _NAME), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _lock(descriptor, wait_s, told, clock or SystemClock())
        yield
    finally:
        with suppress(OSError):  # closing alone would not free it while a forked child has it open
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock(descriptor: int, wait_s: float, told: str, clock: Clock) -> None:
    until_ns = clock.monotonic_ns() + int(wait_s * 1e9)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic_ns() >= until_ns:
                raise InputError(told) from None
            clock.sleep_ns(_POLL_NS)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return
        else:
            return
