"""A job's members, wherever they live: the one seam between the controller and the outside.

Members are the workers, and behind them the relays of the hosts where there are several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from ..metrics.job_metrics import WorkerSnapshot
from ..plan.assignment import Assignment
from .controller_events import Event


@dataclass(frozen=True)
class SnapshotTaken:
    """A worker's counters on their way to whoever watches the job; None if it could not tell."""

    worker: int
    snapshot: WorkerSnapshot | None


@dataclass(frozen=True)
class MemberMessage:
    """What a member tells the controller without having been asked, in an attempt."""

    worker: int
    attempt: int
    content: object


FleetEvent = Event | SnapshotTaken | MemberMessage


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
