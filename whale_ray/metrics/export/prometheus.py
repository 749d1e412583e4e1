"""Serves a job's figures to Prometheus over HTTP, as text or OpenMetrics.

One request is answered at a time, and a client that is slow is cut off after some seconds;
so nobody who reads the figures can burden the job.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from ...configs.errors import ResourceError
from ...configs.extras import require_extra
from .metric import LATENCY_BOUNDS_S, Kind
from .reader import Buckets, Family, JobReader

_CLIENT_TIMEOUT_S = 5.0
_POLL_S = 0.1
_WHY = {
    errno.EADDRINUSE: "it is in use",
    errno.EACCES: "this user may not use it",
    errno.EADDRNOTAVAIL: "the address is not one of this machine",
}


class PrometheusEndpoint:
    """Answers requests of Prometheus in a thread, until it is closed.

    Raises:
        ResourceError: prometheus_client is missing, or the port cannot be had.
    """

    def __init__(self, reader: JobReader, host: str, port: int) -> None:
        require_extra("prometheus", "metrics.prometheus_port")
        from prometheus_client import CollectorRegistry, make_wsgi_app

        registry = CollectorRegistry(auto_describe=False)
        registry.register(_JobCollector(reader))
        self._server = _bound(host, port)
        self._server.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread and give the port back."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _JobCollector:
    """Makes prometheus_client's objects of a job's figures, at each request."""

    def __init__(self, reader: JobReader) -> None:
        self._reader = reader

    def collect(self) -> Iterator[Any]:
        return map(_exposed, self._reader.read())


def _exposed(family: Family) -> Any:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    metric = family.metric
    made = {
        Kind.COUNTER: CounterMetricFamily,
        Kind.GAUGE: GaugeMetricFamily,
        Kind.HISTOGRAM: HistogramMetricFamily,
    }[metric.kind](metric.name, metric.meaning, labels=family.labels)
    for labels, sample in family.samples.items():
        if isinstance(sample, Buckets):
            made.add_metric(labels, list(_bucket_counts(sample)), sample.sum_s)
        else:
            made.add_metric(labels, sample)
    return made


def _bucket_counts(buckets: Buckets) -> Iterator[tuple[str, int]]:
    """Yield each bucket's bound, and how many rows took no longer."""
    for bound, count in zip(LATENCY_BOUNDS_S, buckets.up_to, strict=True):
        yield str(bound), count
    yield "+Inf", buckets.count


class _MetricsHandler(WSGIRequestHandler):
    def handle(self) -> None:
        """Answer a request, and cut the connection if that takes too long."""
        cut = threading.Timer(_CLIENT_TIMEOUT_S, self.connection.shutdown, (socket.SHUT_RDWR,))
        cut.daemon = True
        cut.start()
        try:
            super().handle()
        finally:
            cut.cancel()

    def log_message(self, *_: Any) -> None:
        """Write nothing for each request."""


class _MetricsServer(WSGIServer):
    """A server that binds without asking for the machine's name, which may take long."""

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, *_: Any) -> None:
        """Say nothing of a client that went away; what fails within is logged and answered 500."""


def _bound(host: str, port: int) -> _MetricsServer:
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        server_type = type("_MetricsServer", (_MetricsServer,), {"address_family": family})
        server: _MetricsServer = server_type(address, _MetricsHandler)
    except OSError as error:
        why = _WHY.get(error.errno or 0, error.strerror or str(error))
        msg = (
            f"metrics cannot be served at port {port} of {host}: {why}; name another with "
            "--metrics-port or metrics.prometheus_port (the address is metrics.prometheus_host)"
        )
        raise ResourceError(msg) from error
    return server
