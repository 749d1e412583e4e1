"""Figures sent by OTLP, to real receivers of both protocols, which unpack its messages."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

import whale_ray as whale
from tests.whale_ray.metrics.full_job import full_status
from whale_ray.cli.main import main
from whale_ray.configs.errors import UsageError
from whale_ray.metrics.export.metric import LATENCY_BOUNDS_S, Kind
from whale_ray.metrics.export.open_telemetry import OpenTelemetryExport
from whale_ray.metrics.export.reader import Buckets, JobReader
from whale_ray.transport.clock import SystemClock

AGGREGATION_CUMULATIVE = 2  # AGGREGATION_TEMPORALITY_CUMULATIVE in metrics.proto


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")


def over_http(received: Any) -> tuple[str, Callable[[], None]]:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/metrics"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.put(ExportMetricsServiceRequest.FromString(body))
            answer = ExportMetricsServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def close() -> None:
        server.shutdown()
        server.server_close()

    return f"http://127.0.0.1:{server.server_port}", close


def over_grpc(received: Any) -> tuple[str, Callable[[], None]]:
    class Receiver(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, _context: Any) -> Any:  # noqa: N802  # the protocol's name
            received.put(request)
            return ExportMetricsServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(1))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Receiver(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return f"http://127.0.0.1:{port}", lambda: server.stop(None).wait()


PROTOCOLS = {"http/protobuf": over_http, "grpc": over_grpc}


@pytest.fixture(params=PROTOCOLS)
def received(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the queue of what comes, by one of the protocols, where the environment says."""
    got: queue.Queue[ExportMetricsServiceRequest] = queue.Queue()
    endpoint, close = PROTOCOLS[request.param](got)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", request.param)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    yield got
    close()


def labels_of(point: Any) -> frozenset[tuple[str, str]]:
    return frozenset((one.key, one.value.string_value) for one in point.attributes)


def test_what_is_sent_is_what_is_read(received: Any) -> None:
    reader = JobReader("total-1", "total", full_status)
    export = OpenTelemetryExport(reader, "total-1", SystemClock())
    request = received.get(timeout=60)
    export.close()
    (resource,) = request.resource_metrics
    told = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert told["service.name"] == "whale-ray" and told["service.instance.id"] == "total-1"
    assert told["deployment.environment"] == "test"
    (scope,) = resource.scope_metrics
    sent = {metric.name: metric for metric in scope.metrics}
    families = reader.read()
    assert set(sent) == {family.metric.name for family in families}
    for family in families:
        metric = sent[family.metric.name]
        assert metric.description == family.metric.meaning
        kind = {Kind.COUNTER: "sum", Kind.GAUGE: "gauge", Kind.HISTOGRAM: "histogram"}
        assert metric.WhichOneof("data") == kind[family.metric.kind]
        data = getattr(metric, kind[family.metric.kind])
        if family.metric.kind is not Kind.GAUGE:
            assert data.aggregation_temporality == AGGREGATION_CUMULATIVE
        if family.metric.kind is Kind.COUNTER:
            assert data.is_monotonic
        points = {labels_of(point): point for point in data.data_points}
        for values, sample in family.samples.items():
            point = points.pop(frozenset(zip(family.labels, values, strict=True)))
            assert point.time_unix_nano > 0
            if family.metric.kind is not Kind.GAUGE:
                assert 0 < point.start_time_unix_nano < point.time_unix_nano
            if isinstance(sample, Buckets):
                assert (point.count, point.sum) == (sample.count, sample.sum_s)
                assert tuple(point.explicit_bounds) == LATENCY_BOUNDS_S
                within = LATENCY_BOUNDS_S.index(0.025)
                assert list(point.bucket_counts) == [
                    sample.count if bucket == within else 0
                    for bucket in range(len(LATENCY_BOUNDS_S) + 1)
                ]
                assert not point.HasField("min") and not point.HasField("max")
            else:
                assert point.as_double == sample
        assert not points


def test_the_last_figures_of_a_job_are_sent(received: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "numbers")
    topology = whale.Topology("sent")
    rows = topology.source(whale.sources.iterable([{"n": n} for n in range(500)]), id="rows")
    rows.filter(whale.col("n") < 100, id="few").sink(whale.sinks.collect(), id="out")
    job = whale.run(topology, settings={"metrics.opentelemetry": True})
    request = received.get(timeout=60)
    assert received.empty()
    (resource,) = request.resource_metrics
    told = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert told["service.name"] == "numbers" and told["service.instance.id"] == job.id
    (rows_in,) = (
        {dict(labels_of(point))["operator"]: point.as_double for point in one.sum.data_points}
        for one in resource.scope_metrics[0].metrics
        if one.name == "whale_ray_operator_rows_in_total"
    )
    assert rows_in == {"rows": 500, "few": 500, "out": 100}


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "http/json",
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/json is not known; use http/protobuf or grpc",
        ),
        (
            "OTEL_METRIC_EXPORT_INTERVAL",
            "soon",
            "OTEL_METRIC_EXPORT_INTERVAL=soon is not a time in milliseconds, 1 or more",
        ),
    ],
)
def test_a_variable_that_cannot_be_followed_is_one_line(
    name: str,
    value: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as raised:
        OpenTelemetryExport(JobReader("a", "a", full_status), "a", SystemClock())
    assert str(raised.value) == told
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import whale_ray as whale\n"
        "topology = whale.Topology('mine')\n"
        "rows = topology.source(whale.sources.iterable([{'n': 1}]), id='rows')\n"
        "rows.sink(whale.sinks.collect(), id='out')\n"
    )
    assert main(["run", "mine.py", "--on", "inline", "--set", "metrics.opentelemetry=true"]) == 2
    assert capsys.readouterr().err == f"whale-ray: {told}\n"


def test_a_collector_that_is_not_there_does_not_hold_a_job_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    topology = whale.Topology("unheard")
    rows = topology.source(whale.sources.iterable([{"n": 1}]), id="rows")
    rows.sink(whale.sinks.collect(), id="out")
    job = whale.run(topology, settings={"metrics.opentelemetry": True})
    assert job.results("out").rows == 1
    assert any(one.name.startswith("opentelemetry.exporter") for one in caplog.records)
