"""A job's members, wherever they run: the one seam between the controller and the outside.

Members are the workers and, on several hosts, after them the relays of the hosts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from ..metrics.counters import MemberCounters
from ..plan.assignment import Assignment
from .controller_events import Event


@dataclass(frozen=True)
class CountersTaken:
    """The counters of a member; None if it could not be asked."""

    member: int
    counters: MemberCounters | None


@dataclass(frozen=True)
class MemberMessage:
    """A message of a member to the controller that answers no call, in an attempt."""

    member: int
    attempt: int
    content: object


FleetEvent = Event | CountersTaken | MemberMessage


class Fleet(ABC):
    """Members 0 … n − 1. Calls do not wait; their results arrive as events.

    Attributes:
        term: of the controller, sent with every call; members refuse calls of an older term.
    """

    term: int = 1

    @abstractmethod
    def start(self, assignment: Assignment) -> None:
        """Start the members; raises ResourceError if there are not enough resources."""

    @abstractmethod
    def call(self, member: int, attempt: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Let a member take a step of its attempt, or carry out a command.

        Steps (`attempt_steps.STEPS`, and rejoin) are carried out one after another; each is
        answered by an event. Commands (`member_host.COMMANDS`) take effect at once, without an
        answer. `counters` is answered by one `CountersTaken`, unless the member dies.
        """

    @abstractmethod
    def respawn(self, member: int) -> None:
        """Replace a member's process; `Respawned` follows when the new one is ready."""

    @abstractmethod
    def next_event(self, timeout_ns: int) -> FleetEvent | None:
        """Return the next event, or None when `timeout_ns` has passed without one."""

    def wake(self) -> None:
        """Let `next_event` return soon, if the fleet can; callable from any thread.

        Whoever waits for a thread besides the members asks for its result from time to time, too.
        """

    @abstractmethod
    def shutdown(self, grace_ns: int) -> None:
        """End all members, killing those that do not end in time. May be called twice."""
