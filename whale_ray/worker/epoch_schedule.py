"""When the next epoch is about to begin, so that its markers do not wait behind full rings.

What is in the rings when a marker comes was read before. So workers read rings before sources some
time before the controller begins an epoch, which costs nothing, and read little from sources
shortly before it. Workers know the interval, and when the last epoch began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..configs.units import NS_PER_MS
from ..tasks.stage_epochs import aligns

if TYPE_CHECKING:
    from ..configs.sections.checkpoints import CheckpointSettings
    from ..plan.physical import PhysicalPlan

__all__ = ["AHEAD_IN_FLIGHT", "EpochSchedule", "exchanges_in_a_row"]

AHEAD_IN_FLIGHT = 3
"""For how many times as long as bytes wait in a ring rings come first before an epoch.

So long large reads take to leave a ring and the stage that reads it. For each ring that a marker
comes through it is so long again: of several stages, each takes what the one before it has left.
"""
LITTLE_IN_FLIGHT = 1
"""The same for small reads, which cost more for each row (see `tasks.read_size`)."""


class EpochSchedule:
    """When the controller is about to begin an epoch, as far as a worker can tell.

    Pure: the time is passed in.

    Args:
        interval_ns: from the beginning of one epoch to that of the next.
        ahead_ns: for how long before that rings come first; an eighth of the interval at most.
        little_ns: the same for small reads.
    """

    def __init__(self, interval_ns: int, ahead_ns: int, little_ns: int) -> None:
        self._interval_ns = interval_ns
        self._ahead_ns = min(ahead_ns, interval_ns // 8)
        self._little_ns = min(little_ns, self._ahead_ns)
        self._begun_ns: int | None = None

    @classmethod
    def of(cls, settings: CheckpointSettings, exchanges: int) -> EpochSchedule:
        """Return the schedule of a job with these settings; see `exchanges_in_a_row`."""
        in_rings_ns = exchanges * settings.in_flight_ms * NS_PER_MS
        return cls(
            settings.interval_ms * NS_PER_MS,
            AHEAD_IN_FLIGHT * in_rings_ns,
            LITTLE_IN_FLIGHT * in_rings_ns,
        )

    def begun(self) -> None:
        """Note that an epoch has begun, at the time of the next question."""
        self._begun_ns = None

    def puts_rings_first(self, now_ns: int) -> bool:
        """Whether an epoch is near, so that rings are to be read before sources."""
        return self._is_within(self._ahead_ns, now_ns)

    def reads_little(self, now_ns: int) -> bool:
        """Whether it is so near that sources are to read little at a time."""
        return self._is_within(self._little_ns, now_ns)

    def _is_within(self, ahead_ns: int, now_ns: int) -> bool:
        """Whether an epoch is about to begin; not for long if it is late, as others may delay it.

        The first question counts as the beginning of the attempt.
        """
        if self._begun_ns is None:
            self._begun_ns = now_ns
        due_ns = self._begun_ns + self._interval_ns
        return due_ns - ahead_ns <= now_ns < due_ns + ahead_ns


def exchanges_in_a_row(plan: PhysicalPlan) -> int:
    """Return how many rings a marker comes through at most, one behind the other."""
    before = [0] * len(plan.stages)
    for edge in sorted(plan.edges, key=lambda edge: edge.source_stage):  # those upstream first
        if aligns(edge):
            count = before[edge.source_stage] + 1
            before[edge.target_stage] = max(before[edge.target_stage], count)
    return max(before)
