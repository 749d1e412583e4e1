"""`Reduction`: how many rows a delta stands for, and when partial aggregation is not worth it."""

from __future__ import annotations

__all__ = ["LEAST_REDUCTION", "Reduction"]

LEAST_REDUCTION = 2
"""Partial aggregation steps aside where a delta stands for fewer rows than this on average."""

_JUDGED_ROWS = 4_096
_PAUSE_ROWS, _PAUSES_MAX = 1 << 20, 16
_UNIQUE_ROWS, _UNIQUE_SHARE = 8_192, 0.95
"""If so many of these rows have a group of their own, and groups are as likely as one another, a
full table of 65,536 groups would have no more than two rows for each."""


class Reduction:
    """Measures rows in / deltas out, and steps aside below `LEAST_REDUCTION`; pure.

    While it has stepped aside rows are passed on as they are. After a pause, each time a longer
    one, the reduction is measured again, since the keys may have changed.

    Attributes:
        is_aside: whether rows are to be passed on as they are.
        measured: rows in / deltas out when it was last judged; None before.
    """

    def __init__(self) -> None:
        self.is_aside = False
        self.measured: float | None = None
        self._rows = self._deltas = 0
        self._left = 0  # rows until it is measured again
        self._pauses = 1

    def flushed(self, rows: int, deltas: int) -> None:
        """Count rows that have become deltas; decide once they are enough to tell."""
        self._rows += rows
        self._deltas += deltas
        if self._rows < _JUDGED_ROWS:
            return
        self.measured = self._rows / max(self._deltas, 1)
        self._rows = self._deltas = 0
        self.is_aside = self.measured < LEAST_REDUCTION
        if self.is_aside:
            self._left = self._pauses * _PAUSE_ROWS
            self._pauses = min(2 * self._pauses, _PAUSES_MAX)
        else:
            self._pauses = 1

    def foresees_too_little(self, rows: int, groups: int) -> bool:
        """Whether so many rows that have become groups show that too few will fall together."""
        return rows >= _UNIQUE_ROWS and groups >= _UNIQUE_SHARE * rows

    def passed(self, rows: int) -> None:
        """Count rows that were passed on as they are."""
        self._left -= rows
        if self._left <= 0:
            self.is_aside = False
