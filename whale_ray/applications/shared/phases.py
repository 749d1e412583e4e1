"""Timing of an application's phases, such as the start of Spark or the streaming."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ...transport.clock import Clock, SystemClock

__all__ = ["Phases"]


class Phases:
    """Writes a line when a phase ends, and keeps its seconds for the report."""

    def __init__(
        self,
        application: str,
        clock: Clock | None = None,
        write: Callable[[str], object] | None = None,
    ) -> None:
        """Begin without phases; `write` receives the lines, by default standard error does."""
        self._application = application
        self._clock = clock or SystemClock()
        self._write = write or sys.stderr.write
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> Mapping[str, float]:
        """Phase → seconds, for the phases that have ended; repetitions of a phase add up."""
        return dict(self._seconds)

    def add(self, name: str, seconds: float) -> None:
        """Record a phase that was timed elsewhere, and write its line."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._write(f"{self._application}: [{name}] {seconds:.1f} s\n")

    def begin(self, name: str) -> Callable[[], None]:
        """Begin a phase and return the function that ends it; a phase that fails never ends."""
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
