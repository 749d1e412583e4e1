"""What keeps runs of the tests apart that share a machine: a number for each, and locks.

The workers of one run (pytest-xdist) count as runs of their own here.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_VARIABLE = "WHALE_RAY_TEST_RUN"
"""Inherited by every process that a test starts, so that orphans are found as well."""


def begin_run() -> None:
    """Give this process, and those that it starts from now on, a number of their own."""
    os.environ[_VARIABLE] = uuid.uuid4().hex


def is_of_this_run(pid: int) -> bool:
    """Tell whether a process belongs to the same run as this one; both may be the same."""
    if pid == os.getpid():
        return True  # /proc shows what it was started with
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it ended meanwhile, or is another user's
        return False
    return f"{_VARIABLE}={os.environ[_VARIABLE]}".encode() in environment.split(b"\0")


def living(name: str) -> Iterator[psutil.Process]:
    """Find the processes of this run whose name begins so and that have not ended."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):  # others come and go
            if process.status() == psutil.STATUS_ZOMBIE or not process.name().startswith(name):
                continue
            # A process of Ray writes its title over its environment.
            if any(is_of_this_run(one.pid) for one in (process, *process.parents())):
                yield process


@contextmanager
def alone_in(place: Path) -> Iterator[None]:
    """Hold a folder that all runs share; wait for another run's test, which has a time limit."""
    folder = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
