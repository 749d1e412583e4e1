"""When the marker of the next checkpoint will come, from when the last one did. Pure.

A source that is reading when a marker comes takes notice of it once the read is over. If it knows
that one is due it reads little at a time beforehand, so that this is soon.
"""

from __future__ import annotations

__all__ = ["MarkerForecast"]

_SHARE = 8
"""A marker is waited for during an eighth of the interval at most, before it is due and after."""


class MarkerForecast:
    """Markers that come about every `interval_ns`; others may come in between.

    The job begins when it is asked first: the first marker is due an interval later.
    """

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._due_ns: int | None = None

    def note(self, now_ns: int) -> None:
        """Learn that a marker has come."""
        self._due_ns = now_ns + self._interval_ns

    def distance_ns(self, now_ns: int) -> int | None:
        """Return how long it is until the next marker is due, or since then; None: very long."""
        if self._due_ns is None:
            self.note(now_ns)
            return None
        distance_ns = abs(now_ns - self._due_ns)
        return distance_ns if distance_ns <= self._interval_ns // _SHARE else None
