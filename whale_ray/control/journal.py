"""What a controller writes down, so that another can replace it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..multicast.tree_state import TreeState
from ..operators.sinks.base import SinkResult
from .controller_progress import ControllerProgress
from .epoch_progress import EpochProgress


@dataclass(frozen=True)
class Entry:
    """The newest state of a job.

    Attributes:
        term: of the controller that wrote it; the next one has a higher term.
        progress: where the attempt is.
        results: what has been published already, by sink.
        trees: the multicast trees and their switches, by stream.
        epochs: how far the checkpoints have come; None for a job without them.
    """

    term: int
    progress: ControllerProgress
    results: Mapping[str, SinkResult] = field(default_factory=dict)
    trees: Mapping[int, TreeState] = field(default_factory=dict)
    epochs: EpochProgress | None = None


class Journal(ABC):
    """Keeps the newest entry of one job."""

    @abstractmethod
    def read(self) -> Entry | None:
        """Return the newest entry; None if this is the job's first controller."""

    @abstractmethod
    def write(self, entry: Entry) -> None:
        """Replace the entry."""

    @abstractmethod
    def erase(self) -> None:
        """Remove the entry of a job that has ended."""


class NoJournal(Journal):
    """Keeps nothing: for controllers in the driver, with which the job ends anyway."""

    def read(self) -> Entry | None:
        """Return None."""
        return None

    def write(self, entry: Entry) -> None:
        """Do nothing."""

    def erase(self) -> None:
        """Do nothing."""
