"""What the members of a job are told once: the plan, the settings, and a secret."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from ..configs.settings import Settings
from .logical import OperatorKind
from .physical import PhysicalPlan
from .streams import StreamPlan

SECRET_BYTES = 32


@dataclass(frozen=True)
class Assignment:
    """What every worker is told once.

    Attributes:
        job_id: the job's unique id, fit for a file name.
        plan: the physical plan.
        settings: all settings.
        secret: what relays prove to each other that they know. Workers are not told.
    """

    job_id: str
    plan: PhysicalPlan
    settings: Settings
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET_BYTES), repr=False)


@dataclass(frozen=True)
class RelayAssignment:
    """What a relay is told: no part of it comes from the user.

    Attributes:
        job_id: the job's unique id.
        streams: the rings, and who writes and reads them.
        slot_hosts: the host of each source instance that shows a watermark, by its slot.
        settings: all settings.
        secret: what relays prove to each other that they know.
    """

    job_id: str
    streams: StreamPlan
    slot_hosts: tuple[int, ...]
    settings: Settings
    secret: bytes = field(repr=False)


def attempt_token(job_id: str, attempt: int) -> str:
    """Return the name under which an attempt's unpublished output goes."""
    return f"{job_id}-{attempt}"


def job_is_bounded(assignment: Assignment) -> bool:
    """Tell whether all sources of a job end by themselves."""
    sources = assignment.plan.logical.of_kind(OperatorKind.SOURCE)
    return all(getattr(node.payload, "bounded", True) for node in sources)
