"""A fork server that loads while the driver loads and prepares the input of its job.

Only for programs that run no code of the user before they start their job: the server keeps the
environment and the working directory that it was started with.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...transport import compiled_folder
from .fork_server import ForkServer

_log = logging.getLogger(__name__)


class _Waiting:
    """The server that waits for its job, if there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ForkServer | None = None
        self._grace_ms = 0

    def put(self, server: ForkServer | None, grace_ms: int = 0) -> ForkServer | None:
        """Let `server` wait; return the one that has waited until now."""
        with self._lock:
            before, self._server, self._grace_ms = self._server, server, grace_ms
            return before

    def take(self, grace_ms: int) -> ForkServer | None:
        """Return the server if it is alive and has this grace."""
        with self._lock:
            server = self._server
            if server is None or self._grace_ms != grace_ms or server.lost:
                return None
            self._server = None
            return server


_waiting = _Waiting()


@contextmanager
def early_fork_server(grace_ms: int) -> Iterator[None]:
    """Start a fork server for the next job of this process; end it if no job has taken it.

    If it cannot start or dies, the job starts one of its own.

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
    _close(_waiting.put(server, grace_ms))
    try:
        yield
    finally:
        _close(_waiting.put(None))


def take_early_server(grace_ms: int) -> ForkServer | None:
    """Return the server that waits for a job, None if there is none for one with this grace.

    The caller closes it.
    """
    return _waiting.take(grace_ms)


def _close(server: ForkServer | None) -> None:
    if server is not None:
        server.close(grace_s=0.0)  # it has forked nothing, and may still be loading
