"""A dashboard for Grafana, as JSON that it imports, over the metrics of the catalogue.

Its variables choose the source of data, whence the metrics come (a job's endpoint, or Ray's agents,
which put `ray_` before each name), topology, job and operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _PER_ROW = 8, 8, 3

_JOB = '{job_id=~"$job"}'
_OPERATOR = '{job_id=~"$job",operator=~"$operator"}'
_RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Query:
    """One query of a panel, in PromQL with Grafana's variables, and what its lines are called."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Chart:
    """One chart; `unit` is one of Grafana's."""

    title: str
    unit: str
    queries: tuple[Query, ...]


def _gauge(name: str, by: str, labels: str = _JOB, how: str = "sum") -> Query:
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return Query(f"{how} by ({by}) (${{namespace}}_{name}{labels})", legend)


def _rate(name: str, by: str, labels: str = _JOB) -> Query:
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return Query(f"sum by ({by}) (rate(${{namespace}}_{name}_total{labels}{_RATE}))", legend)


def _quantile(quantile: float) -> Query:
    rates = f"rate(${{namespace}}_sink_latency_seconds_bucket{_OPERATOR}{_RATE})"
    return Query(
        f"histogram_quantile({quantile}, sum by (operator, le) ({rates}))",
        f"{{{{operator}}}} p{quantile * 100:g}",
    )


def _mean_latency() -> Query:
    sums, counts = (
        f"sum by (operator) (rate(${{namespace}}_sink_latency_seconds_{part}{_OPERATOR}{_RATE}))"
        for part in ("sum", "count")
    )
    return Query(f"{sums} / {counts}", "{{operator}} mean")


def _one(name: str, unit: str, title: str, by: str, labels: str = _JOB, how: str = "sum") -> Chart:
    return Chart(title, unit, (_gauge(name, by, labels, how),))


def _per_s(name: str, unit: str, title: str, by: str, labels: str = _JOB) -> Chart:
    return Chart(title, unit, (_rate(name, by, labels),))


_OVERVIEW = (
    Chart(
        "State", "none", (Query(f"${{namespace}}_job_state{_JOB} == 1", "{{job_id}} {{state}}"),)
    ),
    _one("job_attempt", "none", "Attempt", "job_id"),
    _one("build_info", "none", "Version", "version", how="count"),
    _per_s("worker_cpu_seconds", "none", "Processors that workers use", "worker"),
    _per_s("relay_cpu_seconds", "none", "Processors that relays use", "host"),
    _one("operator_instances", "none", "Instances", "operator", _OPERATOR),
)

_OPERATORS = (
    _per_s("operator_rows_in", "cps", "Rows in, a second", "operator", _OPERATOR),
    _per_s("operator_rows_out", "cps", "Rows out, a second", "operator", _OPERATOR),
    _per_s(
        "operator_side_rows_out", "cps", "Rows out on other outputs", "operator, output", _OPERATOR
    ),
    _one("operator_busy_ratio", "percentunit", "Busiest instance", "operator", _OPERATOR, "max"),
    _one(
        "operator_back_pressured_ratio",
        "percentunit",
        "Back-pressured",
        "operator",
        _OPERATOR,
        "max",
    ),
    _one("operator_lag_seconds", "s", "Lag in event time", "operator", _OPERATOR, "max"),
    _per_s("operator_dropped_rows", "cps", "Rows dropped, a second", "operator, reason", _OPERATOR),
    _per_s("operator_late_rows", "cps", "Late rows, a second", "operator", _OPERATOR),
    _one("operator_buffered_rows", "short", "Rows that wait", "operator", _OPERATOR),
    _one("operator_spilled_bytes", "bytes", "On disk", "operator", _OPERATOR),
    _one("source_reported", "short", "Reported by sources", "operator, figure", _OPERATOR),
    _one("operator_waits_for_table", "none", "Waits for a table", "operator", _OPERATOR, "max"),
    Chart(
        "Latency from source to sink",
        "s",
        (_quantile(0.5), _quantile(0.99), _mean_latency()),
    ),
    _per_s("operator_delta_rows", "cps", "Deltas of partial aggregates", "operator", _OPERATOR),
    _per_s("operator_partial_flushes", "cps", "Their flushes", "operator, reason", _OPERATOR),
    _one("operator_reduction_ratio", "short", "Rows in a delta", "operator", _OPERATOR, "min"),
    _one("operator_aside", "none", "Instances that pass rows on", "operator", _OPERATOR),
)

_WORKERS = (
    _per_s("operator_rows_in", "cps", "Rows in, by worker", "operator, worker", _OPERATOR),
    _per_s(
        "operator_busy_seconds", "percentunit", "Time in operators", "operator, worker", _OPERATOR
    ),
    _per_s(
        "operator_back_pressured_seconds",
        "percentunit",
        "Time back-pressured",
        "operator, worker",
        _OPERATOR,
    ),
    Chart(
        "Watermark behind the clock",
        "s",
        (
            Query(
                "time() - min by (operator, worker) "
                f"(${{namespace}}_operator_watermark_timestamp_seconds{_OPERATOR})",
                "{{operator}} {{worker}}",
            ),
        ),
    ),
)

_CHECKPOINTS = (
    _one("checkpoint_age_seconds", "s", "Age of the last", "job_id"),
    Chart(
        "How long it took",
        "s",
        (
            Query(f"${{namespace}}_checkpoint_duration_seconds{_JOB}", "all"),
            Query(f"${{namespace}}_checkpoint_alignment_p99_seconds{_JOB}", "alignment, p99"),
        ),
    ),
    Chart(
        "Size",
        "bytes",
        (
            Query(f"${{namespace}}_checkpoint_size_bytes{_JOB}", "all of it"),
            Query(f"${{namespace}}_checkpoint_written_bytes{_JOB}", "written for it"),
        ),
    ),
    Chart(
        "In the last hour",
        "none",
        (
            Query(f"increase(${{namespace}}_checkpoints_total{_JOB}[1h])", "that count"),
            Query(f"increase(${{namespace}}_checkpoint_failures_total{_JOB}[1h])", "failed"),
        ),
    ),
    _one("checkpoint_epoch", "none", "Number of the last", "job_id"),
    _one("checkpoint_under_way_seconds", "s", "Age of the one under way", "job_id"),
    _one("checkpoint_snapshots_awaited", "none", "Snapshots it lacks yet", "job_id"),
)

_LINKS = (
    Chart(
        "Links down", "none", (Query(f"${{namespace}}_link_up{_JOB} == 0", "{{host}} → {{peer}}"),)
    ),
    _per_s("link_sent_bytes", "Bps", "Sent", "host, peer, carrier"),
    _per_s("link_received_bytes", "Bps", "Received", "host, peer, carrier"),
    _per_s("link_sent_messages", "cps", "Messages sent", "host, peer"),
    _per_s("link_received_messages", "cps", "Messages received", "host, peer"),
    _one("link_round_trip_seconds", "s", "Round trip", "host, peer", how="max"),
    _per_s("link_waits_for_reader", "cps", "Waits for slow readers", "host, peer"),
    _per_s("link_waits_for_network", "cps", "Waits for the network", "host, peer"),
    _one("link_without_verbs_seconds", "s", "Without RDMA verbs", "host, peer", how="max"),
    _per_s("link_failures", "cps", "Failures", "host, peer, reason"),
    _per_s("link_connections", "cps", "New links", "host, peer"),
    _per_s("relay_refused_connections", "cps", "Strangers refused", "host, reason"),
    _per_s("link_duplicate_messages", "cps", "Repeated messages", "host, peer"),
    _per_s("link_stale_messages", "cps", "Stale messages", "host, peer"),
)

_STREAMS = (
    _one("multicast_out_degree", "none", "Out-degree of trees", "stream", how="max"),
    _one("multicast_tree_epoch", "none", "Switches of trees", "stream", how="max"),
    _one("multicast_throttled_slices_per_second", "cps", "Throttled to", "stream", how="min"),
    _per_s("transport_messages", "cps", "Messages", "transport, edge, role"),
    _per_s("transport_payload_bytes", "Bps", "Payload", "transport, edge, role"),
    _per_s("transport_back_pressured", "cps", "Without room", "transport, edge, role"),
    _per_s("transport_stale_messages", "cps", "Of earlier attempts", "transport, edge, role"),
    _per_s("transport_busy_seconds", "percentunit", "Time in transports", "transport, edge, role"),
    _one("transport_reported", "short", "Reported", "transport, edge, role, figure"),
)

ROWS = {
    "Overview": _OVERVIEW,
    "Operators": _OPERATORS,
    "Workers": _WORKERS,
    "Checkpoints": _CHECKPOINTS,
    "Links between hosts": _LINKS,
    "Multicast trees, and transports of your own": _STREAMS,
}
"""The panels of the dashboard, by the title of their row."""


def dashboard() -> dict[str, Any]:
    """Return the dashboard, as Grafana imports it (version 9 or later)."""
    return {
        "title": "whale-ray",
        "uid": "whale-ray",
        "tags": ["whale-ray"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }
    yield {
        "name": "namespace",
        "label": "From",
        "type": "custom",
        "query": "a job's endpoint : whale_ray, Ray's agents : ray_whale_ray",
        "options": [
            {"text": "a job's endpoint", "value": "whale_ray", "selected": True},
            {"text": "Ray's agents", "value": "ray_whale_ray", "selected": False},
        ],
        "current": {"text": "a job's endpoint", "value": "whale_ray", "selected": True},
    }
    attempt, instances = "${namespace}_job_attempt", "${namespace}_operator_instances"
    yield _chosen("topology", f"label_values({attempt}, topology)")
    yield _chosen("job", f'label_values({attempt}{{topology=~"$topology"}}, job_id)')
    yield _chosen("operator", f"label_values({instances}{_JOB}, operator)")


def _chosen(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for title, panels in ROWS.items():
        number += 1
        position = {"h": 1, "w": _WIDTH * _PER_ROW, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": title, "gridPos": position, "panels": []}
        y += 1
        for place, panel in enumerate(panels):
            number += 1
            line, column = divmod(place, _PER_ROW)
            yield {
                "id": number,
                "type": "timeseries",
                "title": panel.title,
                "datasource": _SOURCE,
                "gridPos": {
                    "h": _HEIGHT,
                    "w": _WIDTH,
                    "x": column * _WIDTH,
                    "y": y + line * _HEIGHT,
                },
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {
                        "refId": chr(ord("A") + index),
                        "datasource": _SOURCE,
                        "expr": query.expression,
                        "legendFormat": query.legend,
                    }
                    for index, query in enumerate(panel.queries)
                ],
            }
        y += -(-len(panels) // _PER_ROW) * _HEIGHT
