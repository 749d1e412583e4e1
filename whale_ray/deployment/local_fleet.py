"""One worker in the calling process and thread: no Ray, no process of a worker's own.

The worker runs in time slices inside `next_event`; the controller runs between them.
"""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

from ..control.controller_events import Raised
from ..control.fleet import CountersTaken, Fleet, FleetEvent, MemberMessage
from ..plan.assignment import Assignment
from ..transport.clock import Clock
from ..worker.worker import Worker
from .compiling_beside import compile_beside
from .member_host import COMMANDS, MemberHost

_PENDING_MAX = 64
_MESSAGES_MAX = 65_536


class LocalFleet(Fleet):
    """A fleet of one worker, on `clock`; with a virtual clock, waiting takes no time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._host: MemberHost | None = None
        self._pending: deque[tuple[int, str, tuple[Any, ...]]] = deque(maxlen=_PENDING_MAX)
        self._running: int | None = None
        self._messages: deque[MemberMessage] = deque(maxlen=_MESSAGES_MAX)

    @property
    def host(self) -> MemberHost:
        """The worker's host; only after `start`."""
        assert self._host is not None
        return self._host

    def start(self, assignment: Assignment) -> None:
        """Make the worker."""
        compile_beside()
        self._host = MemberHost(0, Worker(0, assignment, self._clock, self._take))

    def _take(self, attempt: int, content: object) -> None:
        """Keep what the worker tells, from any of its threads."""
        assert len(self._messages) < _MESSAGES_MAX, "a worker tells a few messages per epoch"
        self._messages.append(MemberMessage(0, attempt, content))

    def call(self, member: int, attempt: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Carry out a command at once; keep anything else for `next_event`."""
        if method in COMMANDS:
            self.host.command(attempt, method, arguments)
        else:
            assert len(self._pending) < _PENDING_MAX, "the controller waits for every call"
            self._pending.append((attempt, method, arguments))

    def respawn(self, member: int) -> None:
        """Raise NotImplementedError: a worker in this process dies with its controller."""
        msg = "a worker in the calling process cannot be replaced"
        raise NotImplementedError(msg)

    def next_event(self, timeout_ns: int) -> FleetEvent | None:
        """Return what the worker has told, else carry out the oldest call, or let the worker run.

        It runs for `timeout_ns`.
        """
        if self._messages:
            return self._messages.popleft()
        if self._running is not None:
            return self._run_on(self._running, timeout_ns)
        if not self._pending:
            return None
        attempt, method, arguments = self._pending.popleft()
        if method == "counters":
            return self._counters()
        if method == "run":
            return self._run_on(attempt, timeout_ns)
        return self.host.execute(attempt, method, arguments)

    def _run_on(self, attempt: int, timeout_ns: int) -> FleetEvent | None:
        self._running = attempt
        event = self.host.execute(attempt, "run", ((), timeout_ns))
        if isinstance(event, Raised) or event.result is not None:
            self._running = None
            return event
        if self._pending and self._pending[0][1] == "counters":
            self._pending.popleft()
            return self._counters()
        return None

    def _counters(self) -> CountersTaken:
        """Return a copy of the counters, since the worker changes its own objects."""
        return copy.deepcopy(self.host.counters())

    def shutdown(self, grace_ns: int) -> None:
        """Close the worker."""
        if self._host is not None:
            self._host.close()
