"""Joins with a table: whole jobs against DuckDB on all ways that rows travel, waits, mistakes."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.transport.unix_transport import unix_transport
from whale_ray import functions
from whale_ray.api.submission import run, submit
from whale_ray.configs.settings import Settings
from whale_ray.plan.assignment import Assignment
from whale_ray.plan.planner import plan
from whale_ray.testing import ListSource, Pause
from whale_ray.transport.clock import VirtualClock
from whale_ray.worker.worker import Worker

HOWS = ("inner", "left", "semi", "anti")
BIDS = pa.schema({"at": pa.int64(), "k": pa.string(), "f": pa.float64(), "bid": pa.int32()})
PEOPLE = pa.schema({"key": pa.string(), "g": pa.float64(), "who": pa.string(), "no": pa.int64()})


def tables(bids: int = 3_000, people: int = 40) -> tuple[pa.Table, pa.Table]:
    """Return a stream and a table: keys with nulls, NaN, both zeros, duplicates and none."""
    draw = random.Random(5)
    made = []
    for schema, count in ((BIDS, bids), (PEOPLE, people)):
        rows = []
        for number in range(count):
            key = draw.choice(["hot", "hot", "a", "b", "c", "é", "", "other", None])
            ratio = draw.choice([0.0, -0.0, float("nan"), 1.5, None])
            at_table = (key, ratio, draw.choice(["Ann", "Bo", None]), number)
            rows.append((number, key, ratio, number) if schema is BIDS else at_table)
        columns = dict(zip(schema.names, zip(*rows, strict=True), strict=True))
        made.append(pa.table({name: list(values) for name, values in columns.items()}, schema))
    return made[0], made[1]


def by_duckdb(how: str, bids: pa.Table, people: pa.Table) -> Counter[Any]:
    columns = "b.bid" if how in ("semi", "anti") else "b.bid, p.who, p.no"
    query = f"select {columns} from bids b {how} join people p on b.k = p.key and b.f = p.g"
    with duckdb.connect() as connection:
        connection.register("bids", bids)
        connection.register("people", people)
        return Counter(connection.execute(query).fetchall())


def found_in(job: Any, how: str) -> list[tuple[Any, ...]]:
    names = ["bid"] if how in ("semi", "anti") else ["bid", "who", "no"]
    found = job.results(how).to_arrow()
    return list(zip(*(found.column(name).to_pylist() for name in names), strict=True))


def joins(stream: whale.Stream, table: Any, parallelism: int | None = None, **more: Any) -> None:
    for how in HOWS:
        joined = stream.join_table(
            table,
            on={"k": "key", "f": "g"},
            how=how,
            id=f"by-{how}",
            parallelism=parallelism,
            **more,
        )
        joined.sink(whale.sinks.collect(), id=how)


def on_processes(**settings: Any) -> Callable[[whale.Topology], Any]:
    return lambda topology: submit(
        topology, workers=3, on="processes", settings={"runtime.source_batch_rows": 200, **settings}
    ).wait()


WAYS: dict[str, tuple[Callable[[whale.Topology], Any], int | None]] = {
    "inline": (run, None),
    "inline, 3": (run, 3),
    "inline, 7": (run, 7),
    "processes": (on_processes(), 7),
    "hosts": (on_processes(**{"runtime.hosts": 2}), 3),
    "instance-oriented": (on_processes(**{"runtime.addressing": "instance-oriented"}), 7),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_join_finds_what_duckdb_finds(way: str) -> None:
    topology = whale.Topology("named")
    bids, people = tables()
    stream = topology.source(
        whale.sources.arrow(bids), id="bids", event_time="at", event_time_unit="s"
    )
    joins(stream, people, WAYS[way][1])
    job = WAYS[way][0](topology)
    for how in HOWS:
        found = found_in(job, how)
        assert Counter(found) == by_duckdb(how, bids, people), how
        if WAYS[way][1] is None:  # fused: the stream's order, then the table's
            assert found == sorted(found, key=lambda row: (row[0], row[-1] if row[-1] else 0))


def test_rows_travel_by_a_users_transport() -> None:
    topology = whale.Topology("carried", transport=unix_transport())
    bids, people = tables(500)
    joins(topology.source(whale.sources.arrow(bids), id="bids"), people, 3)
    job = on_processes()(topology)
    for how in HOWS:
        assert Counter(found_in(job, how)) == by_duckdb(how, bids, people), how


def test_an_empty_table_works() -> None:
    topology = whale.Topology("empty")
    bids, people = tables(100)
    joins(topology.source(whale.sources.arrow(bids), id="bids"), people.slice(0, 0), 2)
    job = run(topology)
    for how in HOWS:
        assert Counter(found_in(job, how)) == by_duckdb(how, bids, people.slice(0, 0)), how
    assert job.results("inner").to_arrow().column_names == [*BIDS.names, *PEOPLE.names]


def test_the_table_may_be_parquet_a_frame_of_pandas_or_streams_of_the_topology(
    tmp_path: Path,
) -> None:
    bids, people = tables(300)
    pq.write_table(people, tmp_path / "people.parquet")
    topology = whale.Topology("tables")
    stream = topology.source(whale.sources.arrow(bids), id="bids")
    halves = [
        topology.source(whale.sources.arrow(people.slice(first, 20)), id=f"half-{first}")
        for first in (0, 20)
    ]
    given = {
        "parquet": whale.sources.parquet(str(tmp_path)),
        "union": halves[0].union(halves[1]).filter(whale.col("no") >= 0),
        "itself-a-union": halves[0].union(halves[1]),
        "counted": topology.source(whale.sources.arrow(people), id="again")
        .group_by("key", "g")
        .agg(functions.count().alias("n"), functions.max("no").alias("no")),
    }
    for name, table in given.items():
        joined = stream.join_table(table, on={"k": "key", "f": "g"}, id=name, parallelism=2)
        joined.select("bid", "no").sink(whale.sinks.collect(), id=f"{name}-out")
    frame = people.select(["key"]).to_pandas()
    known = stream.join_table(frame, on={"k": "key"}, how="semi", id="pandas")
    known.sink(whale.sinks.collect(), id="pandas-out")
    job = run(topology)
    keys = set(people["key"].drop_null().to_pylist())
    assert job.results("pandas-out").rows == sum(key in keys for key in bids["k"].to_pylist())
    expected = Counter({row[::2]: n for row, n in by_duckdb("inner", bids, people).items()})
    for name in given:
        found = job.results(f"{name}-out").to_arrow()
        rows = Counter(zip(found["bid"].to_pylist(), found["no"].to_pylist(), strict=True))
        if name == "counted":
            last = {bid: max(no for b, no in expected if b == bid) for bid, _ in expected}
            assert rows == Counter(last.items())
        else:
            assert rows == expected, name


def test_a_joined_stream_keeps_its_event_times_for_windows() -> None:
    topology = whale.Topology("windows")
    bids, people = tables()
    stream = topology.source(
        whale.sources.arrow(bids), id="bids", event_time="at", event_time_unit="s"
    )
    # The table's event times are far from the stream's: neither waits for the other.
    timed = topology.source(
        whale.sources.arrow(people.append_column("t", people["no"])),
        id="people",
        event_time="t",
        event_time_unit="s",
    ).select("key", "no")
    counts = (
        stream.join_table(timed, on={"k": "key"}, parallelism=3)
        .group_by(whale.window("at", "100 s"))
        .agg(functions.count().alias("n"))
    )
    counts.sink(whale.sinks.collect(), id="out")
    tight = {"runtime.max_drift_ms": 1, "runtime.source_batch_rows": 10}
    found = run(topology, settings=tight).results("out").to_arrow()
    with duckdb.connect() as connection:
        connection.register("bids", bids)
        connection.register("people", people)
        expected = connection.execute(
            "select b.at // 100 * 100, count(*) from bids b join people p on b.k = p.key group by 1"
        ).fetchall()
    starts = [int(start.timestamp()) for start in found["window_start"].to_pylist()]
    assert sorted(zip(starts, found["n"].to_pylist(), strict=True)) == sorted(expected)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_results_of_aggregates_are_looked_up_where_they_are_made(parallelism: int) -> None:
    """Behind a per-worker operator, which emits the rows of all local instances at once."""
    topology = whale.Topology("counted")
    bids, people = tables()
    stream = topology.source(whale.sources.arrow(bids), id="bids")
    counts = stream.group_by("k").agg(functions.count().alias("n"), parallelism=parallelism)
    counts.join_table(people.select(["key", "no"]), on={"k": "key"}, id="named").sink(
        whale.sinks.collect(), id="out"
    )
    assert "agg-1 → named → out" in str(topology.explain())
    job = submit(topology, workers=2, on="processes").wait()
    found = job.results("out").to_arrow().select(["k", "n", "no"]).to_pylist()
    with duckdb.connect() as connection:
        connection.register("bids", bids)
        connection.register("people", people)
        expected = connection.execute(
            "select k, n, no from (select k, count(*) as n from bids group by k)"
            " join people on k = key"
        ).fetchall()
    assert sorted(tuple(row.values()) for row in found) == sorted(expected)


# -- waiting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 3])
def test_no_row_is_joined_before_the_table_is_complete(parallelism: int) -> None:
    """The table takes a second; the stream is read at once, and fills its ring if it has one."""
    topology = whale.Topology("waits")
    rows = [{"k": number % 100, "x": number} for number in range(20_000)]
    items: list[Any] = []
    for key in range(100):
        items += [{"key": key, "y": -key}, Pause(10)]
    stream = topology.source(whale.sources.iterable(rows), id="rows")
    table = ListSource(items, schema={"key": "int64", "y": "int64"}, batch_rows=1)
    joined = stream.join_table(table, on={"k": "key"}, parallelism=parallelism)
    joined.sink(whale.sinks.collect(), id="out")
    small = {"transport.ring_bytes": 65_536, "transport.ring_bytes_min": 65_536}
    clock = VirtualClock()
    found = run(topology, clock=clock, settings=small).results("out").to_arrow().to_pydict()
    assert sorted(found["x"]) == list(range(20_000))
    assert all(-key == y for key, y in zip(found["k"], found["y"], strict=True))
    assert clock.monotonic_ns() >= 1_000_000_000


def test_a_stage_says_that_it_waits_for_its_table() -> None:
    topology = whale.Topology("told")
    stream = topology.source(whale.sources.iterable([{"k": 1}]), id="rows")
    table = ListSource([{"key": 1}, Pause(1_000)], schema={"key": "int64"})
    stream.join_table(table, on={"k": "key"}, id="known").sink(whale.sinks.collect(), id="out")
    planned = plan(topology.logical_plan(), Settings(), 1)
    worker = Worker(0, Assignment("job", planned, Settings()), VirtualClock())
    worker.connect(0, (worker.link(0, (worker.open(0),)),))

    def state() -> dict[str, tuple[bool, int]]:
        instances = worker.counters().instances
        return {one.operator_id: (one.waits_for_table, one.rows_in) for one in instances}

    state()  # its loop answers in the next turn
    assert worker.run(0, budget_ns=500_000_000) is None
    assert state()["rows"] == (True, 0)
    assert worker.run(0, budget_ns=5_000_000_000) is not None
    assert (state()["rows"], state()["out"]) == ((False, 1), (False, 1))
    worker.close()


def test_one_tables_stream_is_another_tables_source() -> None:
    topology = whale.Topology("chain")
    a, b, c = (
        topology.source(whale.sources.iterable([{"k": n, name: n} for n in range(5)]), id=name)
        for name in "abc"
    )
    bc = b.join_table(c, on="k", id="bc")
    a.join_table(bc, on="k", id="abc").join_table(bc, on="k", how="semi", id="again").sink(
        whale.sinks.collect(), id="out"
    )
    rows = run(topology).results("out").preview(10)
    assert rows == [{"k": n, "a": n, "b": n, "c": n} for n in range(5)]


def test_a_stopped_job_still_reads_its_tables_to_the_end() -> None:
    def people() -> Iterator[dict[str, int]]:
        for number in range(100):
            if number == 55:  # by then the stream's rows wait in their ring
                signal.raise_signal(signal.SIGTERM)
            yield {"key": 99 - number, "y": number}

    topology = whale.Topology("stopped")
    stream = topology.source(whale.sources.iterable([{"k": n} for n in range(10)]), id="rows")
    table = whale.sources.iterable(people, bounded=True)
    lost = stream.join_table(table, on={"k": "key"}, how="anti", parallelism=2)
    kept = stream.join_table(table, on={"k": "key"}, id="kept", parallelism=2)
    lost.sink(whale.sinks.collect(), id="lost")
    kept.sink(whale.sinks.collect(), id="kept-out")
    short = {"runtime.poll_interval_ms": 1, "runtime.source_batch_rows": 10}
    job = run(topology, settings=short)
    assert job.results("lost").rows == 0
    assert job.results("kept-out").rows in (0, 10)


# -- changes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 3])
def test_changes_take_effect_when_they_arrive(parallelism: int) -> None:
    topology = whale.Topology("changes")
    schema = {"k": "int64", "x": "int64"}
    reads = [item for x in range(4) for item in ({"k": 1, "x": x}, {"k": 2, "x": x}, Pause(100))]
    rows = topology.source(ListSource(reads, schema=schema, batch_rows=2), id="rows")
    people = pa.table({"id": [1, 1, 2], "who": ["Ann", "Al", "Bo"]})
    changed = [
        Pause(50),
        {"id": 1, "who": "Ada", "op": "u"},
        Pause(100),
        {"id": 1, "who": "", "op": "d"},
        {"id": 2, "who": "Bob", "op": "u"},
        Pause(100),
        {"id": None, "who": "nobody", "op": "u"},
        {"id": 1, "who": "Amy", "op": "u"},
    ]
    columns = {"id": "int64", "who": "string", "op": "string"}
    changes = topology.source(ListSource(changed, schema=columns, batch_rows=1), id="changes")
    named = rows.join_table(
        people,
        on={"k": "id"},
        how="left",
        changes=changes,
        delete_when=whale.col("op") == "d",
        parallelism=parallelism,
    )
    named.sink(whale.sinks.collect(), id="out")
    at_once = {"transport.wtl_ms": 0}
    found = run(topology, clock=VirtualClock(), settings=at_once).results("out").preview(100)
    assert sorted((row["x"], row["k"], row["who"] or "") for row in found) == [
        *((0, 1, "Al"), (0, 1, "Ann"), (0, 2, "Bo")),
        *((1, 1, "Ada"), (1, 2, "Bo")),
        *((2, 1, ""), (2, 2, "Bob")),
        *((3, 1, "Amy"), (3, 2, "Bob")),
    ]


def test_changes_that_go_on_after_the_stream_are_read_to_their_end() -> None:
    topology = whale.Topology("long-changes")
    rows = topology.source(whale.sources.iterable([{"k": 1}]), id="rows")
    more = [{"id": n % 7, "v": n} for n in range(50_000)]
    changes = topology.source(whale.sources.iterable(more), id="changes")
    joined = rows.join_table(pa.table({"id": [1], "v": [0]}), on={"k": "id"}, changes=changes)
    joined.sink(whale.sinks.collect(), id="out")
    small = {"transport.ring_bytes": 65_536, "transport.ring_bytes_min": 65_536}
    job = submit(topology, workers=2, on="processes", settings=small).wait()
    assert job.metrics().operator("changes").rows_out == 50_000
    assert job.results("out").rows == 1


# -- what users are told ------------------------------------------------------------------------


def test_explain_shows_the_table_and_where_it_is() -> None:
    topology = whale.Topology("shown")
    bids, people = tables(10)
    stream = topology.source(whale.sources.arrow(bids), id="bids")
    changes = topology.source(whale.sources.arrow(people), id="moves")
    stream.join_table(
        people, on={"k": "key"}, id="named", changes=changes, delete_when=whale.col("no") < 0
    ).sink(whale.sinks.collect(), id="out")
    text = " ".join(str(topology.explain(workers=3)).split())
    assert "inner join with a table on k = key" in text
    assert "bids, named-table (all), moves (all)" in text
    assert "arrival: each row meets the whole table" in text
    assert "bids → named → out" in text
    assert "named-table → named (table) all" in text
    assert "moves → named (changes) all" in text
    assert "named rows the table not at all: each worker has all of it" in text
    assert "State: up to 1 GiB in each worker (runtime.state_bytes), then 4 GiB on disk" in text


def test_a_table_beyond_the_memory_for_state_fails_the_job_in_a_line() -> None:
    topology = whale.Topology("large")
    ids = pa.table({"id": range(200_000), "who": ["somebody with a name"] * 200_000})
    stream = topology.source(whale.sources.iterable([{"k": 1}]), id="rows")
    stream.join_table(ids, on={"k": "id"}, id="named").sink(whale.sinks.collect(), id="out")
    said = "operator 'named': its state of .* takes .* runtime.state_bytes, .* smaller table"
    with pytest.raises(whale.errors.StateFullError, match=said):
        run(topology, settings={"runtime.state_bytes": 4 << 20, "runtime.spill_bytes_max": 0})


class Rig:
    """What every mistake starts from. Untyped on purpose: a type checker finds most of these."""

    def __init__(self) -> None:
        topology: Any = whale.Topology("t")
        bids, self.people = (table.slice(0, 0) for table in tables(1))
        self.bids: Any = topology.source(whale.sources.arrow(bids), id="bids")
        self.moves: Any = topology.source(whale.sources.arrow(self.people), id="moves")
        self.endless: Any = topology.source(
            ListSource([], schema={"key": "string"}, bounded=False), id="endless"
        )
        self.mapped: Any = self.moves.map(dict, id="mapped")
        self.other: Any = whale.Topology("u").source(whale.sources.arrow(bids), id="bids")


ON = {"k": "key"}
MISTAKES: dict[str, tuple[Callable[[Rig], object], str]] = {
    "a right join": (
        lambda r: r.bids.join_table(r.people, on=ON, how="right"),
        "how is 'right', but that a row of the table has no match is known only when the stream",
    ),
    "another join": (
        lambda r: r.bids.join_table(r.people, on=ON, how="cross"),
        "how is 'cross': pass how='inner' or how='left' or",
    ),
    "no columns": (
        lambda r: r.bids.join_table(r.people, on=[]),
        "join_table needs columns that are equal: on='key'",
    ),
    "a missing column": (
        lambda r: r.bids.join_table(r.people, on={"k": "kee"}),
        "join_table names column 'kee', which the stream does not have: did you mean 'key'",
    ),
    "keys of different types": (
        lambda r: r.bids.join_table(r.people, on={"bid": "key"}),
        "'bid', which is int32, with 'key', which is string: cast one of them",
    ),
    "columns that clash": (
        lambda r: r.bids.join_table(r.people.append_column("at", r.people["no"]), on=ON),
        "column 'at' twice; both sides have it: rename it on one side",
    ),
    "a list": (
        lambda r: r.bids.join_table([{"key": 1}], on=ON),
        "source takes a source, not a list: pass whale.sources.iterable",
    ),
    "a path": (
        lambda r: r.bids.join_table("people/", on=ON),
        "pass whale.sources.parquet",
    ),
    "a table without an end": (
        lambda r: r.bids.join_table(r.endless, on=ON),
        "the table must end before the stream's first row is joined, but source 'endless' never",
    ),
    "its own stream": (
        lambda r: r.bids.join_table(r.bids.select("k", id="keys"), on="k"),
        "both need source 'bids': read the same input by a second source",
    ),
    "two that wait for each other": (
        lambda r: (
            r.bids.join_table(r.moves, on=ON, id="one"),
            r.moves.join_table(r.bids, on={"key": "k"}, id="two"),
        ),
        "operator 'two': the table is read to its end before the stream, and both need source",
    ),
    "changes from the stream's source": (
        lambda r: r.moves.join_table(r.people, on="key", changes=r.moves, how="semi"),
        "both need source 'moves'",
    ),
    "nulls of unknown types": (
        lambda r: r.bids.join_table(r.mapped, on=ON, how="left"),
        "columns of 'mapped' are not known: declare them where they are made: map",
    ),
    "another topology": (
        lambda r: r.bids.join_table(r.other, on="k"),
        "join_table takes streams of one topology",
    ),
    "a grouped table": (
        lambda r: r.bids.join_table(r.moves.broadcast(), on=ON),
        "join_table takes streams that are not grouped, and 'moves' is .*: leave out that grouping",
    ),
    "a join of a grouped stream": (
        lambda r: r.bids.key_by("k").join_table(r.people, on=ON),
        "join_table takes streams that are not grouped, and this one is",
    ),
    "changes without a column": (
        lambda r: r.bids.join_table(r.people, on=ON, changes=r.moves.select("key", "g")),
        "the changes lack column 'who' of the table",
    ),
    "changes of another type": (
        lambda r: r.bids.join_table(
            r.people, on=ON, changes=r.moves.with_column("no", whale.col("no").cast("string"))
        ),
        "column 'no' is string in the changes and int64 in the table: cast it with with_column",
    ),
    "deletes without changes": (
        lambda r: r.bids.join_table(r.people, on=ON, delete_when=whale.col("no") < 0),
        "delete_when says which changes delete: pass changes=, too",
    ),
    "no condition": (
        lambda r: r.bids.join_table(r.people, on=ON, changes=r.moves, delete_when="no"),
        "delete_when is 'no': pass a condition on the columns of the changes",
    ),
    "a number as a condition": (
        lambda r: r.bids.join_table(
            r.people, on=ON, changes=r.moves, delete_when=whale.col("no") + 1
        ),
        "delete_when is int64: pass a condition, which is true or false",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_with_its_remedy(name: str) -> None:
    build, said = MISTAKES[name]
    with pytest.raises(whale.errors.TopologyError, match=said):
        build(Rig())
