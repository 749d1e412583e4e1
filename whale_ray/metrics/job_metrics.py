"""What a worker counts while it runs, and how it is put together for a whole job."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ..multicast.tree_state import (
        SwitchReport,
    )
    from ..transport.channel import ChannelStatistics
    from ..transport.links.statistics import LinkStatistics
    from .edge_metrics import EdgeMetrics

_BUCKETS_PER_OCTAVE = 16
_BUCKETS = 64 * _BUCKETS_PER_OCTAVE


class LatencyHistogram:
    """Latencies in buckets that grow by 1/16 octave, so a quantile is right within 4.4 %."""

    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(_BUCKETS, dtype=np.int64)

    def add(self, latency_ns: int, rows: int) -> None:
        """Count `rows` rows that took `latency_ns`."""
        bucket = int(np.log2(max(latency_ns, 1)) * _BUCKETS_PER_OCTAVE)
        self._counts[min(bucket, _BUCKETS - 1)] += rows

    def merge(self, other: LatencyHistogram) -> None:
        """Add another histogram's counts to this one."""
        self._counts += other._counts

    def quantile_ms(self, quantile: float) -> float | None:
        """Return the latency in ms below which `quantile` of the rows lie, or None without rows."""
        total = int(self._counts.sum())
        if total == 0:
            return None
        bucket = int(np.searchsorted(np.cumsum(self._counts), quantile * total))
        return float(2.0 ** ((bucket + 0.5) / _BUCKETS_PER_OCTAVE)) / 1e6


@dataclass
class InstanceMetrics:
    """Counters of one operator in one instance (or in one worker's group of instances).

    Attributes:
        operator_id: the operator.
        instance: the instance; for a per-worker group its lowest one.
        worker: where it runs.
        rows_in: rows received, or read by a source.
        rows_out: rows emitted.
        busy_ns: time spent in the operator's own code.
        blocked_ns: time during which a full output kept its stage from working.
        watermark_ns: the operator's event-time watermark.
        rows_dropped: rows left out by the user's choice, by reason.
        latency: for sinks, from the source's read of a slice's oldest row to its arrival here.
        buffered_rows: rows that wait for event time.
        spilled_bytes: bytes of them on disk.
    """

    operator_id: str
    instance: int
    worker: int
    rows_in: int = 0
    rows_out: int = 0
    busy_ns: int = 0
    blocked_ns: int = 0
    watermark_ns: int = -(2**63)
    rows_dropped: dict[str, int] = field(default_factory=dict)
    latency: LatencyHistogram | None = None
    buffered_rows: int = 0
    spilled_bytes: int = 0

    def drop(self, reasons: dict[str, int]) -> None:
        """Count rows left out."""
        for reason, rows in reasons.items():
            if rows:
                self.rows_dropped[reason] = self.rows_dropped.get(reason, 0) + rows


@dataclass(frozen=True)
class TransportMetrics:
    """One operator of a user's transport.

    Attributes:
        transport: the transport's name.
        edge: the edge's number.
        sender: the sender's worker; None for a receiver, which serves all senders of its edge.
        receiver: the receiver's worker.
        stream: the sender's stream; None for a receiver.
        messages: how many messages it carried, the last one included, which ends the stream.
        ended: whether that was among them; of a receiver, that of all senders.
        busy_ns: time spent in the operator's own code.
        counters: what is counted of every channel.
        own: what the operator counts itself.
    """

    transport: str
    edge: int
    sender: int | None
    receiver: int
    stream: int | None
    messages: int
    ended: bool
    busy_ns: int
    counters: ChannelStatistics
    own: Mapping[str, int]


@dataclass(frozen=True)
class WorkerSnapshot:
    """One member's counters at one moment (`at_ns` monotonic), and its processor time so far.

    A worker has instances, and operators of users' transports, if any; a relay, of the host
    `host`, has links, and connections that it refused before they said who they are, by reason.
    """

    worker: int
    at_ns: int
    cpu_ns: int
    instances: tuple[InstanceMetrics, ...] = ()
    links: tuple[LinkStatistics, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    host: str = ""
    transports: tuple[TransportMetrics, ...] = ()


@dataclass(frozen=True)
class OperatorMetrics:
    """One operator over all its instances.

    Attributes:
        rows_in, rows_out: rows so far.
        rate_per_s: rows received a second, since the previous snapshot.
        lag_ms: how far in event time the slowest instance is behind the furthest source; None
            without event time.
        busy: share of the time since the previous snapshot in the operator's own code, of its
            busiest instance.
        busiest_instance: which one that is.
        back_pressured: share of the time since the previous snapshot in which a full output kept
            its most blocked instance from working.
        rows_dropped: rows left out, by reason.
        latency_p50_ms, latency_p99_ms: for sinks; None elsewhere.
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


@dataclass(frozen=True)
class RelayMetrics:
    """A host's relay and its links.

    Attributes:
        sent_bytes_per_s: to all other hosts, since the previous snapshot.
        links: what `TcpEndpoint` counts, per peer: bytes, messages, breaks by reason, duplicates,
            waiting; and what carries the link, or why RDMA verbs do not.
        refused: connections refused before they said who they are, by reason.
        waits_for: the peers with slow readers: bytes for them had to wait since the previous
            snapshot.
    """

    host: str
    sent_bytes_per_s: float
    links: tuple[LinkStatistics, ...]
    refused: Mapping[str, int]
    waits_for: tuple[str, ...] = ()

    @property
    def down(self) -> tuple[str, ...]:
        """The peers to which no link stands."""
        return tuple(link.host for link in self.links if not link.up)

    @property
    def fell_back(self) -> tuple[str, ...]:
        """The peers to which verbs have carried a link, and TCP does now."""
        return tuple(link.host for link in self.links if link.fell_back)


@dataclass(frozen=True)
class JobMetrics:
    """All operators of a job, in the topology's order, and the processor time of its members.

    `relays` has those of all hosts, in their order; none on a single host. `switches` are the last
    switches of multicast trees. `throttled` has the streams (ring ids) whose load no out-degree can
    carry, and how much of it can be, in slices per second. `transports` has the senders and
    receivers of users' transports, `edges` what carries rows from each operator to the next.
    """

    operators: tuple[OperatorMetrics, ...]
    cpu_s: float
    attempt: int
    relays: tuple[RelayMetrics, ...] = ()
    switches: tuple[SwitchReport, ...] = ()
    throttled: Mapping[int, float] = field(default_factory=dict)
    transports: tuple[TransportMetrics, ...] = ()
    edges: tuple[EdgeMetrics, ...] = ()

    def operator(self, operator_id: str) -> OperatorMetrics:
        """Return one operator's metrics; raises KeyError for an unknown id."""
        for metrics in self.operators:
            if metrics.operator_id == operator_id:
                return metrics
        raise KeyError(operator_id)

    def _repr_html_(self) -> str:
        """Return tables of the operators, what joins them, and relays' links, for notebooks."""
        from .tables import metrics_html

        return f"<div>{metrics_html(self)}</div>"

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

        Of relays only what is amiss: peers out of reach, peers with slow readers, links that verbs
        carried before, strangers.
        """
        parts = []
        for metrics in self.operators:
            text = f"{metrics.operator_id} {_short(metrics.rate_per_s)}/s"
            if metrics.lag_ms is not None and metrics.lag_ms > 0:
                text += f" lag {_duration(metrics.lag_ms)}"
            if metrics.busy >= 0.01:
                text += f" busy {metrics.busy:.0%}#{metrics.busiest_instance}"
            if metrics.back_pressured >= 0.01:
                text += f" BACK-PRESSURED {metrics.back_pressured:.0%}"
            parts.append(text)
        for relay in self.relays:
            if relay.down:
                parts.append(f"{relay.host} CANNOT REACH {', '.join(relay.down)}")
            if relay.fell_back:
                parts.append(f"{relay.host} → {', '.join(relay.fell_back)} FELL BACK to tcp")
            if relay.waits_for:
                parts.append(f"{relay.host} → {', '.join(relay.waits_for)} WAITS")
            if refused := sum(relay.refused.values()):
                connections = "connection" if refused == 1 else "connections"
                parts.append(f"{relay.host} refused {refused:,} {connections}")
        for stream, rate in self.throttled.items():
            parts.append(f"stream {stream} THROTTLED to {_short(rate)} slices/s")
        return " | ".join(parts)


def summarize(
    order: Iterable[str],
    snapshots: Iterable[WorkerSnapshot],
    previous: Iterable[WorkerSnapshot] = (),
    attempt: int = 0,
    since_ns: int | None = None,
) -> JobMetrics:
    """Put the newest snapshot of every worker together.

    Rates are against `previous`; with `since_ns` (monotonic) they are averages since then.
    """
    now = {s.worker: s for s in snapshots}
    before = {s.worker: s for s in previous}
    old = {
        (s.worker, m.operator_id, m.instance): (m, s.at_ns)
        for s in before.values()
        for m in s.instances
    }
    by_operator: dict[str, list[tuple[InstanceMetrics, InstanceMetrics | None, float]]] = {}
    for snapshot in now.values():
        for metrics in snapshot.instances:
            last = old.get((snapshot.worker, metrics.operator_id, metrics.instance))
            if since_ns is not None:
                last = (_blank(metrics), since_ns)
            elapsed_ns = snapshot.at_ns - last[1] if last is not None else 0
            entry = (metrics, last[0] if last else None, float(elapsed_ns))
            by_operator.setdefault(metrics.operator_id, []).append(entry)
    frontier = _frontier(by_operator)
    operators = [
        _operator(operator_id, by_operator[operator_id], frontier)
        for operator_id in order
        if operator_id in by_operator
    ]
    cpu_s = sum(snapshot.cpu_ns for snapshot in now.values()) / 1e9
    relays = tuple(
        _relay(snapshot, None if since_ns is not None else before.get(snapshot.worker), since_ns)
        for snapshot in sorted(now.values(), key=lambda snapshot: snapshot.worker)
        if snapshot.host
    )
    transports = tuple(operator for snapshot in now.values() for operator in snapshot.transports)
    return JobMetrics(tuple(operators), cpu_s, attempt, relays, transports=transports)


def _relay(
    snapshot: WorkerSnapshot, last: WorkerSnapshot | None, since_ns: int | None
) -> RelayMetrics:
    began_ns = last.at_ns if last is not None else since_ns
    sent = sum(link.bytes_sent for link in snapshot.links)
    if last is not None:
        sent -= sum(link.bytes_sent for link in last.links)
    elapsed_ns = snapshot.at_ns - began_ns if began_ns is not None else 0
    rate = sent / elapsed_ns * 1e9 if elapsed_ns > 0 else 0.0
    waited = {link.host: link.back_pressured for link in last.links} if last is not None else {}
    waits_for = tuple(
        link.host
        for link in snapshot.links
        if last is not None and link.back_pressured > waited.get(link.host, 0)
    )
    return RelayMetrics(snapshot.host, rate, snapshot.links, snapshot.refused, waits_for)


def cpu_time_ns() -> int:
    """Return the processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int((usage.ru_utime + usage.ru_stime) * 1e9)


def _blank(metrics: InstanceMetrics) -> InstanceMetrics:
    """Return an instance's counters as they were before it began."""
    return InstanceMetrics(metrics.operator_id, metrics.instance, metrics.worker)


_NO_TIME = -(2**63)
_ENDED = 2**63 - 1

_Entries = list[tuple[InstanceMetrics, InstanceMetrics | None, float]]


def _frontier(by_operator: dict[str, _Entries]) -> int:
    """Return the furthest event time that any operator has reached, short of the end."""
    marks = [m.watermark_ns for entries in by_operator.values() for m, _, _ in entries]
    return max((mark for mark in marks if mark != _ENDED), default=_NO_TIME)


def _operator(operator_id: str, entries: _Entries, frontier_ns: int) -> OperatorMetrics:
    rows_in = rows_out = busy_ns = buffered = spilled = 0
    rate = 0.0
    shares: list[tuple[float, int]] = []
    blocked = 0.0
    dropped: dict[str, int] = {}
    latency = LatencyHistogram()
    for metrics, last, elapsed_ns in entries:
        rows_in += metrics.rows_in
        rows_out += metrics.rows_out
        busy_ns += metrics.busy_ns
        buffered += metrics.buffered_rows
        spilled += metrics.spilled_bytes
        for reason, rows in metrics.rows_dropped.items():
            dropped[reason] = dropped.get(reason, 0) + rows
        if metrics.latency is not None:
            latency.merge(metrics.latency)
        if last is None or elapsed_ns <= 0:
            shares.append((0.0, metrics.instance))
            continue
        rate += max(0, metrics.rows_in - last.rows_in) / elapsed_ns * 1e9
        shares.append((_share(metrics.busy_ns - last.busy_ns, elapsed_ns), metrics.instance))
        blocked = max(blocked, _share(metrics.blocked_ns - last.blocked_ns, elapsed_ns))
    busy, busiest = max(shares)
    slowest = min(metrics.watermark_ns for metrics, _, _ in entries)
    known = slowest not in (_NO_TIME, _ENDED) and frontier_ns != _NO_TIME
    return OperatorMetrics(
        operator_id=operator_id,
        instances=len(entries),
        rows_in=rows_in,
        rows_out=rows_out,
        rate_per_s=rate,
        lag_ms=(frontier_ns - slowest) / 1e6 if known else None,
        busy=busy,
        busiest_instance=busiest,
        back_pressured=blocked,
        busy_ns=busy_ns,
        rows_dropped=dropped,
        buffered_rows=buffered,
        spilled_bytes=spilled,
        latency_p50_ms=latency.quantile_ms(0.5),
        latency_p99_ms=latency.quantile_ms(0.99),
    )


def _share(part_ns: float, elapsed_ns: float) -> float:
    """Return a share of a time, 0 to 1.

    A call is charged when it ends, so more may be charged than has passed since the last look.
    """
    return min(1.0, max(0.0, part_ns / elapsed_ns))


def _short(value: float) -> str:
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def _duration(milliseconds: float) -> str:
    for limit, suffix in (
        (86_400_000.0, "d"),
        (3_600_000.0, "h"),
        (60_000.0, "min"),
        (1000.0, "s"),
    ):
        if milliseconds >= limit:
            return f"{milliseconds / limit:.3g} {suffix}"
    return f"{milliseconds:.3g} ms"
