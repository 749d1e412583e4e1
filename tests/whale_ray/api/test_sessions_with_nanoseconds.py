"""Sessions of event times with nanoseconds, whose bounds are in microseconds, grouped by these."""

from __future__ import annotations

import pyarrow as pa
import pytest

import whale_ray as whale

F = whale.functions


@pytest.mark.parametrize("batch_rows", [1, 100])
def test_sessions_that_end_in_one_microsecond_are_one_group_though_times_have_ns(
    batch_rows: int,
) -> None:
    """The watermark stops between the ends of both, within the microsecond."""
    second = 10**9
    at_ns = [40 * second + 1, 40 * second + 700, 45 * second + 300, 90 * second]
    times = pa.array(at_ns, pa.int64()).cast(pa.timestamp("ns"))
    topology = whale.Topology("ns")
    rows = topology.source(
        whale.sources.arrow(pa.table({"at": times, "key": ["a", "b", "c", "c"]})),
        id="rows",
        event_time="at",
    )
    sessions = rows.group_by(whale.session_window("at", "5 seconds"), "key").agg(F.count())
    joined = rows.join(
        rows.select(whale.col("key").alias("other")),
        on={"key": "other"},
        within=whale.session_window("5 seconds"),
    )
    for name, stream in (("aggregated", sessions), ("joined", joined)):
        groups = stream.group_by("window_start", "window_end").agg(F.count().alias("n"))
        groups.sink(whale.sinks.collect(), id=name)
        groups.late.sink(whale.sinks.collect(), id=f"{name}-late")
    settings = {"runtime.source_batch_rows": batch_rows, "transport.wtl_ms": 0}
    job = whale.run(topology, settings=settings)
    for name in ("aggregated", "joined"):
        assert [row["n"] for row in job.results(name).preview()] == [2, 1, 1]
        assert job.results(f"{name}-late").rows == 0
    ends = job.results("aggregated").to_arrow()["window_end"].cast(pa.int64()).to_pylist()
    assert ends == [45_000_001, 50_000_001, 95_000_000]  # rounded up
