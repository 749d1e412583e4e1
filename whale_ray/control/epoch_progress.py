"""How far the checkpoints of a job have come, written down for a controller that takes over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..state.epochs.coordinator_events import Part, Participant, ParticipantEnded
from ..state.epochs.epoch_commands import RestorePoint


@dataclass(frozen=True)
class UnlistedOutput:
    """What a bounded job publishes although no manifest lists it, since its last epoch failed.

    Attributes:
        attempt: the attempt that has staged it.
        parts: those of the participants, which name it.
    """

    attempt: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class EpochProgress:
    """How far the checkpoints of a job have come.

    Attributes:
        last: the newest number that an epoch may have had.
        restore: the newest epoch that counts, from which an attempt goes on; None: from the start.
        ended: the participants that have ended in the present attempt.
        stops: whether the job is to be stopped with a savepoint.
        unlisted: what is published beside what `restore` lists; None for nothing.
    """

    last: int = 0
    restore: RestorePoint | None = None
    ended: Mapping[Participant, ParticipantEnded] = field(default_factory=dict)
    stops: bool = False
    unlisted: UnlistedOutput | None = None
