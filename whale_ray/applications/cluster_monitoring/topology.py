"""The application's topology.

::

    samples ─ by job and window ─ means ─ out
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import functions
from ...api.topology import Topology
from ...operators.windows.specifications import window as time_window

if TYPE_CHECKING:
    from ...api.topology import Stream
    from ...operators.sinks.base import Sink
    from ...operators.sources.base import Source
    from ...operators.windows.durations import Duration

__all__ = ["APPLICATION", "build", "mean_cpu"]

APPLICATION = "cluster-monitoring"


def build(
    samples: Source,
    sink: Sink,
    *,
    window: Duration = "2 seconds",
    parallelism: int | None = None,
) -> Topology:
    """Return the topology that computes the mean CPU of each job in each window.

    Args:
        samples: event_time, job_id, cpu_pct, in the order of event_time.
        sink: receives window_start, window_end, job_id, mean_cpu_pct.
        window: the length of the windows; the benchmark has 2 s.
        parallelism: the number of instances; None is one per worker.

    Raises:
        InputError: an input is missing, or lacks a column.
    """
    topology = Topology(APPLICATION)
    stream = topology.source(samples, id="samples", event_time="event_time")
    mean_cpu(stream, window=window, parallelism=parallelism).sink(sink, id="out")
    return topology


def mean_cpu(
    samples: Stream, *, window: Duration = "2 seconds", parallelism: int | None = None
) -> Stream:
    """Return the mean CPU of each job in each window; arguments and columns as `build`."""
    return samples.group_by(time_window("event_time", window), "job_id").agg(
        functions.avg("cpu_pct").alias("mean_cpu_pct"), id="means", parallelism=parallelism
    )
