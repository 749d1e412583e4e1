"""Which sockets are ready, and a thread that says so to somebody who sleeps elsewhere.

The endpoint's own thread asks `ready`, which never waits. The epoll behind it reports edges: a
socket once, when it becomes ready. A second epoll watches the first, for the thread: it looks at
nothing else and takes nothing away, so it can neither lose nor steal an event.
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
        self._thread: threading.Thread | None = None
        self._stop_fd = -1

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

    def start(self, ring: Callable[[], None]) -> None:
        """Start the thread, which calls `ring` whenever a socket becomes ready.

        RuntimeError if it was started before.
        """
        if self._thread is not None:
            msg = "the sockets are watched already"
            raise RuntimeError(msg)
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(
            target=_watch,
            args=(self._epoll.fileno(), self._stop_fd, ring),
            name="whale-ray-sockets",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread and forget all sockets; again does nothing."""
        if self._thread is not None:
            os.eventfd_write(self._stop_fd, 1)
            self._thread.join()
            os.close(self._stop_fd)
            self._thread = None
        self._epoll.close()


def _watch(epoll_fd: int, stop_fd: int, ring: Callable[[], None]) -> None:
    with select.epoll() as outer:
        outer.register(epoll_fd, select.EPOLLIN | select.EPOLLET)
        outer.register(stop_fd, select.EPOLLIN)
        while not any(fd == stop_fd for fd, _ in outer.poll()):
            ring()
