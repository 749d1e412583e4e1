"""Whole topologies on every runner, each against a plain Python computation over the same rows."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray.api.job import Job

MS = 1_000_000


def rows_of(job: Job, sink: str = "out") -> list[dict[str, Any]]:
    return job.results(sink).to_arrow().to_pylist()


def as_counter(rows: Iterable[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in rows)


class SumByKey(whale.Process):
    """The sum of `v` for each `k`, at the end."""

    def open(self, context: Any) -> None:
        self.sums: dict[Any, int] = defaultdict(int)

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        for row in batch.rows():
            self.sums[row["k"]] += row["v"]

    def close(self, out: Any) -> None:
        out.emit_rows([{"k": k, "total": total} for k, total in self.sums.items()])


class Tag(whale.Process):
    """Every row with the instance that saw it and its place in that instance's order."""

    def open(self, context: Any) -> None:
        self.instance, self.seen = context.instance, 0

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        places = np.arange(self.seen, self.seen + batch.num_rows)
        self.seen += batch.num_rows
        out.emit(
            {
                "v": batch["v"].copy(),
                "instance": np.full(batch.num_rows, self.instance),
                "place": places,
            }
        )


def numbers(count: int, keys: int = 7) -> list[dict[str, Any]]:
    return [{"k": f"key {i % keys}", "v": i} for i in range(count)]


def test_a_chain_with_a_keyed_process(runner: Any) -> None:
    topology = whale.Topology("sums")
    source = topology.source(whale.sources.iterable(numbers(5000)), id="numbers")
    even = source.filter(whale.col("v") % 2 == 0, id="even")
    doubled = even.map(lambda row: {"k": row.k, "v": row.v * 2}, id="double")
    twice = doubled.flat_map(lambda row: [row, row], id="twice")
    sums = twice.key_by("k").process(SumByKey, id="sums", parallelism=4)
    sums.sink(whale.sinks.collect(), id="out")
    expected: Counter[str] = Counter()
    for row in numbers(5000):
        if row["v"] % 2 == 0:
            expected[row["k"]] += row["v"] * 4
    found = {row["k"]: row["total"] for row in rows_of(runner(topology))}
    assert found == dict(expected)


@pytest.mark.parametrize(
    ("group", "check"),
    [
        (lambda stream: stream.shuffle(), "every row once, spread over all"),
        (lambda stream: stream.local_or_shuffle(), "every row once"),
        (lambda stream: stream.broadcast(), "every row at every instance"),
        (lambda stream: stream.global_(), "all at instance 0"),
        (lambda stream: stream.direct("v"), "instance v"),
        (lambda stream: stream.partition_by(lambda b, n: b["v"] % n), "instance v"),
        (lambda stream: stream.key_by("v"), "every row once, spread over all"),
    ],
    ids=["shuffle", "local-or-shuffle", "all", "global", "direct", "custom", "key"],
)
def test_groupings(runner: Any, group: Any, check: str) -> None:
    """Each grouping sends rows to the right instances, in the source's order."""
    count, parallelism = 2000, 1 if "instance 0" in check else 5
    rows = [{"v": i % parallelism if check == "instance v" else i} for i in range(count)]
    topology = whale.Topology("grouping")
    source = topology.source(whale.sources.iterable(rows), id="rows")
    tagged = group(source).process(Tag, id="tag", parallelism=parallelism)
    tagged.sink(whale.sinks.collect(), id="out")
    found = rows_of(runner(topology, {"runtime.source_batch_rows": 64}))

    by_instance: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in found:
        by_instance[row["instance"]].append((row["place"], row["v"]))
    in_order = {i: [v for _, v in sorted(places)] for i, places in by_instance.items()}
    values = [row["v"] for row in rows]
    if check == "every row at every instance":
        assert in_order == dict.fromkeys(range(parallelism), values)
    elif check == "all at instance 0":
        assert in_order == {0: values}
    elif check == "instance v":
        assert in_order == {i: [v for v in values if v == i] for i in range(parallelism)}
    else:
        assert Counter(v for part in in_order.values() for v in part) == Counter(values)
        assert all(part == sorted(part) for part in in_order.values())
        if "spread" in check:
            assert set(in_order) == set(range(parallelism))


class AsOf(whale.CoProcess):
    """For every right row, how many left rows came no later, and their sum."""

    def open(self, context: Any) -> None:
        self.count = self.total = 0

    def on_left(self, batch: whale.Batch, out: Any) -> None:
        self.count += batch.num_rows
        self.total += int(batch["v"].sum())

    def on_right_row(self, row: Any, out: Any) -> None:
        out.emit_row(q=row["q"], count=self.count, total=self.total)


class Gather(whale.Process):
    """One row per question: the sums over all instances' answers, which share its event time."""

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        answers: dict[int, list[int]] = {}
        for row in batch.rows():
            parts = answers.setdefault(row["q"], [0, 0, 0])
            parts[0] += 1
            parts[1] += row["count"]
            parts[2] += row["total"]
        out.emit_rows(
            [{"q": q, "parts": p, "count": c, "total": t} for q, (p, c, t) in answers.items()]
        )


@pytest.mark.long
@pytest.mark.parametrize("batch_rows", [1, 37, 8192])
def test_a_broadcast_join_in_event_time_order_equals_sql(runner: Any, batch_rows: int) -> None:
    """Ties go to the left; the answer does not depend on how the input was cut."""
    chance = random.Random(5)
    left = [{"k": chance.randrange(50), "v": i, "t": i // 3} for i in range(900)]
    right = [{"q": i, "t": i * 2} for i in range(150)]
    topology = whale.Topology("as-of")
    facts = topology.source(
        whale.sources.iterable(left), id="facts", event_time="t", event_time_unit="ms"
    )
    questions = topology.source(
        whale.sources.iterable(right), id="questions", event_time="t", event_time_unit="ms"
    )
    joined = (
        facts.key_by("k").connect(questions.broadcast()).process(AsOf, id="join", parallelism=5)
    )
    gathered = joined.key_by("q").process(Gather, id="gather", parallelism=3)
    gathered.sink(whale.sinks.collect(), id="out")
    settings = {"runtime.source_batch_rows": batch_rows, "transport.wtl_ms": 0.0}
    found = runner(topology, settings).results("out").to_arrow()

    facts_table, questions_table = pa.Table.from_pylist(left), pa.Table.from_pylist(right)
    with duckdb.connect() as database:
        database.register("facts", facts_table)
        database.register("questions", questions_table)
        expected = database.sql(
            "SELECT q, 5 AS parts, count(v) AS count, coalesce(sum(v), 0)::BIGINT AS total "
            "FROM questions LEFT JOIN facts ON facts.t <= questions.t GROUP BY q ORDER BY q"
        ).fetchall()
    assert [tuple(row.values()) for row in found.sort_by("q").to_pylist()] == expected


def test_a_diamond_whose_branches_come_from_one_source(runner: Any) -> None:
    """Both sides of the join hang on one source: neither may wait for the other's ring."""
    rows = [{"v": i, "q": i, "k": i % 3, "t": i} for i in range(3000)]
    topology = whale.Topology("diamond")
    source = topology.source(
        whale.sources.iterable(rows), id="rows", event_time="t", event_time_unit="ms"
    )
    few = source.filter(whale.col("v") % 1000 == 999, id="few")
    joined = source.key_by("k").connect(few.broadcast()).process(AsOf, id="join", parallelism=3)
    joined.key_by("q").process(Gather, id="gather", parallelism=1).sink(
        whale.sinks.collect(), id="out"
    )
    settings = {
        "transport.ring_bytes": 65536,
        "transport.ring_bytes_min": 65536,
        "runtime.source_batch_rows": 500,
        "runtime.order_buffer_bytes": 1024,
    }
    found = sorted(rows_of(runner(topology, settings)), key=lambda row: row["q"])
    assert [(r["q"], r["parts"], r["count"]) for r in found] == [
        (999, 3, 1000),
        (1999, 3, 2000),
        (2999, 3, 3000),
    ]


def test_two_sources_of_very_different_rates_through_the_smallest_rings(runner: Any) -> None:
    """1000 rows of one for each of the other, one worker's rings full again and again."""
    dense = [{"k": i % 5, "v": 1, "t": i} for i in range(20_000)]
    sparse = [{"q": i, "t": i * 1000 + 999} for i in range(20)]
    topology = whale.Topology("skew")
    left = topology.source(
        whale.sources.iterable(dense), id="dense", event_time="t", event_time_unit="ms"
    )
    right = topology.source(
        whale.sources.iterable(sparse), id="sparse", event_time="t", event_time_unit="ms"
    )
    joined = left.key_by("k").connect(right.broadcast()).process(AsOf, id="join", parallelism=4)
    joined.key_by("q").process(Gather, id="gather", parallelism=2).sink(
        whale.sinks.collect(), id="out"
    )
    settings = {
        "transport.ring_bytes": 65536,
        "transport.ring_bytes_min": 65536,
        "runtime.max_drift_ms": 0,
    }
    found = sorted(rows_of(runner(topology, settings)), key=lambda row: row["q"])
    assert [r["count"] for r in found] == [(i + 1) * 1000 for i in range(20)]


class Explode(whale.Process):
    """Emits far more than a ring holds, in one call."""

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        for value in batch["v"].tolist():
            out.emit({"v": np.arange(200_000) + value * 200_000})


def test_one_call_may_emit_more_than_its_ring_holds(runner: Any) -> None:
    topology = whale.Topology("explode")
    source = topology.source(whale.sources.iterable([{"v": 0}, {"v": 1}]), id="rows")
    exploded = source.shuffle().process(Explode, id="explode", parallelism=1)
    exploded.shuffle().process(CountRows, id="count", parallelism=2).sink(
        whale.sinks.collect(), id="out"
    )
    settings = {"transport.ring_bytes": 65536, "transport.ring_bytes_min": 65536}
    found = rows_of(runner(topology, settings))
    assert sum(row["rows"] for row in found) == 400_000
    assert sum(row["total"] for row in found) == sum(range(400_000))


class CountRows(whale.Process):
    def open(self, context: Any) -> None:
        self.rows = self.total = 0

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        self.rows += batch.num_rows
        self.total += int(batch["v"].sum())

    def close(self, out: Any) -> None:
        out.emit_row(rows=self.rows, total=self.total)


def test_several_sinks_and_shared_branches(one_host: Any) -> None:
    topology = whale.Topology("fan-out")
    source = topology.source(whale.sources.iterable(numbers(1000)), id="numbers")
    small = source.filter(lambda row: row.v < 10, id="small")
    small.sink(whale.sinks.collect(), id="small-out")
    source.key_by("k").process(SumByKey, id="sums", parallelism=2).sink(
        whale.sinks.collect(), id="sums-out"
    )
    job = one_host(topology)
    assert as_counter(rows_of(job, "small-out")) == as_counter(numbers(10))
    assert sum(row["total"] for row in rows_of(job, "sums-out")) == sum(range(1000))


def test_an_empty_input_ends_in_an_empty_result(runner: Any) -> None:
    schema = whale.Schema.of(k="string", v="int64")
    topology = whale.Topology("empty")
    source = topology.source(whale.sources.iterable([], schema=schema), id="nothing")
    source.key_by("k").process(SumByKey, id="sums", parallelism=2).sink(
        whale.sinks.collect(), id="out"
    )
    assert runner(topology).results("out").rows == 0


class Keeper(whale.Process):
    """Keeps views of the first batches, and tells at the end what stands in them."""

    def open(self, context: Any) -> None:
        self.kept: list[Any] = []

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        if len(self.kept) < 3:
            self.kept.append(batch["v"])

    def close(self, out: Any) -> None:
        out.emit({"v": np.concatenate(self.kept)})


def test_kept_views_stay_right_although_released_memory_is_poisoned(runner: Any) -> None:
    topology = whale.Topology("keeper")
    rows = [{"v": i} for i in range(9_000)]
    source = topology.source(whale.sources.iterable(rows), id="rows")
    source.global_().process(Keeper, id="keep", parallelism=1).sink(whale.sinks.collect(), id="out")
    settings = {
        "transport.ring_bytes": 262144,
        "transport.poison_released": True,
        "runtime.source_batch_rows": 1000,
        "transport.mms_bytes": 4096,
    }
    found = [row["v"] for row in rows_of(runner(topology, settings))]
    assert found == list(range(3000))


class Hoarder(whale.Process):
    def open(self, context: Any) -> None:
        self.kept: list[Any] = []

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        self.kept.append(batch)


def test_an_operator_that_keeps_too_many_views_is_named(one_host: Any) -> None:
    topology = whale.Topology("hoarder")
    rows = [{"v": i} for i in range(100_000)]
    source = topology.source(whale.sources.iterable(rows), id="rows")
    source.global_().process(Hoarder, id="hoard", parallelism=1).sink(
        whale.sinks.collect(), id="out"
    )
    with pytest.raises(whale.errors.HeldViewsError, match="operator 'hoard' .*copy them"):
        one_host(topology, {"transport.ring_bytes": 262144})


class HoldsBack(whale.Process):
    """Emits rows whose column is null for long, so that its type is not known."""

    def on_row(self, row: Any, out: Any) -> None:
        out.emit_row(v=row["v"], k=0, x=None if row["v"] < 400 else 1.5)


class InOrder(whale.Process):
    def open(self, context: Any) -> None:
        self.last = -1

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        values = batch["v"]
        assert values[0] > self.last
        assert (np.diff(values) > 0).all()
        self.last = int(values[-1])
        out.emit({"v": values.copy()})


def test_no_watermark_overtakes_rows_whose_types_are_not_known_yet(one_host: Any) -> None:
    topology = whale.Topology("held-back")
    rows = [{"v": i, "t": i} for i in range(500)]
    source = topology.source(
        whale.sources.iterable(rows), id="rows", event_time="t", event_time_unit="ms"
    )
    held = source.key_by("v").process(HoldsBack, id="hold", parallelism=1)
    held.key_by("k").process(InOrder, id="order", parallelism=1).sink(
        whale.sinks.collect(), id="out"
    )
    found = rows_of(one_host(topology, {"runtime.source_batch_rows": 10}))
    assert [row["v"] for row in found] == list(range(500))


class AfterWatermark(whale.Process):
    def open(self, context: Any) -> None:
        self.watermark_ns = -1

    def on_watermark(self, watermark_ns: int, out: Any) -> None:
        self.watermark_ns = watermark_ns

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        assert batch.times is not None
        assert batch.times.min() > self.watermark_ns
        out.emit({"v": batch["v"].copy()}, times=batch.times.copy())


def test_no_watermark_overtakes_rows_that_a_map_keeps_back() -> None:
    topology = whale.Topology("mapped")
    rows = [{"v": i, "t": i} for i in range(500)]
    source = topology.source(
        whale.sources.iterable(rows), id="rows", event_time="t", event_time_unit="ms"
    )
    mapped = source.map(lambda row: {"v": row.v, "k": 0, "x": None if row.v < 400 else 1.5})
    mapped.key_by("k").process(AfterWatermark, id="after", parallelism=1).sink(
        whale.sinks.collect(), id="out"
    )
    found = rows_of(whale.run(topology, settings={"runtime.source_batch_rows": 10}))
    assert [row["v"] for row in found] == list(range(500))


class OnlyMerged(whale.CoProcess):
    def open(self, context: Any) -> None:
        self.rows = 0

    def on_merged(self, left: Any, right: Any, order: Any, out: Any) -> None:
        self.rows += left.num_rows + right.num_rows

    def close(self, out: Any) -> None:
        out.emit({"n": np.array([self.rows])}, times=np.array([10**9]))


def test_merged_rows_of_one_port_alone(one_host: Any) -> None:
    """The other port's rows all go to other instances, or there are none at all."""
    topology = whale.Topology("one-sided")
    left = topology.source(
        whale.sources.iterable([{"k": 1, "t": 1}]), id="l", event_time="t", event_time_unit="ms"
    )
    right = topology.source(
        whale.sources.iterable([{"q": i, "t": i} for i in range(5)]),
        id="r",
        event_time="t",
        event_time_unit="ms",
    )
    both = left.key_by("k").connect(right.broadcast()).process(OnlyMerged, id="m", parallelism=4)
    both.sink(whale.sinks.collect(), id="out")
    assert sum(row["n"] for row in rows_of(one_host(topology))) == 1 + 4 * 5


class BatchAndEnd(whale.Process):
    """Emits batches with one time, with several, and at the end."""

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        out.emit({"v": batch["v"].copy()})

    def close(self, out: Any) -> None:
        out.emit({"v": np.array([-1])})


def test_where_no_time_is_needed_rows_may_have_one_or_not(one_host: Any) -> None:
    topology = whale.Topology("untimed")
    rows = [{"v": i, "t": i // 3} for i in range(100)]
    source = topology.source(
        whale.sources.iterable(rows), id="rows", event_time="t", event_time_unit="ms"
    )
    some = source.key_by("v").process(BatchAndEnd, id="some", parallelism=2)
    some.shuffle().filter(lambda row: True, id="all").sink(whale.sinks.collect(), id="out")
    found = Counter(
        row["v"] for row in rows_of(one_host(topology, {"runtime.source_batch_rows": 1}))
    )
    assert found == Counter([*range(100), -1, -1])


def test_a_users_handler_does_not_swallow_what_fails_downstream(one_host: Any) -> None:
    class Swallows(whale.Process):
        def on_row(self, row: Any, out: Any) -> None:
            try:
                out.emit_row(v=row["v"])
            except Exception:  # noqa: BLE001 - as users write it
                out.emit_row(v=-1)

    topology = whale.Topology("swallow")
    source = topology.source(whale.sources.iterable(numbers(10)), id="rows")
    source.key_by("k").process(Swallows, id="swallow", parallelism=1).filter(
        lambda row: 1 // (row.v - 5) != 7, id="fails"
    ).sink(whale.sinks.collect(), id="out")
    with pytest.raises(whale.errors.UserFunctionError, match="in operator 'fails'"):
        one_host(topology)


def test_null_keys_dropped_on_several_edges_are_added_up(one_host: Any) -> None:
    topology = whale.Topology("drops")
    rows = [{"a": None if i % 10 == 0 else i, "b": None if i % 4 == 0 else i} for i in range(100)]
    source = topology.source(whale.sources.iterable(rows), id="rows")
    for name in ("a", "b"):
        source.key_by(name, on_null="drop").process(Passes, id=f"by-{name}", parallelism=2).sink(
            whale.sinks.collect(), id=f"out-{name}"
        )
    dropped = one_host(topology).metrics().operator("rows").rows_dropped
    assert dropped == {"null key": 10 + 25}


class Passes(whale.Process):
    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        out.emit(batch)
