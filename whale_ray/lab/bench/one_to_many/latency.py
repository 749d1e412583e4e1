"""Latencies of the sampled rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Latencies", "Percentiles", "latencies_of"]

Words = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of latencies, in ms."""

    p50_ms: float
    p99_ms: float
    mean_ms: float

    @classmethod
    def of(cls, latencies_ns: Words) -> Percentiles:
        """Return those of at least one latency."""
        p50, p99 = np.percentile(latencies_ns, (50, 99))
        return cls(float(p50) / 1e6, float(p99) / 1e6, float(np.mean(latencies_ns)) / 1e6)


@dataclass(frozen=True)
class Latencies:
    """Latencies of rows from the time at which they were due.

    Attributes:
        processing: until an instance had processed the row; over all instances.
        multicast: until the last worker had received the row.
        rows: number of sampled rows.
    """

    processing: Percentiles
    multicast: Percentiles
    rows: int


def latencies_of(scheduled: Words, arrived: Words, done: Words) -> Latencies | None:
    """Return the latencies of rows; None if none of them reached every instance.

    Args:
        scheduled: when each was due, ns, shape (rows,); 0: not emitted.
        arrived: when it reached each worker, ns, shape (workers, rows); 0: it has not.
        done: when that worker's instances had processed it, likewise.
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
