"""What stands around an operator: what follows it, and where sources see each other's progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..transport.wire.batch import Batch


class Downstream(Protocol):
    """Takes one producer's rows and watermarks, in order."""

    def emit(self, batch: Batch) -> None:
        """Take rows."""

    def advance(self, watermark_ns: int) -> None:
        """Learn that no row with an event time ≤ `watermark_ns` follows."""

    def set_idle(self, idle: bool) -> None:
        """Learn whether the producer is idle: then it holds nobody's watermark back."""

    def end(self) -> None:
        """Learn that no row follows at all."""


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
