"""Sends a job's figures by OTLP, OpenTelemetry's protocol, at intervals and once at the end.

Where to and how is told by OpenTelemetry's own environment variables: OTEL_EXPORTER_OTLP_ENDPOINT,
_PROTOCOL, _HEADERS, _TIMEOUT and so on, OTEL_METRIC_EXPORT_INTERVAL, OTEL_SERVICE_NAME and
OTEL_RESOURCE_ATTRIBUTES
(https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables). Figures are
read and sent as they are, not recorded by instruments: those that are observed know no histogram.
All sums are cumulative.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from ...configs.errors import UsageError
from ...configs.extras import require_extra
from ...transport.clock import Clock
from .metric import LATENCY_BOUNDS_S, Kind
from .reader import Buckets, Family, JobReader

_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_MS = 60_000
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_CLOSE_S = 5.0
"""How long the end of a job may wait for the last figures to be sent."""

_UNITS = {"seconds": "s", "bytes": "By", "rows": "{row}", "ratio": "1"}
"""UCUM's, by which a collector leaves the names as they are when it translates them."""


class OpenTelemetryExport:
    """Sends what a reader reads, in a thread of its own, until it is closed.

    Raises:
        ResourceError: OpenTelemetry's packages are missing.
        UsageError: an environment variable has no value that is known.
    """

    def __init__(self, reader: JobReader, job_id: str, clock: Clock) -> None:
        require_extra("opentelemetry", "metrics.opentelemetry")
        self._reader = reader
        self._clock = clock
        self._begun_ns = clock.wall_ns()
        self._exporter = _exporter()
        self._resource = _resource(job_id)
        self._closing = threading.Event()
        self._interval_s = _interval_ms() / 1e3
        self._thread = threading.Thread(target=self._run, name="metrics by OTLP", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the last figures, and end the thread."""
        self._closing.set()
        self._thread.join(_CLOSE_S)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._send()
        self._send()

    def _send(self) -> None:
        self._exporter.export(self._data())  # it logs what fails, and tries again by itself

    def _data(self) -> Any:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        now_ns = self._clock.wall_ns()
        metrics = [_metric(family, self._begun_ns, now_ns) for family in self._reader.read()]
        scope = InstrumentationScope("whale_ray", version("whale-ray"))
        return MetricsData(
            [ResourceMetrics(self._resource, [ScopeMetrics(scope, metrics, "")], "")]
        )


def _metric(family: Family, begun_ns: int, now_ns: int) -> Any:
    from opentelemetry.sdk.metrics import export

    cumulative = export.AggregationTemporality.CUMULATIVE
    points: list[Any] = []
    for values, sample in family.samples.items():
        labels = dict(zip(family.labels, values, strict=True))
        if isinstance(sample, Buckets):
            points.append(_histogram_point(labels, sample, begun_ns, now_ns))
        else:
            points.append(export.NumberDataPoint(labels, begun_ns, now_ns, sample))
    data: Any
    if family.metric.kind is Kind.HISTOGRAM:
        data = export.Histogram(points, cumulative)
    elif family.metric.kind is Kind.COUNTER:
        data = export.Sum(points, cumulative, is_monotonic=True)
    else:
        data = export.Gauge(points)
    metric = family.metric
    return export.Metric(metric.name, metric.meaning, _UNITS.get(metric.unit, ""), data)


def _histogram_point(
    labels: Mapping[str, str], buckets: Buckets, begun_ns: int, now_ns: int
) -> Any:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    reached = (0, *buckets.up_to, buckets.count)
    return HistogramDataPoint(
        attributes=labels,
        start_time_unix_nano=begun_ns,
        time_unix_nano=now_ns,
        count=buckets.count,
        sum=buckets.sum_s,
        bucket_counts=[here - below for below, here in itertools.pairwise(reached)],
        explicit_bounds=LATENCY_BOUNDS_S,
        min=None,  # optional in OTLP, and not known
        max=None,
    )


def _exporter() -> Any:
    """Return the exporter of the protocol that is asked for; http/protobuf by default."""
    name, protocol = next(
        ((name, os.environ[name]) for name in _PROTOCOLS if os.environ.get(name)),
        (_PROTOCOLS[1], "http/protobuf"),
    )
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
            OTLPMetricExporter as Grpc,
        )

        return Grpc()
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
            OTLPMetricExporter as Http,
        )

        return Http()
    msg = f"{name}={protocol} is not known; use http/protobuf or grpc"
    raise UsageError(msg)


def _resource(job_id: str) -> Any:
    """Return who sends, as the environment says; by default whale-ray, and the job's id."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    ours = Resource({"service.name": "whale-ray", "service.instance.id": job_id})
    return Resource.create().merge(ours).merge(OTELResourceDetector().detect())


def _interval_ms() -> float:
    text = os.environ.get(_INTERVAL, "") or str(_INTERVAL_MS)
    try:
        interval_ms = float(text)
    except ValueError:
        interval_ms = 0.0
    if not interval_ms >= 1:
        msg = f"{_INTERVAL}={text} is not a time in milliseconds, 1 or more"
        raise UsageError(msg)
    return interval_ms
