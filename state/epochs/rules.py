"""When epochs begin, and how long they may take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EpochRules"]

_DOUBLINGS_MAX = 20
_RETRY_GROWTH_MAX = 100


@dataclass(frozen=True)
class EpochRules:
    """When epochs begin, how long they may take, and how often something is tried.

    Args:
        interval_ms: from the beginning of one epoch to that of the next.
        min_pause_ms: between two epochs, nothing is under way for at least so long.
        timeout_ms: from the beginning of an epoch until all snapshots are written.
        retry_ms: until a commit that failed, or an epoch that was asked for and failed, is tried
            again; doubles with each failure, up to a hundredfold, or `interval_ms` if that is more.
            So how long a job bears a store or a sink that fails does not fall with its interval.
        tries_max: so often a commit is tried, and the last epoch of a job.
    """

    interval_ms: int = 10_000
    min_pause_ms: int = 0
    timeout_ms: int = 600_000
    retry_ms: int = 100
    tries_max: int = 10

    def pause_ms(self, failures: int) -> int:
        """Return how long to wait after so many failures in a row; 0 for none."""
        if not failures:
            return 0
        pause_max_ms = max(self.retry_ms * _RETRY_GROWTH_MAX, self.interval_ms)
        return min(self.retry_ms << min(failures - 1, _DOUBLINGS_MAX), pause_max_ms)
