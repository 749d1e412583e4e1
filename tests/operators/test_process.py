"""The bases of users' operators: runs in merge order, rows with times, incomplete classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import TopologyError, UsageError
from whale_ray.operators.process import CoProcess, Output, Process, common_time, merged_runs
from whale_ray.operators.rows import RowFailure
from whale_ray.transport.wire.batch import Batch


class Collected(Output):
    """Collects emitted rows with the time that they would get."""

    def __init__(self) -> None:
        self.rows: list[tuple[int | None, dict[str, Any]]] = []

    def emit(self, batch: Any, times: Any = None) -> None:
        raise NotImplementedError

    def emit_to(self, output: str, rows: Any, times: Any = None) -> None:
        raise NotImplementedError

    def emit_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows += [(self.time_ns, dict(row)) for row in rows]


def _batch(values: Sequence[int], times: Sequence[int] | None = None) -> Batch:
    batch = Batch.from_pydict({"n": np.array(values, np.int64)})
    return batch if times is None else batch.with_times(np.array(times, np.int64))


@given(st.lists(st.booleans()))
def test_runs_replay_the_merge_order(order: list[bool]) -> None:
    runs = list(merged_runs(np.array(order, np.bool_)))
    replayed = [from_right for from_right, start, stop in runs for _ in range(start, stop)]
    assert replayed == order
    for side in (False, True):
        rows = [row for right, start, stop in runs if right == side for row in range(start, stop)]
        assert rows == list(range(order.count(side)))
    assert all(one[0] != other[0] for one, other in pairwise(runs))


class Trace(CoProcess):
    """Emits every row with the side of its input."""

    def on_left(self, batch: Batch, out: Output) -> None:
        out.emit_rows([{"left": row["n"]} for row in batch.rows()])

    def on_right_row(self, row: Any, out: Output) -> None:
        out.emit_row(right=row.n)


def test_merged_rows_come_in_order_each_with_its_time() -> None:
    out = Collected()
    left, right = _batch([1, 2, 3], [10, 10, 30]), _batch([7, 8], [10, 20])
    Trace().on_merged(left, right, np.array([False, False, True, True, False]), out)
    assert out.rows == [
        (10, {"left": 1}),
        (10, {"left": 2}),
        (10, {"right": 7}),
        (20, {"right": 8}),
        (30, {"left": 3}),
    ]


class Ratio(Process):
    """Emits 100 // n."""

    def on_row(self, row: Any, out: Output) -> None:
        out.emit_row(ratio=100 // row["n"])


def test_rows_one_by_one() -> None:
    out = Collected()
    Ratio().on_batch(_batch([4, 5], [1, 2]), out)
    assert out.rows == [(1, {"ratio": 25}), (2, {"ratio": 20})]


def test_a_raising_row_is_named() -> None:
    with pytest.raises(RowFailure) as caught:
        Ratio().on_batch(_batch([4, 0]), Collected())
    assert (caught.value.row_index, caught.value.preview) == (1, "{n=0}")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_errors_of_the_output_pass_through() -> None:
    class Refusing(Collected):
        def emit_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
            raise TopologyError("no event time")

    with pytest.raises(TopologyError, match="no event time"):
        Ratio().on_batch(_batch([4]), Refusing())


@pytest.mark.parametrize(
    ("times", "common"), [(None, None), ([], None), ([5, 5], 5), ([5, 6], None)]
)
def test_common_time(times: list[int] | None, common: int | None) -> None:
    assert common_time(_batch([0] * len(times or []), times)) == common


class Merged(CoProcess):
    """Defines on_merged alone."""

    def on_merged(self, left: Batch, right: Batch, order: Any, out: Output) -> None:
        """Take nothing."""


class Half(CoProcess):
    """Lacks the right side."""

    def on_left_row(self, row: Any, out: Output) -> None:
        """Take nothing."""


@pytest.mark.parametrize(
    ("operator", "missing"),
    [
        (Process, "on_batch or on_row"),
        (Ratio, None),
        (CoProcess, "on_left and on_right"),
        (Half, "on_right"),
        (Trace, None),
        (Merged, None),
    ],
)
def test_missing(operator: type[Process | CoProcess], missing: str | None) -> None:
    assert operator.missing() == missing


def test_calling_an_incomplete_process_names_what_is_missing() -> None:
    with pytest.raises(RowFailure) as caught:
        Half().on_right(_batch([1]), Collected())
    assert str(caught.value.__cause__) == "Half lacks on_right"


class BothByRow(CoProcess):
    """Emits the rows of both inputs, and fails for the right one's 0."""

    def on_left_row(self, row: Any, out: Output) -> None:
        out.emit_row(left=row.n)

    def on_right_row(self, row: Any, out: Output) -> None:
        out.emit_row(right=60 // row["n"])


class BothByBatch(CoProcess):
    """The same, by batches."""

    def on_left(self, batch: Batch, out: Output) -> None:
        out.emit_rows([{"left": row["n"]} for row in batch.rows()])

    def on_right(self, batch: Batch, out: Output) -> None:
        out.emit_rows([{"right": 60 // row["n"]} for row in batch.rows()])


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=40))
def test_merged_rows_are_the_same_by_row_and_by_run(merged: list[tuple[bool, int]]) -> None:
    sides: list[list[int]] = [[], []]
    times: list[list[int]] = [[], []]
    now = 0
    for from_right, step in merged:
        now += step
        sides[from_right].append(step)
        times[from_right].append(now)
    batches = [_batch(values, at) for values, at in zip(sides, times, strict=True)]
    order = np.array([from_right for from_right, _ in merged], np.bool_)
    by_row, by_batch = Collected(), Collected()
    BothByRow().on_merged(*batches, order, by_row)
    BothByBatch().on_merged(*batches, order, by_batch)
    assert [row for _, row in by_row.rows] == [row for _, row in by_batch.rows]
    assert [time for time, _ in by_row.rows] == sorted(times[0] + times[1])


def test_a_raising_merged_row_is_named() -> None:
    with pytest.raises(RowFailure) as caught:
        BothByRow().on_merged(
            _batch([7], [1]), _batch([5, 0], [2, 3]), np.array([False, True, True]), Collected()
        )
    assert (caught.value.row_index, caught.value.preview) == (1, "{n=0}")


def _answer(self: Any, *arguments: Any) -> Any:
    return {"n": 1}


def _later(self: Any, *arguments: Any) -> Any:
    async def answer() -> None:
        """Take nothing."""

    return answer()


_ANSWERS = [
    ("on_row", _answer, "a dict"),
    ("on_row", _later, "a coroutine"),
    ("on_row", lambda self, row, out: iter([row]), "a list_iterator"),
]


@pytest.mark.parametrize(("method", "function", "what"), _ANSWERS)
@pytest.mark.parametrize("times", [None, [1]])
def test_a_value_returned_by_a_method_is_refused(
    method: str, function: Any, what: str, times: list[int] | None
) -> None:
    function.__name__ = method
    operator = type("Answers", (Process,), {method: function})()
    with pytest.raises(UsageError) as caught:
        operator.on_batch(_batch([1], times), Collected())
    assert str(caught.value) == (
        f"Answers.on_row returned {what}, which is not used: emit rows with"
        " out.emit_row(column=value, …), and return nothing; input: {n=1}"
    )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["", "_row"])
def test_a_value_returned_by_a_method_of_a_side_is_refused(side: str, kind: str) -> None:
    def answer(self: Any, rows: Any, out: Any) -> int:
        return 7

    answer.__name__ = f"on_{side}{kind}"
    operator = type("Answers", (CoProcess,), {answer.__name__: answer})()
    batches = _batch([1], [1]), _batch([], [])
    order = np.array([side == "right"])
    with pytest.raises(UsageError, match=rf"^Answers\.on_{side}{kind} returned an int, which"):
        operator.on_merged(*(batches if side == "left" else batches[::-1]), order, Collected())
