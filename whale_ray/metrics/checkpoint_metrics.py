"""What is told of a job's checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from ..configs.units import describe_duration, format_bytes


@dataclass(frozen=True)
class CheckpointUnderWay:
    """A checkpoint that has begun and does not count yet.

    Attributes:
        epoch: its number.
        snapshots: how many of its snapshots have been written.
        participants: how many snapshots it consists of.
        age_ms: since it began.
    """

    epoch: int
    snapshots: int
    participants: int
    age_ms: int

    def line(self) -> str:
        """Return what a progress line says of it."""
        age = describe_duration(self.age_ms)
        return (
            f"{self.epoch} under way for {age}, {self.snapshots} of {self.participants} snapshots"
        )


@dataclass(frozen=True)
class CheckpointMetrics:
    """The checkpoints of a job since its controller began.

    Attributes:
        count: how many count.
        failures: how many failed; the job ran on.
        epoch: the number of the last one that counts, 0 if there is none.
        nbytes: the size of what the last one consists of, in bytes.
        new_nbytes: of these, what was written for it.
        duration_ms: from the beginning of the last one until its manifest was in the store.
        age_ms: since the last one began; None if there is none.
        aligned_p99_ms: from the beginning of one until its markers had come everywhere, 99th
            percentile; None before the first.
        restored: the epoch that the present attempt went on from, 0 if it began at the start.
        failure: why the last one that failed did; "" if none failed since the last that counts.
        under_way: the one under way, None if there is none.
    """

    count: int = 0
    failures: int = 0
    epoch: int = 0
    nbytes: int = 0
    new_nbytes: int = 0
    duration_ms: int = 0
    age_ms: int | None = None
    aligned_p99_ms: float | None = None
    restored: int = 0
    failure: str = ""
    under_way: CheckpointUnderWay | None = None

    def line(self) -> str:
        """Return what a progress line says of them; first that the last one failed, if it did."""
        if self.age_ms is None:
            text = "no checkpoint yet"
        else:
            size = format_bytes(self.nbytes)
            took, age = describe_duration(self.duration_ms), describe_duration(self.age_ms)
            text = f"checkpoint {self.epoch} {size} in {took}, {age} ago"
        if self.under_way is not None:
            text += f"; {self.under_way.line()}"
        return f"LAST CHECKPOINT FAILED ({self.failures} in all), {text}" if self.failure else text
