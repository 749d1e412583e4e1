"""`group_by(…).agg(…)`: the same result however it runs, what `explain` shows, and mistakes."""

from __future__ import annotations

import datetime
import re
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray.configs.errors import TopologyError, UsageError

F = whale.functions
START = datetime.datetime.fromisoformat("1969-12-31T23:58:00")
BIDS = pa.table(
    {
        "moment": [START + datetime.timedelta(seconds=at * 0.7) for at in range(400)],
        "auction": [None if at % 11 == 0 else (at * at) % 7 for at in range(400)],
        "price": [at * 37 % 101 - 50 for at in range(400)],
    }
)
HOPPING = """
    select time_bucket(interval 5 seconds, moment) - n * interval 5 seconds window_start,
        window_start + interval 10 seconds window_end,
        auction, count(*) bids, max(price) highest
    from BIDS, (values (0), (1)) earlier(n) group by all
"""


def bids(topology: whale.Topology, **more: Any) -> whale.Stream:
    return topology.source(whale.sources.arrow(BIDS), id="bids", event_time="moment", **more)


def rows_of(job: whale.Job, sink: str = "out") -> list[tuple[Any, ...]]:
    return sorted((tuple(r.values()) for r in job.results(sink).to_arrow().to_pylist()), key=repr)


def counted(parallelism: int) -> whale.Topology:
    topology = whale.Topology("counting")
    counts = bids(topology).group_by(whale.window("moment", "10 seconds", "5 seconds"), "auction")
    out = counts.agg(
        F.count().alias("bids"), F.max("price").alias("highest"), parallelism=parallelism
    )
    out.sink(whale.sinks.collect(), id="out")
    return topology


@pytest.mark.parametrize("parallelism", [1, 3, 7])
def test_hopping_windows_are_those_of_sql_at_any_parallelism(parallelism: int) -> None:
    expected = sorted(duckdb.sql(HOPPING).fetchall(), key=repr)
    assert rows_of(whale.run(counted(parallelism))) == expected


@pytest.mark.long
def test_the_result_is_the_same_in_processes() -> None:
    job = whale.submit(counted(3), on="processes", workers=2)
    job.wait()
    assert rows_of(job) == rows_of(whale.run(counted(1)))


def test_results_are_grouped_by_their_windows() -> None:
    topology = whale.Topology("most")
    counts = bids(topology).group_by(whale.window("moment", "10 seconds", "5 seconds"), "auction")
    most = counts.agg(F.count().alias("bids"), id="counts").group_by("window_start", "window_end")
    most.agg(F.max("bids").alias("most"), F.count()).sink(whale.sinks.collect(), id="out")
    expected = duckdb.sql(
        f"select window_start, window_end, max(bids), count(*) from ({HOPPING}) group by all"
    )
    assert rows_of(whale.run(topology)) == sorted(expected.fetchall(), key=repr)


@pytest.mark.parametrize("with_ties", [False, True])
def test_the_top_rows_of_each_window(with_ties: bool) -> None:
    topology = whale.Topology("top")
    counts = bids(topology).group_by(whale.window("moment", "10 seconds", "5 seconds"), "auction")
    most = counts.agg(F.count().alias("bids")).group_by("window_start", "window_end")
    most.top_n(2, by="bids", with_ties=with_ties).sink(whale.sinks.collect(), id="out")
    kept = r"top-n-1 +rows +rows that may be .* 2 +by virtual node\n"
    assert re.search(kept, str(topology.explain()))
    ranked = "rank" if with_ties else "row_number"
    expected = duckdb.sql(f"""
        select * exclude (highest) from ({HOPPING}) qualify {ranked}()
            over (partition by window_start order by bids desc) <= 2
    """).fetchall()
    found = rows_of(whale.run(topology))
    # Which of the auctions with the same number of bids come is open without ties.
    assert sorted(row[:2] + row[3:] for row in found) == sorted(r[:2] + r[3:] for r in expected)
    if with_ties:
        assert found == sorted(expected, key=repr)


def test_the_top_rows_by_halves() -> None:
    halves = np.array([1, np.nan, 0, -0.0, 2], np.float16)
    topology = whale.Topology("top")
    source = topology.source(whale.sources.arrow(pa.table({"key": [1] * 5, "half": halves})))
    source.group_by("key").top_n(3, by="half").sink(whale.sinks.collect(), id="out")
    found = whale.run(topology).results("out").to_arrow()["half"].to_numpy()
    np.testing.assert_array_equal(found, [np.nan, 2, 1])


def test_uint64_is_cast_before_it_is_added() -> None:
    topology = whale.Topology("large")
    source = topology.source(whale.sources.arrow(pa.table({"n": pa.array([2**64 - 1], "uint64")})))
    with pytest.raises(
        TopologyError, match=r"uint64: sum takes integers up to 63 bits, .* cast it"
    ):
        source.group_by("n").agg(F.sum("n"))
    exact = source.group_by("n").agg(F.sum(whale.col("n").cast("decimal(20, 0)")).alias("sum"))
    exact.sink(whale.sinks.collect(), id="out")
    assert rows_of(whale.run(topology)) == [(2**64 - 1, 2**64 - 1)]


def test_the_top_rows_of_time_windows_and_of_keys() -> None:
    topology = whale.Topology("top")
    rows = bids(topology)
    rows.group_by(whale.window("moment", "10 seconds", "5 seconds"), "auction").top_n(
        1, by="price"
    ).sink(whale.sinks.collect(), id="windows")
    rows.group_by("auction").top_n(3, by="price", with_ties=True).sink(
        whale.sinks.collect(), id="keys"
    )
    job = whale.run(topology)
    best = duckdb.sql(f"select window_start, window_end, auction, highest from ({HOPPING})")
    found = [(row[0], row[1], row[3], row[4]) for row in rows_of(job, "windows")]
    assert sorted(found, key=repr) == sorted(best.fetchall(), key=repr)
    top = duckdb.sql("""
        select * from BIDS qualify rank() over (partition by auction order by price desc) <= 3
    """)
    assert rows_of(job, "keys") == sorted(top.fetchall(), key=repr)


def test_sessions_are_those_of_sql() -> None:
    topology = whale.Topology("sessions")
    sessions = bids(topology).group_by(whale.session_window("moment", "4 seconds"), "auction")
    sessions.agg(F.count(), F.sum("price")).sink(whale.sinks.collect(), id="out")
    expected = duckdb.sql("""
        with marked as (select *,
                          coalesce(moment - lag(moment) over key > interval 4 seconds, true) begins
                        from BIDS window key as (partition by auction order by moment)),
        numbered as (select *, count_if(begins) over (partition by auction order by moment) number
                     from marked)
        select min(moment), max(moment) + interval 4 seconds, auction, count(*), sum(price)::bigint
        from numbered group by auction, number
    """)
    assert rows_of(whale.run(topology)) == sorted(expected.fetchall(), key=repr)


def test_every_third_row_of_a_key_makes_a_result() -> None:
    topology = whale.Topology("thirds")
    thirds = bids(topology).group_by(whale.count_window(3), "auction")
    thirds.agg(F.sum("price"), F.max("moment")).sink(whale.sinks.collect(), id="out")
    expected = duckdb.sql("""
        with numbered as (select *, row_number() over (partition by auction order by moment) - 1 n
                          from BIDS)
        select auction, sum(price)::bigint, max(moment) from numbered
        group by auction, n // 3 having count(*) = 3
    """)
    assert rows_of(whale.run(topology)) == sorted(expected.fetchall(), key=repr)


def test_groups_without_a_window_or_event_times() -> None:
    topology = whale.Topology("totals")
    rows = topology.source(whale.sources.arrow(BIDS.drop_columns(["moment"])))
    rows.group_by("auction").agg(F.sum("price"), output_mode="append").sink(
        whale.sinks.collect(), id="out"
    )
    updates = rows.group_by("auction").agg(F.sum("price").alias("sum"), id="updates")
    updates.sink(whale.sinks.collect(), id="changes")
    job = whale.run(topology)
    expected = duckdb.sql("select auction, sum(price)::bigint from BIDS group by all").fetchall()
    assert rows_of(job) == sorted(expected, key=repr)
    assert set(expected) <= set(rows_of(job, "changes"))


def test_a_column_may_have_the_empty_name_as_everywhere_else() -> None:
    """As the index has that pandas writes to a file of CSV."""
    topology = whale.Topology("unnamed")
    rows = [{"": 1, "n": 2}, {"": 2, "n": 3}, {"": 1, "n": 4}]
    source = topology.source(whale.sources.iterable(rows), id="rows")
    sums = source.group_by("").agg(F.sum("n").alias("m"))
    table = whale.sources.iterable([{"": 1, "x": 5}, {"": 2, "x": 6}])
    sums.join_table(table, on="").sink(whale.sinks.collect(), id="out")
    found = whale.run(topology).results("out").to_arrow().to_pylist()
    assert sorted(found, key=lambda row: row["m"]) == [
        {"": 2, "m": 3, "x": 6},
        {"": 1, "m": 6, "x": 5},
    ]


def test_an_output_without_rows_has_its_columns() -> None:
    topology = whale.Topology("nothing")
    none = bids(topology).filter(whale.col("price") > 1000)
    counts = none.group_by(whale.window("moment", "10 seconds"), "auction").agg(F.avg("price"))
    counts.sink(whale.sinks.collect(), id="out")
    assert whale.run(topology).results("out").to_arrow().schema.types == [
        *(pa.timestamp("us"), pa.timestamp("us"), pa.int64(), pa.float64())
    ]


def test_a_geometric_mean_of_the_users_own() -> None:
    import numpy as np

    class GeometricMean(whale.AggregateFunction):
        state = {"logarithms": "float64", "count": "int64"}  # noqa: RUF012 - as users write it
        output = "float64"

        def update(self, state, groups, values):
            np.add.at(state["logarithms"], groups, np.log(values))
            np.add.at(state["count"], groups, 1)

        def merge(self, state, other):
            state["logarithms"] += other["logarithms"]
            state["count"] += other["count"]

        def finish(self, state):
            return np.exp(state["logarithms"] / state["count"])

    topology = whale.Topology("means")
    rows = bids(topology).with_column("price", whale.col("price") + 51)
    means = rows.group_by(whale.window("moment", "10 seconds", "3 seconds"), "auction")
    means.agg(GeometricMean()("price").alias("mean")).sink(whale.sinks.collect(), id="out")
    found = {row[:3]: row[3] for row in rows_of(whale.run(topology))}
    expected = duckdb.sql("""
        select time_bucket(interval 3 seconds, moment) - n * interval 3 seconds window_start,
            window_start + interval 10 seconds window_end, auction, exp(avg(ln(price + 51)))
        from BIDS, (values (0), (1), (2), (3)) earlier(n)
        where window_end > moment group by all
    """)
    assert found == {row[:3]: pytest.approx(row[3]) for row in expected.fetchall()}


def test_explain_shows_window_aggregates_and_state() -> None:
    shown = str(counted(2).explain())
    assert "hopping window of 10 seconds every 5 seconds, by slices" in shown
    assert "count(*) AS bids, max(price) AS highest" in shown
    assert "State: up to 1 GiB in each worker (runtime.state_bytes), then 4 GiB on disk" in shown
    assert re.search(
        r"agg-1 +declared +count\(\*\) AS bids, max\(price\) AS highest +by virtual node\n", shown
    )
    assert "arrival: it takes rows in any order; late rows, too" in shown


TEN = whale.window("moment", "10 seconds")
CLOCK = whale.window(whale.processing_time(), "1 second")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.group_by(TEN, "auktion"), "did you mean 'auction'"),
        (lambda s: s.group_by(), "group_by needs a column or a window"),
        (lambda s: s.group_by(TEN, TEN), "one window, not several"),
        (lambda s: s.group_by("price", "price"), "'price' twice"),
        (lambda s: s.group_by(3), "takes column names and a window, not 3"),
        (lambda s: s.group_by(whale.col("price") + 1), "compute it before"),
        (lambda s: s.group_by(whale.window("price", "1 second")), "the event time of these rows"),
        (lambda s: s.group_by(TEN).agg(), "agg needs an aggregate"),
        (lambda s: s.group_by(TEN).agg(whale.col("price")), "takes aggregates of whale.functions"),
        (lambda s: s.with_column("x", F.count()), "and count(*) is an aggregate: compute it of"),
        (lambda s: s.select(F.max("price")), "and max(price) is an aggregate: compute it of"),
        (lambda s: s.group_by(TEN).agg(F.sum("prize")), "did you mean 'price'"),
        (lambda s: s.group_by(TEN).agg(F.sum("moment")), "takes integers, floats and decimals"),
        (
            lambda s: s.group_by(TEN).agg(F.count(), parallelism=3),
            "group_by sends every row to one",
        ),
        (lambda s: s.group_by("price").agg(F.sum("moment").alias("price")), "column 'price' twice"),
        (lambda s: s.group_by(TEN).agg(F.count().alias("window_end")), "the window makes a column"),
        (lambda s: s.group_by(TEN).agg(F.count(), output_mode="complete"), "output_mode"),
        (lambda s: s.group_by(TEN).agg(F.count(), trigger="1 second"), "trigger has no effect"),
        (lambda s: s.group_by(TEN).agg(F.count(), allowed_lateness=-1), "not be negative"),
        (
            lambda s: s.group_by("price").agg(F.count(), allowed_lateness="1 second"),
            "allowed_lateness has no effect",
        ),
        (
            lambda s: s.group_by(CLOCK).agg(F.count(), allowed_lateness=1),
            "allowed_lateness has no effect on windows of processing time: no row is late",
        ),
        (
            lambda s: s.group_by(CLOCK).top_n(1, by="price"),
            "top_n takes windows of one length in event time, not a tumbling window of 1 second",
        ),
        (
            lambda s: s.group_by(whale.session_window(whale.processing_time(), 1)),
            "session_window takes the name of the event-time column first",
        ),
        (lambda s: whale.window(whale.processing_time()), "window: size is None"),
        (
            lambda s: s.group_by(whale.count_window(3)).agg(F.count(), output_mode="update"),
            "has no row before it is full",
        ),
    ],
)
def test_a_mistake_is_told_while_building(build: Any, message: str) -> None:
    stream = bids(whale.Topology("wrong"))
    with pytest.raises(TopologyError, match=re.escape(message)) as raised:
        build(stream)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: whale.window("moment", "10 parsecs"), "'parsecs' is no unit"),
        (lambda: whale.window("moment", "1 month"), "months and years differ in length"),
        (lambda: whale.window("moment", "soon"), "write a number and a unit"),
        (lambda: whale.window("moment", 0), "it must be longer than nothing"),
        (lambda: whale.window("moment", "1 second", "2 seconds"), "is larger than the size"),
        (lambda: whale.window("moment", "1 day", "10 us"), "each row would be in 8,640,000,000 w"),
        (lambda: F.sum("price") / F.count(), "sum(price) is an aggregate, which is no part of"),
        (lambda: 1 - F.avg("price"), "avg(price) is an aggregate, which is no part of"),
        (lambda: F.max("price") > 1, "compute with whale.col('total') after that"),
        (lambda: whale.window("moment", 0.0001), "the finest duration is a microsecond"),
        (lambda: whale.window(10, "1 second"), "takes the name of the event-time column first"),
        (lambda: whale.session_window("moment", "-1 second"), "gap is '-1 second'"),
        (lambda: whale.count_window(0), "a number of rows from 1 to 2^63 - 1, not 0"),
        (lambda: whale.count_window(1 << 63), "a number of rows from 1 to 2^63 - 1"),
        (lambda: F.approx_count_distinct("moment", 2), "takes rsd from"),
        (lambda: F.percentile_approx("moment", 2), "a percentage from 0 to 1"),
        (lambda: F.collect_list("moment", 0), "a limit of 1 or more"),
        (lambda: F.first("moment", "yes"), "pass True or False"),
    ],
)
def test_a_window_or_aggregate_that_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        make()


def test_a_window_needs_event_times() -> None:
    rows = whale.Topology("wrong").source(whale.sources.arrow(BIDS), id="bids")
    with pytest.raises(TopologyError, match="which source 'bids' does not give"):
        rows.group_by(TEN)


def test_a_method_of_streams_is_not_one_of_groups() -> None:
    grouped: Any = bids(whale.Topology("wrong")).group_by("price")
    with pytest.raises(AttributeError, match="aggregate them"):
        grouped.filter(whale.col("price") > 1)


@pytest.mark.parametrize("lateness", [0, "5 seconds"])
def test_late_rows_leave_by_their_own_output_or_update_the_result(lateness: Any) -> None:
    topology = whale.Topology("late")
    rows = [{"moment": second, "auction": 1} for second in (1, 2, 12, 3)]
    stream = topology.source(
        whale.testing.ListSource(rows, batch_rows=1),
        event_time="moment",
        event_time_unit="s",
        on_late="pass",
    )
    counts = stream.group_by(TEN, "auction").agg(F.count(), allowed_lateness=lateness)
    counts.sink(whale.sinks.collect(), id="out")
    counts.late.sink(whale.sinks.collect(), id="late")
    job = whale.run(topology, settings={"transport.wtl_ms": 0})
    counted = [row[3] for row in job.results("out").to_arrow().to_pandas().itertuples(index=False)]
    late = [row["moment"] for row in job.results("late").to_arrow().to_pylist()]
    assert (counted, late) == (([2, 1], [3]) if lateness == 0 else ([2, 3, 1], []))


def test_changed_rows_come_at_most_every_trigger() -> None:
    topology = whale.Topology("changes")
    pause = whale.testing.Pause(150)
    rows = [{"key": 1}, {"key": 1}, pause, {"key": 1}, {"key": 2}, {"key": 1}, pause, {"key": 1}]
    stream = topology.source(whale.testing.ListSource(rows, batch_rows=1))
    counts = stream.group_by("key").agg(F.count().alias("rows"), trigger="100 milliseconds")
    counts.sink(whale.sinks.collect(), id="out")
    clock = whale.testing.VirtualClock()
    job = whale.run(topology, clock=clock, settings={"transport.wtl_ms": 0})
    found = [(row["key"], row["rows"]) for row in job.results("out").to_arrow().to_pylist()]
    assert found == [(1, 2), (1, 4), (2, 1), (1, 5)]


NO_ROOM = {"runtime.state_bytes": 1 << 20, "runtime.spill_bytes_max": 0}


@pytest.mark.parametrize("aggregate", [F.count(), F.count_distinct("n")], ids=str)
def test_state_beyond_its_budget_names_operator_and_setting(aggregate: Any) -> None:
    topology = whale.Topology("full")
    rows = pa.table({"n": range(100_000), "one": [1] * 100_000})
    stream = topology.source(whale.sources.arrow(rows), id="rows")
    key = "n" if aggregate.output_name == "count(*)" else "one"
    stream.group_by(key).agg(aggregate, id="counts", output_mode="append").sink(
        whale.sinks.collect(), id="out"
    )
    said = "'counts'.*runtime.state_bytes.* or group within windows"
    with pytest.raises(whale.errors.StateFullError, match=said):
        whale.run(topology, settings=NO_ROOM)


def test_state_beyond_its_memory_spills_and_is_right() -> None:
    topology = whale.Topology("spilling")
    numbers = np.random.default_rng(3).permutation(np.repeat(np.arange(100_000), 3))
    stream = topology.source(whale.sources.arrow(pa.table({"n": numbers})), id="rows")
    stream.group_by("n").agg(F.count().alias("times"), id="counts", output_mode="append").sink(
        whale.sinks.collect(), id="out"
    )
    with pytest.raises(whale.errors.StateFullError):
        whale.run(topology, settings=NO_ROOM)
    job = whale.run(topology, settings={"runtime.state_bytes": 1 << 20})
    out = job.results("out").to_arrow()
    assert sorted(out["n"].to_pylist()) == list(range(100_000))
    assert set(out["times"].to_pylist()) == {3}


@pytest.mark.parametrize(
    ("window", "remedy"),
    [
        (whale.window("at", "1 day"), "take a shorter window, or less allowed_lateness"),
        (whale.session_window("at", "1 day"), "take a shorter gap, or less allowed_lateness"),
    ],
    ids=["window", "session"],
)
def test_state_beyond_its_budget_says_how_an_operator_can_keep_less(
    window: Any, remedy: str
) -> None:
    topology = whale.Topology("full")
    rows = pa.table({"n": range(50_000), "at": pa.array(range(50_000), pa.timestamp("us"))})
    stream = topology.source(whale.sources.arrow(rows), id="rows", event_time="at")
    counts = stream.group_by(window, "n").agg(F.count(), id="counts")
    counts.sink(whale.sinks.collect(), id="out")
    with pytest.raises(whale.errors.StateFullError) as raised:
        whale.run(topology, settings=NO_ROOM)
    assert str(raised.value).startswith("operator 'counts': its state of ")
    assert str(raised.value).endswith(f"run more workers, or {remedy}")


@pytest.mark.parametrize(
    ("kind", "turn"),
    [("string", str), ("date32", datetime.datetime.date), ("int64", datetime.datetime.toordinal)],
)
@pytest.mark.parametrize("grouped", ["agg", "top_n"])
def test_an_end_of_windows_that_a_function_turned_into_another_type_is_refused(
    kind: str, turn: Any, grouped: str
) -> None:
    topology = whale.Topology("turned")
    rows = pa.table({"n": range(10), "at": pa.array(range(10), pa.timestamp("us"))})
    stream = topology.source(whale.sources.arrow(rows), id="rows", event_time="at")
    counts = stream.group_by(whale.window("at", "1 second"), "n").agg(F.count().alias("c"), id="c")
    turned = counts.map(lambda row: {**row, "window_end": turn(row.window_end)})
    groups = turned.group_by("window_start", "window_end")
    if grouped == "agg":
        result = groups.agg(F.sum("c"), id="g")
    else:
        result = groups.top_n(1, by="c", id="g")
    result.sink(whale.sinks.collect(), id="out")
    with pytest.raises(whale.errors.InputError) as raised:
        whale.run(topology)
    assert str(raised.value) == (
        f"operator 'g': column 'window_end' is {kind} and no longer the timestamp at which a"
        " window ends: leave it as it is, or rename it to group by it without a window"
    )


def test_an_end_of_windows_that_an_expression_computes_is_the_end_of_none() -> None:
    """Else windows would end by the computed times, and rows be late for them."""
    counts = bids(whale.Topology("turned")).group_by(TEN).agg(F.count().alias("bids"), id="counts")
    minute = F.date_trunc("minute", "window_end")
    for turned in (
        counts.with_column("window_end", minute),
        counts.with_column("window_end", whale.col("window_start"), id="start-1"),
        counts.select("window_start", minute.alias("window_end")).filter(whale.lit(True)),
    ):
        with pytest.raises(TopologyError, match="names 'window_end', which '[a-z-]*-1' computes"):
            turned.group_by("window_start", "window_end")
    counts.select("bids", minute.alias("minute")).group_by("minute")


def test_a_window_over_a_computed_column_of_the_event_times_name_is_refused() -> None:
    """Event times stay what the source says, so that the window would be over other times."""
    stream = bids(whale.Topology("computed"))
    later = whale.col("moment") + datetime.timedelta(hours=1)
    moved = stream.with_column("moment", later).filter(whale.col("price") > 0)
    for window in (TEN, whale.session_window("moment", "1 second")):
        with pytest.raises(TopologyError, match="'moment', which 'with-column-1' computes") as why:
            moved.group_by(window)
        assert str(why.value).endswith("give the computed column another name")
    stream.select(whale.col("moment").alias("moment"), "price").group_by(TEN)
    stream.with_column("moment", whale.col("moment").cast("int64")).group_by(TEN)
    with pytest.raises(TopologyError, match="'moment', which 'with-column-[0-9]' computes"):
        stream.with_column("moment", whale.col("moment").cast("date")).group_by(TEN)


def test_a_window_beyond_the_years_names_operator_and_row() -> None:
    topology = whale.Topology("beyond")
    rows = pa.table({"n": [7], "at": pa.array([1_704_067_200], pa.timestamp("s"))})
    stream = topology.source(whale.sources.arrow(rows), id="rows", event_time="at")
    counts = stream.group_by(whale.window("at", "100000 days"), "n").agg(F.count(), id="counts")
    counts.sink(whale.sinks.collect(), id="out")
    with pytest.raises(whale.errors.BadRowError) as raised:
        whale.run(topology)
    assert str(raised.value).startswith("operator 'counts': a window at 2024-01-01T00:00:00")
    assert "{n=7" in str(raised.value)
