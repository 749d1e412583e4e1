"""Groups of windows that have ended wait for those of later ones where many rows come at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.operators.windows import model
from tests.operators.windows.driving import AGGREGATES, arrivals, batch_of, bounds
from tests.operators.windows.test_partial_windows import (
    STEPS,
    SUMS,
    TIMES,
    US,
    Edge,
    Merger,
    as_rows,
    keeping,
    newest,
    partial,
    run,
)
from whale_ray.operators.windows import partial_windows
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.tasks import partial_node
from whale_ray.tasks.compiled_transforms import CompiledTransforms
from whale_ray.tasks.partial_node import PartialNode
from whale_ray.transport.wire.batch import Batch

NAMES = ("rows", "sum", "least", "lowest")
NUMBERS = tuple(one for one in AGGREGATES if one.output_name in NAMES)
FIVE = Aggregation(("key",), TimeWindow("time", 5 * US, 5 * US, 0), NUMBERS)


@pytest.fixture(autouse=True, scope="module")
def _any_batch_has_many_rows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_node, "_ROWS_OF_MANY", 1)
        yield


class InTheWayOfALoop:
    """Takes the rows that a loop would take, without compiling one for each example."""

    def __init__(self, node: PartialNode) -> None:
        self._node = node

    def take(self, batch: Batch) -> bool:
        partial = self._node.partial
        if partial.takes_from_loop(batch) is None:
            return False
        self._node.count_aggregated(batch.num_rows, batch.schema, partial.add(batch))
        return True


def looping(edge: Edge, asked: Aggregation, *, keeps_open: bool = True) -> PartialNode:
    """Return a producer whose rows go through a loop."""
    node = partial(edge, asked, keeps_open=keeps_open)
    node.compiled = InTheWayOfALoop(node)
    return node


def rows_at(*times: int) -> list[model.Event]:
    return [model.Event(time, 1, 1, None, None) for time in times]


def feed(node: PartialNode, times: Sequence[int]) -> None:
    """Hand over a row at each time, each as a batch with a watermark behind it."""
    for time in times:
        node.emit(batch_of(rows_at(time)))
        node.advance(time)


@settings(max_examples=20)
@given(
    batches=arrivals(TIMES),
    steps=STEPS,
    producers=st.sampled_from([1, 2]),
    held_max=st.sampled_from([1, 3, 2048]),
)
def test_the_result_is_that_of_rows(batches, steps, producers, held_max):
    plain = run(FIVE, producers, batches, steps, as_rows)
    # With two producers, the watermarks of both decide whether a row is late, whenever they come.
    assume(producers == 1 or not plain.out.late)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_windows, "_CLOSED_HELD_MAX", held_max)
        merged = run(FIVE, producers, batches, steps, looping)
    assert repr(merged.out.late) == repr(plain.out.late)  # of which NaN are the same
    found, expected = (newest(one.out, FIVE) for one in (merged, plain))
    assert len(merged.out.rows) == len(found) and set(found) == set(expected)
    for key, row in found.items():
        assert all(model.same(row[name], expected[key][name]) for name in NAMES)


@settings(max_examples=20)
@given(batches=arrivals(TIMES), steps=STEPS)
def test_windows_and_late_rows_are_those_of_a_model_in_plain_python(batches, steps):
    out = run(FIVE, 1, batches, steps, looping).out
    expected, late = model.tumble(batches, 5 * US, 5 * US, 0, 0)
    assert len(out.late) == late
    found = {(*bounds(row), row["key"]): row for row in out.rows}
    assert len(out.rows) == len(found) and set(found) == set(expected)
    for key, row in found.items():
        right = model.aggregates(expected[key])
        assert all(model.same(row[name], right[name]) for name in NAMES)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_windows_leave_together_after_some_batches(is_compiled) -> None:
    edge = Edge(merger := Merger(SUMS, 1), 0)
    node = looping(edge, SUMS)
    if is_compiled:
        node.compiled = CompiledTransforms((), node, "compiled")
    node.advance(0)
    feed(node, range(5, 95, 10))
    assert (merger.out.rows, merger.out.watermark_ns) == ([], 0)
    feed(node, [95])
    assert node.metrics.flushes == {"window": 1}
    assert ([row["sum"] for row in merger.out.rows], merger.out.watermark_ns) == ([1] * 9, 95)
    node.end()
    assert [row["sum"] for row in merger.out.rows] == [1] * 10


def test_they_wait_for_a_limited_time_and_those_of_open_windows_stay() -> None:
    edge = Edge(merger := Merger(SUMS, 1), 0)
    node = looping(edge, SUMS)
    node.advance(0)
    feed(node, [5, 15])
    assert node.waiting_until_ns == 50_000_000
    feed(node, [25])
    assert node.waiting_until_ns == 50_000_000
    node.pass_on_waiting()
    assert (merger.deltas, merger.out.watermark_ns) == (2, 25)
    assert not node.partial.is_empty and node.waiting_until_ns == 1_000_000_000


def test_a_late_row_finds_that_its_window_has_ended() -> None:
    edge = Edge(merger := Merger(SUMS, 1), 0)
    node = looping(edge, SUMS)
    node.advance(0)
    feed(node, [5, 15, 16])
    assert merger.out.rows == []
    node.emit(batch_of(rows_at(7)))
    assert ([row["sum"] for row in merger.out.rows], len(merger.out.late)) == ([1], 1)


@pytest.mark.parametrize(
    ("change", "value"), [("_ROWS_OF_MANY", 2), ("_BATCHES_MAX", 0), ("keeps_open", False)]
)
def test_they_leave_at_once_where_nothing_is_won(change, value, monkeypatch) -> None:
    keeps_open = change != "keeps_open"
    if keeps_open:
        monkeypatch.setattr(partial_node, change, value)
    edge = Edge(merger := Merger(SUMS, 1), 0)
    node = looping(edge, SUMS, keeps_open=keeps_open)
    node.advance(0)
    feed(node, [5, 15])
    assert (len(merger.out.rows), merger.out.watermark_ns) == (1, 15)


def test_rows_that_no_loop_takes_do_not_let_them_wait() -> None:
    edge = Edge(merger := Merger(SUMS, 1), 0)
    node = keeping(edge, SUMS)
    node.advance(0)
    feed(node, [5, 15])
    assert (len(merger.out.rows), merger.out.watermark_ns) == (1, 15)
