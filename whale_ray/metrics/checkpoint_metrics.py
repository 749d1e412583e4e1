"""What is told of a job's checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.units import describe_duration, format_bytes


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

    def line(self) -> str:
        """Return what a progress line says of them."""
        if self.age_ms is None:
            text = "no checkpoint yet"
        else:
            size = format_bytes(self.nbytes)
            took, age = describe_duration(self.duration_ms), describe_duration(self.age_ms)
            text = f"checkpoint {self.epoch} {size} in {took}, {age} ago"
        return f"{text}, THE LAST FAILED ({self.failures} in all)" if self.failure else text
