"""A job's figures as metrics of Ray, which its dashboard shows and its agents serve to Prometheus.

They have the names of the catalogue, before which Ray puts `ray_`. Ray's histograms take single
values alone, so the parts of a histogram are gauges here, by the names that they have in
Prometheus: `…_bucket`, `…_count`, `…_sum`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ray.util.metrics import Counter, Gauge

from ...metrics.export.metric import LATENCY_BOUNDS_S, Kind
from ...metrics.export.reader import Buckets, Family, JobReader

INTERVAL_S = 2.0


@dataclass(frozen=True)
class _Series:
    name: str
    kind: Kind
    tags: dict[str, str]
    value: float


class RayExport:
    """Publishes one job's figures to Ray."""

    def __init__(self, reader: JobReader) -> None:
        self._reader = reader
        self._metrics: dict[str, Counter | Gauge] = {}
        self._counted: dict[tuple[str, tuple[str, ...]], float] = {}

    def publish(self) -> None:
        """Publish the present figures."""
        for family in self._reader.read():
            for series in _series(family):
                self._record(series, family.metric.meaning)

    def _record(self, series: _Series, meaning: str) -> None:
        if series.name not in self._metrics:
            made = Counter if series.kind is Kind.COUNTER else Gauge
            self._metrics[series.name] = made(series.name, meaning, tuple(series.tags))
        metric = self._metrics[series.name]
        if isinstance(metric, Gauge):
            metric.set(series.value, series.tags)
            return
        key = (series.name, tuple(series.tags.values()))
        more = series.value - self._counted.get(key, 0.0)
        self._counted[key] = series.value
        if more > 0:
            metric.inc(more, series.tags)


def _series(family: Family) -> Iterator[_Series]:
    name = family.metric.name
    for values, sample in family.samples.items():
        tags = dict(zip(family.labels, values, strict=True))
        if not isinstance(sample, Buckets):
            yield _Series(name, family.metric.kind, tags, sample)
            continue
        bounds = (*map(str, LATENCY_BOUNDS_S), "+Inf")
        for bound, count in zip(bounds, (*sample.up_to, sample.count), strict=True):
            yield _Series(f"{name}_bucket", Kind.GAUGE, {**tags, "le": bound}, count)
        yield _Series(f"{name}_count", Kind.GAUGE, tags, sample.count)
        yield _Series(f"{name}_sum", Kind.GAUGE, tags, sample.sum_s)
