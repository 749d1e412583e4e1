"""What the driver sends to each member of a job at its start: plan, settings and a secret."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace

from ..configs.settings import Settings
from ..optimizer.decisions import OptimizerDecision
from ..state.epochs.epoch_commands import RestorePoint
from ..state.epochs.manifest import Lineage
from .logical import OperatorKind
from .physical import PhysicalPlan
from .streams import StreamPlan

SECRET_BYTES = 32


@dataclass(frozen=True)
class Assignment:
    """What every worker receives once, before its first attempt.

    Attributes:
        job_id: the job's unique id, usable as a file name.
        plan: the physical plan.
        settings: all settings.
        secret: the key with which relays authenticate each other. Workers do not receive it.
        restore: the epoch of another job, or of an earlier run, from which the job continues.
        restored: (job, epoch) of each restore in its history, see `Lineage`.
        decisions: what the optimizer decided before the job began.
    """

    job_id: str
    plan: PhysicalPlan
    settings: Settings
    restore: RestorePoint | None = None
    restored: tuple[tuple[str, int], ...] = ()
    decisions: tuple[OptimizerDecision, ...] = ()
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET_BYTES), repr=False)


@dataclass(frozen=True)
class RelayAssignment:
    """What a relay receives. It contains no code or object of the user's.

    Attributes:
        job_id: the job's unique id.
        streams: the rings, with their writers and readers.
        slot_hosts: the host of each source instance with a watermark, by its slot on the boards.
        settings: all settings.
        secret: the key with which relays authenticate each other.
    """

    job_id: str
    streams: StreamPlan
    slot_hosts: tuple[int, ...]
    settings: Settings
    secret: bytes = field(repr=False)


def has_checkpoints(assignment: Assignment) -> bool:
    """Return whether a job takes checkpoints."""
    return bool(assignment.settings.checkpoints.url)


def resumed_assignment(assignment: Assignment, point: RestorePoint, lineage: Lineage) -> Assignment:
    """Return a job that resumes from an epoch of another job, whose lineage is given."""
    history = (*lineage.restored, (lineage.job, point.epoch))
    return replace(assignment, restore=point, restored=history)


def output_token(assignment: Assignment, attempt: int) -> str:
    """Return the name of the unpublished output of an attempt.

    With checkpoints all attempts share it, since a later one continues with what was staged.
    """
    job_id = assignment.job_id
    return job_id if has_checkpoints(assignment) else f"{job_id}-{attempt}"


def job_is_bounded(assignment: Assignment) -> bool:
    """Return whether all sources of a job are bounded: they end by themselves."""
    sources = assignment.plan.logical.of_kind(OperatorKind.SOURCE)
    return all(getattr(node.payload, "bounded", True) for node in sources)
