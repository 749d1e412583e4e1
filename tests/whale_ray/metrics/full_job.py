"""A job's figures in which nothing is missing: every metric of the catalogue has a series."""

from __future__ import annotations

from dataclasses import replace

from whale_ray.control.job_states import ALIVE
from whale_ray.metrics.checkpoint_metrics import CheckpointMetrics, CheckpointUnderWay
from whale_ray.metrics.counters import (
    InstanceMetrics,
    LatencyHistogram,
    MemberCounters,
    TransportMetrics,
)
from whale_ray.metrics.export.metric import JobStatus
from whale_ray.metrics.job_metrics import JobMetrics, summarize
from whale_ray.multicast.tree_state import SwitchReport
from whale_ray.multicast.trees import chain, star
from whale_ray.transport.channel import ChannelStatistics
from whale_ray.transport.links.statistics import LinkStatistics

LATENCY_NS = 20_000_000
ROWS_PER_S = 1000


def full_status(seconds: float = 10.0) -> JobStatus:
    """Return the figures of a job that has run for so long, at 1,000 rows a second."""
    return JobStatus("running", ALIVE, full_metrics(seconds))


def full_metrics(seconds: float = 10.0) -> JobMetrics:
    rows = int(ROWS_PER_S * seconds)
    before, now = _members(rows - ROWS_PER_S, seconds - 1), _members(rows, seconds)
    metrics = summarize(["trips", "total", "out"], now, before)
    return replace(
        metrics,
        switches=(SwitchReport(7, "scale-up", chain(0, [1, 2]), star(0, [1, 2]), 1, 1, 0, 10, 20),),
        throttled={7: 1234.5},
        checkpoints=CheckpointMetrics(
            *(rows // 500, rows // 5000, 3, 900, 90, 250, 1500, 12.5),
            under_way=CheckpointUnderWay(4, 2, 5, 300),
        ),
    )


def _members(rows: int, seconds: float) -> list[MemberCounters]:
    at_ns, cpu_ns = int(seconds * 1e9), int(seconds * 5e8)
    latency = LatencyHistogram()
    latency.add(LATENCY_NS, rows)
    source = InstanceMetrics(
        "trips",
        0,
        0,
        rows_in=rows,
        rows_out=rows,
        rows_dropped={"malformed": rows // 10},
        rows_late=rows // 20,
        watermark_ns=at_ns,
        gauges={"rows behind": {"trips/0": 5, "trips/1": 7}},
    )
    totals = [
        InstanceMetrics(
            "total",
            instance,
            instance // 2,
            rows_in=rows // 4,
            rows_out=rows // 8,
            side_rows_out={"late": rows // 40},
            busy_ns=at_ns // 4,
            blocked_ns=at_ns // 8,
            watermark_ns=at_ns - instance * 10**9,
            buffered_rows=10 + instance,
            spilled_bytes=4096,
            deltas_out=rows // 16,
            flushes={"full": rows // 100},
            reduction=1.5 + instance,
            is_aside=instance == 0,
        )
        for instance in range(4)
    ]
    sink = InstanceMetrics("out", 0, 1, rows_in=rows // 2, rows_out=rows // 2, latency=latency)
    own = TransportMetrics(
        *("files", 3, 0, 1, 9, rows // 50, False, at_ns // 100),
        ChannelStatistics(rows // 50, rows * 8, rows // 90, 1 << 20, (0,), 0),
        {"files": rows // 60},
    )
    return [
        MemberCounters(0, at_ns, cpu_ns, (source, *totals[:2]), transports=(own,)),
        MemberCounters(1, at_ns, cpu_ns, (*totals[2:], sink)),
        *(_relay(2 + host, at_ns, cpu_ns, rows) for host in range(2)),
    ]


def _relay(member: int, at_ns: int, cpu_ns: int, rows: int) -> MemberCounters:
    link = LinkStatistics(
        host=f"host-{3 - member}",
        up=True,
        bytes_sent=rows * 80,
        bytes_received=rows * 8,
        messages_sent=rows // 10,
        messages_received=rows // 20,
        connections=2,
        duplicates=1,
        back_pressured=rows // 30,
        socket_full=rows // 40,
        rtt_ns=150_000,
        failures={"reset": 1},
        stale=1,
        carrier="tcp",
        without_verbs_ns=at_ns,
        sent_by_carrier={"tcp": rows * 80},
        received_by_carrier={"tcp": rows * 8},
    )
    name = f"host-{member - 2}"
    return MemberCounters(
        member, at_ns, cpu_ns, links=(link,), refused={"no greeting": rows // 1000}, host=name
    )
