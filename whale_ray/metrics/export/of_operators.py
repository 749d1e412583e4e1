"""The metrics of operators: of each one, and of each one's instances in every worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ...state.watermarks import WATERMARK_END, WATERMARK_NONE
from ..counters import InstanceMetrics
from .metric import (
    INSTANCE_LABEL,
    Group,
    JobStatus,
    Kind,
    Metric,
    Subject,
    counter,
    seconds,
)


def _operators(job: JobStatus) -> Iterator[Subject]:
    for one in job.metrics.operators:
        yield Subject((one.operator_id,), one)


def _instances(job: JobStatus) -> Iterator[Subject]:
    for member in job.metrics.members:
        for one in member.instances:
            labels = (one.operator_id, str(one.worker), str(one.instance))
            yield Subject(labels, one, member.attempt)


def _done(name: str) -> Callable[[InstanceMetrics], int]:
    """Return a reader of a counter less what was restored: what its attempt has done itself."""
    return lambda one: int(getattr(one, name)) - int(one.restored.get(name, 0))


def _done_by(name: str) -> Callable[[InstanceMetrics], Mapping[str, int]]:
    """Return the same for a counter by reason, or by output."""

    def read(one: InstanceMetrics) -> Mapping[str, int]:
        before: Mapping[str, int] = one.restored.get(name, {})
        return {key: rows - before.get(key, 0) for key, rows in getattr(one, name).items()}

    return read


def _watermark_s(one: InstanceMetrics) -> float | None:
    if one.watermark_ns in (WATERMARK_NONE, WATERMARK_END):
        return None
    return one.watermark_ns / 1e9


OPERATORS = Group(
    "Operators",
    ("operator",),
    _operators,
    (
        Metric(
            "whale_ray_operator_instances",
            "Instances of the operator.",
            lambda one: one.instances,
        ),
        Metric(
            "whale_ray_operator_lag_seconds",
            "How far in event time its slowest instance is behind the furthest source.",
            lambda one: seconds(one.lag_ms),
            unit="seconds",
        ),
        Metric(
            "whale_ray_operator_busy_ratio",
            "Share of the last poll interval that its busiest instance spent in its own code.",
            lambda one: one.busy,
            unit="ratio",
        ),
        Metric(
            "whale_ray_operator_back_pressured_ratio",
            "Share of the last poll interval in which a full output kept its most blocked instance "
            "from working.",
            lambda one: one.back_pressured,
            unit="ratio",
        ),
        Metric(
            "whale_ray_operator_waits_for_table",
            "1 if an instance takes no row yet, since a table is not complete; else 0.",
            lambda one: int(one.waits_for_table),
        ),
    ),
)

INSTANCES = Group(
    "Operators in each worker",
    ("operator", "worker", INSTANCE_LABEL),
    _instances,
    (
        counter(
            "whale_ray_operator_rows_in_total",
            "Rows received, or read by a source.",
            _done("rows_in"),
            "rows",
        ),
        counter(
            "whale_ray_operator_rows_out_total",
            "Rows emitted on the main output.",
            _done("rows_out"),
            "rows",
        ),
        counter(
            "whale_ray_operator_side_rows_out_total",
            "Rows emitted on each other output.",
            _done_by("side_rows_out"),
            "rows",
            by="output",
        ),
        counter(
            "whale_ray_operator_dropped_rows_total",
            "Rows left out by the user's choice.",
            _done_by("rows_dropped"),
            "rows",
            by="reason",
        ),
        counter(
            "whale_ray_operator_late_rows_total",
            "Rows that came too late, whatever was done with them.",
            _done("rows_late"),
            "rows",
        ),
        counter(
            "whale_ray_operator_busy_seconds_total",
            "Time in the operator's own code.",
            lambda one: one.busy_ns / 1e9,
            "seconds",
        ),
        counter(
            "whale_ray_operator_back_pressured_seconds_total",
            "Time in which a full output kept the operator's stage from working.",
            lambda one: one.blocked_ns / 1e9,
            "seconds",
        ),
        Metric(
            "whale_ray_operator_buffered_rows",
            "Rows that wait for event time, or for the types of their columns.",
            lambda one: one.buffered_rows,
            unit="rows",
        ),
        Metric(
            "whale_ray_operator_spilled_bytes",
            "Waiting rows and state on disk.",
            lambda one: one.spilled_bytes,
            unit="bytes",
        ),
        Metric(
            "whale_ray_operator_watermark_timestamp_seconds",
            "The least event-time watermark, since 1970; absent before the first and after the "
            "last.",
            _watermark_s,
            unit="seconds",
            together=min,
        ),
        counter(
            "whale_ray_operator_delta_rows_total",
            "Rows that a partial aggregate emitted as deltas.",
            lambda one: one.deltas_out,
            "rows",
        ),
        counter(
            "whale_ray_operator_partial_flushes_total",
            "How often a partial aggregate's groups have left as deltas.",
            lambda one: one.flushes,
            by="reason",
        ),
        Metric(
            "whale_ray_operator_reduction_ratio",
            "Rows that a delta of a partial aggregate stood for when that was last judged; absent "
            "before.",
            lambda one: one.reduction,
            unit="ratio",
            together=min,
        ),
        Metric(
            "whale_ray_operator_aside",
            "1 if a partial aggregate passes its rows on as they are, since a delta stood for too "
            "few; else 0.",
            lambda one: None if one.reduction is None else int(one.is_aside),
        ),
        Metric(
            "whale_ray_source_reported",
            "What a source's reader reports of its input, such as the rows that it is behind.",
            lambda one: {name: sum(parts.values()) for name, parts in one.gauges.items()},
            by="figure",
        ),
        Metric(
            "whale_ray_sink_latency_seconds",
            "From a source's read of a slice's oldest row to the slice's arrival at a sink, by "
            "rows.",
            lambda one: one.latency,
            Kind.HISTOGRAM,
            "seconds",
        ),
    ),
)
