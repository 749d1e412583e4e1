"""What a job's controller learns (events), and what it wants to be done (actions)."""

from __future__ import annotations

from dataclasses import dataclass

from ..configs.errors import WhaleError

WorkerResult = object
"""What a worker's call returned; the controller passes it on without looking into it."""


@dataclass(frozen=True)
class Returned:
    """Event: `worker` carried out the call of `attempt` to `method`."""

    worker: int
    attempt: int
    method: str
    result: WorkerResult


@dataclass(frozen=True)
class Raised:
    """Event: the call ended with an error; the worker itself lives."""

    worker: int
    attempt: int
    method: str
    error: WhaleError


@dataclass(frozen=True)
class Died:
    """Event: the worker's process is gone."""

    worker: int
    detail: str


@dataclass(frozen=True)
class Respawned:
    """Event: a new process takes the place of a dead worker."""

    worker: int


@dataclass(frozen=True)
class AttemptLost:
    """Event: `attempt` cannot come to its end, though all members live; `reason` says why."""

    attempt: int
    reason: str


@dataclass(frozen=True)
class StopAsked:
    """Event: the user wants the job to end; with `drain`, after all that was read has come out."""

    drain: bool


@dataclass(frozen=True)
class Published:
    """Event: the output of all sinks is where the user wants it, or `error` says why not.

    `cut_short` says that a source was drained before its end.
    """

    error: WhaleError | None = None
    cut_short: bool = False


@dataclass(frozen=True)
class Tick:
    """Event: time passes."""


Event = Returned | Raised | Died | Respawned | AttemptLost | StopAsked | Published | Tick


@dataclass(frozen=True)
class Call:
    """Action: call `method` of `worker`."""

    worker: int
    attempt: int
    method: str
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True)
class Respawn:
    """Action: replace the worker's process, killing it first if it still lives."""

    worker: int


@dataclass(frozen=True)
class Publish:
    """Action: publish what the workers staged; `staged` has each worker's result of `stage`."""

    attempt: int
    staged: tuple[WorkerResult, ...]


@dataclass(frozen=True)
class Discard:
    """Action: remove whatever `attempt` staged."""

    attempt: int


@dataclass(frozen=True)
class RelayLost:
    """Action: take note that a relay is gone for now; streams are to flow around it."""

    worker: int


@dataclass(frozen=True)
class RelayBack:
    """Action: take note that another process is the relay; `result` is what it offers."""

    worker: int
    result: WorkerResult


@dataclass(frozen=True)
class End:
    """Action: the job is over; `state` is finished, drained, cancelled or failed."""

    state: str
    error: WhaleError | None = None


Action = Call | Respawn | Publish | Discard | RelayLost | RelayBack | End
