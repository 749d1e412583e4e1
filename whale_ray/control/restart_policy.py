"""How often and how long a controller tries, and when it may restart a job."""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.assignment import Assignment, has_checkpoints, job_is_bounded
from ..plan.logical import OperatorKind

_DRAINING = "it was to drain, and what it had read and not published is lost; run it again"


@dataclass(frozen=True)
class Limits:
    """Times and numbers of attempts, from the settings; times in ns.

    Attributes:
        max_restarts: how many attempts may follow the first one.
        start_timeout_ns: for a process to start, and for the steps before `run`.
        drain_timeout_ns: for a drain, and for relays to finish.
        kill_grace_ns: for a member to end its step after `abort`.
        unreachable_after_ns: for the others to reach a relay that was replaced.
        restart_refused: why this job may not be restarted at all, None if it may.
        repairs_max: how many relays may be replaced within an attempt.
        has_checkpoints: whether a restart resumes from the newest checkpoint, so that a drain can,
            too, and only restarts since the last checkpoint are counted.
    """

    max_restarts: int
    start_timeout_ns: int
    drain_timeout_ns: int
    kill_grace_ns: int
    unreachable_after_ns: int
    restart_refused: str | None = None
    repairs_max: int = 16
    has_checkpoints: bool = False

    @classmethod
    def of(cls, assignment: Assignment) -> Limits:
        """Return the limits of a job."""
        runtime = assignment.settings.runtime
        return cls(
            max_restarts=runtime.max_restarts,
            start_timeout_ns=runtime.start_timeout_ms * 1_000_000,
            drain_timeout_ns=runtime.drain_timeout_ms * 1_000_000,
            kill_grace_ns=runtime.kill_grace_ms * 1_000_000,
            unreachable_after_ns=runtime.unreachable_after_ms * 1_000_000,
            restart_refused=_restart_refused(assignment),
            repairs_max=assignment.settings.multicast.repairs_max,
            has_checkpoints=has_checkpoints(assignment),
        )

    def refusal(self, restarts: int, *, is_draining: bool) -> str | None:
        """Return why a job that was restarted so often may not be restarted now; None if it may.

        With checkpoints, `restarts` are those since the last that counts.
        """
        if is_draining and not self.has_checkpoints:
            return _DRAINING
        if self.restart_refused is None and restarts >= self.max_restarts:
            since = " since its last checkpoint" if self.has_checkpoints else " already"
            return f"it was restarted {restarts} times{since} (runtime.max_restarts)"
        return self.restart_refused


def _restart_refused(assignment: Assignment) -> str | None:
    """Return why a job may not be restarted at all: a restart reads all sources from the start.

    With checkpoints it reads on where they say, or from the start before the first one, when
    nothing has been published yet.
    """
    if has_checkpoints(assignment):
        return None
    for source in assignment.plan.logical.of_kind(OperatorKind.SOURCE):
        if not getattr(source.payload, "replayable", True):
            return f"source {source.id!r} cannot be read again from its start"
    if not job_is_bounded(assignment) and assignment.settings.runtime.on_loss == "fail":
        return (
            "it is unbounded and has published parts already; give it checkpoints=, or set "
            "runtime.on_loss=restart-at-least-once to accept rows twice"
        )
    return None
