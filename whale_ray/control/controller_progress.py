"""The state of a controller that its successor needs in order to continue."""

from __future__ import annotations

from dataclasses import dataclass

from .controller_events import End, StepResult


@dataclass(frozen=True)
class ControllerProgress:
    """Where a job is.

    Attributes:
        attempt: the number of the present attempt, from 0.
        step: an index of `STEPS`, or `len(STEPS)` while the output is published.
        arguments: of the step.
        draining: whether the user asked for a drain.
        exchanged: what members have made for each other, for relays that rejoin.
        repairing: the relays that are being replaced.
        repaired: the relays that were replaced in this attempt.
        unpublished_end: how the job ends, if that is without publishing, else None.
        stopping: whether the user asked for the end after a savepoint.
        counted_attempt: the last attempt in which a checkpoint counted, 0 if none did.
        lost: the last attempt that was lost, and why.
    """

    attempt: int
    step: int
    arguments: tuple[object, ...]
    draining: bool
    exchanged: tuple[tuple[StepResult, ...], ...] = ()
    repairing: frozenset[int] = frozenset()
    repaired: frozenset[int] = frozenset()
    unpublished_end: End | None = None
    stopping: bool = False
    counted_attempt: int = 0
    lost: tuple[int, str] = (-1, "")
