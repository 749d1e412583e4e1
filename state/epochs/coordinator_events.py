"""What the coordinator of epochs takes (events), and what it wants to be done (actions).

A participant is a stage on one worker; it takes snapshots and, if it has a sink, stages its output.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

Participant = Hashable
Part = object
"""What a participant adds to a manifest; the coordinator passes it on without looking into it."""


@dataclass(frozen=True)
class Aligned:
    """Event: all inputs of a participant have come to the marker, and it has passed it on."""

    participant: Participant
    epoch: int


@dataclass(frozen=True)
class SnapshotWritten:
    """Event: a snapshot is in the store, and what a sink has staged for it can be committed."""

    participant: Participant
    epoch: int
    part: Part


@dataclass(frozen=True)
class SnapshotFailed:
    """Event: a participant could not write its snapshot, or stage its output."""

    participant: Participant
    epoch: int
    reason: str


@dataclass(frozen=True)
class ParticipantEnded:
    """Event: a participant's inputs have ended. `part` is its part of all epochs after `behind`.

    That is the last epoch of which it has taken a snapshot, which may still be being written.
    """

    participant: Participant
    behind: int
    part: Part


@dataclass(frozen=True)
class ManifestWritten:
    """Event: the manifest is in the store."""

    epoch: int


@dataclass(frozen=True)
class ManifestFailed:
    """Event: the manifest could not be written, or it is unknown whether it was."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class Committed:
    """Event: all sinks have committed what the epoch's manifest names."""

    epoch: int


@dataclass(frozen=True)
class CommitFailed:
    """Event: a sink could not commit, or does not know whether it has."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class SavepointRequested:
    """Event: the user wants a snapshot now; with `stop`, sources read nothing after it."""

    stop: bool = False


@dataclass(frozen=True)
class TimePassed:
    """Event: time has passed."""


Event = (
    Aligned
    | SnapshotWritten
    | SnapshotFailed
    | ParticipantEnded
    | ManifestWritten
    | ManifestFailed
    | Committed
    | CommitFailed
    | SavepointRequested
    | TimePassed
)


@dataclass(frozen=True)
class BeginEpoch:
    """Action: the sources emit the epoch's marker; with `stop`, they read nothing after it."""

    epoch: int
    stop: bool = False


@dataclass(frozen=True)
class ForgetEpoch:
    """Action: all participants end the alignment of the epoch, and ignore its markers.

    What sinks staged for it is committed with the next epoch that counts. Its manifest may still
    turn up, if it is unknown whether it was written: what it names is kept until `ReleaseEpoch`.
    """

    epoch: int
    reason: str


@dataclass(frozen=True)
class WriteManifest:
    """Action: write the epoch's manifest, then tell ManifestWritten or ManifestFailed.

    Sinks commit with it what they have staged for epochs `previous` + 1 … `epoch`. With `ended`,
    all participants have ended, so that there is nothing behind it.
    """

    epoch: int
    previous: int
    parts: Mapping[Participant, Part]
    ended: bool = False


@dataclass(frozen=True)
class CommitEpoch:
    """Action: let all sinks commit what the epoch's manifest names; again, if it is repeated."""

    epoch: int


@dataclass(frozen=True)
class ReleaseEpoch:
    """Action: no restart goes back to before the epoch any more; older snapshots may be removed."""

    epoch: int


@dataclass(frozen=True)
class GiveUp:
    """Action: the job fails, since a sink could not commit."""

    reason: str


Action = BeginEpoch | ForgetEpoch | WriteManifest | CommitEpoch | ReleaseEpoch | GiveUp
