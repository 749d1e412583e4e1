"""As-of joins: whole jobs against DuckDB, and messages about mistakes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import whale_ray as whale
from tests.whale_ray.api.test_joins import RUNNERS, Rig
from whale_ray.api.submission import run

TRADES = pa.schema({"at": pa.int64(), "k": pa.string(), "f": pa.float64(), "trade": pa.int64()})
QUOTES = pa.schema({"time": pa.int64(), "key": pa.string(), "g": pa.float64(), "bid": pa.int64()})
OUT_OF_ORDER_MS = 3000

STRATEGIES = {
    "backward": (True, ">="),
    "forward": (True, "<="),
    "strictly backward": (False, ">"),
    "strictly forward": (False, "<"),
}


def tables() -> tuple[pa.Table, pa.Table]:
    """Return rows out of order within the bound; no key has two quotes of one time."""
    draw = random.Random(11)
    made = []
    for schema, count, step in ((TRADES, 900, 1), (QUOTES, 600, 2)):
        rows, taken = [], set()
        while len(rows) < count:
            at = len(rows) * 60_000 // count - 30_000 + draw.randrange(OUT_OF_ORDER_MS // 2) * step
            key = draw.choice(["hot", "hot", "a", "b", "é", "", None])
            ratio = draw.choice([0.0, -0.0, float("nan"), 1.5, None])
            if (at, key, str(abs(ratio or 0))) not in taken:
                taken.add((at, key, str(abs(ratio or 0))))
                rows.append((at, key, ratio, len(rows)))
        columns = dict(zip(schema.names, zip(*rows, strict=True), strict=True))
        made.append(pa.table({name: list(column) for name, column in columns.items()}, schema))
    return made[0], made[1]


def by_duckdb(comparison: str, how: str, tolerance_ms: int | None) -> Counter[Any]:
    """Return the numbers of the joined rows as DuckDB finds them."""
    trades, quotes = tables()
    far = "false" if tolerance_ms is None else f"abs(t.at - q.time) > {tolerance_ms}"
    query = f"""select t.trade, case when {far} then null else q.bid end as bid
                from trades t asof left join quotes q
                on t.k = q.key and t.f = q.g and t.at {comparison} q.time"""
    if how == "inner":
        query = f"select * from ({query}) where bid is not null"
    with duckdb.connect() as connection:
        connection.register("trades", trades)
        connection.register("quotes", quotes)
        return Counter(connection.execute(query).fetchall())


@pytest.mark.parametrize(
    ("runner", "parallelism"), [("inline", 1), ("inline", 7), ("processes", 3)]
)
def test_every_strategy_finds_what_duckdb_finds(runner: str, parallelism: int) -> None:
    topology = whale.Topology("as-of")
    streams = [
        topology.source(
            whale.sources.arrow(table),
            id=name,
            event_time=time,
            event_time_unit="ms",
            max_out_of_order_ms=OUT_OF_ORDER_MS,
        )
        for name, time, table in zip(("trades", "quotes"), ("at", "time"), tables(), strict=True)
    ]
    asked = [
        (name, how, tolerance_ms)
        for name in STRATEGIES
        for how, tolerance_ms in (("left", None), ("left", 400), ("inner", 400))
    ]
    for name, how, tolerance_ms in asked:
        streams[0].join_asof(
            streams[1],
            by={"k": "key", "f": "g"},
            strategy=name.removeprefix("strictly "),  # type: ignore[arg-type]  # one of them
            tolerance=tolerance_ms,
            how=how,  # type: ignore[arg-type]  # one of them
            allow_exact_matches=STRATEGIES[name][0],
            parallelism=parallelism,
        ).sink(whale.sinks.collect(), id=f"{name}-{how}-{tolerance_ms}".replace(" ", "-"))
    job = RUNNERS[runner](topology)
    for name, how, tolerance_ms in asked:
        found = job.results(f"{name}-{how}-{tolerance_ms}".replace(" ", "-")).to_arrow()
        rows = zip(*(found.column(one).to_pylist() for one in ("trade", "bid")), strict=True)
        expected = by_duckdb(STRATEGIES[name][1], how, tolerance_ms)
        assert Counter(rows) == expected, (name, how, tolerance_ms)


def test_the_result_has_the_times_of_its_left_rows_and_is_explained() -> None:
    topology = whale.Topology("as-of")
    trades, quotes = (
        topology.source(whale.sources.arrow(table), id=name, event_time=time, event_time_unit="ms")
        for name, time, table in zip(("trades", "quotes"), ("at", "time"), tables(), strict=True)
    )
    joined = trades.join_asof(quotes, by={"k": "key"}, tolerance="1 second", id="joined")
    counts = joined.group_by(whale.window("at", "10 s"), "k").agg(whale.functions.count())
    with pytest.raises(whale.errors.TopologyError, match="the event time of these rows is 'at'"):
        joined.group_by(whale.window("time", "10 s"), "k")
    counts.sink(whale.sinks.collect(), id="out")
    explained = str(topology.explain())
    for said in (
        "left as-of join by k = key; backward; within 1 second",
        "event time, buffered: their order says which right row is next to a left one",
        "the latest right row",
    ):
        assert said in explained


def test_late_rows_of_both_sides_are_outputs() -> None:
    topology = whale.Topology("late")
    timed: dict[str, Any] = {"event_time_unit": "s", "on_late": "pass"}
    trades, quotes = (
        topology.source(
            whale.testing.ListSource(
                [{time: at, "k": 1, name: at} for at in (0, 100, 50)], batch_rows=1
            ),
            id=name,
            event_time=time,
            **timed,
        )
        for name, time in (("trade", "t"), ("quote", "u"))
    )
    joined = trades.join_asof(quotes, by="k", how="inner", id="joined")
    joined.sink(whale.sinks.collect(), id="out")
    for side in ("late_left", "late_right"):
        joined.side_output(side).sink(whale.sinks.collect(), id=side)
    job = run(topology, settings={"transport.wtl_ms": 0})
    late = [job.results(side).to_arrow() for side in ("late_left", "late_right")]
    assert [table.column_names for table in late] == [["t", "k", "trade"], ["u", "k", "quote"]]
    found = sorted((row["trade"], row["quote"]) for row in job.results("out").preview())
    on_time = [pair for pair in found if 50 not in pair]
    assert on_time == [(0, 0), (100, 100)]
    assert len(found) + late[0].num_rows == 3


MISTAKES: dict[str, tuple[Callable[[Rig], object], str]] = {
    "no tolerance at all": (
        lambda r: r.bids.join_asof(r.asks, by={"k": "key"}, tolerance=0),
        "tolerance is 0: it must be longer than nothing",
    ),
    "a negative tolerance": (
        lambda r: r.bids.join_asof(r.asks, by={"k": "key"}, tolerance="-1 s"),
        "tolerance is '-1 s': it must be longer than nothing",
    ),
    "no duration": (
        lambda r: r.bids.join_asof(r.asks, by={"k": "key"}, tolerance="soon"),
        "tolerance is 'soon'",
    ),
    "another strategy": (
        lambda r: r.bids.join_asof(r.asks, by={"k": "key"}, strategy="closest"),
        "strategy is 'closest': pass strategy='backward' or",
    ),
    "another type of join": (
        lambda r: r.bids.join_asof(r.asks, by={"k": "key"}, how="outer"),
        "how is 'outer': pass how='left' or",
    ),
    "a missing column": (
        lambda r: r.bids.join_asof(r.asks, by={"k": "kay"}),
        "join names column 'kay', which the stream does not have",
    ),
    "an expression": (
        lambda r: r.bids.join_asof(r.asks, by=whale.col("k")),
        "by is an? .*: pass a column, a list of columns, or",
    ),
    "keys of different types": (
        lambda r: r.bids.join_asof(r.asks, by={"bid": "key"}),
        "'bid', which is int64, with 'key', which is string: cast one of them",
    ),
    "columns that clash": (
        lambda r: r.bids.join_asof(r.clash, by={"k": "key"}),
        "column 'bid' twice; both sides have it: rename it on one side",
    ),
    "no event times": (
        lambda r: r.bids.join_asof(r.untimed, by={"k": "key"}),
        "a join needs event times, which source 'untimed' does not give: pass it event_time=",
    ),
    "nearest but not equal": (
        lambda r: r.bids.join_asof(
            r.asks, by={"k": "key"}, strategy="nearest", allow_exact_matches=False
        ),
        "leave out allow_exact_matches=False, or pass strategy=",
    ),
    "no boolean": (
        lambda r: r.bids.join_asof(r.asks, by={"k": "key"}, allow_exact_matches="no"),
        "allow_exact_matches is 'no': pass True or False",
    ),
    "a grouped stream": (
        lambda r: r.bids.join_asof(r.asks.key_by("key"), by={"k": "key"}),
        "join_asof takes streams that are not grouped, and 'asks' is .*: leave out that grouping",
    ),
    "nulls of unknown types": (
        lambda r: r.bids.join_asof(r.mapped, by={"k": "key"}),
        "columns of 'mapped' are not known: declare them where they are made: map",
    ),
    "another library's name": (
        lambda r: r.bids.key_by("k").join_asof(r.asks, by={"k": "key"}),
        "join_asof takes streams that are not grouped",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_with_its_remedy(name: str) -> None:
    build, said = MISTAKES[name]
    with pytest.raises(whale.errors.TopologyError, match=said):
        build(Rig())


@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_answers_keep_the_order_of_time_however_many_come_at_once(batch_rows: int) -> None:
    """Were rows with a match emitted first, what follows would see an order of batches."""
    topology = whale.Topology("order")
    trades = [{"at": at, "key": at % 3, "text": "é" * at} for at in range(200)]
    quotes = [{"at": at, "key": 0, "bid": at} for at in range(0, 200, 4)]
    left, right = (
        topology.source(
            whale.sources.arrow(pa.Table.from_pylist(rows)),
            id=id,
            event_time="at",
            event_time_unit="s",
        )
        for id, rows in (("trades", trades), ("quotes", quotes))
    )
    bids = right.select(whale.col("key"), whale.col("bid"))
    left.join_asof(bids, by="key").sink(whale.sinks.collect(), id="out")
    settings = {"runtime.source_batch_rows": batch_rows}
    found = run(topology, settings=settings).results("out").to_arrow()
    assert found["at"].to_pylist() == list(range(200))
    latest = [at // 4 * 4 if at % 3 == 0 else None for at in range(200)]
    assert found["bid"].to_pylist() == latest
    assert found["text"].to_pylist() == ["é" * at for at in range(200)]
