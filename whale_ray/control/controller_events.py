"""What a job's controller takes (events), and what it wants to be done (actions).

A member is a worker or a relay, by its number: workers come first, then the hosts' relays.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..configs.errors import WhaleError

StepResult = object
"""What a member returned from a step; the controller passes it on without looking into it."""


@dataclass(frozen=True)
class Returned:
    """Event: `member` carried out the call of `attempt` to `method`."""

    member: int
    attempt: int
    method: str
    result: StepResult


@dataclass(frozen=True)
class Raised:
    """Event: the call ended with an error; the member itself is alive."""

    member: int
    attempt: int
    method: str
    error: WhaleError


@dataclass(frozen=True)
class Died:
    """Event: the member's process has ended; `detail` says how."""

    member: int
    detail: str


@dataclass(frozen=True)
class Respawned:
    """Event: a new process has replaced the member's and is ready."""

    member: int


@dataclass(frozen=True)
class AttemptLost:
    """Event: `attempt` cannot finish, though all members are alive; `reason` says why.

    `unreachable` is the relay that others cannot reach, if that is the reason.
    """

    attempt: int
    reason: str
    unreachable: int | None = None


@dataclass(frozen=True)
class StopRequested:
    """Event: the user wants the job to end.

    With `drain`, after all rows read have come out; with `savepoint`, once that is taken.
    """

    drain: bool
    savepoint: bool = False


@dataclass(frozen=True)
class Published:
    """Event: the output of all sinks is published, or `error` says why not.

    `cut_short` says that a source was drained before its end.
    """

    error: WhaleError | None = None
    cut_short: bool = False


@dataclass(frozen=True)
class EpochCounted:
    """Event: a checkpoint of `attempt` counts, so that no restart goes back to before it."""

    attempt: int


@dataclass(frozen=True)
class EpochsOver:
    """Event: the last checkpoint of `attempt` counts: all has ended, or was `stopped` at it."""

    attempt: int
    stopped: bool


@dataclass(frozen=True)
class EpochsFailed:
    """Event: the checkpoints of `attempt` cannot continue, and so the job cannot."""

    attempt: int
    error: WhaleError


@dataclass(frozen=True)
class Tick:
    """Event: time has passed."""


EpochNews = EpochCounted | EpochsOver | EpochsFailed
MemberEvent = Returned | Raised | Died | Respawned | AttemptLost
Event = MemberEvent | StopRequested | Published | EpochNews | Tick


@dataclass(frozen=True)
class CallMember:
    """Action: call `method` of `member`."""

    member: int
    attempt: int
    method: str
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True)
class Respawn:
    """Action: replace the member's process, killing it first if it is still alive."""

    member: int


@dataclass(frozen=True)
class Publish:
    """Action: publish what the workers staged; `staged` has each member's result of `stage`."""

    attempt: int
    staged: tuple[StepResult, ...]


@dataclass(frozen=True)
class Discard:
    """Action: remove all that `attempt` staged."""

    attempt: int


@dataclass(frozen=True)
class RelayLost:
    """Action: reroute streams around a relay that is being replaced."""

    relay: int


@dataclass(frozen=True)
class RelayBack:
    """Action: let streams flow through a new relay; `offer` says where it listens."""

    relay: int
    offer: StepResult


@dataclass(frozen=True)
class End:
    """Action: the job is over; `state` is finished, drained, stopped, cancelled or failed."""

    state: str
    error: WhaleError | None = None


Action = CallMember | Respawn | Publish | Discard | RelayLost | RelayBack | End
