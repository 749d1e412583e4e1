"""As-of joins against a search through all rows, on random rows in random order."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.joins import nearest_rows
from tests.operators.joins.nested_loops import LEFT, NO_WATERMARK_NS, RIGHT, Event
from tests.operators.joins.test_join_streams import (
    KEYS,
    MS,
    SECOND,
    TIMES,
    Emitted,
    batch_of,
    schemas_of,
)
from whale_ray.configs.errors import InputError, StateFullError
from whale_ray.operators.joins import asof_streams, row_queue
from whale_ray.operators.joins.asof_join import AsOfJoin
from whale_ray.operators.joins.asof_streams import JoinAsOf
from whale_ray.state.budget import StateBudget
from whale_ray.state.event_time_buffer import EventTimeBuffer
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

STRATEGIES = ("backward", "forward", "nearest")
TOLERANCES = st.none() | st.integers(1, 30).map(lambda ms: ms * MS)


def moved(process: JoinAsOf, context) -> JoinAsOf:
    """Return an operator that has taken the state of another, half of the virtual nodes at once."""
    other = JoinAsOf(process._join)
    other.open(dataclasses.replace(context, watermark_ns=process._watermark_ns))
    for parity in (0, 1):
        for batch in process.dump(np.arange(parity, context.virtual_nodes, 2)):
            other.load(batch)
    process._forget()
    return other


def drive(process: JoinAsOf, batches, types=("int32",), budget=None, moves=()) -> Emitted:
    """Hand over batches as a worker does, each with the watermark behind it, then the end.

    Behind the batches that `moves` names, the state is sealed, and taken by another operator.
    """
    out = Emitted()
    context = instance_context(operator_id="join")
    context = dataclasses.replace(context, state_budget=budget or StateBudget())
    process.open(context)
    schemas = schemas_of(types)
    buffer = EventTimeBuffer(2, 1 << 30, lambda: pytest.fail("nothing is spilled"))

    def release(watermark_ns):
        for released in buffer.release(watermark_ns):
            rows = (Batch.empty(Schema(())) if one is None else one for one in released.ports)
            process.on_merged(*rows, released.order, out)

    number = 0
    for step, (events, watermark_ns) in enumerate(batches):
        if step in moves:
            process.seal(step)
            process.roll_back(step)
            process = moved(process, context)
        sides: tuple[list[tuple[int, Event]], ...] = ([], [])
        for event in events:
            sides[event.side].append((number, event))
            number += 1
        for port, (rows, schema) in enumerate(zip(sides, schemas, strict=True)):
            if rows:
                buffer.add(port, 0, batch_of(rows, schema))
        if watermark_ns > out.watermark_ns:
            release(watermark_ns)
            process.on_watermark(watermark_ns, out)
            out.watermark_ns = watermark_ns
    release((1 << 63) - 1)
    process.close(out)
    return out


def join_of(types, strategy="backward", tolerance_ns=None, how="left", exact=True) -> AsOfJoin:
    """Return a join on all key columns."""
    left, right = schemas_of(types)
    keys = tuple((f"a{at}", f"b{at}") for at in range(len(types)))
    return AsOfJoin(keys, strategy, tolerance_ns, exact, how=how, left=left, right=right)


def in_time(batches) -> tuple[list[tuple[int, Event]], list[tuple[int, Event]], int]:
    """Return the rows of both sides that are not late, in order of time, and how many are late."""
    sides: tuple[list[tuple[int, Event]], ...] = ([], [])
    watermark_ns, number, late = NO_WATERMARK_NS, 0, 0
    for events, after_ns in batches:
        for event in events:
            if event.time_ns > watermark_ns:
                sides[event.side].append((number, event))
            else:
                late += 1
            number += 1
        watermark_ns = max(watermark_ns, after_ns)
    left, right = (sorted(side, key=lambda row: row[1].time_ns) for side in sides)
    return left, right, late


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=120)
@given(data=st.data(), tolerance_ns=TOLERANCES, exact=st.booleans(), inner=st.booleans())
def test_every_left_row_finds_the_right_row_next_to_it(strategy, data, tolerance_ns, exact, inner):
    exact = exact or strategy == "nearest"
    types = data.draw(st.sampled_from(list(KEYS)))
    event = st.builds(Event, side=st.integers(0, 1), time_ns=TIMES, key=KEYS[types][1])
    batches = data.draw(st.lists(st.tuples(st.lists(event, max_size=12), TIMES), max_size=6))
    join = join_of(types, strategy, tolerance_ns, "inner" if inner else "left", exact)
    budget = StateBudget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_queue, "_ROWS_MIN", data.draw(st.sampled_from([1, 1024])))
        patch.setattr(asof_streams, "_KEYS_MIN", data.draw(st.sampled_from([0, 1024])))
        moves = data.draw(st.sets(st.integers(1, 5), max_size=2))
        out = drive(JoinAsOf(join), batches, types, budget, moves)
    left, right, late = in_time(batches)
    expected = nearest_rows.join_asof(left, right, strategy, tolerance_ns, exact)
    found = Counter((row["n"], row["m"]) for row in out.rows)
    assert found == Counter(pair for pair in expected if not inner or pair[1] is not None)
    assert len(out.late) == late
    assert budget.used_bytes <= 1 << 12  # the empty indexes of keys
    events = [event for rows, _ in batches for event in rows]
    for row, time_ns in zip(out.rows, out.times, strict=True):
        asked = events[row["n"]].time_ns
        if row["m"] is not None:
            assert row["word"] == f"w{row['m']:05}"
        if strategy == "backward":
            assert time_ns == asked
        elif tolerance_ns is not None:
            assert asked <= time_ns <= asked + tolerance_ns
        else:
            assert asked <= time_ns


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_without_keys_are_one_group(strategy):
    left, right = Schema.of(n="int64"), Schema.of(m="int64")
    process, out = JoinAsOf(AsOfJoin((), strategy, how="left", left=left, right=right)), Emitted()
    process.open(instance_context(operator_id="join"))
    lefts = Batch.from_pydict({"n": [0, 1]}, left).with_times(np.array([5, 9]))
    rights = Batch.from_pydict({"m": [0, 1]}, right).with_times(np.array([4, 8]))
    process.on_merged(lefts, rights, np.array([True, False, True, False]), out)
    process.close(out)
    found = sorted((row["n"], row["m"]) for row in out.rows)
    assert found == [
        (0, 1 if strategy == "forward" else 0),
        (1, None if strategy == "forward" else 1),
    ]


@pytest.mark.parametrize("strategy", ["forward", "nearest"])
def test_a_row_is_answered_as_soon_as_nothing_nearer_can_come(strategy):
    process, out = JoinAsOf(join_of(("int32",), strategy, 10 * SECOND)), Emitted()
    process.open(instance_context(operator_id="join"))
    left, right = schemas_of(("int32",))
    nothing = Batch.empty(Schema(()))
    asked = [(n, Event(LEFT, n * SECOND, (1,))) for n in range(3)]
    process.on_merged(batch_of(asked, left), nothing, np.zeros(3, np.bool_), out)
    process.on_watermark(9 * SECOND, out)
    assert not out.rows
    process.on_watermark(10 * SECOND, out)
    assert [(row["n"], row["m"]) for row in out.rows] == [(0, None)]
    quote = [(7, Event(RIGHT, 12 * SECOND, (1,)))]
    process.on_merged(nothing, batch_of(quote, right), np.ones(1, np.bool_), out)
    assert sorted((row["n"], row["m"]) for row in out.rows[1:]) == [(1, None), (2, 7)]
    assert sorted(out.times) == [10 * SECOND, 11 * SECOND, 12 * SECOND]


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_hour_of_rows_leaves_only_what_may_still_match(strategy):
    process = JoinAsOf(join_of(("string",), strategy, 20 * SECOND))
    sizes: list[int] = []
    budget = StateBudget()
    batches = []
    for at in range(3600):
        # Keys come, are busy for a few seconds, and never come again.
        keys = [(f"{at - n:04}",) for n in range(4)]
        rows = [Event(side, at * SECOND, key) for key in keys for side in (LEFT, RIGHT)]
        batches.append((rows, at * SECOND - 1))
    original = process.on_watermark

    def measured(watermark_ns, out):
        original(watermark_ns, out)
        sizes.append(budget.used_by("join") + budget.spilled_by("join"))

    process.on_watermark = measured
    drive(process, batches, ("string",), budget)
    assert max(sizes[1200:]) <= max(sizes[:1200])
    assert budget.used_bytes <= 1 << 10  # the empty index of keys


def test_state_that_exceeds_its_budget_names_operator_and_setting():
    events = [Event(RIGHT, at, (at,)) for at in range(50_000)]
    with pytest.raises(StateFullError) as raised:
        drive(JoinAsOf(join_of(("int32",))), [(events, 50_000)], budget=StateBudget(1 << 20))
    for part in ("join", "runtime.state_bytes", "or take a shorter tolerance, or fewer keys"):
        assert part in str(raised.value)


def test_columns_that_clash_are_refused_when_only_rows_tell_them():
    process, out = JoinAsOf(AsOfJoin((("a0", "b0"),))), Emitted()
    process.open(instance_context(operator_id="join"))
    zeros = np.zeros(1, np.int64)
    left = Batch.from_pydict({"a0": [1], "x": [1]}).with_times(zeros)
    right = Batch.from_pydict({"b0": [1], "x": [1]}).with_times(zeros)
    with pytest.raises(InputError, match="column 'x' twice; both sides have it: rename"):
        process.on_merged(left, right, np.array([False, True]), out)
