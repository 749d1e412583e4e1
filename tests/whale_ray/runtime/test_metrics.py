"""Counters: quantiles within a bucket's width, rates against the snapshot before."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.runtime.metrics import (
    InstanceMetrics,
    LatencyHistogram,
    WorkerSnapshot,
    summarize,
)


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


def test_rates_busy_and_blocked_are_shares_of_the_time_between_snapshots() -> None:
    def snapshot(at_ns: int, rows: int, busy_ns: int, blocked_ns: int) -> WorkerSnapshot:
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
        return WorkerSnapshot(0, at_ns, 5_000_000_000, instances)

    before, after = snapshot(0, 100, 0, 0), snapshot(10**9, 1100, 3 * 10**8, 2 * 10**8)
    metrics = summarize(["source", "join"], [after], [before]).operator("join")
    assert metrics.rows_in == 3300
    assert metrics.rate_per_s == 3000
    assert (metrics.busiest_instance, metrics.busy) == (1, 0.6)
    assert metrics.back_pressured == 0.2
    assert metrics.lag_ms == 1000
    line = summarize(["join"], [after], [before]).watch_line()
    assert line == "join 3k/s lag 1 s busy 60%#1 BACK-PRESSURED 20%"
