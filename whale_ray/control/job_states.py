"""The states of a job, as users see them."""

from __future__ import annotations

from .controller import JobPhase

__all__ = ["ALIVE", "OF_PHASE", "QUEUED"]

OF_PHASE = {
    JobPhase.STARTING: "starting",
    JobPhase.RUNNING: "running",
    JobPhase.STAGING: "finishing",
    JobPhase.PUBLISHING: "finishing",
    JobPhase.RESTARTING: "restarting",
    JobPhase.ENDING: "ending",
    JobPhase.ENDED: "finishing",
}
QUEUED = "queued"
"""The state of a job that waits for resources of Ray."""
ALIVE = frozenset({*OF_PHASE.values(), "draining", "stopping", QUEUED})
"""The states of a job that has not ended."""
