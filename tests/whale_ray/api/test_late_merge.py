"""`aggregation=`: results are DuckDB's however they are computed; `explain` and metrics say how."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.api.test_checkpoints import checkpoints_of, until
from tests.whale_ray.user_code.gated_numbers import KEYS, GatedNumbers, kill_worker_once
from whale_ray.configs.errors import TopologyError
from whale_ray.metrics.operator_metrics import OperatorMetrics
from whale_ray.plan.late_merge import AggregationChoice, with_partial_aggregates

F = whale.functions
ROWS = 6_000
_random = np.random.default_rng(15)
BIDS = pa.table(
    {
        "moment": (np.arange(ROWS) * 7_000 - 10**7).astype("datetime64[us]"),
        "auction": pa.array(_random.integers(0, 9, ROWS), mask=_random.random(ROWS) < 0.1),
        "price": _random.integers(-50, 50, ROWS),
        "share": _random.normal(size=ROWS) * 10.0 ** _random.integers(-8, 8, ROWS),
        "name": _random.choice(["ann", "bob", "", "\U0001f40b"], ROWS),
    }
)
IN_WINDOWS = """
    (select time_bucket(interval 5 seconds, moment) - n * interval 5 seconds window_start,
        window_start + interval 10 seconds window_end, * from BIDS, (values (0), (1)) earlier(n))
"""
AGGREGATES = (
    F.count().alias("bids"),
    F.sum("price").alias("total"),
    F.avg("price").alias("mean"),
    F.min("price").alias("lowest"),
    F.max("share").alias("highest"),
    F.sum("share").alias("shares"),
    F.min("name").alias("name"),
    F.max_by("name", "share").alias("of"),
    F.count_distinct("price").alias("prices"),
    F.stddev_pop("price").alias("deviation"),
)
SQL = """
    count(*), sum(price)::bigint, avg(price), min(price), max(share), fsum(share), min(name),
    arg_max(name, share), count(distinct price), stddev_pop(price)
"""


def bids(topology: whale.Topology, **more: Any) -> whale.Stream:
    source = whale.sources.arrow(BIDS)
    return topology.source(source, id="bids", event_time="moment", **more)


def counted(way: str | None = "late_merge", parallelism: int = 2) -> whale.Topology:
    topology = whale.Topology("counting")
    rows = bids(topology, parallelism=parallelism)
    window = whale.window("moment", "10 seconds", "5 seconds")
    counts = rows.filter(whale.col("price") > -50).group_by(window, "auction")
    out = counts.agg(*AGGREGATES, id="counts", aggregation=way)
    out.sink(whale.sinks.collect(), id="out")
    return topology


def rows_of(job: whale.Job, sink: str = "out") -> list[tuple[Any, ...]]:
    return sorted((tuple(r.values()) for r in job.results(sink).to_arrow().to_pylist()), key=repr)


def check_rows(job: whale.Job) -> None:
    expected = duckdb.sql(
        f"select window_start, window_end, auction, {SQL} from {IN_WINDOWS} where price > -50"
        " group by all"
    ).fetchall()
    found = rows_of(job)
    expected = sorted(expected, key=repr)
    assert [row[:7] + row[9:12] for row in found] == [row[:7] + row[9:12] for row in expected]
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose([mine[8], mine[12]], [theirs[8], theirs[12]], rtol=1e-12)


def metrics_of(job: whale.Job, operator: str) -> OperatorMetrics:
    return next(one for one in job.metrics().operators if one.operator_id == operator)


@pytest.mark.parametrize("way", ["partitioned", "late_merge", "auto"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_result_is_that_of_sql(way: str, parallelism: int) -> None:
    check_rows(whale.run(counted(way, parallelism)))


@pytest.mark.parametrize("hosts", [1, 3])
def test_the_result_is_that_of_sql_in_processes_and_over_hosts(hosts: int) -> None:
    settings = {"runtime.hosts": hosts, "transport.checksum": True}
    job = whale.submit(counted(), on="processes", workers=3, settings=settings).wait()
    check_rows(job)


def test_metrics_tell_rows_deltas_and_what_made_them_leave() -> None:
    job = whale.run(counted(parallelism=1), settings={"runtime.source_batch_rows": 500})
    partial, merged = (metrics_of(job, name) for name in ("counts.partial", "counts"))
    slices = duckdb.sql("""
        select count(distinct (time_bucket(interval 5 seconds, moment), coalesce(auction, -1)))
        from BIDS where price > -50
    """).fetchall()[0][0]
    filtered = duckdb.sql("select count(*) from BIDS where price > -50").fetchall()[0][0]
    assert partial.rows_in == filtered
    assert slices <= partial.deltas_out == partial.rows_out == merged.rows_in < 3 * slices
    assert set(partial.flushes) <= {"window", "end", "watermark"}
    assert partial.flushes["window"] >= 8
    assert (partial.reduction, partial.instances_aside) == (None, 0)  # it never steps aside


def test_the_setting_says_it_for_all_that_do_not() -> None:
    late = {"runtime.aggregation": "late_merge"}
    assert "counts.partial" in str(counted(None).explain(settings=late))
    assert "counts.partial" not in str(counted("partitioned").explain(settings=late))
    check_rows(whale.run(counted(None), settings=late))


def test_auto_steps_aside_where_most_rows_have_a_key_of_their_own() -> None:
    topology = whale.Topology("unique")
    numbers = pa.table({"t": pa.array(range(20_000), "timestamp[us]"), "n": range(20_000)})
    rows = topology.source(whale.sources.arrow(numbers), event_time="t")
    window = rows.group_by(whale.window("t", "5 milliseconds"), "n")
    window.agg(F.count(), id="counts", aggregation="auto").sink(whale.sinks.collect(), id="out")
    job = whale.run(topology, settings={"runtime.source_batch_rows": 1_000})
    partial = metrics_of(job, "counts.partial")
    assert partial.rows_out == 20_000 and 4_000 <= partial.deltas_out <= 10_000
    assert partial.reduction == 1 and partial.instances_aside == 1
    assert {row[-1] for row in rows_of(job)} == {1} and len(rows_of(job)) == 20_000


def reasons(topology: whale.Topology, **settings: Any) -> dict[str, tuple[str, str]]:
    text = str(topology.explain(settings=settings))
    table = text.split("Aggregates by key\n")[1].split("\n\n", maxsplit=1)[0]
    cells = (re.split(r"  +", line.strip()) for line in table.splitlines()[1:])
    return {row[0]: (row[-2], row[-1]) for row in cells}


def test_explain_says_why_rows_are_partitioned() -> None:
    topology = whale.Topology("reasons")
    rows = bids(topology, on_late="pass", idle_after_ms=5)
    steady = topology.source(whale.sources.arrow(BIDS), id="steady", event_time="moment")
    window = whale.window("moment", "10 seconds")
    streams = {
        "idle": rows.group_by(window, "auction").agg(F.count(), id="idle"),
        "counted": steady.group_by(whale.count_window(3), "auction").agg(F.count(), id="counted"),
        "session": steady.group_by(whale.session_window("moment", "1 second"), "auction").agg(
            F.count(), id="session"
        ),
        "clock": steady.group_by(whale.window(whale.processing_time(), "1 second"), "auction").agg(
            F.count(), id="clock"
        ),
        "ordered": steady.group_by(window, "auction").agg(F.first("price"), id="ordered"),
        "united": steady.filter(whale.col("price") > 0)
        .union(steady.filter(whale.col("price") <= 0))
        .group_by(window, "auction")
        .agg(F.count(), id="united"),
        "updates": steady.group_by("auction").agg(F.count(), id="updates"),
        "rare": steady.group_by("auction").agg(F.count(), id="rare", trigger="1 second"),
        "merged": steady.group_by(window, "auction").agg(F.count(), id="merged"),
        "joined": rows.select("auction").join(
            steady, on="auction", within=whale.window("10 seconds"), id="joined"
        ),
    }
    for name, stream in streams.items():
        stream.sink(whale.sinks.collect(), id=f"{name}-out")
    aside = "steps aside where a delta stands for less than 2 rows"
    assert reasons(topology) == {
        "idle": (
            "partitioned",
            "which rows come too late after their source was idle is told row by row",
        ),
        "counted": (
            "partitioned",
            "a count window takes the rows of a key in the order in which they come",
        ),
        "session": ("partitioned", "where a session ends depends on single rows"),
        "clock": ("partitioned", "rows count when they come"),
        "ordered": ("partitioned", "first depends on the order of rows"),
        "united": ("partitioned", "it reads a union"),
        "updates": (
            "partitioned",
            "changed rows are emitted after each batch; a trigger allows late merge",
        ),
        "rare": ("late_merge", aside),
        "merged": ("late_merge", aside),
        "joined": ("partitioned", "rows of both sides must meet"),
    }
    short = reasons(topology, **{"runtime.state_bytes": 40 << 20})
    assert short["rare"] == ("late_merge", aside)
    assert short["merged"] == (
        "partitioned",
        "its partial aggregates need 16 MiB in each worker, and half of runtime.state_bytes"
        " (40 MiB) has 4 MiB left",
    )


def test_by_default_it_is_chosen_where_no_result_differs_by_a_bit() -> None:
    topology = whale.Topology("unasked")
    rows = bids(topology)
    by_row = rows.map(lambda row: {"moment": row.moment, "auction": 1}, id="by-row")
    window = whale.window("moment", "10 seconds")
    for name, stream, aggregate in (
        ("whole", rows, F.avg("price")),
        ("least", rows, F.min("share")),
        ("floats", rows, F.sum("share")),
        ("spread", rows, F.stddev_pop("price")),
        ("texts", rows, F.max("name")),
        ("different", rows, F.count_distinct("price")),
        ("unknown", by_row, F.count()),
    ):
        counts = stream.group_by(window, "auction").agg(aggregate, id=name)
        counts.sink(whale.sinks.collect(), id=f"{name}-out")
    aside = ("late_merge", "steps aside where a delta stands for less than 2 rows")
    digits = "the last digits of {} would depend on when deltas leave"
    assert reasons(topology) == {
        "whole": aside,
        "least": aside,
        "floats": ("partitioned", digits.format("sum(share)")),
        "spread": ("partitioned", digits.format("stddev_pop(price)")),
        "texts": ("partitioned", "max(name) keeps values of any size"),
        "different": ("partitioned", "count_distinct(price) keeps values of any size"),
        "unknown": ("partitioned", "its columns are known when rows come"),
    }


def test_groups_stay_while_windows_are_open_unless_a_source_may_be_idle() -> None:
    topology = whale.Topology("open")
    window = whale.window("moment", "10 seconds")
    for name, idle_after_ms in (("steady", None), ("idle", 5)):
        source = whale.sources.arrow(BIDS)
        rows = topology.source(source, id=name, event_time="moment", idle_after_ms=idle_after_ms)
        counts = rows.group_by(window, "auction").agg(F.count(), id=f"{name}-counts")
        counts.sink(whale.sinks.collect(), id=f"{name}-out")
    choices = tuple(
        AggregationChoice(f"{name}-counts", "auto", "late_merge", "") for name in ("steady", "idle")
    )
    plan = with_partial_aggregates(topology.logical_plan(), choices)
    payloads = {node.id: node.payload for node in plan.nodes}
    assert payloads["steady-counts.partial"].keeps_open
    assert not payloads["idle-counts.partial"].keeps_open


def test_every_row_is_counted_or_late() -> None:
    topology = whale.Topology("late")
    shuffled = BIDS.take(np.argsort(np.arange(ROWS) + _random.integers(0, 600, ROWS)))
    rows = topology.source(
        whale.sources.arrow(shuffled), id="bids", event_time="moment", on_late="pass"
    )
    counts = rows.group_by(whale.window("moment", "1 second"), "auction").agg(
        F.count().alias("bids"),
        id="counts",
        allowed_lateness="500 milliseconds",
        aggregation="late_merge",
    )
    counts.sink(whale.sinks.collect(), id="out")
    counts.late.sink(whale.sinks.collect(), id="late")
    job = whale.run(topology, settings={"runtime.source_batch_rows": 100, "transport.wtl_ms": 0})
    results = job.results("out").to_arrow().to_pylist()
    newest = {tuple(row.values())[:3]: row["bids"] for row in results}
    late = rows_of(job, "late")
    assert len(late) + sum(newest.values()) == ROWS
    assert late and set(late) <= {tuple(row.values()) for row in BIDS.to_pylist()}


def test_without_a_key_there_is_one_instance_and_the_rest_happens_before() -> None:
    topology = whale.Topology("highest")
    rows = bids(topology, parallelism=2)
    highest = rows.group_by(whale.window("moment", "1 second"))
    highest.agg(F.max("price").alias("most"), id="most", aggregation="late_merge").sink(
        whale.sinks.collect(), id="out"
    )
    job = whale.run(topology)
    expected = duckdb.sql("""
        select time_bucket(interval 1 second, moment) s, s + interval 1 second, max(price)
        from BIDS group by all
    """).fetchall()
    assert rows_of(job) == sorted(expected, key=repr)
    assert metrics_of(job, "most").rows_in < ROWS / 20


def numbers(folder: Path, way: str, parallelism: int, *, kill_at: int = -1) -> whale.Topology:
    """Return a job that adds numbers by key; from 1,000 on it waits for the file `go`."""
    topology = whale.Topology("numbers")
    rows = topology.source(GatedNumbers(3_000, 1_000, folder / "go"), id="numbers", parallelism=2)
    if kill_at >= 0:
        rows = rows.map(
            lambda row: {**row, "number": kill_worker_once(row.number, kill_at, folder / "killed")},
            id="killer",
        )
    counts = rows.group_by("key").agg(
        F.count().alias("rows"),
        F.sum("number").alias("sum"),
        F.count_distinct("number").alias("different"),
        id="counts",
        output_mode="append",
        aggregation=way,
        parallelism=parallelism,
    )
    counts.sink(whale.sinks.parquet(folder / "out"), id="out")
    return topology


def sums(folder: Path) -> list[tuple[Any, ...]]:
    return sorted(zip(*pq.read_table(folder / "out").to_pydict().values(), strict=True))


SUMS = [(key, 600, sum(range(key, 3_000, KEYS)), 600) for key in range(KEYS)]
OFTEN: dict[str, Any] = {"checkpoint_interval": "50 milliseconds"}


def test_a_job_goes_on_from_a_savepoint_with_other_parallelism_and_the_other_way(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    first = numbers(tmp_path, "late_merge", 2)
    job = whale.submit(first, on="processes", workers=2, checkpoints=state, **OFTEN)
    until(lambda: checkpoints_of(job) >= 2, "there are no checkpoints")
    job.stop(savepoint=True)
    (tmp_path / "go").touch()
    second = numbers(tmp_path, "partitioned", 3)
    job = whale.submit(
        second, on="processes", workers=2, checkpoints=state, restore="latest", **OFTEN
    )
    job.wait()
    assert sums(tmp_path) == SUMS


def test_a_job_that_loses_a_worker_counts_each_row_once(tmp_path: Path, no_leaks: None) -> None:
    (tmp_path / "go").touch()
    killed = numbers(tmp_path, "late_merge", 2, kill_at=1_500)
    state = tmp_path / "state"
    job = whale.submit(killed, on="processes", workers=2, checkpoints=state, **OFTEN)
    job.wait()
    assert sums(tmp_path) == SUMS
    assert (tmp_path / "killed").exists()


def test_another_word_is_refused() -> None:
    with pytest.raises(TopologyError, match="aggregation is 'late': pass aggregation='auto' or"):
        counted("late")
