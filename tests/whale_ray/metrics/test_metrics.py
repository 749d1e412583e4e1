"""Counters: quantiles within a bucket's width, rates against the counters before."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.whale_ray.metrics.full_job import full_metrics
from whale_ray.metrics.counters import InstanceMetrics, LatencyHistogram, MemberCounters
from whale_ray.metrics.job_metrics import JobMetrics, summarize
from whale_ray.transport.links.statistics import LinkStatistics


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_a_quantile_is_right_within_a_bucket(latencies_ns: list[int], quantile: float) -> None:
    histogram = LatencyHistogram()
    for latency in latencies_ns:
        histogram.add(latency, 1)
    found = histogram.quantile_ms(quantile)
    exact = float(np.quantile(latencies_ns, quantile, method="inverted_cdf")) / 1e6
    assert found is not None
    assert exact / 1.05 <= found <= exact * 1.05


def test_without_rows_there_is_no_quantile() -> None:
    assert LatencyHistogram().quantile_ms(0.5) is None


def test_a_histogram_is_pickled_from_a_copy_while_its_worker_counts_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    histogram = LatencyHistogram()
    histogram.add(1_000, 2)
    find = np.flatnonzero

    def find_while_the_worker_counts(counts: np.ndarray) -> np.ndarray:
        histogram.add(5_000_000, 3)
        return find(counts)

    monkeypatch.setattr(np, "flatnonzero", find_while_the_worker_counts)
    assert pickle.loads(pickle.dumps(histogram)).rows == 2
    assert histogram.rows == 5


def test_rates_busy_and_blocked_are_shares_of_the_time_between_counters() -> None:
    def counters(at_ns: int, rows: int, busy_ns: int, blocked_ns: int) -> MemberCounters:
        instances = tuple(
            InstanceMetrics(
                "join",
                instance,
                0,
                rows_in=rows * (instance + 1),
                busy_ns=busy_ns * (instance + 1),
                blocked_ns=blocked_ns,
                watermark_ns=(10 - instance) * 1_000_000_000,
            )
            for instance in range(2)
        )
        return MemberCounters(0, at_ns, 5_000_000_000, instances)

    before, after = counters(0, 100, 0, 0), counters(10**9, 1100, 3 * 10**8, 2 * 10**8)
    metrics = summarize(["source", "join"], [after], [before]).operator("join")
    assert metrics.rows_in == 3300
    assert metrics.rate_per_s == 3000
    assert (metrics.busiest_instance, metrics.busy) == (1, 0.6)
    assert metrics.back_pressured == 0.2
    assert metrics.lag_ms == 1000
    line = summarize(["join"], [after], [before]).watch_line()
    assert line == "join 3k/s lag 1 s busy 60%#1 BACK-PRESSURED 20%"


def test_who_waits_for_a_table_is_told() -> None:
    instances = tuple(InstanceMetrics("rows", n, 0, waits_for_table=n == 1) for n in range(2))
    metrics = summarize(["rows"], [MemberCounters(0, 10**9, 0, instances)])
    assert metrics.watch_line() == "rows 0/s WAITS FOR A TABLE"


def relay(at_ns: int, waited: dict[str, int], refused: dict[str, int]) -> MemberCounters:
    """Return the counters of the relay of host-0."""
    links = tuple(
        LinkStatistics(
            host=peer,
            up=True,
            bytes_sent=0,
            bytes_received=0,
            messages_sent=0,
            messages_received=0,
            connections=1,
            duplicates=0,
            back_pressured=times,
            socket_full=0,
            rtt_ns=0,
        )
        for peer, times in waited.items()
    )
    return MemberCounters(4, at_ns, 0, links=links, refused=refused, host="host-0")


def test_an_operator_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="no operator 'x': the job is starting, and none has report"):
        JobMetrics((), 0.0, 0).operator("x")
    with pytest.raises(KeyError, match="no operator 'x': the job has trips, total, out"):
        full_metrics().operator("x")


def test_the_line_names_the_hosts_that_a_relay_waits_for_and_counts_refusals() -> None:
    before = relay(0, {"host-1": 7, "host-2": 3}, {"secret": 1})
    same = relay(10**9, {"host-1": 7, "host-2": 3}, {"secret": 1})
    after = relay(10**9, {"host-1": 7, "host-2": 4, "host-3": 1}, {"secret": 11, "silent": 1})
    assert summarize([], [same], [before]).watch_line() == "host-0 refused 1 connection"
    metrics = summarize([], [after], [before])
    assert metrics.relays[0].waits_for == ("host-2", "host-3")
    assert metrics.watch_line() == "host-0 → host-2, host-3 WAITS | host-0 refused 12 connections"
    assert summarize([], [relay(0, {"host-1": 7}, {})]).watch_line() == ""
    assert summarize([], [after], [before], since_ns=0).relays[0].waits_for == ()
