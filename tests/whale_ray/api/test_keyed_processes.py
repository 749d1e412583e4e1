"""Keyed processes against plain Python: state by key, timers, columns, mistakes."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.whale_ray.api.opened_processes import feed, opened
from whale_ray import state
from whale_ray.api.submission import run
from whale_ray.configs.errors import UsageError
from whale_ray.testing import ListSource, Pause
from whale_ray.transport.clock import VirtualClock
from whale_ray.transport.wire.batch import Batch

SECOND = 1_000_000_000
EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - as of a column without a zone
SCHEMA = {"bidder": "string", "price": "double", "t": "int64"}


class Streak(whale.KeyedProcess):
    """Bids of one bidder without a pause of more than 10 s, with what can be kept of them."""

    bids = state.count()
    spent = state.sum("double")
    least = state.min("double")
    most = state.max("double")
    note = state.value("string")
    last = state.value("timestamp[ms]")
    quiet = state.timer()

    def on_row(self, row: Any, out: whale.Output) -> None:
        assert self.key == (row.bidder,)
        self.bids.add(1)
        self.spent.add(row.price)
        self.least.add(row.price)
        self.most.add(row.price)
        self.note.set((self.note.get() or "") + str(int(row.price)))
        time = EPOCH + datetime.timedelta(seconds=row.t)
        self.last.set(time)
        self.quiet.set(time + datetime.timedelta(seconds=10))

    def on_timer(self, timer: Any, out: whale.Output) -> None:
        assert timer is self.quiet and not timer.exists
        out.emit_row(
            bidder=self.key.bidder,
            bids=self.bids.get(),
            spent=self.spent.get(),
            least=self.least.get(),
            most=self.most.get(),
            note=self.note.get(),
            last=(self.last.get() - EPOCH).total_seconds(),
            at=out.time_ns // SECOND,
        )
        self.clear()


def streaks(rows: list[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Return the same from rows (bidder, price, time in s)."""
    by_bidder: dict[str, list[list[tuple[str, int, int]]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row[2]):
        known = by_bidder[row[0]]
        if known and row[2] <= known[-1][-1][2] + 10:
            known[-1].append(row)
        else:
            known.append([row])
    return [
        {
            "bidder": bidder,
            "bids": len(one),
            "spent": float(sum(row[1] for row in one)),
            "least": float(min(row[1] for row in one)),
            "most": float(max(row[1] for row in one)),
            "note": "".join(str(row[1]) for row in one),
            "last": float(one[-1][2]),
            "at": one[-1][2] + 10,
        }
        for bidder, found in by_bidder.items()
        for one in found
    ]


def streak_topology(
    rows: list[tuple[str, int, int]], parallelism: int, *, late_s: int = 0, kind: Any = Streak
) -> whale.Topology:
    topology = whale.Topology("streaks")
    source = whale.sources.iterable(
        [dict(zip(SCHEMA, row, strict=True)) for row in rows], schema=SCHEMA
    )
    stream = topology.source(
        source,
        id="bids",
        event_time="t",
        event_time_unit="s",
        max_out_of_order_ms=1000 * late_s,
    )
    stream = stream.key_by("bidder").process(kind, id="streaks", parallelism=parallelism)
    stream.sink(whale.sinks.collect(), id="out")
    return topology


def rows_of(job: Any) -> list[dict[str, Any]]:
    return job.results("out").to_arrow().to_pylist()


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["bidder"], row["last"]))


bids = st.tuples(st.sampled_from("abcdefg"), st.integers(0, 9), st.integers(-60, 60))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(bids, min_size=1, max_size=50),
    st.sampled_from([1, 3, 7]),
    st.sampled_from([1, 3, 8192]),
)
def test_streaks_are_those_of_a_plain_loop(
    rows: list[tuple[str, int, int]], parallelism: int, batch_rows: int
) -> None:
    topology = streak_topology(rows, parallelism, late_s=130)
    job = run(topology, settings={"runtime.source_batch_rows": batch_rows})
    assert in_order(rows_of(job)) == in_order(streaks(rows))


@pytest.mark.parametrize("batch_rows", [1, 8192])
def test_the_result_does_not_depend_on_how_rows_are_batched(batch_rows: int) -> None:
    rows = [("a", 1, 0), ("a", 2, 5), ("a", 3, 40), ("b", 1, 41), ("a", 4, 50), ("a", 5, 61)]
    job = run(streak_topology(rows, 2), settings={"runtime.source_batch_rows": batch_rows})
    assert in_order(rows_of(job)) == in_order(streaks(rows))


def test_streaks_on_every_runner(runner: Callable[..., Any]) -> None:
    random = np.random.default_rng(8)
    rows = [
        (f"bidder {random.integers(0, 40)}", int(random.integers(0, 9)), int(t) // 8)
        for t in range(2000)
    ]
    assert in_order(rows_of(runner(streak_topology(rows, 3)))) == in_order(streaks(rows))


class Spend(whale.KeyedProcess):
    """The column form: a running total, in order within a batch."""

    spent = state.sum("double")
    first = state.value("int64")

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        slots = self.slots(batch)
        new = np.flatnonzero(~self.first.is_set(slots))[::-1]
        self.first[slots[new]] = batch["t"][new]
        unique, place = np.unique(slots, return_inverse=True)
        self.spent[unique] += np.bincount(place, batch["price"])
        out.emit(
            {"bidder": batch["bidder"], "spent": self.spent[slots], "first": self.first[slots]}
        )


class KeepsLatest:
    """Handles are there before the first rows are looked up, which Python does last."""

    schema = whale.Schema.of(k="int64", was="bool", latest="int64")

    def keep(self: Any, batch: whale.Batch, out: whale.Output) -> None:
        was = self.latest.is_set(self.slots(batch))
        self.latest[self.slots(batch)] = batch["n"]
        out.emit({"k": batch["k"], "was": was, "latest": self.latest[self.slots(batch)]})


class Latest(KeepsLatest, whale.KeyedProcess):
    latest = state.value("int64")
    on_batch = KeepsLatest.keep


class LatestOfBoth(KeepsLatest, whale.KeyedCoProcess):
    latest = state.value("int64")
    on_left = KeepsLatest.keep

    def on_right(self, batch: whale.Batch, out: whale.Output) -> None:
        self.latest[self.slots(batch, right=True)] = batch["n"]


@pytest.mark.parametrize("both", [False, True])
def test_a_handle_takes_what_slots_returns_from_the_first_batch_on(both: bool) -> None:
    topology = whale.Topology("latest")
    rows = topology.source(whale.sources.iterable([{"k": n % 5, "n": n} for n in range(10)]))
    keyed = rows.key_by("k")
    if both:
        none = topology.source(whale.sources.arrow(pa.table({"k": [7], "n": [70]})))
        made = keyed.connect(none.key_by("k")).process(LatestOfBoth, id="latest")
    else:
        made = keyed.process(Latest, id="latest")
    made.sink(whale.sinks.collect(), id="out")
    job = whale.run(topology, settings={"runtime.source_batch_rows": 5})
    found = job.results("out").to_arrow().to_pylist()
    assert sorted(row["latest"] for row in found) == list(range(10))
    assert [row["was"] for row in found] == [row["latest"] >= 5 for row in found]


def test_a_handle_of_no_key_says_where_it_can_be_used() -> None:
    process = Latest()
    with pytest.raises(UsageError, match="'latest' is the state of a key: use it in on_row"):
        process.latest[np.arange(2)] = 1


def test_the_column_form_keeps_what_the_row_form_does() -> None:
    rows = [
        (name, price, t)
        for t, (name, price) in enumerate(zip("abcab" * 40, [1, 2, 3, 4] * 50, strict=True))
    ]
    job = run(streak_topology(rows, 3, kind=Spend), settings={"runtime.source_batch_rows": 7})
    last = {row["bidder"]: (row["spent"], row["first"]) for row in rows_of(job)}
    assert last == {
        name: (float(sum(p for n, p, _ in rows if n == name)), "abc".index(name)) for name in "abc"
    }


class Idle(whale.KeyedProcess):
    """Emits a key that has had no row for 200 ms by the clock."""

    rows = state.count()
    quiet = state.timer("processing")

    def open(self, context: Any) -> None:
        super().open(context)
        self.clock = context.clock

    def on_row(self, row: Any, out: whale.Output) -> None:
        self.rows.add(1)
        self.quiet.set(self.clock.wall_ns() + 200_000_000)

    def on_timer(self, timer: Any, out: whale.Output) -> None:
        out.emit_row(n=self.key.n, rows=self.rows.get())
        self.clear()


def test_timers_of_processing_time_fire_by_the_clock() -> None:
    items = [{"n": 1}, {"n": 2}, Pause(150), {"n": 1}, Pause(100), {"n": 2}, Pause(300), {"n": 2}]
    topology = whale.Topology("idle")
    rows = topology.source(ListSource(items, schema={"n": "int64"}), id="rows")
    rows.key_by("n").process(Idle, id="idle").sink(whale.sinks.collect(), id="out")
    job = run(topology, clock=VirtualClock(), settings={"transport.wtl_ms": 0})
    assert [(row["n"], row["rows"]) for row in rows_of(job)] == [(2, 1), (1, 2), (2, 1), (2, 1)]


class Rated(whale.KeyedCoProcess):
    """Left: orders; right: rates, of the same key or broadcast."""

    total = state.sum("int64")
    rate = state.value("int64")

    def on_left_row(self, row: Any, out: whale.Output) -> None:
        self.total.add(row.n * self.rate.get(0))
        out.emit_row(id=self.key.id, total=self.total.get())

    def on_right_row(self, row: Any, out: whale.Output) -> None:
        assert self.key.id == row.order
        self.rate.set(row.n)


class RatedByAll(Rated):
    def open(self, context: Any) -> None:
        super().open(context)
        self.now = 0

    def on_left_row(self, row: Any, out: whale.Output) -> None:
        self.total.add(row.n * self.now)
        out.emit_row(id=self.key.id, total=self.total.get())

    def on_right_row(self, row: Any, out: whale.Output) -> None:
        self.now = row.n


@pytest.mark.parametrize("kind", [Rated, RatedByAll])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_two_inputs_share_the_state_of_a_key(kind: Any, parallelism: int) -> None:
    orders = [{"id": t % 3, "n": 1, "t": t} for t in range(1, 60)]
    rates = [{"order": t // 10 % 3, "n": t, "t": t} for t in range(0, 60, 10)]
    topology = whale.Topology("rated")
    timed = {"event_time": "t", "event_time_unit": "s"}
    left = topology.source(whale.sources.iterable(orders), id="orders", **timed)
    right = topology.source(whale.sources.iterable(rates), id="rates", **timed)
    grouped = right.key_by("order") if kind is Rated else right.broadcast()
    stream = left.key_by("id").connect(grouped).process(kind, id="rated", parallelism=parallelism)
    stream.sink(whale.sinks.collect(), id="out")
    expected, rate, total = [], dict.fromkeys(range(3), 0), dict.fromkeys(range(3), 0)
    rows = [(r["t"], 0, r["id"], r["n"]) for r in orders]
    rows += [(r["t"], 1, r["order"], r["n"]) for r in rates]
    for _, side, key, n in sorted(rows):
        if side:
            rate = {**rate, key: n} if kind is Rated else dict.fromkeys(range(3), n)
        else:
            total[key] += n * rate[key]
            expected.append((key, total[key]))
    found = [(row["id"], row["total"]) for row in rows_of(run(topology))]
    assert sorted(found) == sorted(expected)


def timed(rows: list[dict[str, Any]], time_ns: int) -> Batch:
    return Batch.from_rows(rows).with_times(np.full(len(rows), time_ns, np.int64))


def test_keys_whose_state_is_initial_take_no_memory() -> None:
    class Cleared(whale.KeyedProcess):
        n = state.count()
        text = state.value("string")

        def on_row(self, row: Any, out: whale.Output) -> None:
            self.n.add(row.n)
            self.text.set("x" * row.n or None)
            if row.n == 3:
                self.clear()

    process = opened(Cleared)
    feed(process, [{"k": k, "n": k % 4} for k in range(1000)])
    process.deadline_ns()
    assert len(process._state.store) == 500  # neither 0, which changes nothing, nor 3


def test_values_of_all_types_come_back() -> None:
    values = {
        "bool": True,
        "int8": -5,
        "uint64": 2**64 - 1,
        "float32": 1.5,
        "date32": datetime.date(1969, 12, 31),
        "timestamp[s]": EPOCH - datetime.timedelta(seconds=2),
        "timestamp[ns]": EPOCH + datetime.timedelta(days=20_000, microseconds=4),
        "timestamp[us, tz=UTC]": datetime.datetime(2024, 2, 29, 1, tzinfo=datetime.UTC),
        "duration[ms]": datetime.timedelta(days=-1, milliseconds=3),
        "string": "Grüße",
        "binary": b"\x00\xff",
    }
    declared = {f"v{n}": state.value(kind) for n, kind in enumerate(values)}
    seen = []

    def on_row(self: Any, row: Any, out: Any) -> None:
        handles = [getattr(self, name) for name in declared]
        seen.append([(one.get(), one.exists) for one in handles])
        for handle, value in zip(handles, values.values(), strict=True):
            handle.set(value if row.n else None)

    process = opened(type("Typed", (whale.KeyedProcess,), {**declared, "on_row": on_row}))
    feed(process, [{"k": 1, "n": n} for n in (0, 1, 0, 0)])
    nothing = [(None, False)] * len(values)
    assert seen == [nothing, nothing, [(value, True) for value in values.values()], nothing]


def test_explain_shows_what_is_kept_and_the_memory_for_it() -> None:
    text = str(streak_topology([("a", 1, 0)], 1).explain())
    assert "State: up to 1 GiB in each worker (runtime.state_bytes), then 4 GiB on disk" in text
    assert "declared  bids: count, spent: sum of float64, least: min of float64" in text
    assert "quiet: timer (event time)" in text
