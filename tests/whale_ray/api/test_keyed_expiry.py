"""Values with a `ttl` against plain Python: what is read, and what takes memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray import state
from whale_ray.errors import TopologyError
from whale_ray.operators.keyed import expiry
from whale_ray.testing import instance_context
from whale_ray.transport.clock import VirtualClock
from whale_ray.transport.wire.batch import Batch

SECOND = 1_000_000_000
TTL_S = 10


class Out:
    """What `out` is to a process that emits nothing."""

    time_ns: int | None = None


class Kept(whale.KeyedProcess):
    """Does what each row says, and notes what is kept then."""

    count = state.count(ttl="10 seconds")
    total = state.sum("int64", ttl=10_000)
    least = state.min("int64", ttl="10 seconds")
    last = state.value("int64", ttl="10 seconds")
    text = state.value("string", ttl="10 seconds")
    items = state.list("int64", ttl="10 seconds")
    seen = state.map("int64", "int64", ttl="10 seconds")

    def open(self, context: Any) -> None:
        super().open(context)
        self.notes: list[Any] = []

    def on_row(self, row: Any, out: Any) -> None:
        match row.do:
            case "write":
                self.count.add()
                self.total.add(row.n)
                self.least.add(row.n)
                self.last.set(row.n)
                self.text.set(str(row.n))
            case "append":
                self.items.append(row.n)
            case "map":
                self.seen[row.n] = row.t
            case "clear":
                self.clear()
        self.notes.append(
            (
                self.count.get(),
                self.total.get(),
                self.least.get(),
                self.last.get(),
                self.text.get(),
                self.items.get(),
                dict(self.seen.items()),
                self.seen.get(row.n),
            )
        )


class Model:
    """The same of one key: each value with the time of its last write, entries with their own."""

    def __init__(self) -> None:
        self.values: dict[Any, tuple[Any, int]] = {}

    def get(self, name: Any, now: int, default: Any) -> Any:
        if name in self.values and self.values[name][1] + TTL_S <= now:
            del self.values[name]
        return self.values[name][0] if name in self.values else default

    def put(self, name: Any, value: Any, now: int) -> None:
        known = self.values.get(name, (None, now))[1]
        self.values[name] = (value, max(known, now))

    def take(self, do: str, n: int, now: int) -> Any:
        self.entries(now)
        if do == "write":
            self.put("count", self.get("count", now, 0) + 1, now)
            self.put("total", self.get("total", now, 0) + n, now)
            self.put("least", min(self.get("least", now, n), n), now)
            self.put("last", n, now)
        elif do == "append":
            self.put("items", [*self.get("items", now, []), n], now)
        elif do == "map":
            self.put(n, now, now)
        elif do == "clear":
            self.values.clear()
        last = self.get("last", now, None)
        entries = self.entries(now)
        return (
            self.get("count", now, 0),
            self.get("total", now, 0),
            self.get("least", now, None),
            last,
            None if last is None else str(last),
            self.get("items", now, []),
            entries,
            entries.get(n),
        )

    def entries(self, now: int) -> dict[int, int]:
        for name in [*self.values]:
            self.get(name, now, None)
        return {name: value for name, (value, _) in self.values.items() if isinstance(name, int)}


def opened(kind: Any, clock: Any = None) -> Any:
    process = kind()
    context = replace(instance_context(operator_id="op"), keys=(("k",),), in_event_time_order=False)
    process.open(context if clock is None else replace(context, clock=clock))
    return process


def feed(process: Any, rows: list[Any], *, timed: bool = True) -> None:
    batch = Batch.from_rows([dict(zip(("k", "do", "n", "t"), row, strict=True)) for row in rows])
    if timed:
        times = np.array([row[3] for row in rows], np.int64) * SECOND
        batch = Batch(batch.schema, batch.columns, batch.num_rows, times)
    process.on_batch(batch, Out())


some_rows = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from(["write", "append", "map", "map", "read", "clear"]),
        st.integers(0, 4),
        st.integers(0, 6),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(some_rows, st.integers(1, 9), st.sampled_from([1, 1 << 16]))
def test_values_are_gone_as_in_a_plain_model(
    rows: list[Any], batch_rows: int, freed_per_turn: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(expiry, "FREED_PER_TURN", freed_per_turn)
        check_rows(rows, batch_rows)


def check_rows(rows: list[Any], batch_rows: int) -> None:
    process, models, expected = opened(Kept), {"a": Model(), "b": Model()}, []
    now, given_rows = 0, []
    for key, do, n, step, back in rows:  # up to 3 s out of order
        now += step
        given_rows.append((key, do, n, now - back + 3))
    for first in range(0, len(rows), batch_rows):
        batch = given_rows[first : first + batch_rows]
        feed(process, batch)
        expected += [models[key].take(do, n, t) for key, do, n, t in batch]
        upto = sum(row[3] for row in rows[: first + batch_rows])
        process.on_watermark(upto * SECOND - 1, Out())
        process.deadline_ns()
    assert process.notes == expected
    process.on_watermark((now + 3 + TTL_S) * SECOND, Out())
    while process.deadline_ns() is not None:  # a part of it in each turn
        process.on_deadline(0, Out())
    stores = (process._state.store, process.seen._entries.store, process.seen._order.store)
    assert [len(store) for store in (*stores, process.items._entries.store)] == [0, 0, 0, 0]


def test_without_event_times_the_clock_tells() -> None:
    clock = VirtualClock()
    process = opened(Kept, clock)
    row = ("a", "write", 1, 0)
    feed(process, [row], timed=False)
    deadline_ns = process.deadline_ns()
    assert deadline_ns == clock.wall_ns() + TTL_S * SECOND
    clock.advance(TTL_S * SECOND - 1)
    feed(process, [("a", "read", 1, 0)], timed=False)
    clock.advance(1)
    feed(process, [("a", "read", 1, 0)], timed=False)
    assert [note[0] for note in process.notes] == [1, 1, 0]


def test_arguments_may_be_named() -> None:
    class Named(whale.KeyedProcess):
        last = state.value("int64", ttl="10 seconds")
        count = state.count(ttl="10 seconds")

        def on_row(self, row: Any, out: Any) -> None:
            self.count.add(amount=2)
            before = self.last.get(default=-1)
            self.last.set(value=row.n)
            out.emit_row(before=before, count=self.count.get())

    topology = whale.Topology("named")
    rows = topology.source(whale.sources.iterable([{"k": 1, "n": n} for n in (7, 8)]), id="rows")
    rows.key_by("k").process(Named, id="named").sink(whale.sinks.collect(), id="out")
    found = whale.run(topology).results("out").preview()
    assert found == [{"before": -1, "count": 2}, {"before": 7, "count": 4}]


def test_columns_forget_too() -> None:
    class Columns(whale.KeyedProcess):
        spent = state.sum("int64", ttl="10 seconds")
        name = state.value("string", ttl="10 seconds")

        def on_batch(self, batch: Any, out: Any) -> None:
            slots = self.slots(batch)
            known.append((self.spent[slots].tolist(), self.name.is_set(slots).tolist()))
            self.spent[slots] = batch.column("n").data
            self.name[slots] = ["x"] * batch.num_rows

    known: list[Any] = []
    process = opened(Columns)
    feed(process, [("a", "", 1, 0), ("b", "", 2, 0)])
    feed(process, [("b", "", 3, 9)])
    feed(process, [("a", "", 4, 10), ("b", "", 5, 10)])
    assert known == [([0, 0], [False, False]), ([2], [True]), ([0, 3], [False, True])]


def test_a_timer_reads_at_its_own_time() -> None:
    class Late(whale.KeyedProcess):
        n = state.count(ttl="10 seconds")
        alarm = state.timer()

        def on_row(self, row: Any, out: Any) -> None:
            self.n.add()
            self.alarm.set((row.t + row.n) * SECOND)

        def on_timer(self, timer: Any, out: Any) -> None:
            known.append(self.n.get())

    known: list[int] = []
    process = opened(Late)
    feed(process, [("a", "", 9, 0), ("b", "", 10, 0)])
    process.on_watermark(100 * SECOND, Out())
    assert known == [1, 0]


class Rates(whale.KeyedCoProcess):
    """Left asks what is kept of the right rows of its key."""

    rate = state.value("int64", ttl="5 seconds")
    rates = state.count(ttl="5 seconds")
    seen = state.map("int64", "int64", ttl="5 seconds")

    def on_left_row(self, row: Any, out: whale.Output) -> None:
        kept = {"rate": self.rate.get(-1), "rates": self.rates.get(), "seen": len(self.seen)}
        out.emit_row(n=row.n, sum=sum(self.seen.values()), **kept)

    def on_right_row(self, row: Any, out: whale.Output) -> None:
        self.rate.set(row.n)
        self.rates.add(1)
        self.seen[row.n % 3] = row.n


def rates_of(left: list[dict[str, int]], right: list[dict[str, int]]) -> list[tuple[int, ...]]:
    """Return what `Rates` emits, by a plain model: a write keeps a value for 5 s."""
    merged = sorted(
        [
            (row["t"], side, row["n"], row["k"])
            for side, rows in enumerate((left, right))
            for row in rows
        ]
    )
    writes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    found = []
    for time, side, n, key in merged:
        if side:
            writes[key].append((time, n))
            continue
        rate = next((m for t, m in reversed(writes[key]) if t + 5 > time), -1)
        count, until = 0, -1
        for t, _ in writes[key]:
            count, until = (count if t < until else 0) + 1, t + 5
        entries = {m % 3: (t, m) for t, m in writes[key]}
        kept = [m for t, m in entries.values() if t + 5 > time]
        found.append((n, sum(kept), rate, count if time < until else 0, len(kept)))
    return found


@pytest.mark.parametrize(
    ("runner", "parallelism"),
    [
        (whale.run, 1),
        (whale.run, 3),
        (lambda topology: whale.submit(topology, on="processes", workers=2), 3),
    ],
    ids=["inline", "inline, three instances", "processes"],
)
def test_values_of_two_inputs_are_gone_by_event_time_in_a_whole_job(
    runner: Any, parallelism: int
) -> None:
    random = np.random.default_rng(7)
    left, right = (
        [
            {"k": int(random.integers(4)), "t": int(t), "n": n}
            for n, t in enumerate(np.sort(random.integers(0, 300, 200)))
        ]
        for _ in range(2)
    )
    topology = whale.Topology("rates")
    timed = {"event_time": "t", "event_time_unit": "s"}
    asked = topology.source(whale.sources.iterable(left), id="left", **timed).key_by("k")
    told = topology.source(whale.sources.iterable(right), id="right", **timed).key_by("k")
    kept = asked.connect(told).process(Rates, id="rates", parallelism=parallelism)
    kept.sink(whale.sinks.collect(), id="out")
    rows = runner(topology).results("out").to_arrow().to_pylist()
    found = [tuple(row[name] for name in ("n", "sum", "rate", "rates", "seen")) for row in rows]
    expected = rates_of(left, right)
    assert sorted(found) == sorted(expected)
    assert {row[2] == -1 for row in expected} == {True, False}


@pytest.mark.parametrize(
    ("ttl", "message"),
    [
        (0, "ttl of Wrong.n is 0: it must be greater than 0"),
        ("-1 day", "ttl of Wrong.n is '-1 day': it must be greater than 0"),
        ("1 month", "ttl of Wrong.n is '1 month': months and years differ in length; write days"),
    ],
)
def test_a_ttl_that_is_none_is_refused(ttl: Any, message: str) -> None:
    with pytest.raises(whale.errors.WhaleError) as caught:
        type("Wrong", (whale.KeyedProcess,), {"n": state.count(ttl=ttl)})
    assert str(caught.value) == message


def test_compiled_rows_know_no_ttl() -> None:
    def on_row(self: Any, row: Any, out: Any) -> None:
        self.n.add()

    body = {"n": state.count(ttl="1 day"), "on_row": whale.compiled(on_row)}
    with pytest.raises(TopologyError, match="self.n has a ttl: remove it, or @whale.compiled"):
        type("Wrong", (whale.KeyedProcess,), body)
