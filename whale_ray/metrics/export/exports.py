"""Begins what a job's settings ask to export."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from ...configs.errors import WhaleError
from ...configs.sections.metrics import MetricsSettings
from ...plan.assignment import Assignment
from ...transport.clock import Clock
from .reader import JobReader

_log = logging.getLogger(__name__)


def begin_exports(
    assignment: Assignment, reader: JobReader, clock: Clock, resumes: bool
) -> ExitStack:
    """Begin the exports that a job's settings ask for, and return what ends them.

    Where that fails, a job that continues under another controller (`resumes`) runs without them.

    Raises:
        ResourceError: a package is missing, or a port cannot be had.
        UsageError: OpenTelemetry's environment variables cannot be followed.
    """
    job_id = assignment.job_id
    try:
        return _begun(assignment.settings.metrics, reader, job_id, clock)
    except WhaleError as error:
        if not resumes:
            raise
        _log.warning("job %s goes on without exporting its metrics: %s", job_id, error)
        return ExitStack()


def _begun(settings: MetricsSettings, reader: JobReader, job_id: str, clock: Clock) -> ExitStack:
    with ExitStack() as exports:
        if settings.prometheus_port:
            from .prometheus import PrometheusEndpoint

            host, port = settings.prometheus_host, settings.prometheus_port
            exports.callback(PrometheusEndpoint(reader, host, port).close)
        if settings.opentelemetry:
            from .open_telemetry import OpenTelemetryExport

            exports.callback(OpenTelemetryExport(reader, job_id, clock).close)
        return exports.pop_all()
