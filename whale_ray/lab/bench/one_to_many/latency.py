"""Latencies of the rows that were followed on their way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Latencies", "Percentiles", "latencies_of"]

Words = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Percentiles:
    """In ms."""

    p50_ms: float
    p99_ms: float
    mean_ms: float

    @classmethod
    def of(cls, latencies_ns: Words) -> Percentiles:
        """Of at least one latency."""
        p50, p99 = np.percentile(latencies_ns, (50, 99))
        return cls(float(p50) / 1e6, float(p99) / 1e6, float(np.mean(latencies_ns)) / 1e6)


@dataclass(frozen=True)
class Latencies:
    """How long rows took, from the moment at which they were due.

    Attributes:
        processing: until an instance was through with the row; of all instances.
        multicast: until the last worker had the row before it.
        rows: how many rows were followed.
    """

    processing: Percentiles
    multicast: Percentiles
    rows: int


def latencies_of(scheduled: Words, arrived: Words, done: Words) -> Latencies | None:
    """Return the latencies of rows; None if none of them has come everywhere.

    Args:
        scheduled: when each was due, ns, shape (rows,); 0: never.
        arrived: when it came to each worker, shape (workers, rows); 0: it has not.
        done: when that worker's instances were through with it, likewise.
    """
    complete = (scheduled > 0) & (arrived > 0).all(axis=0) & (done > 0).all(axis=0)
    if not complete.any():
        return None
    scheduled, arrived, done = scheduled[complete], arrived[:, complete], done[:, complete]
    return Latencies(
        processing=Percentiles.of((done - scheduled).ravel()),
        multicast=Percentiles.of(arrived.max(axis=0) - scheduled),
        rows=int(complete.sum()),
    )
