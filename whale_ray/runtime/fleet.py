"""A job's members, wherever they live: the one seam between the controller and the outside.

Members are the workers, and behind them the relays of the hosts where there are several.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..configs.settings import Settings
from ..operators.sinks.base import Staged
from ..plan.physical import PhysicalPlan
from ..plan.streams import StreamPlan
from ..transport.wire.types import Schema
from .controller_events import Event
from .metrics import WorkerSnapshot

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


@dataclass(frozen=True)
class StagedOutput:
    """What a worker hands over when all rows are written.

    Attributes:
        parts: what its sinks staged, by operator id.
        cut_short: whether a source of it was drained.
        columns: those of what its operators made, by operator id.
    """

    parts: Mapping[str, Sequence[Staged]]
    cut_short: bool
    columns: Mapping[str, Schema] = field(default_factory=dict)


@dataclass(frozen=True)
class SnapshotTaken:
    """A worker's counters on their way to whoever watches the job; None if it could not tell."""

    worker: int
    snapshot: WorkerSnapshot | None


@dataclass(frozen=True)
class Told:
    """What a member tells the controller without having been asked, in an attempt."""

    worker: int
    attempt: int
    content: object


FleetEvent = Event | SnapshotTaken | Told


class Fleet(ABC):
    """Members 0 … n − 1, called workers here.

    Calls do not wait: what becomes of them arrives as an event.

    Attributes:
        term: the controller's, which goes with every call; workers refuse older ones.
    """

    term: int = 1

    @abstractmethod
    def start(self, assignment: Assignment) -> None:
        """Bring the workers to life; raises ResourceError if there is no room for them."""

    @abstractmethod
    def call(self, worker: int, attempt: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Let a worker take a step of its attempt, or obey a command.

        Steps (`controller.STEPS`, and rejoin) are carried out one after another and return an
        event. The commands (`host.COMMANDS`) take effect at any moment; snapshot is answered by one
        `SnapshotTaken`, unless the worker dies.
        """

    @abstractmethod
    def respawn(self, worker: int) -> None:
        """Replace a worker's process; `Respawned` follows when the new one is ready."""

    @abstractmethod
    def next_event(self, timeout_ns: int) -> FleetEvent | None:
        """Return the next event, or None when `timeout_ns` has passed without one."""

    @abstractmethod
    def shutdown(self, grace_ns: int) -> None:
        """End all workers, killing those that do not end in time. May be called twice."""
