"""Settings of the section `metrics`: to whom a job tells its figures while it runs."""

from __future__ import annotations

import dataclasses

from ..declaring import check_section, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """Where the figures of a job are exported."""

    prometheus_port: int = setting(
        0,
        low=0,
        high=65_535,
        why="port at which Prometheus can read the job's metrics, on the machine of its "
        "controller; 0: none",
    )
    prometheus_host: str = setting(
        "127.0.0.1",
        why="address that the port belongs to; 0.0.0.0 lets other machines read, without a "
        "password",
    )
    opentelemetry: bool = setting(
        False,
        why="send the metrics by OTLP, where and how OpenTelemetry's environment variables say",
    )
    per_instance: bool = setting(
        False,
        why="tell instances of an operator apart, rather than the workers alone; many series",
    )

    def __post_init__(self) -> None:
        check_section("metrics", self)
