"""What stands around an operator: what follows it, and where sources see each other's progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..transport.wire.batch import Batch

if TYPE_CHECKING:
    from .nodes import Node


class Downstream(Protocol):
    """Takes one producer's rows and watermarks, in order."""

    def emit(self, batch: Batch) -> None:
        """Take rows."""

    def advance(self, watermark_ns: int) -> None:
        """Learn that no row with an event time ≤ `watermark_ns` follows."""

    def set_idle(self, idle: bool) -> None:
        """Learn whether the producer is idle: then it does not hold watermarks back."""

    def end(self) -> None:
        """Learn that no row follows at all."""


class RowTaker(Protocol):
    """What edge readers hand rows to: a task, or a side input of one."""

    @property
    def nodes(self) -> Sequence[Node]:
        """The operators of the task; the first one counts what is refused."""

    @property
    def instances(self) -> tuple[int, ...]:
        """The instances that it serves."""

    @property
    def accepts_rows(self) -> bool:
        """Whether rows may be handed to it now."""

    def deliver(self, port: int, source: int, batch: Batch) -> None:
        """Take rows of producer `source`."""

    def deliver_to(self, instance: int, port: int, source: int, batch: Batch) -> None:
        """Take rows that one instance got in a message of its own."""

    def advance(self, edge: int, source: int, watermark_ns: int) -> None:
        """Take a producer's watermark."""

    def set_idle(self, edge: int, source: int, idle: bool) -> None:
        """Take whether a producer is idle."""

    def settle(self, now_ns: int) -> None:
        """Do what is due after a call."""


class WatermarkBoard(Protocol):
    """Where the sources of a job see each other's watermarks (`transport.doorbell`)."""

    def set_watermark(self, slot: int, watermark_ns: int) -> None:
        """Publish this instance's watermark."""

    def min_watermark(self) -> int:
        """Return the least watermark of all sources with event time."""


class FanOut:
    """The operators and edge writers that follow one operator, if they are not exactly one."""

    def __init__(self, targets: Sequence[Downstream]) -> None:
        self.targets = tuple(targets)

    def emit(self, batch: Batch) -> None:
        """Pass rows to all; they share the batch, which nobody may change."""
        for target in self.targets:
            target.emit(batch)

    def advance(self, watermark_ns: int) -> None:
        """Pass a watermark to all."""
        for target in self.targets:
            target.advance(watermark_ns)

    def set_idle(self, idle: bool) -> None:
        """Pass on to all whether the producer is idle."""
        for target in self.targets:
            target.set_idle(idle)

    def end(self) -> None:
        """Pass the end to all."""
        for target in self.targets:
            target.end()
