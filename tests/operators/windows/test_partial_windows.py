"""Late merge: producers aggregate their rows first; the results are those without it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.windows import model
from tests.operators.windows.driving import (
    AGGREGATES,
    TIMES,
    US,
    WINDOWS,
    Emitted,
    arrivals,
    batch_of,
    bounds,
    check,
)
from whale_ray.configs.errors import BadRowError, StateFullError
from whale_ray.operators.windows import held_deltas, partial_windows
from whale_ray.operators.windows.aggregate_windows import AggregateWindows
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.deltas import delta_columns
from whale_ray.operators.windows.group_state import GroupState
from whale_ray.operators.windows.partial_aggregation import PartialAggregation
from whale_ray.operators.windows.reduction import Reduction
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.state.budget import StateBudget
from whale_ray.state.watermarks import WATERMARK_NONE, WatermarkTracker
from whale_ray.tasks.partial_node import PartialNode
from whale_ray.testing import instance_context
from whale_ray.transport.clock import VirtualClock
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

F = whale.functions
STEPS = st.lists(
    st.tuples(st.sampled_from(["rows", "rows", "marker", "held long", "idle"]), st.integers(0, 1)),
    max_size=12,
)


@dataclass
class Edge:
    """The edge from one producer to the operator, without a delay."""

    merger: Merger
    source: int

    def emit(self, batch: Batch) -> None:
        self.merger.deltas += 0 if delta_columns(batch.schema) is None else batch.num_rows
        self.merger.process.on_batch(batch, self.merger.out)

    def advance(self, watermark_ns: int) -> None:
        if self.merger.watermarks.update(self.source, watermark_ns):
            self.merger.go_on()

    def set_idle(self, idle: bool) -> None:
        if self.merger.watermarks.set_idle(self.source, idle):
            self.merger.go_on()

    def end(self) -> None:
        self.advance((1 << 63) - 1)


class Merger:
    """The operator behind the edge, and the least watermark of its producers."""

    def __init__(self, asked: Aggregation, producers: int) -> None:
        self.process, self.out = AggregateWindows(asked), Emitted()
        self.process.open(instance_context(operator_id="windows"))
        self.watermarks: WatermarkTracker[int] = WatermarkTracker(range(producers))
        self.deltas = 0

    def go_on(self) -> None:
        watermark_ns = self.watermarks.current_ns
        if self.watermarks.ended:
            self.process.close(self.out)
        elif watermark_ns > self.out.watermark_ns:
            self.process.on_watermark(watermark_ns, self.out)
            self.out.watermark_ns = watermark_ns


def partial(
    edge: Edge,
    asked: Aggregation,
    kind: type[PartialNode] = PartialNode,
    *,
    keeps_open: bool = False,
    measures: bool = False,
) -> PartialNode:
    context = instance_context(operator_id="partial", clock=VirtualClock())
    payload = PartialAggregation(asked, measures, merging="sums", keeps_open=keeps_open)
    return kind(context, 0, payload, edge)


keeping = functools.partial(partial, keeps_open=True)
"""Groups of windows that stay open stay."""


def run(
    asked: Aggregation,
    producers: int,
    batches: Sequence[tuple[Sequence[model.Event], int]],
    steps: Sequence[tuple[str, int]],
    node: Callable[[Edge, Aggregation], Any],
) -> Merger:
    """Hand batches to producers in the order of the steps, each with the watermark behind it."""
    merger = Merger(asked, producers)
    nodes = [node(Edge(merger, source), asked) for source in range(producers)]
    reached = [WATERMARK_NONE] * producers
    left = list(batches)
    for step, number in [*steps, *[("rows", at) for at in range(len(left))]]:
        source = number % producers
        one = nodes[source]
        if step == "rows" and left:
            events, watermark_ns = left.pop(0)
            if events:
                one.emit(batch_of(events))
            if watermark_ns > reached[source]:
                reached[source] = watermark_ns
                one.advance(watermark_ns)
        elif isinstance(one, PartialNode):
            if step == "marker":
                one.empty_for_marker()
                assert one._partial.is_empty
            elif step == "held long":
                one.pass_on_waiting()
    for one in nodes:
        one.end()
    return merger


def as_rows(edge: Edge, asked: Aggregation) -> Edge:
    """Without late merge."""
    return edge


@settings(max_examples=20)
@given(
    batches=arrivals(TIMES),
    window=st.none() | WINDOWS,
    lateness=st.sampled_from([0, 0, 3, 30]),
    steps=STEPS,
    producers=st.sampled_from([1, 2]),
    groups_max=st.sampled_from([1, 3, 1 << 16]),
    node=st.sampled_from([partial, keeping]),
)
def test_the_result_is_that_of_rows(batches, window, lateness, steps, producers, groups_max, node):
    asked = Aggregation(
        ("key",), window, AGGREGATES, allowed_lateness_ns=lateness * US if window else 0
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_windows, "GROUPS_MIN", groups_max)
        patch.setattr(partial_windows, "GROUPS_MAX", groups_max)
        merged = run(asked, producers, batches, steps, node)
    plain = run(asked, producers, batches, steps, as_rows)
    assert repr(merged.out.late) == repr(plain.out.late)  # of which NaN are the same
    found, expected = (newest(one.out, asked) for one in (merged, plain))
    assert set(found) == set(expected)
    names = [one.output_name for one in AGGREGATES]
    if producers == 2:  # which of two rows of one time came first is open
        names = [name for name in names if name not in ("first", "last", "least_by", "most_by")]
    for key, row in found.items():
        for name in names:
            assert model.same(row[name], expected[key][name]), (key, name)


@settings(max_examples=10)
@given(
    batches=arrivals(TIMES),
    window=WINDOWS,
    steps=STEPS,
    node=st.sampled_from([partial, keeping]),
)
def test_windows_are_those_of_a_model_in_plain_python(batches, window, steps, node):
    asked = Aggregation(("key",), window, AGGREGATES)
    out = run(asked, 1, batches, steps, node).out
    expected, late = model.tumble(batches, window.size_ns, window.slide_ns, window.start_ns, 0)
    assert len(out.late) == late
    found = [(*bounds(row), row["key"]) for row in out.rows]
    assert len(found) == len(set(found)) and set(found) == set(expected)
    for key, row in zip(found, out.rows, strict=True):
        check(row, expected[key])


NUMBERS = tuple(
    one
    for one in AGGREGATES
    if one.output_name in ("rows", "sum", "mean", "least", "most", "most_by", "variance")
)
"""Aggregates whose deltas may wait for the watermark."""


@settings(max_examples=20)
@given(
    batches=arrivals(TIMES),
    size=st.integers(1, 12),
    steps=STEPS,
    ways=st.sampled_from([1, 2]),
    node=st.sampled_from([partial, keeping]),
)
def test_deltas_that_wait_for_the_watermark_make_the_result_of_rows(
    batches, size, steps, ways, node
):
    asked = Aggregation(("key",), TimeWindow("time", size * US, size * US, 0), NUMBERS)
    merged, plain = (run(asked, ways, batches, steps, one) for one in (node, as_rows))
    assert repr(merged.out.late) == repr(plain.out.late)  # of which NaN are the same
    found, expected = (newest(one.out, asked) for one in (merged, plain))
    assert len(merged.out.rows) == len(found) and set(found) == set(expected)
    names = [one.output_name for one in NUMBERS if ways == 1 or one.output_name != "most_by"]
    for key, row in found.items():
        for name in names:
            assert model.same(row[name], expected[key][name]), (key, name)


def deltas_of(*flushes: Sequence[model.Event]) -> Batch:
    """Return the deltas of flushes of a producer in one batch, as an edge may put them together."""
    taken: list[Batch] = []

    class Kept(Edge):
        def emit(self, batch: Batch) -> None:
            taken.append(batch)

    for events in flushes:
        node = partial(Kept(Merger(SUMS, 1), 0), SUMS)
        node.emit(batch_of(events))
        node.pass_on_waiting()
    return Batch.concat(taken)


def test_a_group_that_is_twice_in_a_batch_of_deltas_is_one_result() -> None:
    merger = Merger(SUMS, 1)
    merger.process.on_batch(deltas_of(FIRST, [*NEXT, *FIRST]), merger.out)
    merger.process.on_watermark(19, merger.out)
    assert [row["sum"] for row in merger.out.rows] == [20, 7]


def test_deltas_that_have_no_room_once_others_have_left_go_into_the_store() -> None:
    """One null lets all rows have validity, as soon as they are one batch."""
    held, state = (
        held_deltas.HeldDeltas(),
        GroupState(Schema.of(key="int64"), (), instance_context()),
    )
    context = replace(instance_context(), state_budget=StateBudget(1 << 20))
    for keys, slices in ([5, None, *range(7)], [0] + 8 * [1]), (list(range(90)), 90 * [1]):
        assert held.take(Batch.from_pydict({"key": keys}), np.array(slices), context)
    context.state_budget.take("other", context.state_budget.free_bytes, 1)
    ended, others = held.give_back_ended(1, state, ["key"])
    assert ended is None and others is not None and held.is_empty
    assert others[1].tolist() == [0] + 98 * [1]


def test_deltas_that_wait_are_in_a_snapshot_and_gone_when_it_goes_back() -> None:
    merger = Merger(SUMS, 1)
    process, budget = merger.process, merger.process._context.state_budget
    process.on_batch(deltas_of(FIRST), merger.out)
    kept = [chunk.rows for chunk in process.chunks(1)]
    assert [one.num_rows for one in kept if "#0.count" in one.schema] == [1]
    process.on_batch(deltas_of(NEXT), merger.out)
    before = budget.used_bytes
    process.roll_back(1)
    assert budget.used_bytes < before
    process.on_watermark(99, merger.out)
    assert [row["sum"] for row in merger.out.rows] == [10]


def test_deltas_that_wait_are_dumped_and_restored() -> None:
    merger = Merger(SUMS, 1)
    merger.process.on_batch(deltas_of(FIRST, NEXT), merger.out)
    assert not merger.process._held.is_empty
    chunks = merger.process.chunks(1)
    restored, loaded = Merger(SUMS, 1), Merger(SUMS, 1)
    restored.process.take(chunks, whole=True)
    merger.process.on_batch(deltas_of(NEXT), merger.out)  # is in the dump alone
    for batch in merger.process.dump(np.arange(1024)):
        loaded.process.load(batch)
    for one, last in (restored, 7), (loaded, 14), (merger, 14):
        one.process.on_watermark(99, one.out)
        assert [row["sum"] for row in one.out.rows] == [10, last]


def test_a_sum_of_deltas_that_wait_names_operator_key_and_window_if_it_leaves_its_type() -> None:
    merger = Merger(SUMS, 1)
    large = [model.Event(12, key, number, None, None) for key, number in ((1, 5), (2, 2**62))]
    merger.process.on_batch(deltas_of([*large, *large]), merger.out)
    assert not merger.process._held.is_empty
    named = r"'windows': sum\(number\).* of key .*2.* in the window 1970-.* does not fit"
    with pytest.raises(BadRowError, match=named):
        merger.process.on_watermark(99, merger.out)


def newest(out: Emitted, asked: Aggregation) -> dict[Any, dict[str, Any]]:
    if asked.window is None:
        return {row["key"]: row for row in out.rows}
    return {(*bounds(row), row["key"]): row for row in out.rows}


SUMS = Aggregation(("key",), TimeWindow("time", 10, 10, 0), (F.sum("number").alias("sum"),))
FIRST = [model.Event(time, 1, 5, None, None) for time in (3, 7)]
NEXT = [model.Event(12, 1, 7, None, None)]


class PassesWatermarksFirst(PartialNode):
    """A mutant: a watermark overtakes the groups that were held before it."""

    def advance(self, watermark_ns: int) -> None:
        self._output.advance(watermark_ns)
        super().advance(watermark_ns)


def test_a_watermark_that_overtakes_deltas_is_found() -> None:
    batches = [((), 2), (FIRST, 6), (NEXT, 10), ((), 30)]
    right = run(SUMS, 1, batches, [], partial)
    assert [(row["key"], row["sum"]) for row in right.out.rows] == [(1, 10), (1, 7)]
    with pytest.raises(AssertionError, match="a watermark came before the deltas behind it"):
        run(SUMS, 1, batches, [], lambda *edge: partial(*edge, kind=PassesWatermarksFirst))


def test_rows_of_many_batches_leave_as_one_delta_when_their_window_closes() -> None:
    batches = [((), -1)]
    batches += [([model.Event(time, 1, 1, None, None)], time) for time in range(20)]
    merger = run(SUMS, 1, batches, [], partial)
    assert [row["sum"] for row in merger.out.rows] == [10, 10]
    assert merger.deltas == 2


def test_groups_of_windows_that_stay_open_leave_once_and_their_watermark_is_not_held_back() -> None:
    batches = [((), -1), ([*FIRST, *NEXT], 9), (NEXT, 15), (NEXT, 19), ((), 30)]
    often, once = (run(SUMS, 1, batches, [], node) for node in (partial, keeping))
    assert (often.deltas, once.deltas) == (3, 2)
    assert [row["sum"] for row in once.out.rows] == [row["sum"] for row in often.out.rows]
    edge = Edge(Merger(SUMS, 1), 0)
    node = keeping(edge, SUMS)
    node.advance(0)
    node.emit(batch_of([*FIRST, *NEXT]))
    node.advance(13)
    assert (edge.merger.out.watermark_ns, edge.merger.deltas) == (13, 1)
    assert (node.metrics.flushes, node.waiting_until_ns) == ({"window": 1}, 1_000_000_000)
    node.pass_on_waiting()
    assert (edge.merger.deltas, node.waiting_until_ns) == (2, None)


def test_deltas_of_groups_that_stayed_are_not_behind_the_watermark() -> None:
    times: list[int] = []

    class Timed(Edge):
        def emit(self, batch: Batch) -> None:
            assert batch.times is not None
            times.extend(batch.times.tolist())

    node = keeping(Timed(Merger(SUMS, 1), 0), SUMS)
    node.advance(0)
    node.emit(batch_of([*FIRST, *NEXT]))
    for watermark_ns in (13, 21):
        node.advance(watermark_ns)
    assert times == [3, 14]


def test_all_groups_leave_before_rows_that_it_steps_aside_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whale_ray.operators.windows.reduction._JUDGED_ROWS", 1)
    node = keeping(Edge(merger := Merger(SUMS, 1), 0), SUMS, measures=True)
    node.advance(0)
    node.emit(batch_of([*FIRST[:1], *NEXT]))
    node.advance(9)
    assert node.partial.is_empty
    node.emit(batch_of([*NEXT, *NEXT]))
    node.end()
    assert (merger.deltas, node.metrics.rows_out) == (2, 4)
    assert [row["sum"] for row in merger.out.rows] == [5, 21]


def test_what_flushes_is_counted_by_reason() -> None:
    node = partial(Edge(Merger(SUMS, 1), 0), SUMS)
    node.advance(0)
    for flush, reason in (
        (node.empty_for_marker, "marker"),
        (node.pass_on_waiting, "watermark"),
        (lambda: node.set_idle(True), "idle"),
        (lambda: node.advance(9), "window"),
    ):
        node.emit(batch_of(FIRST))
        assert node.waiting_until_ns == 1_000_000_000
        flush()
        assert node.waiting_until_ns is None
        assert node.metrics.flushes[reason] == 1
        flush()  # nothing is left
    node.emit(batch_of(NEXT))
    node.end()
    assert node.metrics.flushes == dict.fromkeys(
        ["marker", "watermark", "idle", "window", "end"], 1
    )
    assert (node.metrics.rows_in, node.metrics.deltas_out, node.metrics.rows_out) == (9, 5, 5)


def test_a_full_table_and_much_input_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_windows, "GROUPS_MIN", 3)
    monkeypatch.setattr(partial_windows, "GROUPS_MAX", 3)
    node = partial(Edge(Merger(SUMS, 1), 0), SUMS)
    for key in range(6):
        node.emit(batch_of([model.Event(5, key, 1, None, None)]))
    assert node.metrics.flushes == {"table": 2}
    monkeypatch.setattr(partial_windows, "INPUT_BYTES_MAX", 1)
    node.emit(batch_of(FIRST))
    assert node.metrics.flushes == {"table": 2, "input": 1}


def test_rows_pass_as_they_are_where_memory_for_state_is_short() -> None:
    merger = Merger(SUMS, 1)
    budget = StateBudget(1 << 20)
    context = replace(instance_context(operator_id="partial"), state_budget=budget)
    node = PartialNode(
        context, 0, PartialAggregation(SUMS, measures=False, merging="sums"), Edge(merger, 0)
    )
    node.emit(batch_of(FIRST))
    node.end()
    assert [row["sum"] for row in merger.out.rows] == [10]
    assert (merger.deltas, node.metrics.rows_out, budget.used_bytes) == (0, 2, 0)


def test_its_memory_is_not_that_of_the_operator_that_merges_which_may_survive_it() -> None:
    budget = StateBudget()
    context = replace(instance_context(operator_id="partial"), state_budget=budget)
    node = PartialNode(
        context,
        0,
        PartialAggregation(SUMS, measures=False, merging="sums"),
        Edge(Merger(SUMS, 1), 0),
    )
    node.emit(batch_of(FIRST))
    assert budget.used_bytes > 0
    with pytest.raises(StateFullError, match="operator 'sums': its state"):
        budget.take("partial", 1 << 30, 2)
    budget.keep_only(["sums"])
    assert budget.used_bytes == 0


def test_it_steps_aside_below_two_rows_for_a_delta_and_tries_again() -> None:
    reduction = Reduction()
    reduction.flushed(4_000, 4_000)
    assert (reduction.is_aside, reduction.measured) == (False, None)  # too few to tell
    reduction.flushed(4_000, 1)
    assert (reduction.is_aside, reduction.measured) == (True, 8_000 / 4_001)
    pauses = []
    for _ in range(9):
        passed = 0
        while reduction.is_aside:
            reduction.passed(1 << 16)
            passed += 1 << 16
        pauses.append(passed)
        reduction.flushed(5_000, 2_501)
        assert reduction.is_aside
    assert pauses == [(1 << 20) * min(2**at, 16) for at in range(9)]
    reduction.passed(1 << 40)
    reduction.flushed(5_000, 2_500)
    assert (reduction.is_aside, reduction.measured) == (False, 2)


def test_rows_that_have_groups_of_their_own_do_not_fill_the_table_first() -> None:
    context = instance_context(operator_id="partial", clock=VirtualClock())
    node = PartialNode(
        context,
        0,
        PartialAggregation(SUMS, measures=True, merging="sums"),
        Edge(Merger(SUMS, 1), 0),
    )
    for first in range(0, 20_000, 2_000):
        node.emit(batch_of([model.Event(5, first + key, 1, None, None) for key in range(2_000)]))
    assert node.metrics.flushes == {"unique": 1}
    assert (node.metrics.deltas_out, node.metrics.rows_out) == (10_000, 20_000)


def test_rows_pass_as_they_are_where_it_has_stepped_aside() -> None:
    merger = Merger(SUMS, 1)
    context = instance_context(operator_id="partial", clock=VirtualClock())
    node = PartialNode(
        context, 0, PartialAggregation(SUMS, measures=True, merging="sums"), Edge(merger, 0)
    )
    different = [model.Event(5, key, 1, None, None) for key in range(5_000)]
    node.emit(batch_of(different))
    node.empty_for_marker()
    assert merger.deltas == 5_000
    node.emit(batch_of(different))
    node.advance(8)
    assert merger.out.watermark_ns == 8  # nothing is held
    node.end()
    assert merger.deltas == 5_000
    assert {row["sum"] for row in merger.out.rows} == {2} and len(merger.out.rows) == 5_000
