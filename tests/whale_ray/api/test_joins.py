"""Joins of two streams: whole jobs against DuckDB, and messages about mistakes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray.api.submission import run, submit
from whale_ray.operators.joins.equi_join import How

HOWS = {
    "inner": "inner",
    "left": "left",
    "right": "right",
    "outer": "full",
    "semi": "semi",
    "anti": "anti",
}
BIDS = pa.schema({"at": pa.int64(), "k": pa.string(), "f": pa.float64(), "bid": pa.int64()})
ASKS = pa.schema({"time": pa.int64(), "key": pa.string(), "g": pa.float64(), "ask": pa.int64()})
OUT_OF_ORDER_S = 5


def tables() -> tuple[pa.Table, pa.Table]:
    """Return rows with few keys, of which one is frequent, out of order within the bound."""
    draw = random.Random(7)
    made = []
    for schema, count in ((BIDS, 700), (ASKS, 500)):
        rows = []
        for number in range(count):
            second = number * 300 // count + draw.randrange(OUT_OF_ORDER_S)
            key = draw.choice(["hot", "hot", "a", "b", "c", "é", "", None])
            ratio = draw.choice([0.0, -0.0, float("nan"), 1.5, None])
            rows.append((second - 150, key, ratio, number))
        columns = dict(zip(schema.names, zip(*rows, strict=True), strict=True))
        made.append(pa.table({name: list(column) for name, column in columns.items()}, schema))
    return made[0], made[1]


def sources(topology: whale.Topology) -> tuple[whale.Stream, whale.Stream]:
    """Return both tables as streams with event times."""
    bids, asks = tables()
    timed: dict[str, Any] = {
        "event_time_unit": "s",
        "max_out_of_order_ms": OUT_OF_ORDER_S * 1000,
    }
    return (
        topology.source(whale.sources.arrow(bids), id="bids", event_time="at", **timed),
        topology.source(whale.sources.arrow(asks), id="asks", event_time="time", **timed),
    )


WITHIN = {
    "tumbling": (whale.window("10 s"), "b.at // 10 = a.time // 10"),
    "interval": (whale.interval("-10 s", "2 s"), "a.time - b.at between -10 and 2"),
}

RUNNERS: dict[str, Callable[[whale.Topology], Any]] = {
    "inline": run,
    "processes": lambda topology: submit(topology, workers=2, on="processes").wait(),
}


def by_duckdb(how: str, condition: str) -> Counter[Any]:
    """Return the numbers of the joined rows as DuckDB finds them."""
    bids, asks = tables()
    columns = "b.bid" if how in ("semi", "anti") else "b.bid, a.ask"
    # `//` truncates: shifted, so that no time is negative.
    condition = condition.replace("b.at //", "(b.at + 1000) //")
    condition = condition.replace("a.time //", "(a.time + 1000) //")
    query = f"""select {columns} from bids b {HOWS[how]} join asks a
                on b.k = a.key and b.f = a.g and {condition}"""
    with duckdb.connect() as connection:
        connection.register("bids", bids)
        connection.register("asks", asks)
        return Counter(connection.execute(query).fetchall())


@pytest.mark.parametrize(
    ("runner", "parallelism"), [("inline", 1), ("inline", 3), ("processes", 3)]
)
def test_every_join_finds_what_duckdb_finds(runner: str, parallelism: int) -> None:
    topology = whale.Topology("joins")
    bids, asks = sources(topology)
    for kind, (within, _) in WITHIN.items():
        for how in HOWS:
            joined = bids.join(
                asks,
                on={"k": "key", "f": "g"},
                within=within,
                how=how,  # type: ignore[arg-type]  # one of them
                parallelism=parallelism,
            )
            joined.sink(whale.sinks.collect(), id=f"{kind}-{how}")
    job = RUNNERS[runner](topology)
    for kind, (_, condition) in WITHIN.items():
        for how in HOWS:
            found = job.results(f"{kind}-{how}").to_arrow()
            names = ["bid"] if how in ("semi", "anti") else ["bid", "ask"]
            rows = zip(*(found.column(name).to_pylist() for name in names), strict=True)
            assert Counter(rows) == by_duckdb(how, condition), (kind, how)


SESSIONS = """
    with taken as (
        select bids.at as t, k, 'bid' as side, bid as n from bids where k is not null
        union all select asks.time, key, 'ask', ask from asks where key is not null),
    begun as (select *, t - lag(t) over (partition by k order by t) > 2 as begins from taken),
    numbered as (
        select *, count(*) filter (begins) over (partition by k order by t) as s from begun)
    select b.n, a.n, min(w.t), max(w.t) + 2 from (select * from numbered where side = 'bid') b
    {join} join (select * from numbered where side = 'ask') a on b.k = a.k and b.s = a.s
    join numbered w on w.k = b.k and w.s = b.s
    group by b.n, a.n"""


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize(("runner", "parallelism"), [("inline", 7), ("processes", 3)])
def test_rows_join_in_the_sessions_that_duckdb_finds(
    runner: str, parallelism: int, how: How
) -> None:
    topology = whale.Topology("sessions")
    bids, asks = (
        stream.filter(whale.col(key).is_not_null())
        for stream, key in zip(sources(topology), ("k", "key"), strict=True)
    )
    joined = bids.join(
        asks,
        on={"k": "key"},
        within=whale.session_window("2 s"),
        how=how,
        parallelism=parallelism,
    )
    joined.sink(whale.sinks.collect(), id="out")
    assert "session window with a gap of 2 seconds" in str(topology.explain())
    found = RUNNERS[runner](topology).results("out").to_arrow()
    with duckdb.connect() as connection:
        for name, table in zip(("bids", "asks"), tables(), strict=True):
            connection.register(name, table)
        expected = Counter(connection.execute(SESSIONS.format(join=how)).fetchall())
    columns = [found.column(name).to_pylist() for name in ("bid", "ask")]
    columns += [
        [
            bound.timestamp()
            for bound in found.column(name).cast(pa.timestamp("us", "UTC")).to_pylist()
        ]
        for name in ("window_start", "window_end")
    ]
    assert Counter(zip(*columns, strict=True)) == expected


def test_joined_windows_are_aggregated_again() -> None:
    topology = whale.Topology("new-users")
    bids, asks = sources(topology)
    joined = bids.join(asks, on={"k": "key"}, within=whale.window("10 s"), how="left")
    counts = joined.group_by("window_start", "window_end").agg(whale.functions.count().alias("n"))
    counts.sink(whale.sinks.collect(), id="counts")
    found = run(topology).results("counts").to_pandas()
    bids_table, asks_table = tables()
    with duckdb.connect() as connection:
        connection.register("bids", bids_table)
        connection.register("asks", asks_table)
        expected = connection.execute(
            "select (b.at + 1000) // 10 as w, count(*) from bids b left join asks a on b.k = a.key"
            " and (b.at + 1000) // 10 = (a.time + 1000) // 10 group by w order by w"
        ).fetchall()
    windows = [(start.timestamp() + 1000) // 10 for start in found.window_start]
    assert sorted(zip(windows, found.n, strict=True)) == expected


def test_late_rows_of_both_sides_are_outputs() -> None:
    topology = whale.Topology("late")
    left = [{"t": 0, "k": 1, "x": 0}, {"t": 100, "k": 1, "x": 1}]
    right = [{"u": 1, "k": 1, "y": 0}, {"u": 100, "k": 1, "y": 1}]
    timed: dict[str, Any] = {"event_time_unit": "s"}
    a = topology.source(whale.sources.iterable(left), id="a", event_time="t", **timed)
    b = topology.source(whale.sources.iterable(right), id="b", event_time="u", **timed)
    joined = a.join(b, on="k", within=whale.interval("0 s", "1 s"), id="joined")
    joined.sink(whale.sinks.collect(), id="out")
    joined.side_output("late_left").sink(whale.sinks.collect(), id="late-left")
    joined.side_output("late_right").sink(whale.sinks.collect(), id="late-right")
    job = run(topology)
    assert sorted(row["x"] for row in job.results("out").preview()) == [0, 1]
    assert job.results("late-left").to_arrow().column_names == ["t", "k", "x"]
    assert job.results("late-right").to_arrow().column_names == ["u", "k", "y"]


class Rig:
    """What every mistake starts from. Untyped on purpose: a type checker finds most of these."""

    def __init__(self) -> None:
        topology: Any = whale.Topology("t")
        self.topology = topology
        bids, asks = (table.slice(0, 0) for table in tables())
        self.bids: Any = topology.source(
            whale.sources.arrow(bids), id="bids", event_time="at", event_time_unit="s"
        )
        self.asks: Any = topology.source(
            whale.sources.arrow(asks), id="asks", event_time="time", event_time_unit="s"
        )
        self.untimed: Any = topology.source(whale.sources.arrow(asks), id="untimed")
        self.other: Any = whale.Topology("u").source(whale.sources.arrow(asks), id="asks")
        self.mapped: Any = self.asks.map(dict, id="mapped")
        self.clash: Any = self.asks.select("key", whale.col("ask").alias("bid"), id="clash")
        self.within = whale.window("10 s")


MISTAKES: dict[str, tuple[Callable[[Rig], object], str]] = {
    "no columns": (
        lambda r: r.bids.join(r.asks, on=[], within=r.within),
        "a join needs columns that are equal: on='key'",
    ),
    "an expression": (
        lambda r: r.bids.join(r.asks, on=whale.col("k"), within=r.within),
        "on is an? .*: pass a column, a list of columns, or {'left column': 'right column'}",
    ),
    "a missing column": (
        lambda r: r.bids.join(r.asks, on={"k": "kay"}, within=r.within),
        "join names column 'kay', which the stream does not have",
    ),
    "the same column twice": (
        lambda r: r.bids.join(r.asks, on={"k": "key", "f": "key"}, within=r.within),
        "on names column 'key' twice: name it once",
    ),
    "keys of different types": (
        lambda r: r.bids.join(r.asks, on={"bid": "key"}, within=r.within),
        "'bid', which is int64, with 'key', which is string: cast one of them",
    ),
    "columns that clash": (
        lambda r: r.bids.join(r.clash, on={"k": "key"}, within=r.within),
        "column 'bid' twice; both sides have it: rename it on one side",
    ),
    "no bound in time": (
        lambda r: r.bids.join(r.asks, on={"k": "key"}, within="10 s"),
        "within is '10 s': pass within=whale.window",
    ),
    "a window with a column": (
        lambda r: r.bids.join(r.asks, on={"k": "key"}, within=whale.window("at", "10 s")),
        "leave out the column, within=whale.window",
    ),
    "a session with a column": (
        lambda r: r.bids.join(r.asks, on={"k": "key"}, within=whale.session_window("at", "1 s")),
        "leave out the column, within=whale.session_window",
    ),
    "windows of the clock": (
        lambda r: r.bids.join(
            r.asks, on={"k": "key"}, within=whale.window(whale.processing_time(), "1 s")
        ),
        "go by their event times, not by the clock",
    ),
    "a session without a column elsewhere": (
        lambda r: r.bids.group_by(whale.session_window("10 s"), "k"),
        "the window lacks its column: whale.session_window",
    ),
    "bounds the wrong way round": (
        lambda r: whale.interval("1 s", "0 s"),
        "the lower bound '1 s' exceeds the upper one '0 s'.*swap them",
    ),
    "no duration": (lambda r: whale.interval("soon", 0), "interval: lower is 'soon'"),
    "another type of join": (
        lambda r: r.bids.join(r.asks, on={"k": "key"}, within=r.within, how="full"),
        "how is 'full': pass how='inner' or",
    ),
    "no event times": (
        lambda r: r.bids.join(r.untimed, on={"k": "key"}, within=r.within),
        "a join needs event times, which source 'untimed' does not give: pass it event_time=",
    ),
    "no stream": (
        lambda r: r.bids.join([r.asks], on={"k": "key"}, within=r.within),
        "join takes streams, not a list",
    ),
    "a grouped stream": (
        lambda r: r.bids.join(r.asks.key_by("key"), on={"k": "key"}, within=r.within),
        "join takes streams that are not grouped, and 'asks' is .*: leave out that grouping",
    ),
    "a join of a grouped stream": (
        lambda r: r.bids.key_by("k").join(r.asks, on={"k": "key"}, within=r.within),
        "join takes streams that are not grouped, and this one is .*: leave out that grouping",
    ),
    "another topology": (
        lambda r: r.bids.join(r.other, on={"k": "key"}, within=r.within),
        "join takes streams of one topology",
    ),
    "nulls of unknown types": (
        lambda r: r.bids.join(r.mapped, on={"k": "key"}, within=r.within, how="left"),
        "columns of 'mapped' are not known: declare them where they are made: map",
    ),
    "negative lateness": (
        lambda r: r.bids.join(r.asks, on={"k": "key"}, within=r.within, allowed_lateness=-1),
        "allowed_lateness is -1: it must not be negative",
    ),
    "a window without a column elsewhere": (
        lambda r: r.bids.group_by(whale.window("10 s"), "k"),
        "the window lacks its column: whale.window",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_with_its_remedy(name: str) -> None:
    build, said = MISTAKES[name]
    with pytest.raises(whale.errors.TopologyError, match=said):
        build(Rig())


def test_computed_columns_have_known_types_in_a_left_join() -> None:
    topology = whale.Topology("computed")
    bids, asks = sources(topology)
    computed = asks.filter(whale.col("ask") < 0).select("key", (whale.col("ask") + 1).alias("more"))
    joined = bids.join(computed, on={"k": "key"}, within=whale.window("10 s"), how="left")
    joined.sink(whale.sinks.collect(), id="out")
    assert "left join on k = key; tumbling window of 10 seconds" in str(topology.explain())
    found = run(topology).results("out").to_arrow()
    names = ["window_start", "window_end", "at", "k", "f", "bid", "key", "more"]
    assert found.column_names == names
    assert found.num_rows == found.column("more").null_count == tables()[0].num_rows


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda left, right: left.join(right, "k", whale.window("10 s")),
            r"^join\(\) .*too many positional arguments; write left.join\(right, on='key', within=",
        ),
        (
            lambda left, right: left.join(right, on="k"),
            r"^join\(\) .*missing a required argument: 'within'; write left.join\(right, on='key'",
        ),
        (
            lambda left, right: left.join_asof(right, "k"),
            r"^join_asof\(\) .*; write left.join_asof\(right, by='key', tolerance='1 second'\)$",
        ),
        (
            lambda left, right: left.join_table(right),
            r"^join_table\(\) .*'on'; write stream.join_table\(table, on='key'\)$",
        ),
        (
            lambda left, right: left.drop_duplicates("k"),
            r"^drop_duplicates\(\) .*'within'; write stream.drop_duplicates\('key', within='10 m",
        ),
        (
            lambda left, right: left.group_by("k").top_n(3),
            r"^top_n\(\) .*'by'; write stream.group_by\('key'\).top_n\(3, 'value'\)$",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_told_how_they_are_written(
    call: Callable[..., Any], told: str
) -> None:
    topology = whale.Topology("t")
    rows = pa.table({"k": [1]})
    left, right = (topology.source(whale.sources.arrow(rows), id=name) for name in ("l", "r"))
    with pytest.raises(whale.errors.TopologyError, match=told):
        call(left, right)
