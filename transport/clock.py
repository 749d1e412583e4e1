"""The only place where whale-ray reads a clock or sleeps.

Everything that depends on time takes a `Clock`, so that a test can move the time by hand.
"""

from __future__ import annotations

import time
from typing import Protocol

NEVER_NS = 1 << 62
"""Later than any time that a clock shows."""


class Clock(Protocol):
    """The interface by which all other modules get the time."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds that never go backwards; only differences are meaningful."""
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC."""
        ...

    def sleep_ns(self, duration_ns: int) -> None:
        """Let `duration_ns` nanoseconds pass; a negative duration counts as zero."""
        ...


class SystemClock:
    """The clock of the machine."""

    def monotonic_ns(self) -> int:
        """Return the machine's monotonic nanoseconds, equal in all processes of one host."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """Return the machine's nanoseconds since 1970-01-01 UTC."""
        return time.time_ns()

    def sleep_ns(self, duration_ns: int) -> None:
        """Block the calling thread."""
        if duration_ns > 0:
            time.sleep(duration_ns / 1e9)


class VirtualClock:
    """A clock that only `advance` and `sleep_ns` move; sleeping returns at once."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def monotonic_ns(self) -> int:
        """Return the virtual time in nanoseconds."""
        return self._now_ns

    def wall_ns(self) -> int:
        """Return the virtual time in nanoseconds, read as time since 1970-01-01 UTC."""
        return self._now_ns

    def sleep_ns(self, duration_ns: int) -> None:
        """Move the virtual time forward without waiting."""
        self.advance(max(0, duration_ns))

    def advance(self, duration_ns: int) -> None:
        """Move the virtual time forward by `duration_ns`, which must not be negative."""
        if duration_ns < 0:
            msg = f"a clock cannot go back by {-duration_ns} ns"
            raise ValueError(msg)
        self._now_ns += duration_ns
