"""`Trigger`: how often the rows that have changed are emitted in update mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...transport.clock import Clock

__all__ = ["Trigger"]


class Trigger:
    """Waits for a while from the first change on, however the time of day is set meanwhile.

    Args:
        interval_ns: for how long; None: it is always time.
    """

    def __init__(self, interval_ns: int | None) -> None:
        self._interval_ns = interval_ns
        self._due_ns: int | None = None  # monotonic; None while nothing has changed

    def note_change(self, clock: Clock) -> None:
        """Begin to wait, unless it does so already."""
        if self._due_ns is None and self._interval_ns is not None:
            self._due_ns = clock.monotonic_ns() + self._interval_ns

    def deadline_ns(self, clock: Clock) -> int | None:
        """Return when it is time, ns since 1970 as the clock shows it now; None: never."""
        if self._due_ns is None:
            return None
        return clock.wall_ns() + self._due_ns - clock.monotonic_ns()

    def is_time(self, clock: Clock) -> bool:
        """Return whether changed rows are to be emitted now."""
        if self._interval_ns is None:
            return True
        return self._due_ns is not None and clock.monotonic_ns() >= self._due_ns

    def reset(self) -> None:
        """Wait for the next change: all rows that have changed were emitted."""
        self._due_ns = None
