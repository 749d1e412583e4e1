"""A job's counters as metrics of Ray, which its dashboard and Prometheus show."""

from __future__ import annotations

from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge

from ...metrics.job_metrics import JobMetrics
from ...metrics.operator_metrics import OperatorMetrics

INTERVAL_S = 2.0

_TAGS = ("job", "topology", "operator")


def _counters(metrics: OperatorMetrics) -> Mapping[str, float]:
    return {
        "rows_in": metrics.rows_in,
        "rows_out": metrics.rows_out,
        "rows_dropped": sum(metrics.rows_dropped.values()),
        "busy_s": metrics.busy_ns / 1e9,
    }


def _gauges(metrics: OperatorMetrics) -> Mapping[str, float | None]:
    return {
        "instances": metrics.instances,
        "rows_per_s": metrics.rate_per_s,
        "lag_ms": metrics.lag_ms,
        "busy_share": metrics.busy,
        "back_pressured_share": metrics.back_pressured,
        "buffered_rows": metrics.buffered_rows,
        "spilled_bytes": metrics.spilled_bytes,
        "latency_p50_ms": metrics.latency_p50_ms,
        "latency_p99_ms": metrics.latency_p99_ms,
    }


class MetricsExport:
    """Publishes the counters of one job to Ray, by operator, as `whale_ray_…`."""

    def __init__(self, job_id: str, topology: str) -> None:
        self._tags = {"job": job_id, "topology": topology}
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._before: dict[tuple[str, str], float] = {}

    def publish(self, metrics: JobMetrics) -> None:
        """Publish the newest counters; after a restart, counts continue from those before."""
        for operator in metrics.operators:
            tags = {**self._tags, "operator": operator.operator_id}
            for name, count in _counters(operator).items():
                self._count(name, count, tags)
            for name, value in _gauges(operator).items():
                if value is not None:
                    self._set(name, value, tags)

    def _count(self, name: str, count: float, tags: dict[str, str]) -> None:
        if name not in self._counters:
            text = f"{name.replace('_', ' ')} of an operator, since the job's start"
            self._counters[name] = Counter(f"whale_ray_{name}", text, _TAGS)
        key = (name, tags["operator"])
        before = self._before.get(key, 0.0)
        more = count - before if count >= before else count
        self._before[key] = count
        if more > 0:
            self._counters[name].inc(more, tags)

    def _set(self, name: str, value: float, tags: dict[str, str]) -> None:
        if name not in self._gauges:
            text = f"{name.replace('_', ' ')} of an operator"
            self._gauges[name] = Gauge(f"whale_ray_{name}", text, _TAGS)
        self._gauges[name].set(value, tags)
