"""What the coordinator of epochs tells workers; they answer with `coordinator_events`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EpochCommand", "EpochDurable", "EpochForgotten", "InjectMarker", "RestorePoint"]


@dataclass(frozen=True)
class InjectMarker:
    """The sources emit the epoch's marker; with `stop`, they read nothing after it."""

    epoch: int
    stop: bool = False


@dataclass(frozen=True)
class EpochForgotten:
    """The epoch does not count: end its alignment, and ignore its markers."""

    epoch: int


@dataclass(frozen=True)
class EpochDurable:
    """The epoch counts: nobody goes back to before it, so earlier seals can be released."""

    epoch: int


EpochCommand = InjectMarker | EpochForgotten | EpochDurable


@dataclass(frozen=True)
class RestorePoint:
    """Where an attempt continues.

    Attributes:
        url: of the checkpoint store.
        manifest: the name of the manifest in it.
        epoch: its epoch; later ones of the job have higher numbers.
        is_newest: whether the user asked for the newest of that folder: the job that writes it may
            add others until it is stopped, or until another job takes the folder over.
    """

    url: str
    manifest: str
    epoch: int
    is_newest: bool = False
