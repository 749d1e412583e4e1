"""Drivers that wait for a job's outcome; its controller stays until they have it."""

from __future__ import annotations

import threading

from ...transport.clock import Clock, SystemClock

_PATIENCE_NS = 5_000_000_000
"""For how long a driver that has asked is waited for: it asks often, unless it has died."""


class Followers:
    """The drivers that have asked for a job's outcome lately. Any thread may call it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._asked_ns: dict[str, int] = {}

    def ask(self, name: str) -> None:
        """Note that a driver asks now."""
        with self._changed:
            self._asked_ns[name] = self._clock.monotonic_ns()

    def leave(self, name: str) -> None:
        """Note that a driver has the outcome."""
        with self._changed:
            self._asked_ns.pop(name, None)
            self._changed.notify_all()

    def wait(self) -> None:
        """Return once all have left, or have not asked for a while."""
        with self._changed:
            while self._asked_ns:
                left_ns = _PATIENCE_NS - (self._clock.monotonic_ns() - max(self._asked_ns.values()))
                if left_ns <= 0:
                    return
                self._changed.wait(left_ns / 1e9)
