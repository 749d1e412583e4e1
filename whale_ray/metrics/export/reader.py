"""Reads a job's figures by the catalogue: counters that only grow, labels that are bounded."""

from __future__ import annotations

import functools
import operator
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..counters import LatencyHistogram
from .catalogue import CATALOGUE
from .metric import (
    INSTANCE_LABEL,
    LATENCY_BOUNDS_S,
    Group,
    JobStatus,
    Kind,
    Metric,
    Subject,
    labels_of,
)

VALUES_MAX = 50
"""How many values of a metric's own label, such as `reason`, are told apart."""

OTHER = "other"
"""The value of that label for all others together."""

_BOUNDS_NS = [round(bound * 1e9) for bound in LATENCY_BOUNDS_S]


@dataclass(frozen=True)
class Buckets:
    """A histogram: for each of LATENCY_BOUNDS_S how many rows took no longer; all; their sum."""

    up_to: tuple[int, ...]
    count: int
    sum_s: float

    def __add__(self, other: Buckets) -> Buckets:
        counts = tuple(a + b for a, b in zip(self.up_to, other.up_to, strict=True))
        return Buckets(counts, self.count + other.count, self.sum_s + other.sum_s)


Sample = float | Buckets


@dataclass(frozen=True)
class Family:
    """A metric with its samples, by the values of `labels`."""

    metric: Metric
    labels: tuple[str, ...]
    samples: Mapping[tuple[str, ...], Sample]


class JobReader:
    """Reads one job for all that export it; may be called from any thread.

    A counter counts what the job's workers have done, in all attempts: rows that are read again
    after a restart are counted again, so that a rate is always what is going on. What a worker did
    between the last reading of an attempt and its end is not known.
    """

    def __init__(
        self,
        job_id: str,
        topology: str,
        status: Callable[[], JobStatus],
        *,
        per_instance: bool = False,
    ) -> None:
        self._common = (job_id, topology)
        self._status = status
        self._per_instance = per_instance
        self._totals: dict[tuple[str, ...], _Total] = {}
        self._known: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def read(self) -> list[Family]:
        """Return the present figures; of what there are none, no family."""
        with self._lock:
            status = self._status()
            families = []
            for group in CATALOGUE:
                subjects = [(self._kept(group, one), one) for one in group.subjects(status)]
                families += [self._family(group, metric, subjects) for metric in group.metrics]
        return [family for family in families if family.samples]

    def _kept(self, group: Group, subject: Subject) -> tuple[str, ...]:
        """Return a subject's values of the labels that are exported."""
        if self._per_instance or INSTANCE_LABEL not in group.labels:
            return subject.labels
        at = group.labels.index(INSTANCE_LABEL)
        return (*subject.labels[:at], *subject.labels[at + 1 :])

    def _family(
        self, group: Group, metric: Metric, subjects: list[tuple[tuple[str, ...], Subject]]
    ) -> Family:
        names = labels_of(group, metric, per_instance=self._per_instance)
        found: dict[tuple[str, ...], list[Sample]] = {}
        for kept, subject in subjects:
            for key, sample in self._samples(metric, kept, subject):
                found.setdefault(key, []).append(sample)
        samples = {
            (*self._common, *key): _together(metric, several) for key, several in found.items()
        }
        return Family(metric, names, samples)

    def _samples(
        self, metric: Metric, kept: tuple[str, ...], subject: Subject
    ) -> Iterator[tuple[tuple[str, ...], Sample]]:
        """Yield what a subject has of a metric, by the labels that are exported."""
        figures = metric.of(subject.source)
        if isinstance(figures, Mapping):
            counts: defaultdict[str, float] = defaultdict(float)
            for value, figure in figures.items():
                counts[self._bounded(metric, value)] += figure
            for value, count in counts.items():
                yield (*kept, value), self._total(metric, subject, count, value)
        elif figures is not None:
            yield kept, self._total(metric, subject, _sample(figures))

    def _total(self, metric: Metric, subject: Subject, sample: Sample, value: str = "") -> Sample:
        if metric.kind is Kind.GAUGE:
            return sample
        key = (metric.name, *subject.labels, subject.apart, value)
        return self._totals.setdefault(key, _Total()).after(sample, subject.attempt)

    def _bounded(self, metric: Metric, value: str) -> str:
        known = self._known.setdefault(metric.name, set())
        if value not in known and len(known) >= VALUES_MAX:
            return OTHER
        known.add(value)
        return value


class _Total:
    """One counter over all attempts."""

    def __init__(self) -> None:
        self._before: Any = None
        self._last: Any = None
        self._attempt: int | None = None

    def after(self, sample: Sample, attempt: int | None) -> Sample:
        """Return the total, now that the present attempt, or process, has come to `sample`."""
        if self._last is not None:
            if attempt != self._attempt or _size(sample) < _size(self._last):
                self._before = self._last if self._before is None else self._before + self._last
        self._last, self._attempt = sample, attempt
        return sample if self._before is None else self._before + sample


def _sample(figure: int | float | LatencyHistogram) -> Sample:
    if isinstance(figure, LatencyHistogram):
        counts = tuple(figure.rows_up_to(_BOUNDS_NS))
        return Buckets(counts, figure.rows, figure.sum_ns / 1e9)
    return float(figure)


def _size(sample: Sample) -> float:
    return sample.count if isinstance(sample, Buckets) else sample


def _together(metric: Metric, samples: list[Any]) -> Sample:
    """Put the samples of subjects with the same labels together, such as a worker's instances."""
    if metric.kind is Kind.GAUGE:
        return float(metric.together(samples))
    return functools.reduce(operator.add, samples)
