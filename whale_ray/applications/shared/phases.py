"""What an application does, phase by phase, and how many seconds each phase took."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ...transport.clock import Clock, SystemClock

__all__ = ["Phases"]


class Phases:
    """Tells every phase when it has ended, and keeps its seconds for the report."""

    def __init__(
        self,
        application: str,
        clock: Clock | None = None,
        write: Callable[[str], object] | None = None,
    ) -> None:
        """Begin without any phase; `write` takes what is told, by default to standard error."""
        self._application = application
        self._clock = clock or SystemClock()
        self._write = write or sys.stderr.write
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> Mapping[str, float]:
        """Phase → seconds, of those that have ended; what is repeated adds up."""
        return dict(self._seconds)

    def add(self, name: str, seconds: float) -> None:
        """Take a phase that was timed elsewhere, and tell its seconds."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._write(f"{self._application}: [{name}] {seconds:.1f} s\n")

    def begin(self, name: str) -> Callable[[], None]:
        """Begin a phase; what is returned ends it. One that fails has no end, and is not told."""
        since_ns = self._clock.monotonic_ns()

        def end() -> None:
            self.add(name, (self._clock.monotonic_ns() - since_ns) / 1e9)

        return end

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block."""
        end = self.begin(name)
        yield
        end()
