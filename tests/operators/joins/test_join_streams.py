"""Joins of two streams against a plain Python model, on random rows in random order."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.joins import nested_loops
from tests.operators.joins.nested_loops import LEFT, Event
from whale_ray.configs.errors import InputError, StateFullError
from whale_ray.operators.joins import join_streams, kept_spans, key_bytes, span_loop
from whale_ray.operators.joins.interval import TimeInterval
from whale_ray.operators.joins.join import Join
from whale_ray.operators.joins.join_streams import JoinStreams
from whale_ray.operators.process import Output
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.state.budget import StateBudget
from whale_ray.state.keys import hash_keys
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import DataType, Schema

MS = 1_000_000
SECOND = 1000 * MS
HOWS = ("inner", "left", "right", "outer", "semi", "anti")
TIMES = st.integers(-40 * MS, 40 * MS) | st.integers(-4, 4).map(lambda at: at * 5 * MS)
WINDOWS = st.builds(
    lambda slide, more, start: TimeWindow("", (slide + more) * MS, slide * MS, start % slide * MS),
    st.integers(1, 12),
    st.just(0) | st.integers(0, 25),
    st.integers(0, 11),
)
INTERVALS = st.tuples(st.integers(-15, 15), st.integers(-15, 15)).map(
    lambda bounds: TimeInterval(min(bounds) * MS, max(bounds) * MS)
)
INTEGERS = st.none() | st.integers(0, 3)
FLOATS = st.none() | st.sampled_from([0.0, -0.0, float("nan"), -float("nan"), 1.5])
TEXTS = st.none() | st.sampled_from(["", "a", "ab", "é"])
KEYS = {
    ("int32",): (("int64",), st.tuples(INTEGERS)),
    ("double",): (("float",), st.tuples(FLOATS)),
    ("string",): (("large_string",), st.tuples(TEXTS)),
    ("int64", "string", "double"): (
        ("uint8", "string", "double"),
        st.tuples(st.none() | st.just(1), st.sampled_from(["", "é"]), FLOATS),
    ),
}


class Emitted(Output):
    """Keeps what a join emits; nothing may lie behind the watermark but what came so."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.times: list[int] = []
        self.late: list[dict[str, Any]] = []
        self.watermark_ns = nested_loops.NO_WATERMARK_NS

    def emit(self, batch, times=None) -> None:
        assert (times > self.watermark_ns).all()
        assert batch.schema.names == tuple(batch.to_pydict())
        self.rows += batch.to_pylist()
        self.times += times.tolist()

    def emit_to(self, output, rows, times=None) -> None:
        assert output in ("late_left", "late_right")
        assert (rows.times <= self.watermark_ns).all()
        self.late += rows.to_pylist()

    def emit_rows(self, rows) -> None:
        raise AssertionError("joins emit columns")


def schemas_of(types: tuple[str, ...]) -> tuple[Schema, Schema]:
    """Return the columns of both sides, with keys of these types on the left."""
    others = KEYS[types][0]
    left = {f"a{at}": kind for at, kind in enumerate(types)}
    right = {f"b{at}": kind for at, kind in enumerate(others)}
    return Schema.of(n="int64", **left), Schema.of(word="string", m="int64", **right)


def batch_of(events: list[tuple[int, Event]], schema: Schema) -> Batch:
    """Return rows of one side, each with its number."""
    keys = [name for name in schema.names if name[0] in "ab"]
    columns: dict[str, Any] = {
        name: [event.key[at] for _, event in events] for at, name in enumerate(keys)
    }
    numbers = [number for number, _ in events]
    columns |= (
        {"n": numbers} if "n" in schema else {"m": numbers, "word": [f"w{n:05}" for n in numbers]}
    )
    times = np.array([event.time_ns for _, event in events], np.int64)
    return Batch.from_pydict({name: columns[name] for name in schema.names}, schema).with_times(
        times
    )


def drive(process, batches, types=("int32",), budget=None, *, empties=False) -> Emitted:
    """Hand over batches, each with the watermark behind it, then the end."""
    out = Emitted()
    context = instance_context(operator_id="join")
    budget = budget or StateBudget()
    process.open(dataclasses.replace(context, state_budget=budget))
    schemas = schemas_of(types)
    number = 0
    for events, watermark_ns in batches:
        sides: tuple[list[tuple[int, Event]], ...] = ([], [])
        for event in events:
            sides[event.side].append((number, event))
            number += 1
        for call, rows, schema in zip(
            (process.on_left, process.on_right), sides, schemas, strict=True
        ):
            if rows:
                call(batch_of(rows, schema), out)
        if watermark_ns > out.watermark_ns:
            process.on_watermark(watermark_ns, out)
            out.watermark_ns = watermark_ns
    process.close(out)
    # What is left with `empties` are the first indexes of stores and rows, none of it for rows.
    assert budget.used_by("join") + budget.spilled_by("join") <= (1 << 20 if empties else 0)
    return out


def join_of(types, within, how, lateness=0) -> Join:
    """Return a join on all key columns."""
    left, right = schemas_of(types)
    keys = tuple((f"a{at}", f"b{at}") for at in range(len(types)))
    return Join(keys, within, how=how, left=left, right=right, allowed_lateness_ns=lateness)


def let_hashes_collide(patch: pytest.MonkeyPatch) -> None:
    """Give all keys one of two hashes, so that only their bytes tell them apart."""

    def two_hashes(*args):
        hashes, nulls = hash_keys(*args)
        return hashes & np.uint64(1), nulls

    patch.setattr(join_streams, "hash_keys", two_hashes)
    patch.setattr(kept_spans, "hash_keys", two_hashes)
    patch.setattr(key_bytes, "exact_hashes_within", lambda kind: -1)


def _us(value: Any) -> int:
    return round((value - value.__class__(1970, 1, 1)).total_seconds() * 1e6) * 1000


def found_rows(out: Emitted) -> Counter[Any]:
    """Return the numbers of the rows of each result, and its window."""
    return Counter(
        (
            row.get("n"),
            row.get("m"),
            (_us(row["window_start"]), _us(row["window_end"])) if "window_start" in row else None,
        )
        for row in out.rows
    )


@st.composite
def cases(draw, within):
    """Draw the types of keys, batches of rows in any order with watermarks, and what to join."""
    types = draw(st.sampled_from(list(KEYS)))
    event = st.builds(Event, side=st.integers(0, 1), time_ns=TIMES, key=KEYS[types][1])
    batches = draw(st.lists(st.tuples(st.lists(event, max_size=12), TIMES), max_size=6))
    return types, batches, draw(within), draw(st.sampled_from(HOWS)), draw(st.integers(0, 9)) * MS


@pytest.mark.long
@pytest.mark.parametrize("within", [WINDOWS, INTERVALS], ids=["window", "interval"])
@settings(max_examples=150)
@given(
    data=st.data(), pairs_at_once=st.sampled_from([1, 2, 5, 1 << 16]), hashes_collide=st.booleans()
)
def test_every_join_equals_a_loop_over_all_pairs(within, data, pairs_at_once, hashes_collide):
    types, batches, chosen, how, lateness = data.draw(cases(within))
    with pytest.MonkeyPatch.context() as patch:
        if hashes_collide:
            let_hashes_collide(patch)
        patch.setattr(span_loop, "PAIRS_MAX", pairs_at_once)
        patch.setattr(span_loop, "_PAIRS_MIN", 1)
        out = drive(JoinStreams(join_of(types, chosen, how, lateness)), batches, types)
    expected = nested_loops.join(batches, chosen, how, lateness)
    assert found_rows(out) == Counter(expected.rows)
    assert len(out.late) == expected.late
    events = [event for rows, _ in batches for event in rows]
    for row, time_ns in zip(out.rows, out.times, strict=True):
        joined = [events[row[n]] for n in ("n", "m") if row.get(n) is not None]
        assert time_ns >= max(event.time_ns for event in joined)
        if len(joined) == 2:
            assert row["word"] == f"w{row['m']:05}"
            keys = ([row[f"{side}{at}"] for at in range(len(types))] for side in "ab")
            assert nested_loops.same(*map(tuple, keys))


@pytest.mark.parametrize("within", [WINDOWS, INTERVALS], ids=["window", "interval"])
@settings(max_examples=60)
@given(data=st.data(), pairs_at_once=st.sampled_from([1, 3, 1 << 16]))
def test_keys_that_are_compared_give_the_rows_and_times_that_hashes_give(
    within, data, pairs_at_once
):
    types, batches, chosen, how, lateness = data.draw(cases(within))
    made = []
    for compares in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(span_loop, "PAIRS_MAX", pairs_at_once)
            patch.setattr(span_loop, "_PAIRS_MIN", 1)
            if compares:
                let_hashes_collide(patch)
            out = drive(JoinStreams(join_of(types, chosen, how, lateness)), batches, types)
        made.append((sorted(zip(map(repr, out.rows), out.times, strict=True)), repr(out.late)))
    assert made[0] == made[1]


@settings(max_examples=30)
@given(
    rows=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30)), max_size=60),
    interval=INTERVALS,
)
def test_rows_in_order_have_the_later_of_both_times(rows, interval):
    at = sorted(time for _, time in rows)
    batches = [
        ([Event(side, time * MS, (1,))], time * MS - 1)
        for (side, _), time in zip(rows, at, strict=True)
    ]
    out = drive(JoinStreams(join_of(("int32",), interval, "inner")), batches)
    events = [event for one, _ in batches for event in one]
    later = [max(events[row["n"]].time_ns, events[row["m"]].time_ns) for row in out.rows]
    assert out.times == later


def test_a_shared_key_is_one_column_and_has_the_value_of_either_side():
    left, right = Schema.of(id="int64", n="int64"), Schema.of(m="int64", id="int64")
    join = Join(
        (("id", "id"),),
        TimeWindow("", SECOND, SECOND, 0),
        how="outer",
        left=left,
        right=right,
    )
    assert join.output_schema(left, right).names == ("window_start", "window_end", "id", "n", "m")
    process, out = JoinStreams(join), Emitted()
    process.open(instance_context(operator_id="join"))
    zeros = np.zeros(2, np.int64)
    process.on_left(Batch.from_pydict({"id": [1, 2], "n": [1, 2]}, left).with_times(zeros), out)
    process.on_right(Batch.from_pydict({"m": [3, 4], "id": [2, 3]}, right).with_times(zeros), out)
    process.close(out)
    rows = sorted((row["id"], row["n"], row["m"]) for row in out.rows if row["n"] is not None)
    assert rows == [(1, 1, None), (2, 2, 3)]
    assert [(row["id"], row["m"]) for row in out.rows if row["n"] is None] == [(3, 4)]


@pytest.mark.parametrize("far", [-(1 << 63), 1 << 61])
def test_instants_that_are_equal_modulo_64_bits_of_nanoseconds_do_not_join(far):
    kind = DataType.parse("timestamp[us]")
    left, right = Schema.of(a0=kind), Schema.of(b0=kind)
    process = JoinStreams(Join((("a0", "b0"),), TimeInterval(0, SECOND), left=left, right=right))
    process.open(instance_context(operator_id="join"))
    joined: list[int] = []
    out = Emitted()
    out.emit = lambda batch, times=None: joined.extend(batch.column("a0").data.tolist())
    for call, schema, at in ((process.on_left, left, [0, far]), (process.on_right, right, [far])):
        column = Column(kind, np.array(at, np.int64))
        call(Batch(schema, [column], len(at)).with_times(np.zeros(len(at), np.int64)), out)
    assert joined == [far]


@pytest.mark.long
@pytest.mark.parametrize(
    "within", [TimeWindow("", 10 * SECOND, 10 * SECOND, 0), TimeInterval(-5 * SECOND, 5 * SECOND)]
)
def test_an_hour_of_rows_leaves_nothing_behind(within):
    process = JoinStreams(join_of(("string",), within, "outer"))
    sizes: list[int] = []
    batches = [
        (
            [
                Event(at % 2, at * SECOND, (f"{at // 2 % 50:02}",)),
                Event(LEFT, at * SECOND, (None,)),
            ],
            at * SECOND - 1,
        )
        for at in range(3600)
    ]
    original = process.on_watermark
    budget = StateBudget()

    def measured(watermark_ns, out):
        original(watermark_ns, out)
        sizes.append(budget.used_by("join") + budget.spilled_by("join"))

    process.on_watermark = measured
    drive(process, batches, ("string",), budget)
    assert max(sizes[100:]) <= max(sizes[:100])
    assert budget.used_bytes == 0


def test_state_that_exceeds_its_budget_names_operator_rows_and_setting():
    process = JoinStreams(join_of(("int32",), TimeInterval(0, SECOND), "inner"))
    events = [Event(LEFT, at, (at,)) for at in range(5000)]
    with pytest.raises(StateFullError) as raised:
        drive(process, [(events, 0)], budget=StateBudget(100_000))
    message = str(raised.value)
    for part in ("join", "runtime.state_bytes", "or join within a shorter time"):
        assert part in message
    assert re.search(r"takes 0\.[1-9] MiB, but a worker's state may take 0\.1 MiB", message)


def test_spans_of_single_rows_take_little_memory():
    within = TimeInterval(-SECOND, SECOND)
    process, budget = JoinStreams(join_of(("string",), within, "left")), StateBudget(1 << 20)
    events = [Event(LEFT, at * 60 * SECOND, (f"{at}",)) for at in range(500)]
    out = drive(process, [(events, 0)], ("string",), budget)
    assert len(out.rows) == 500
    assert budget.used_bytes == 0


@pytest.mark.parametrize("how", ["semi", "anti"])
@pytest.mark.parametrize("types", [("int32",), ("string",)])
def test_a_semi_or_anti_join_keeps_a_right_row_of_each_key_and_window(types, how):
    """Any of them serves; a left row that has found one is not kept at all."""
    keys = [(at,) if types == ("int32",) else (f"k{at}",) for at in range(12)]
    process = JoinStreams(join_of(types, TimeWindow("", 10 * MS, 10 * MS, 0), how))
    process.open(instance_context(operator_id="join"))
    left, right = schemas_of(types)
    out = Emitted()
    rights = [(at, Event(1, at % 20 * MS, keys[at % 10])) for at in range(200)]
    for first in range(0, 200, 50):
        process.on_right(batch_of(rights[first : first + 50], right), out)
    process.on_left(batch_of([(at, Event(LEFT, MS, keys[at])) for at in range(12)], left), out)
    kept = list(process.dump(np.arange(instance_context().virtual_nodes)))
    names = [set(batch.schema.names) for batch in kept]
    rows_of = {
        side: sum(batch.num_rows for batch, has in zip(kept, names, strict=True) if side in has)
        for side in ("#left joined", "#right joined")
    }
    assert rows_of == {"#left joined": 2, "#right joined": 20}
    process.close(out)
    found = range(10) if how == "semi" else (10, 11)
    assert sorted(row["n"] for row in out.rows) == list(found)


def test_columns_that_clash_are_refused_when_only_rows_tell_them():
    join = Join((("a0", "b0"),), TimeInterval(0, SECOND))
    process, out = JoinStreams(join), Emitted()
    process.open(instance_context(operator_id="join"))
    zeros = np.zeros(1, np.int64)
    process.on_left(Batch.from_pydict({"a0": [1], "x": [1]}).with_times(zeros), out)
    with pytest.raises(InputError, match="column 'x' twice; both sides have it: rename"):
        process.on_right(Batch.from_pydict({"b0": [1], "x": [1]}).with_times(zeros), out)
