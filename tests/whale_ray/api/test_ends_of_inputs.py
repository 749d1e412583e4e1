"""At the end event time has come as far as on any input, whatever the timing of their ends."""

from __future__ import annotations

from itertools import product
from typing import Any

import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray import col, functions, run, state

SECOND_NS = 1_000_000_000
ROWS = 40
TABLE = pa.table(
    {
        "t": pa.array([number * 500_000 for number in range(ROWS)], pa.timestamp("us")),
        "v": range(ROWS),
        "k": [int(number >= 20) for number in range(ROWS)],
        "note": pa.nulls(ROWS, pa.string()),
    }
)


class Beats(whale.KeyedProcess):
    """Beats each second behind its last row, until the input has ended."""

    schema = whale.Schema.of(k="int64", at="int64")
    beat = state.timer()

    def on_row(self, row: Any, out: whale.Output) -> None:
        self.beat.set(out.time_ns + SECOND_NS)

    def on_timer(self, timer: Any, out: whale.Output) -> None:
        if not self.input_ended:
            out.emit_row(k=self.key.k, at=out.time_ns)
            self.beat.set(out.time_ns + SECOND_NS)


class Times(whale.Process):
    """Shows the event times of rows."""

    schema = whale.Schema.of(k="int64", at="int64")

    def on_row(self, row: Any, out: whale.Output) -> None:
        out.emit_row(k=row.k, at=out.time_ns)


def shown(job: whale.Job, sink: str) -> list[tuple[int, int]]:
    rows = job.results(sink).to_arrow().to_pylist()
    return sorted((row["k"], row["at"]) for row in rows)


@pytest.mark.parametrize(
    ("aggregation", "pipelines"),
    [("partitioned", "interpreted"), ("late_merge", "interpreted"), ("late_merge", "compiled")],
)
@pytest.mark.parametrize("batch_rows", [0, 4, 1])
def test_the_last_watermark_comes_through_an_aggregate(
    aggregation: str, pipelines: str, batch_rows: int
) -> None:
    """The last rows are left out by the filter, so no group that leaves brings the watermark."""
    topology = whale.Topology("ends")
    rows = topology.source(whale.sources.arrow(TABLE), id="rows", event_time="t")
    rows = rows.filter(col("v") < 30)
    counted = rows.group_by(whale.window("t", "7 seconds"), "k").agg(
        functions.count().alias("rows"), aggregation=aggregation
    )
    counted.key_by("k").process(Beats, id="beats").sink(whale.sinks.collect(), id="beats-out")
    whole = rows.group_by("k").agg(
        functions.count().alias("rows"), aggregation=aggregation, output_mode="append"
    )
    whole.global_().process(Times, id="times").sink(whale.sinks.collect(), id="times-out")
    settings = {"runtime.source_batch_rows": batch_rows, "runtime.pipelines": pipelines}
    job = run(topology, settings=settings)
    last_ns = (ROWS - 1) * SECOND_NS // 2
    assert shown(job, "times-out") == [(0, last_ns), (1, last_ns)]
    # A window's result is a row, too: that of the second window puts the next beat off, and before
    # that of the last window, which leaves at the end, there is time for one more.
    beats_s = {0: (*range(8, 14), *range(15, 20)), 1: range(15, 21)}
    assert shown(job, "beats-out") == [
        (key, at * SECOND_NS - 1) for key, times in beats_s.items() for at in times
    ]


@pytest.mark.parametrize("batch_rows", [0, 4, 1])
@pytest.mark.parametrize("kind", ["map", "process"])
def test_the_last_watermark_follows_rows_that_wait_for_the_type_of_a_column(
    kind: str, batch_rows: int
) -> None:
    class Noted(whale.Process):
        def on_row(self, row: Any, out: whale.Output) -> None:
            out.emit_row(k=row.k, note=None)

    topology = whale.Topology("ends")
    rows = topology.source(whale.sources.arrow(TABLE), id="rows", event_time="t")
    rows = rows.filter(col("v") < 30)
    if kind == "map":
        noted = rows.map(lambda row: {"k": row.k, "note": None})
    else:
        noted = rows.global_().process(Noted, id="noted")
    noted.key_by("k").process(Beats, id="beats").sink(whale.sinks.collect(), id="out")
    job = run(topology, settings={"runtime.source_batch_rows": batch_rows})
    half_s = SECOND_NS // 2
    assert shown(job, "out") == [
        (key, at)
        for key, last in ((0, 19), (1, 29))
        for at in range(last * half_s + SECOND_NS, 39 * half_s, SECOND_NS)
    ]


def test_of_several_sources_the_one_that_came_furthest_decides_not_the_last_to_end() -> None:
    few = pa.table({"t": pa.array([0, 10**6], pa.timestamp("us")), "k": [0, 1]})
    many = pa.table(
        {
            "t": pa.array([n * 10**6 for n in range(ROWS)], pa.timestamp("us")),
            "j": [n % 2 for n in range(ROWS)],
        }
    )
    for batch_rows, wtl_ms, parallelism in product((1, 5, 0), (0, 1), (1, 2)):
        topology = whale.Topology("ends")
        left = topology.source(whale.sources.arrow(few), id="few", event_time="t")
        right = topology.source(whale.sources.arrow(many), id="many", event_time="t")
        joined = left.select("k").join(
            right.select("j"), on={"k": "j"}, within=whale.interval("0 s", "5 s")
        )
        totals = joined.group_by("k").agg(
            functions.count().alias("rows"), output_mode="append", parallelism=parallelism
        )
        totals.global_().process(Times, id="times").sink(whale.sinks.collect(), id="out")
        settings = {"runtime.source_batch_rows": batch_rows, "transport.wtl_ms": wtl_ms}
        times = {at for _, at in shown(run(topology, settings=settings), "out")}
        assert times == {(ROWS - 1) * SECOND_NS}, settings
