"""When the next epoch is about to begin, so that its markers do not wait behind large reads.

What is in the rings when a marker comes was read before. So sources read little already some time
before the controller begins an epoch; workers know its interval, and when it began the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..tasks.stage_epochs import aligns

if TYPE_CHECKING:
    from ..configs.sections.checkpoints import CheckpointSettings
    from ..plan.physical import PhysicalPlan

__all__ = ["AHEAD_IN_FLIGHT", "EpochSchedule", "exchanges_in_a_row"]

AHEAD_IN_FLIGHT = 3
"""For how many times as long as bytes wait in a ring sources read little before an epoch.

So long large reads take to leave a ring and the stage that reads it. For each ring that a marker
comes through it is so long again: of several stages, each takes what the one before it has left.
"""
READ_DIVISORS = (4, 8)
"""By how much reads are divided where a marker comes through one ring at most, and through several.

Small reads cost more for each row, 1.5 times as much for a quarter of 65,536 and twice as much for
an eighth (NEXMark 8). A marker waits for about one read of each source, again in each stage.
"""
_NS_PER_MS = 1_000_000


class EpochSchedule:
    """When the controller is about to begin an epoch, as far as a worker can tell.

    Pure: the time is passed in.

    Args:
        interval_ns: from the beginning of one epoch to that of the next.
        ahead_ns: for how long before that it is near; an eighth of the interval at most.
        exchanges: how many rings a marker comes through, see `exchanges_in_a_row`.

    Attributes:
        read_divisor: by how much reads are divided when an epoch is near.
    """

    def __init__(self, interval_ns: int, ahead_ns: int, exchanges: int = 1) -> None:
        self.read_divisor = READ_DIVISORS[exchanges > 1]
        self._interval_ns = interval_ns
        self._ahead_ns = min(ahead_ns, interval_ns // 8)
        self._begun_ns: int | None = None

    @classmethod
    def of(cls, settings: CheckpointSettings, exchanges: int) -> EpochSchedule:
        """Return the schedule of a job with these settings; see `exchanges_in_a_row`."""
        ahead_ms = AHEAD_IN_FLIGHT * exchanges * settings.in_flight_ms
        return cls(settings.interval_ms * _NS_PER_MS, ahead_ms * _NS_PER_MS, exchanges)

    def begun(self) -> None:
        """Note that an epoch has begun, at the time of the next question."""
        self._begun_ns = None

    def is_near(self, now_ns: int) -> bool:
        """Whether an epoch is about to begin; not for long if it is late, as others may delay it.

        The first question counts as the beginning of the attempt.
        """
        if self._begun_ns is None:
            self._begun_ns = now_ns
        due_ns = self._begun_ns + self._interval_ns
        return due_ns - self._ahead_ns <= now_ns < due_ns + self._ahead_ns


def exchanges_in_a_row(plan: PhysicalPlan) -> int:
    """Return how many rings a marker comes through at most, one behind the other."""
    before = [0] * len(plan.stages)
    for edge in sorted(plan.edges, key=lambda edge: edge.source_stage):  # those upstream first
        if aligns(edge):
            count = before[edge.source_stage] + 1
            before[edge.target_stage] = max(before[edge.target_stage], count)
    return max(before)
