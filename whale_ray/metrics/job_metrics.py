"""A job as a whole: the newest counters of all its members put together, and told in a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..configs.units import describe_duration
from .checkpoint_metrics import CheckpointMetrics
from .counters import InstanceMetrics, MemberCounters, TransportMetrics
from .edge_metrics import EdgeMetrics
from .loads import WorkerLoad
from .operator_metrics import (
    Interval,
    OperatorMetrics,
    furthest_event_time_ns,
    operator_metrics,
)
from .relay_metrics import RelayMetrics, relay_metrics
from .tables import metrics_html

if TYPE_CHECKING:
    from ..multicast.tree_state import SwitchReport
    from ..optimizer.decisions import DecisionLog


@dataclass(frozen=True)
class JobMetrics:
    """All operators of a job, in the topology's order, and the processor time of its members.

    `relays` has those of all hosts, in their order; none on a single host. `switches` are the last
    switches of multicast trees. `throttled` has the streams (ring ids) whose load no out-degree can
    carry, and how much of it can be, in slices per second. `transports` has the senders and
    receivers of users' transports, `edges` what carries rows from each operator to the next,
    `checkpoints` what became of the checkpoints, None for a job without them. `members` has the
    newest counters of each worker and relay, by instance. `decisions` are those on the job, before
    it began and since; None of a job that has none yet. `lost` says why an attempt was last
    lost, with which the job is restarted; "" if none was.
    """

    operators: tuple[OperatorMetrics, ...]
    cpu_s: float
    attempt: int
    relays: tuple[RelayMetrics, ...] = ()
    switches: tuple[SwitchReport, ...] = ()
    throttled: Mapping[int, float] = field(default_factory=dict)
    transports: tuple[TransportMetrics, ...] = ()
    edges: tuple[EdgeMetrics, ...] = ()
    checkpoints: CheckpointMetrics | None = None
    members: tuple[MemberCounters, ...] = field(default=(), repr=False)
    decisions: DecisionLog | None = field(default=None, repr=False)
    lost: str = ""

    @property
    def loads(self) -> tuple[WorkerLoad, ...]:
        """What each worker has sent, and with `runtime.meter_stages` what its stages cost it."""
        return tuple(one.load for one in self.members if one.load is not None)

    def operator(self, operator_id: str) -> OperatorMetrics:
        """Return one operator's metrics.

        Raises:
            KeyError: the job has no such operator, or is starting: then none has reported yet.
        """
        for metrics in self.operators:
            if metrics.operator_id == operator_id:
                return metrics
        known = ", ".join(metrics.operator_id for metrics in self.operators)
        there = f"the job has {known}" if known else "the job is starting, and none has reported"
        msg = f"no operator {operator_id!r}: {there}"
        raise KeyError(msg)

    def _repr_html_(self) -> str:
        """Return tables of the operators, what joins them, and relays' links, for notebooks."""
        return f"<div>{metrics_html(self.operators, self.edges, self.relays)}</div>"

    def progress_line(self) -> str:
        """Return what the sources have read and the sinks have written; "" before they begin."""
        read = {edge.target for edge in self.edges}
        reading = {edge.source for edge in self.edges}
        parts = [
            f"{metrics.operator_id} {metrics.rows_in:,} rows read, {_short(metrics.rate_per_s)}/s"
            for metrics in self.operators
            if metrics.operator_id not in read
        ]
        parts += [
            f"{metrics.operator_id} {metrics.rows_in:,} rows"
            for metrics in self.operators
            if metrics.operator_id not in reading
        ]
        return " | ".join(parts)

    def watch_line(self) -> str:
        """Return one line that answers "why is it slow": rate, lag, busiest, back-pressured.

        Checkpoints come first: a terminal cuts the line to its width.
        Of relays only what is amiss: peers out of reach, peers with slow readers, links that verbs
        carried before, strangers.
        """
        parts = [_operator_line(metrics) for metrics in self.operators]
        for relay in self.relays:
            parts += _troubles(relay)
        for stream, rate in self.throttled.items():
            parts.append(f"stream {stream} THROTTLED to {_short(rate)} slices/s")
        if self.checkpoints is not None and parts:
            parts.insert(0, self.checkpoints.line())
        return " | ".join(parts)


def summarize(
    order: Iterable[str],
    counters: Iterable[MemberCounters],
    previous: Iterable[MemberCounters] = (),
    attempt: int = 0,
    since_ns: int | None = None,
) -> JobMetrics:
    """Put the newest counters of every member together; operators in the order of their ids given.

    Rates are against `previous`; with `since_ns` (monotonic) they are averages since then.
    """
    newest = list({each.worker: each for each in counters}.values())
    before = {each.worker: each for each in previous} if since_ns is None else {}
    by_operator: dict[str, list[Interval]] = {}
    for each in newest:
        for interval in _intervals(each, before.get(each.worker), since_ns):
            by_operator.setdefault(interval.now.operator_id, []).append(interval)
    furthest_ns = furthest_event_time_ns(one for each in newest for one in each.instances)
    relays = sorted((each for each in newest if each.host), key=lambda each: each.worker)
    return JobMetrics(
        operators=tuple(
            operator_metrics(operator_id, by_operator[operator_id], furthest_ns)
            for operator_id in order
            if operator_id in by_operator
        ),
        cpu_s=sum(each.cpu_ns for each in newest) / 1e9,
        attempt=attempt,
        relays=tuple(relay_metrics(each, before.get(each.worker), since_ns) for each in relays),
        transports=tuple(one for each in newest for one in each.transports),
        members=tuple(newest),
    )


def _intervals(
    now: MemberCounters, before: MemberCounters | None, since_ns: int | None
) -> Iterator[Interval]:
    """Yield what each instance of a worker did since earlier counters, or since `since_ns`."""
    earlier = {} if before is None else {(m.operator_id, m.instance): m for m in before.instances}
    for metrics in now.instances:
        if since_ns is not None:
            blank = InstanceMetrics(metrics.operator_id, metrics.instance, metrics.worker)
            yield Interval(metrics, blank, now.at_ns - since_ns)
            continue
        last = earlier.get((metrics.operator_id, metrics.instance))
        elapsed_ns = 0 if before is None or last is None else now.at_ns - before.at_ns
        yield Interval(metrics, last, elapsed_ns)


def _operator_line(metrics: OperatorMetrics) -> str:
    text = f"{metrics.operator_id} {_short(metrics.rate_per_s)}/s"
    if metrics.lag_ms is not None and metrics.lag_ms > 0:
        text += f" lag {describe_duration(metrics.lag_ms)}"
    if metrics.busy >= 0.01:
        text += f" busy {metrics.busy:.0%}#{metrics.busiest_instance}"
    if metrics.back_pressured >= 0.01:
        text += f" BACK-PRESSURED {metrics.back_pressured:.0%}"
    for name, parts in metrics.gauges.items():
        text += f" {_short(sum(parts.values()))} {name}"
    if metrics.waits_for_table:
        text += " WAITS FOR A TABLE"
    return text


def _troubles(relay: RelayMetrics) -> Iterator[str]:
    """Yield what is amiss with a relay's links."""
    if relay.down:
        yield f"{relay.host} CANNOT REACH {', '.join(relay.down)}"
    if relay.fell_back:
        yield f"{relay.host} → {', '.join(relay.fell_back)} FELL BACK to tcp"
    if relay.waits_for:
        yield f"{relay.host} → {', '.join(relay.waits_for)} WAITS"
    if refused := sum(relay.refused.values()):
        connections = "connection" if refused == 1 else "connections"
        yield f"{relay.host} refused {refused:,} {connections}"


def _short(value: float) -> str:
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"
