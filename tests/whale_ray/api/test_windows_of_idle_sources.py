"""Windows, joins and duplicates over a source that falls idle: they go on without it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.testing import ListSource, Pause, VirtualClock

F = whale.functions
PAUSE = Pause(1_000)
STEADY = [0, 5, 12, PAUSE, PAUSE, 21, 25, 31]
SILENT = [1, PAUSE, 2, PAUSE, 22, 31]
"""Seconds. The row of second 2 comes when the watermark has passed second 11 without its source."""


def streams(
    topology: whale.Topology, idle_after_ms: int | None = 200, on_late: Any = "pass"
) -> list[whale.Stream]:
    """Return the two sources, of which the second falls idle when it has no row for so long."""
    made = []
    for name, items in (("steady", STEADY), ("silent", SILENT)):
        rows = [item if item is PAUSE else {"t": item, "of": name} for item in items]
        made.append(
            topology.source(
                ListSource(rows, schema={"t": "int64", "of": "string"}),
                id=name,
                event_time="t",
                event_time_unit="s",
                on_late=on_late,
                idle_after_ms=idle_after_ms if name == "silent" else None,
            )
        )
    return made


def results(topology: whale.Topology) -> whale.Job:
    return whale.run(topology, clock=VirtualClock(), settings={"transport.wtl_ms": 0})


def rows_of(job: whale.Job, sink: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a sink, in the order in which they came; times as seconds."""

    def plain(value: Any) -> Any:
        return value.minute * 60 + value.second if hasattr(value, "minute") else value

    table = job.results(sink).to_arrow()
    return [tuple(plain(row[name]) for name in columns) for row in table.to_pylist()]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_windows_end_without_the_idle_source_and_its_row_is_late(parallelism: int) -> None:
    topology = whale.Topology("windows")
    steady, silent = streams(topology)
    grouped = steady.union(silent).group_by(whale.window("t", "10 seconds"), "of")
    counts = grouped.agg(F.count().alias("rows"), id="counts", parallelism=parallelism)
    counts.sink(whale.sinks.collect(), id="out")
    counts.late.sink(whale.sinks.collect(), id="late")
    job = results(topology)
    assert sorted(rows_of(job, "out", "window_start", "of", "rows")) == [
        (0, "silent", 1),
        (0, "steady", 2),
        (10, "steady", 1),
        (20, "silent", 1),
        (20, "steady", 2),
        (30, "silent", 1),
        (30, "steady", 1),
    ]
    assert rows_of(job, "late", "t", "of") == [(2, "silent")]
    assert job.metrics().operator("counts").rows_late == 1


def test_a_window_waits_for_a_source_that_may_not_be_idle() -> None:
    topology = whale.Topology("waits")
    steady, silent = streams(topology, idle_after_ms=None)
    grouped = steady.union(silent).group_by(whale.window("t", "10 seconds"))
    counts = grouped.agg(F.count().alias("rows"))
    counts.sink(whale.sinks.collect(), id="out")
    counts.late.sink(whale.sinks.collect(), id="late")
    job = results(topology)
    found = rows_of(job, "out", "window_start", "rows")
    assert found == [(0, 4), (10, 1), (20, 3), (30, 2)]
    assert rows_of(job, "late", "t") == []


def test_rows_without_a_partner_come_without_the_idle_source() -> None:
    topology = whale.Topology("joins")
    steady, silent = streams(topology)
    left = steady.select("t", whale.lit(1).alias("k"))
    right = silent.select(whale.col("t").alias("u"), whale.lit(1).alias("key"))
    joined = left.join(right, on={"k": "key"}, within=whale.interval("-3 s", "3 s"), how="left")
    joined.sink(whale.sinks.collect(), id="out")
    joined.side_output("late_right").sink(whale.sinks.collect(), id="late")
    job = results(topology)
    assert sorted(rows_of(job, "out", "t", "u"), key=str) == [
        (0, 1),
        (12, None),
        (21, 22),
        (25, 22),
        (31, 31),
        (5, None),
    ]
    assert rows_of(job, "late", "u") == [(2,)]


def test_duplicates_of_the_idle_source_are_late() -> None:
    topology = whale.Topology("once")
    steady, silent = streams(topology)
    both = steady.union(silent).select("t", whale.lit(1).alias("k"))
    once = both.drop_duplicates("k", within="4 seconds")
    once.sink(whale.sinks.collect(), id="out")
    once.late.sink(whale.sinks.collect(), id="late")
    job = results(topology)
    found = [second for (second,) in rows_of(job, "out", "t")]
    assert all(later - earlier >= 4 for earlier, later in pairwise(found))
    assert {0, 5, 12, 31} <= set(found)
    assert rows_of(job, "late", "t") == [(2,)]


def test_where_late_rows_are_dropped_nobody_gets_a_batch_without_rows() -> None:
    """The whole batch of the row of second 2 is dropped."""

    class Latest(whale.Process):
        schema = whale.Schema.of(t="int64")
        input_order = "arrival"
        takes_late_rows = True

        def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
            out.emit(whale.Batch.from_pydict({"t": [int(batch["t"].max())]}, self.schema))

    topology = whale.Topology("drops")
    steady, silent = streams(topology, on_late="drop")
    latest = steady.union(silent).global_().process(Latest, id="latest")
    latest.sink(whale.sinks.collect(), id="out")
    job = results(topology)
    assert max(rows_of(job, "out", "t")) == (31,)
    assert dict(job.metrics().operator("latest").rows_dropped) == {"late": 1}
