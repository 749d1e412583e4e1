"""What an exported metric is: its name, kind, unit, labels and meaning, and where it comes from."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..counters import LatencyHistogram
from ..job_metrics import JobMetrics

COMMON_LABELS = ("job_id", "topology")
"""The labels of every metric, before those of its group."""

INSTANCE_LABEL = "operator_instance"
"""The label that is left out, and its series put together, unless one asks for instances."""

LATENCY_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""The upper bounds of the buckets of a histogram of latencies, in seconds."""

Figures = int | float | LatencyHistogram | Mapping[str, int | float] | None
"""What a metric is read as: by the values of its own label, if it has one; None if it is absent."""


@dataclass(frozen=True)
class JobStatus:
    """What is exported of a job at one moment: its state, one of `states`, and its figures."""

    state: str
    states: Collection[str]
    metrics: JobMetrics


class Kind(enum.Enum):
    """The kinds of metrics, by their names in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: its name.
        meaning: what it is, in a sentence.
        of: returns it, from a subject of its group; a mapping by the values of `by`, if it has one.
        kind: what can be done with it.
        unit: seconds, bytes, rows, …; "" for a plain count or state.
        by: a further label, such as "reason".
        together: how gauges of subjects with the same labels are put together; counters are added
            up.
    """

    name: str
    meaning: str
    of: Callable[[Any], Figures] = field(repr=False)
    kind: Kind = Kind.GAUGE
    unit: str = ""
    by: str = ""
    together: Callable[[Iterable[Any]], Any] = field(default=sum, repr=False)


@dataclass(frozen=True)
class Subject:
    """What figures are read from: its values of the group's labels, and the object itself.

    `attempt` is the one in which its counters began with zero; None if they are only set back by
    the start of a process. `apart` tells subjects of the same labels apart, which are put together.
    """

    labels: tuple[str, ...]
    source: Any
    attempt: int | None = None
    apart: str = ""


@dataclass(frozen=True)
class Group:
    """Metrics of the same subjects, such as the links between hosts."""

    title: str
    labels: tuple[str, ...]
    subjects: Callable[[JobStatus], Iterator[Subject]] = field(repr=False)
    metrics: tuple[Metric, ...]


def counter(
    name: str,
    meaning: str,
    of: Callable[[Any], Figures],
    unit: str = "",
    by: str = "",
) -> Metric:
    """Return a metric that only grows."""
    return Metric(name, meaning, of, Kind.COUNTER, unit, by)


def seconds(milliseconds: float | None) -> float | None:
    """Return a duration in Prometheus' unit."""
    return None if milliseconds is None else milliseconds / 1e3


def labels_of(group: Group, metric: Metric, *, per_instance: bool) -> tuple[str, ...]:
    """Return the names of a metric's labels, in the order of its samples' values."""
    own = tuple(name for name in group.labels if per_instance or name != INSTANCE_LABEL)
    return (*COMMON_LABELS, *own, *((metric.by,) if metric.by else ()))
