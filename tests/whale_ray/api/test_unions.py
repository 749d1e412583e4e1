"""Unions: random topologies against a computation over plain lists; messages about mistakes."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.transport.unix_transport import unix_transport
from whale_ray.api.submission import run, submit
from whale_ray.configs.settings import Settings
from whale_ray.plan.planner import plan_unsized

Row = tuple[int, int, int]
"""k, v, t."""


class Arrivals(whale.Process):
    """Every row with the place at which its instance got it, and what the watermark promised."""

    def open(self, context: Any) -> None:
        self.instance, self.seen, self.watermark_ns = context.instance, 0, -(2**63)

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        places = np.arange(self.seen, self.seen + batch.num_rows)
        self.seen += batch.num_rows
        assert (batch["t"] * 1_000_000_000 > self.watermark_ns).all()
        columns = {name: batch[name].copy() for name in ("k", "v", "t")}
        out.emit({**columns, "instance": np.full(batch.num_rows, self.instance), "place": places})

    def on_watermark(self, watermark_ns: int, out: Any) -> None:
        self.watermark_ns = watermark_ns


@dataclass
class Model:
    """A stream as a list, and how to build the same."""

    rows: list[Row]
    stream: whale.Stream


@dataclass
class World:
    """A random topology, with what must come out of each of its sinks."""

    topology: whale.Topology
    streams: list[Model] = field(default_factory=list)
    expected: dict[str, list[Row]] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)


GROUPINGS = ("key_by", "shuffle", "local_or_shuffle", "global_", "broadcast", "direct", "partition")


def grouped(stream: whale.Stream, how: str) -> whale.GroupedStream:
    if how == "key_by":
        return stream.key_by("k")
    if how == "direct":
        return stream.direct("k")
    if how == "partition":
        return stream.partition_by(lambda batch, n: batch["k"] % n)
    return getattr(stream, how)()


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw sources, filters, maps, unions of these and of unions; each is read by a sink."""
    world = World(whale.Topology("random"))
    parallelism = st.none() | st.integers(1, 3)
    for number in range(draw(st.integers(1, 3))):
        times = sorted(draw(st.lists(st.integers(-5, 5), max_size=12)))
        rows = [(draw(st.integers(0, 1)), number * 1000 + i, t) for i, t in enumerate(times)]
        table = pa.table(
            {n: pa.array([row[i] for row in rows], pa.int64()) for i, n in enumerate("kvt")}
        )
        source = world.topology.source(
            whale.sources.arrow(table), event_time="t", event_time_unit="s",
            max_out_of_order_ms=10_000, parallelism=draw(parallelism),
        )  # fmt: skip
        world.streams.append(Model(rows, source))
    for _ in range(draw(st.integers(1, 4))):
        add_operator(draw, world)
    for number, model in enumerate(world.streams):
        add_sink(draw, world, f"out-{number}", model)
    return world


def add_operator(draw: st.DrawFn, world: World) -> None:
    pick = st.sampled_from(world.streams)
    parallelism = draw(st.none() | st.integers(1, 3))
    kind = draw(st.sampled_from(("union", "union", "filter", "map")))
    if kind == "union":
        members = draw(st.lists(pick, min_size=2, max_size=3))
        union = members[0].stream.union(*(member.stream for member in members[1:]))
        world.streams.append(Model([row for one in members for row in one.rows], union))
        return
    model = draw(pick)
    if kind == "filter":
        kept = model.stream.filter(whale.col("k") == 1, parallelism=parallelism)
        world.streams.append(Model([row for row in model.rows if row[0] == 1], kept))
    else:
        moved = model.stream.with_column("v", whale.col("v") + 100, parallelism=parallelism)
        world.streams.append(Model([(k, v + 100, t) for k, v, t in model.rows], moved))


def add_sink(draw: st.DrawFn, world: World, name: str, model: Model) -> None:
    world.expected[name] = model.rows
    world.copies[name] = 1
    how = draw(st.sampled_from(("", *GROUPINGS)))
    if not how:
        model.stream.sink(whale.sinks.collect(), id=name)
        return
    count = 1 if how == "global_" else draw(st.integers(2, 3))
    world.copies[name] = count if how == "broadcast" else 1
    seen = grouped(model.stream, how).process(Arrivals, parallelism=count)
    seen.sink(whale.sinks.collect(), id=name)


def check(world: World, job: Any) -> None:
    for name, rows in world.expected.items():
        found = job.results(name).to_arrow().to_pylist()
        expected = Counter({row: n * world.copies[name] for row, n in Counter(rows).items()})
        assert Counter((row["k"], row["v"], row["t"]) for row in found) == expected
        if found and "place" in found[0]:
            by_place = sorted(found, key=lambda row: (row["instance"], row["place"]))
            for one, after in itertools.pairwise(by_place):
                assert one["instance"] < after["instance"] or one["t"] <= after["t"]


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(worlds())
def test_random_topologies_with_unions(world: World) -> None:
    check(world, run(world.topology, settings={"runtime.source_batch_rows": 3}))


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(world=worlds(), workers=st.integers(2, 4))
def test_random_topologies_with_unions_over_processes(world: World, workers: int) -> None:
    check(world, submit(world.topology, on="processes", workers=workers).wait(60))


def source(topology: whale.Topology, name: str, rows: Any, **options: Any) -> whale.Stream:
    return topology.source(whale.sources.iterable(rows), id=name, **options)


TIMED = {"event_time": "t", "event_time_unit": "s"}


def test_rows_of_equal_time_come_in_the_order_in_which_the_streams_are_named(runner: Any) -> None:
    """Compared with SQL, which knows no order of arrival."""
    rows = {name: [{"s": name, "v": i, "t": i // 4} for i in range(200)] for name in "abc"}
    topology = whale.Topology("order")
    a, b, c = (source(topology, name, rows[name], **TIMED) for name in "abc")

    class Numbered(whale.Process):
        def open(self, context: Any) -> None:
            self.seen = 0

        def on_row(self, row: Any, out: Any) -> None:
            out.emit_row(place=self.seen, s=row.s, v=row.v)
            self.seen += 1

    # b runs two filters, so that its rows take longer than the others'
    late = b.filter(lambda row: True).filter(lambda row: True)
    ordered = c.union(late.union(a)).global_().process(Numbered, id="numbered")
    ordered.sink(whale.sinks.collect(), id="out")
    found = runner(topology, {"runtime.source_batch_rows": 7}).results("out").to_arrow()
    with duckdb.connect() as database:
        database.register(
            "rows", pa.Table.from_pylist([row for one in rows.values() for row in one])
        )
        expected = database.sql(
            "SELECT s, v FROM rows ORDER BY t, position(s IN 'cba'), v"
        ).fetchall()
    assert [(r["s"], r["v"]) for r in found.sort_by("place").to_pylist()] == expected


def test_a_union_is_the_one_side_of_a_join(runner: Any) -> None:
    """Broadcast to all, beside a keyed union: every pair is met once."""

    class Pairs(whale.CoProcess):
        def open(self, context: Any) -> None:
            self.left: list[int] = []

        def on_left_row(self, row: Any, out: Any) -> None:
            self.left.append(row.v)

        def on_right_row(self, row: Any, out: Any) -> None:
            out.emit_rows([{"left": v, "right": row.v} for v in self.left])

    topology = whale.Topology("join")
    early = [source(topology, f"l{n}", [{"v": n * 10 + i, "t": 0} for i in range(5)], **TIMED)
             for n in range(3)]  # fmt: skip
    late = [source(topology, f"r{n}", [{"v": n * 10 + i, "t": 1} for i in range(4)], **TIMED)
            for n in range(2)]  # fmt: skip
    left, right = early[0].union(*early[1:]), late[0].union(late[1])
    joined = left.key_by("v").connect(right.broadcast()).process(Pairs, id="p", parallelism=3)
    joined.sink(whale.sinks.collect(), id="out")
    found = runner(topology).results("out").to_arrow().to_pylist()
    lefts = [n * 10 + i for n in range(3) for i in range(5)]
    rights = [n * 10 + i for n in range(2) for i in range(4)]
    assert sorted((row["left"], row["right"]) for row in found) == sorted(
        itertools.product(lefts, rights)
    )


def test_ungrouped_rows_stay_with_the_instance_of_their_number(runner: Any) -> None:
    """Both streams run three times, and so does what reads their union."""

    def tagged(name: str, stream: whale.Stream) -> whale.Stream:
        class Tag(whale.Process):
            def open(self, context: Any) -> None:
                self.instance = context.instance

            def on_row(self, row: Any, out: Any) -> None:
                out.emit_row(v=row.v, stream=name, instance=self.instance)

        return stream.key_by("v").process(Tag, id=f"tag-{name}", parallelism=3)

    seen: list[whale.Stream] = []
    topology = whale.Topology("forward")
    for name in "ab":
        seen.append(tagged(name, source(topology, name, [{"v": i} for i in range(300)])))

    class Order(whale.Process):
        def open(self, context: Any) -> None:
            self.last: dict[Any, int] = {}

        def on_row(self, row: Any, out: Any) -> None:
            assert self.last.get((row.stream, row.instance), -1) < row.v
            self.last[row.stream, row.instance] = row.v
            out.emit_row(**dict(row))

    united = seen[0].union(seen[1]).filter(lambda row: True, id="all")
    united.direct("instance").process(Order, id="order", parallelism=3).sink(
        whale.sinks.collect(), id="out"
    )
    plan = topology.explain(3)
    assert "tag-a → all" in str(plan)
    assert "forward" in str(plan)
    found = runner(topology).results("out").to_arrow().to_pylist()
    assert Counter((r["stream"], r["v"]) for r in found) == Counter(
        (name, i) for name in "ab" for i in range(300)
    )


DIFFERENT = {
    "types": (
        lambda row: {"v": row.v * 0.5},
        "operator 'out': union takes streams of equal columns, but 'v' is ",
    ),
    "names": (
        lambda row: {"w": row.v},
        "operator 'out': union takes streams of equal columns, but",
    ),
}


@pytest.mark.parametrize("difference", DIFFERENT)
def test_columns_known_only_from_rows_are_compared(difference: str) -> None:
    function, text = DIFFERENT[difference]
    topology = whale.Topology("differ")
    rows = [{"v": i} for i in range(10)]
    a = source(topology, "a", rows).map(lambda row: {"v": row.v}, id="same")
    b = source(topology, "b", rows).map(function, id="other")
    a.union(b).sink(whale.sinks.collect(), id="out")
    with pytest.raises(whale.errors.TopologyError) as caught:
        run(topology)
    assert str(caught.value).startswith(text)
    assert "'same'" in str(caught.value)
    assert "'other'" in str(caught.value)


def test_types_known_only_from_expressions_are_compared_before_the_start() -> None:
    topology = whale.Topology("differ")
    table = whale.sources.arrow(pa.table({"v": [1, 2]}))
    a, b = (topology.source(table, id=name) for name in "ab")
    half = b.with_column("v", whale.col("v") / 2, id="half")
    a.union(half, id="all").sink(whale.sinks.collect(), id="out")
    with pytest.raises(whale.errors.TopologyError, match="operator 'all': union takes streams of"):
        run(topology)


def test_a_transport_of_a_stream_stays_with_it_in_a_union() -> None:
    mine, whole = unix_transport(message_bytes=64), unix_transport(message_bytes=128)
    topology = whale.Topology("carried", transport=whole)
    a, b = (source(topology, name, [{"v": 1}]) for name in "ab")
    a.via(mine).union(b).shuffle().filter(lambda row: True, id="f").sink(
        whale.sinks.collect(), id="out"
    )
    edges = plan_unsized(topology.logical_plan(), Settings(), 2).edges
    carried = [(e.source_operator, e.transport) for e in edges if e.target_operator == "f"]
    assert carried == [("a", mine), ("b", whole)]


def test_a_source_that_stays_behind_holds_the_watermark_of_a_union_back(one_host: Any) -> None:
    """A count by hour, made by watermarks: right only if it waits for the later stream."""

    class Hours(whale.Process):
        def open(self, context: Any) -> None:
            self.counts: Counter[int] = Counter()

        def on_row(self, row: Any, out: Any) -> None:
            self.counts[row.t // 10] += 1

        def on_watermark(self, watermark_ns: int, out: Any) -> None:
            past = [hour for hour in self.counts if (hour + 1) * 10 * 10**9 - 1 <= watermark_ns]
            out.emit_rows([{"hour": hour, "rows": self.counts.pop(hour)} for hour in sorted(past)])

        def close(self, out: Any) -> None:
            out.emit_rows([{"hour": h, "rows": n} for h, n in sorted(self.counts.items())])

    topology = whale.Topology("hours")
    dense = source(topology, "dense", [{"t": i // 5} for i in range(500)], **TIMED)
    sparse = source(topology, "sparse", [{"t": i} for i in range(0, 100, 7)], **TIMED)
    dense.union(sparse).global_().process(Hours, id="hours").sink(whale.sinks.collect(), id="out")
    job = one_host(topology, {"runtime.source_batch_rows": 3, "runtime.max_drift_ms": 0})
    found = job.results("out").to_arrow().to_pylist()
    expected = Counter([i // 5 // 10 for i in range(500)] + [i // 10 for i in range(0, 100, 7)])
    assert [(row["hour"], row["rows"]) for row in found] == sorted(expected.items())
