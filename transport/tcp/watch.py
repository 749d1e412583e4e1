"""Which sockets are ready, and a thread that rings a doorbell when one becomes so.

The endpoint's own thread calls `ready`, which never blocks. Its epoll is edge-triggered: it reports
a socket once, when it becomes ready. A second epoll, for the ringing thread, watches only the
first, so that no event is consumed by the wrong thread. It is one-shot and enabled by `arm`, which
the endpoint calls when it has found nothing to do: on a busy link the thread sleeps. The thread
runs compiled code without the GIL, which the thread that it wakes needs at once.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence
from typing import Final

import numpy as np

from ..atomics import await_epoll, fence, kernel, load_acquire, store_release
from ..doorbell import Doorbell, ring_line

READABLE: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
WRITABLE: Final = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR
ENDED: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_WITHOUT_ROOM: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
_WITH_ROOM: Final = _WITHOUT_ROOM | select.EPOLLOUT
_EVENTS_MAX: Final = 256
# Words that the thread shares with the endpoint, and where the second lies.
_ARMED, _STOPPED = 0, 1
_STOPPED_AT: Final = 8


@kernel("void(int64, int64, int64)", releases_gil=True)
def _watch(outer_fd: int, words: int, line: int) -> None:
    while True:
        count = await_epoll(outer_fd)
        if load_acquire(words + _STOPPED_AT) != 0:
            return
        if count > 0:
            # In this order: an endpoint that saw it still armed is about to sleep, and is rung.
            store_release(words, 0)
            fence()
            ring_line(line)


class SocketWatch:
    """The sockets of one endpoint."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._epoll = select.epoll()
        self._outer = select.epoll()
        self._thread: threading.Thread | None = None
        self._stop_fd = -1
        self._words = np.zeros(2, np.int64)
        self._sleeper: select.poll | None = None

    def add(self, fd: int) -> None:
        """Watch a connection; also when there is room to send."""
        self._epoll.register(fd, _WITH_ROOM)

    def watch_for_room(self, fd: int, *, wanted: bool) -> None:
        """Report when there is room to send, or not: each acknowledgement makes some."""
        self._epoll.modify(fd, _WITH_ROOM if wanted else _WITHOUT_ROOM)

    def add_listener(self, fd: int) -> None:
        """Watch a listening socket: reported as long as a connection waits to be accepted."""
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

    def start(self, doorbell: Doorbell) -> None:
        """Start the thread, which rings `doorbell` whenever a socket becomes ready.

        RuntimeError if it was started before.
        """
        if self._thread is not None:
            msg = "the sockets are watched already"
            raise RuntimeError(msg)
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._outer.register(self._stop_fd, select.EPOLLIN)
        self._outer.register(self._epoll.fileno(), 0)
        self._doorbell = doorbell  # holds the memory that the thread writes to
        self._thread = threading.Thread(
            target=_watch,
            args=(self._outer.fileno(), int(self._words.ctypes.data), doorbell.line),
            name="whale-ray-sockets",
            daemon=True,
        )
        self._thread.start()

    def arm(self) -> None:
        """Have the thread ring once a socket is ready, if one is not already; then no more."""
        if self._thread is not None and not self._words[_ARMED]:
            self._words[_ARMED] = 1
            self._outer.modify(self._epoll.fileno(), select.EPOLLIN | select.EPOLLONESHOT)

    def close(self) -> None:
        """End the thread and forget all sockets; again does nothing."""
        if self._thread is not None:
            self._words[_STOPPED] = 1
            os.eventfd_write(self._stop_fd, 1)
            self._thread.join()
            os.close(self._stop_fd)
            self._thread = None
        self._outer.close()
        self._epoll.close()
