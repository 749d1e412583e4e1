"""What a user of keyed processes can do wrong, and what is said then."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import whale_ray as whale
from tests.whale_ray.api.opened_processes import KeptRows, feed, opened
from whale_ray import state
from whale_ray.api.submission import run
from whale_ray.errors import InputError, JobError, TopologyError, UsageError
from whale_ray.transport.wire.column import Column

NAIVE = datetime.datetime(2024, 2, 29)  # noqa: DTZ001 - without a zone
UTC = NAIVE.replace(tzinfo=datetime.UTC)
SCHEMA = {"bidder": "string", "price": "double", "t": "int64"}


def run_with(kind: Any, rows: list[tuple[str | None, int, int]], **options: Any) -> None:
    topology = whale.Topology("mistaken")
    given = [dict(zip(SCHEMA, row, strict=True)) for row in rows]
    source = whale.sources.iterable(given, schema=SCHEMA)
    bids = topology.source(source, id="bids", event_time="t", event_time_unit="s")
    stream = bids.key_by("bidder").process(kind, id="streaks", parallelism=1)
    stream.sink(whale.sinks.collect(), id="out")
    run(topology, **options)


class Small(whale.KeyedProcess):
    n = state.sum("int8")
    name = state.value("string")
    when = state.value("timestamp[us]")
    there = state.min("timestamp[ms, tz=UTC]")
    times = state.list("timestamp[s]")
    days = state.map("timestamp[us]", "int64")
    alarm = state.timer()
    do: Any = None

    def on_row(self, row: Any, out: whale.Output) -> None:
        type(self).do(self)

    def on_timer(self, timer: Any, out: whale.Output) -> None:
        pass


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda p: p.n.add(200), "'n' leaves its type int8 with 200: declare a wider one"),
        (lambda p: p.n.add(1.5), "'n' keeps values of int8, not 1.5"),
        (lambda p: p.n.add(None), "'n' keeps values of int8, not None"),
        (lambda p: p.name.set(7), "'name' keeps values of string, not 7"),
        (lambda p: p.when.set("now"), "'when' keeps values of timestamp[us], not 'now'"),
        (
            lambda p: p.when.set(UTC),
            f"'when' keeps values of timestamp[us], not {UTC!r}: declare timestamp[us, tz=UTC] for"
            " times with a zone",
        ),
        (
            lambda p: p.there.add(NAIVE),
            f"'there' keeps values of timestamp[ms, tz=UTC], not {NAIVE!r}: declare timestamp[ms]"
            " for times without a zone",
        ),
        (
            lambda p: p.times.append(UTC),
            f"'times' keeps values of timestamp[s], not {UTC!r}: declare timestamp[s, tz=UTC] for"
            " times with a zone",
        ),
        (
            lambda p: p.days.get(UTC),
            f"'days' has keys of timestamp[us], not {UTC!r}: declare timestamp[us, tz=UTC] for"
            " times with a zone",
        ),
        (
            lambda p: p.days.get(1),
            "'days' has keys of timestamp[us], not 1: pass a datetime.datetime",
        ),
        (lambda p: p.alarm.set("soon"), "'alarm' keeps values of timestamp[ns], not 'soon'"),
        (
            lambda p: setattr(p, "n", 5),
            "'n' is declared state, which is not assigned: write self.n.set(…)",
        ),
    ],
)
def test_wrong_values_are_named(do: Any, message: str) -> None:
    Small.do = do
    with pytest.raises(UsageError) as caught:
        feed(opened(Small), [{"k": 1}])
    assert str(caught.value) == f"{message}; input: {{k=1}}"


class Times(whale.KeyedProcess):
    last = state.value("timestamp[us]")
    length = state.value("duration[ms]")
    alarm = state.timer()

    @whale.compiled
    def on_row(self, row: Any, out: whale.Output) -> None:
        self.last.set(row.at)
        self.length.set(row.took)
        self.alarm.set(row["then"])

    def on_timer(self, timer: Any, out: whale.Output) -> None:
        pass


@pytest.mark.parametrize(
    ("column", "type", "what"),
    [
        ("at", "timestamp[us, tz=UTC]", "'last' keeps timestamp[us], {}: declare {}"),
        ("at", "timestamp[ms]", "'last' keeps timestamp[us], {}: declare {}"),
        ("at", "date32", "'last' keeps timestamp[us], {}: declare {}"),
        ("took", "duration[s]", "'length' keeps duration[ms], {}: declare {}"),
        ("then", "timestamp[us]", "'alarm' keeps timestamp[ns], {}: compute it in ns"),
    ],
)
def test_compiled_rows_keep_no_times_of_another_type(column: str, type: str, what: str) -> None:
    types = {"k": "int64", "at": "timestamp[us]", "took": "duration[ms]"}
    types["then"] = "timestamp[ns, tz=UTC]"

    def given(types: dict[str, str]) -> whale.Batch:
        schema = whale.Schema.of(**types)
        columns = [Column(one.type, np.array([1], one.type.storage)) for one in schema]
        return whale.Batch(schema, columns, 1)

    opened(Times).on_batch(given(types), KeptRows())
    with pytest.raises(UsageError) as caught:
        opened(Times).on_batch(given({**types, column: type}), KeptRows())
    assert str(caught.value) == (
        "Times.on_row is compiled, in which times are numbers: "
        + what.format(f"and {column!r} is {type}", type)
        + ", or remove @whale.compiled"
    )


def test_state_belongs_to_a_key() -> None:
    with pytest.raises(UsageError) as caught:
        opened(Small).n.add(1)
    assert str(caught.value) == (
        "'n' is the state of a key: use it in on_row, on_batch or on_timer"
    )


def test_a_broadcast_row_has_no_key() -> None:
    class Wrong(whale.KeyedCoProcess):
        rate = state.value("int64")

        def on_left_row(self, row: Any, out: whale.Output) -> None:
            self.rate.set(row.n)

        def on_right_row(self, row: Any, out: whale.Output) -> None:
            self.rate.set(row.n)

    topology = whale.Topology("wrong")
    timed = {"event_time": "t", "event_time_unit": "s"}
    left = topology.source(
        whale.sources.iterable([{"id": 1, "n": 1, "t": 1}, {"id": 1, "n": 1, "t": 9}]),
        id="left",
        **timed,
    )
    right = topology.source(whale.sources.iterable([{"n": 2, "t": 5}]), id="right", **timed)
    stream = left.key_by("id").connect(right.broadcast()).process(Wrong, id="wrong", parallelism=1)
    stream.sink(whale.sinks.collect(), id="out")
    with pytest.raises(UsageError) as caught:
        run(topology)
    assert "operator 'wrong'" in str(caught.value)
    assert "belong" in str(caught.value)


def test_mistakes_in_a_class_are_told_at_once() -> None:
    with pytest.raises(InputError, match="state.sum does not keep string; it keeps float32,"):
        state.sum("string")
    with pytest.raises(InputError, match=r"state\.value does not keep decimal128\(10, 2\)"):
        state.value("decimal128(10, 2)")
    with pytest.raises(InputError, match="state.timer takes 'event' or 'processing', not 'x'"):
        state.timer("x")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(TopologyError, match="Closes defines close, which lets its timers fire"):
        type("Closes", (whale.KeyedProcess,), {"close": lambda self, out: None})
    compiled = {"on_left_row": whale.compiled(lambda self, row, out: None)}
    with pytest.raises(TopologyError, match="Both.on_left_row is marked @whale.compiled, and only"):
        type("Both", (whale.KeyedCoProcess,), compiled)
    with pytest.raises(TopologyError, match="Clash.schema: processes have something of that name"):
        type("Clash", (whale.KeyedProcess,), {"schema": state.count()})
    with pytest.raises(AttributeError, match="has no attribute 'lists'; it has count, list, map"):
        state.lists  # noqa: B018 - looking it up is the mistake


class Fails(whale.KeyedProcess):
    n = state.count()

    def on_row(self, row: Any, out: whale.Output) -> None:
        if row.price == 2:
            raise ZeroDivisionError


def build(kind: Any, group: Callable[[Any], Any]) -> None:
    topology = whale.Topology("built")
    rows = topology.source(whale.sources.iterable([{"k": 1}]), id="rows")
    group(rows).process(kind, id="op")


class Alarmed(whale.KeyedProcess):
    alarm = state.timer()

    def on_row(self, row: Any, out: whale.Output) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "group", "message"),
    [
        (Fails, lambda rows: rows.shuffle(), "keeps state by key, and its rows are grouped"),
        (Alarmed, lambda rows: rows.key_by("k"), "does not define on_timer, though it declares"),
        (whale.KeyedProcess, lambda rows: rows.key_by("k"), "does not define on_row or on_batch"),
    ],
)
def test_what_cannot_run_is_refused_while_building(kind: Any, group: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        build(kind, group)


def test_a_function_that_raises_is_named_with_its_row() -> None:
    rows = [("a", 1, 0), ("b", 2, 1), ("a", 3, 2)]
    with pytest.raises(JobError) as caught:
        run_with(Fails, rows)
    assert "in operator 'streaks', instance 0; input: {bidder='b', price=2.0, t=1}" in str(
        caught.value
    )


class Counted(whale.KeyedProcess):
    n = state.count()

    def on_row(self, row: Any, out: whale.Output) -> None:
        self.n.add(1)


class Forgetful(whale.KeyedProcess):
    n = state.count()

    def open(self, context: Any) -> None:
        self.mine = 1

    def on_row(self, row: Any, out: whale.Output) -> None:
        pass


def test_an_open_that_does_not_call_the_inherited_one_is_named() -> None:
    with pytest.raises(UsageError, match=r"Forgetful.open does not call super\(\).open\(context\)"):
        run_with(Forgetful, [("a", 1, 0)])


def test_null_keys_are_refused() -> None:
    rows = [("a", 1, 0), (None, 2, 1)]
    with pytest.raises(JobError, match="sends a row with a null key"):
        run_with(Counted, rows)


def test_full_memory_is_told_with_operator_keys_and_setting() -> None:
    rows = [(f"bidder {n}", 1, n) for n in range(20_000)]
    settings = {"runtime.state_bytes": 1 << 20, "runtime.spill_bytes_max": 0}
    with pytest.raises(whale.errors.StateFullError) as caught:
        run_with(Counted, rows, settings=settings)
    assert str(caught.value).startswith("operator 'streaks': its state of ")
    remedy = "raise runtime.state_bytes, run more workers, or let keys go (ttl=, clear())"
    assert str(caught.value).endswith(remedy)


class BothByKey(whale.KeyedCoProcess):
    n = state.count()

    def on_left_row(self, row: Any, out: whale.Output) -> None:
        self.n.add(1)

    def on_right_row(self, row: Any, out: whale.Output) -> None:
        self.n.add(1)


@pytest.mark.parametrize("right", ["int32", "int64", None])
def test_the_keys_of_two_inputs_have_one_type(right: str | None) -> None:
    topology = whale.Topology("two-inputs")
    schemas = ("left", {"k": "int64"}), ("right", None if right is None else {"j": right})
    rows = [{"k": 1, "j": 1}]
    left, other = (
        topology.source(whale.sources.iterable(rows, schema=schema), id=name)
        for name, schema in schemas
    )
    both = left.key_by("k").connect(other.key_by("j"))
    if right != "int32":  # without a schema, the first rows tell
        both.process(BothByKey, id="both")
        return
    message = (
        "operator 'both': the state of a key is that of both inputs, but 'k' is int64 in 'left' and"
        " 'j' is int32 in 'right': cast one with with_column before key_by"
    )
    with pytest.raises(TopologyError) as raised:
        both.process(BothByKey, id="both")
    assert str(raised.value) == message
