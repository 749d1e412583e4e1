"""One operator over all its instances: totals, and what its counters say of rates and shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..state.watermarks import WATERMARK_END, WATERMARK_NONE
from .counters import InstanceMetrics, LatencyHistogram


@dataclass(frozen=True)
class OperatorMetrics:
    """One operator over all its instances.

    Attributes:
        rows_in, rows_out: rows so far; those out on the main output.
        side_rows_out: rows out on each other output, by its name.
        rate_per_s: rows received a second, since the previous counters.
        lag_ms: how far in event time the slowest instance is behind the furthest source; None
            without event time.
        busy: share of the time since the previous counters in the operator's own code, of its
            busiest instance.
        busiest_instance: which one that is.
        back_pressured: share of the time since the previous counters in which a full output kept
            its most blocked instance from working.
        rows_dropped: rows left out, by reason.
        rows_late: rows that came too late, whatever was done with them (`InstanceMetrics`).
        latency_p50_ms, latency_p99_ms: for sinks; None elsewhere. Of rows from another machine it
            contains the difference of the monotonic clocks.
        waits_for_table: whether an instance takes no row yet, since a table is not complete.
        gauges: what a source tells of its input, such as `{"rows behind": {"orders/0": 12}}`: by
            name, then by part.
        deltas_out: of a partial aggregate, how many of the rows out are deltas.
        flushes: of a partial aggregate, how often its groups have left as deltas, by reason.
        reduction: of a partial aggregate that may step aside, how many rows a delta stood for when
            that was last judged, in the instance with the fewest; None before.
        instances_aside: how many of its instances pass their rows on as they are, since that was
            too few.
    """

    operator_id: str
    instances: int
    rows_in: int
    rows_out: int
    rate_per_s: float
    lag_ms: float | None
    busy: float
    busiest_instance: int
    back_pressured: float
    busy_ns: int
    rows_dropped: dict[str, int]
    buffered_rows: int
    spilled_bytes: int
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    side_rows_out: dict[str, int] = field(default_factory=dict)
    rows_late: int = 0
    waits_for_table: bool = False
    gauges: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    deltas_out: int = 0
    flushes: Mapping[str, int] = field(default_factory=dict)
    reduction: float | None = None
    instances_aside: int = 0


@dataclass(frozen=True)
class Interval:
    """What one instance has counted, and what it had counted `elapsed_ns` before.

    `before` is None, and `elapsed_ns` 0, where there are no earlier counters.
    """

    now: InstanceMetrics
    before: InstanceMetrics | None
    elapsed_ns: int

    @property
    def rows_per_s(self) -> float:
        """Rows received a second; 0 where there is nothing to compare with."""
        if self.before is None or self.elapsed_ns <= 0:
            return 0.0
        return max(0, self.now.rows_in - self.before.rows_in) / self.elapsed_ns * 1e9

    @property
    def busy(self) -> float:
        """Share of the time in the operator's own code."""
        return 0.0 if self.before is None else self._share(self.now.busy_ns - self.before.busy_ns)

    @property
    def blocked(self) -> float:
        """Share of the time in which a full output kept the instance from working."""
        if self.before is None:
            return 0.0
        return self._share(self.now.blocked_ns - self.before.blocked_ns)

    def _share(self, part_ns: int) -> float:
        """Return a share of the time, 0 to 1.

        A call is charged when it ends, so more may be charged than has passed since the last look.
        """
        if self.elapsed_ns <= 0:
            return 0.0
        return min(1.0, max(0.0, part_ns / self.elapsed_ns))


def furthest_event_time_ns(instances: Iterable[InstanceMetrics]) -> int:
    """Return the furthest watermark of any instance that has not ended; else WATERMARK_NONE."""
    marks = (metrics.watermark_ns for metrics in instances)
    return max((mark for mark in marks if mark != WATERMARK_END), default=WATERMARK_NONE)


def operator_metrics(
    operator_id: str, intervals: Sequence[Interval], furthest_ns: int
) -> OperatorMetrics:
    """Put the instances of an operator together, at least one.

    `furthest_ns` is the event time against which its lag is told (`furthest_event_time_ns`).
    """
    instances = [interval.now for interval in intervals]
    busy, busiest = max((interval.busy, interval.now.instance) for interval in intervals)
    dropped: Counter[str] = Counter()
    side_rows_out: Counter[str] = Counter()
    flushes: Counter[str] = Counter()
    latency = LatencyHistogram()
    for metrics in instances:
        flushes.update(metrics.flushes)
        dropped.update(metrics.rows_dropped)
        side_rows_out.update(metrics.side_rows_out)
        if metrics.latency is not None:
            latency.merge(metrics.latency)
    return OperatorMetrics(
        operator_id=operator_id,
        instances=len(instances),
        rows_in=sum(metrics.rows_in for metrics in instances),
        rows_out=sum(metrics.rows_out for metrics in instances),
        rate_per_s=sum(interval.rows_per_s for interval in intervals),
        lag_ms=_lag_ms(instances, furthest_ns),
        busy=busy,
        busiest_instance=busiest,
        back_pressured=max(interval.blocked for interval in intervals),
        busy_ns=sum(metrics.busy_ns for metrics in instances),
        rows_dropped=dict(dropped),
        buffered_rows=sum(metrics.buffered_rows for metrics in instances),
        spilled_bytes=sum(metrics.spilled_bytes for metrics in instances),
        latency_p50_ms=latency.quantile_ms(0.5),
        latency_p99_ms=latency.quantile_ms(0.99),
        side_rows_out=dict(side_rows_out),
        rows_late=sum(metrics.rows_late for metrics in instances),
        waits_for_table=any(metrics.waits_for_table for metrics in instances),
        gauges=_gauges(instances),
        deltas_out=sum(metrics.deltas_out for metrics in instances),
        flushes=dict(flushes),
        reduction=min(
            (one.reduction for one in instances if one.reduction is not None), default=None
        ),
        instances_aside=sum(metrics.is_aside for metrics in instances),
    )


def _gauges(instances: Sequence[InstanceMetrics]) -> dict[str, dict[str, int]]:
    """Put the gauges of instances together, whose parts differ."""
    gauges: dict[str, dict[str, int]] = {}
    for metrics in instances:
        for name, parts in metrics.gauges.items():
            gauges.setdefault(name, {}).update(parts)
    return gauges


def _lag_ms(instances: Sequence[InstanceMetrics], furthest_ns: int) -> float | None:
    """Return how far the slowest instance is behind in event time; None if that is not known."""
    slowest_ns = min(metrics.watermark_ns for metrics in instances)
    if slowest_ns in (WATERMARK_NONE, WATERMARK_END) or furthest_ns == WATERMARK_NONE:
        return None
    return (furthest_ns - slowest_ns) / 1e6
