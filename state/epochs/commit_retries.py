"""Lets sinks commit an epoch, again if they fail."""

from __future__ import annotations

from .coordinator_events import Action, CommitEpoch, GiveUp
from .rules import EpochRules

__all__ = ["CommitRetries"]


class CommitRetries:
    """The commit of one epoch at a time; each failure doubles the pause before the next try."""

    def __init__(self, rules: EpochRules) -> None:
        self._rules = rules
        self._failures = 0
        self.epoch = 0
        """The epoch that is being committed, or the last one."""
        self.due_ms: int | None = None
        """When the next try is due; None while the sinks are busy."""

    def begin(self, epoch: int) -> list[Action]:
        """Commit an epoch."""
        self.epoch, self._failures = epoch, 0
        return self.again()

    def again(self) -> list[Action]:
        """Try now."""
        self.due_ms = None
        return [CommitEpoch(self.epoch)]

    def failed(self, reason: str, now_ms: int) -> list[Action]:
        """Plan the next try, or give up if there have been `tries_max`."""
        self._failures += 1
        if self._failures >= self._rules.tries_max:
            return [GiveUp(f"epoch {self.epoch} could not be committed: {reason}")]
        self.due_ms = now_ms + self._rules.pause_ms(self._failures)
        return []
