"""The fork server that waits for the next job of this process.

Loading what workers need takes a fork server a second of a processor, more than many a job. So the
one of a job that has ended waits for the next job: in a notebook all jobs but the first start at
once. A command that runs an application starts one early, which loads while the input is prepared.

A server keeps what it was started with. Only a job that would start one that is alike in all of
that takes it; else it ends. It also ends with this process: its socket closes then.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ...transport import compiled_folder
from .fork_server import ForkServer, child_environment

__all__ = [
    "ServerConditions",
    "early_fork_server",
    "end_waiting_server",
    "keep_waiting",
    "take_waiting_server",
]

_log = logging.getLogger(__name__)
_OUTPUTS = (1, 2)


@dataclass(frozen=True)
class ServerConditions:
    """What a fork server is started with, and what its children inherit."""

    process: int
    grace_ms: int
    folder: str
    environment: tuple[tuple[str, str], ...]
    processors: frozenset[int]
    niceness: int
    outputs: tuple[tuple[int, int] | None, ...]

    @classmethod
    def now(cls, grace_ms: int) -> ServerConditions:
        """Return those of this process; `grace_ms` as of `ForkServer`."""
        return cls(
            os.getpid(),
            grace_ms,
            os.getcwd(),
            tuple(sorted(child_environment().items())),
            frozenset(os.sched_getaffinity(0)),
            os.getpriority(os.PRIO_PROCESS, 0),
            tuple(map(_file_of, _OUTPUTS)),
        )


def _file_of(descriptor: int) -> tuple[int, int] | None:
    """Return what a descriptor writes to, None if it is closed."""
    with suppress(OSError):
        found = os.fstat(descriptor)
        return found.st_dev, found.st_ino
    return None


class _Waiting:
    """The server that waits, if there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ForkServer | None = None
        self._conditions: ServerConditions | None = None

    def put(
        self, server: ForkServer | None, conditions: ServerConditions | None = None
    ) -> ForkServer | None:
        """Let `server` wait; return the one that has waited until now."""
        with self._lock:
            before = self._server if self._is_ours() else None
            self._server, self._conditions = server, conditions
            return before

    def take(self, conditions: ServerConditions) -> ForkServer | None:
        """Return the server if it is alive and was started under these conditions."""
        with self._lock:
            server = self._server
            if server is None or self._conditions != conditions or server.lost:
                return None
            self._server = self._conditions = None
            return server

    def _is_ours(self) -> bool:
        """Whether this process has started it, rather than one that this one was forked from."""
        return self._conditions is not None and self._conditions.process == os.getpid()


_waiting = _Waiting()


@contextmanager
def early_fork_server(grace_ms: int) -> Iterator[None]:
    """Start a fork server for the next job of this process; at the end of the block none waits.

    Only around code that is not the user's. If it cannot start or dies, the job starts one of its
    own.

    Args:
        grace_ms: of the job, see `ForkServer`.
    """
    if compiled_folder.is_needed():  # once for this process and the server
        compiled_folder.choose_folder()
    try:
        server = ForkServer(grace_ms=grace_ms)
    except OSError as error:
        _log.debug("no process starts before its job: %s", error)
        yield
        return
    _end(_waiting.put(server, ServerConditions.now(grace_ms)))
    try:
        yield
    finally:
        end_waiting_server()


def take_waiting_server(conditions: ServerConditions) -> ForkServer | None:
    """Return the server that waits, None if there is none that was started under these conditions.

    The caller ends it, or lets it wait again.
    """
    return _waiting.take(conditions)


def keep_waiting(server: ForkServer, conditions: ServerConditions) -> None:
    """Let a server, whose processes have all ended, wait for another job in place of any other."""
    _end(_waiting.put(server, conditions))


def end_waiting_server() -> None:
    """End the server that waits, if there is one."""
    _end(_waiting.put(None))


def _end(server: ForkServer | None) -> None:
    if server is not None:
        server.close(grace_s=0.0)  # it has no processes, and may still be loading


atexit.register(end_waiting_server)
