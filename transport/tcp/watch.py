"""Which sockets are ready, and a thread that says so to somebody who sleeps elsewhere.

The endpoint's own thread asks `ready`, which never waits. The epoll behind it reports edges: a
socket once, when it becomes ready. A second epoll watches the first, for the thread: it looks at
nothing else and takes nothing away, so it can neither lose nor steal an event. It tells once, and
only after `arm`, which the endpoint calls when it has found nothing to do: on a busy link the
thread sleeps, and does not fight for the interpreter.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Sequence
from typing import Final

READABLE: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
WRITABLE: Final = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR
ENDED: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_CONNECTION: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_EVENTS_MAX: Final = 256


class SocketWatch:
    """The sockets of one endpoint."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._epoll = select.epoll()
        self._outer = select.epoll()
        self._thread: threading.Thread | None = None
        self._stop_fd = -1
        self._armed = False
        self._sleeper: select.poll | None = None

    def add(self, fd: int) -> None:
        """Watch a connection."""
        self._epoll.register(fd, _CONNECTION)

    def add_listener(self, fd: int) -> None:
        """Watch a listening socket: reported as long as somebody waits to be accepted."""
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Watch a socket no more; before it is closed."""
        self._epoll.unregister(fd)

    def ready(self) -> Sequence[tuple[int, int]]:
        """Return (socket, events) of those that became ready since the last call."""
        return self._epoll.poll(0, _EVENTS_MAX)

    def wait(self, timeout_ns: int) -> None:
        """Sleep until a socket is ready that `ready` has not reported; takes nothing away."""
        if self._sleeper is None:
            self._sleeper = select.poll()
            self._sleeper.register(self._epoll.fileno(), select.POLLIN)
        self._sleeper.poll(timeout_ns / 1e6)

    def start(self, ring: Callable[[], None]) -> None:
        """Start the thread, which calls `ring` whenever a socket becomes ready.

        RuntimeError if it was started before.
        """
        if self._thread is not None:
            msg = "the sockets are watched already"
            raise RuntimeError(msg)
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._outer.register(self._stop_fd, select.EPOLLIN)
        self._outer.register(self._epoll.fileno(), 0)
        self._thread = threading.Thread(
            target=self._watch, args=(ring,), name="whale-ray-sockets", daemon=True
        )
        self._thread.start()

    def arm(self) -> None:
        """Have the thread ring once a socket is ready, if one is not already; then no more."""
        if not self._armed and self._thread is not None:
            self._armed = True
            self._outer.modify(self._epoll.fileno(), select.EPOLLIN | select.EPOLLONESHOT)

    def _watch(self, ring: Callable[[], None]) -> None:
        while not any(fd == self._stop_fd for fd, _ in self._outer.poll()):
            # In this order: whoever still saw it armed is about to sleep, and hears the ring.
            self._armed = False
            ring()

    def close(self) -> None:
        """End the thread and forget all sockets; again does nothing."""
        if self._thread is not None:
            os.eventfd_write(self._stop_fd, 1)
            self._thread.join()
            os.close(self._stop_fd)
            self._thread = None
        self._outer.close()
        self._epoll.close()
