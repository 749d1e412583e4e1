"""The testing kit for users: its examples run, and its markers work as documented."""

from __future__ import annotations

import doctest
import inspect
import pickle
import textwrap
from typing import Any

import numpy as np
import pytest

import whale_ray as whale
from whale_ray import testing
from whale_ray.configs.errors import OutputError
from whale_ray.operators.sources import poisson_rate
from whale_ray.testing import collecting_sink, list_source
from whale_ray.transport.wire.batch import Batch


@pytest.mark.parametrize("module", [list_source, collecting_sink, poisson_rate])
def test_the_examples_run(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_example_of_a_whole_test_runs() -> None:
    text = inspect.getdoc(testing)
    assert text is not None
    code = textwrap.dedent(text[text.index("    import whale_ray") : text.index("`read_all` and")])
    names: dict[str, Any] = {}
    exec(compile(code, "example", "exec"), names)  # noqa: S102  # our own example
    names["test_keeps_large_values"]()


def test_signs_in_a_list() -> None:
    clock = testing.VirtualClock()
    items = [
        {"x": 1},
        {"x": 2},
        testing.Pause(duration_ms=5),
        {"x": 3},
        testing.EndOfInput(),
        {"x": 4},
    ]
    source = testing.ListSource(items, bounded=False)
    assert source.bounded
    reader = source.open(testing.instance_context(clock=clock))
    assert rows(reader.read(10)) == [{"x": 1}, {"x": 2}]
    assert reader.read(10) is None
    assert not reader.finished
    assert reader.next_ready_ns() == 5_000_000
    clock.advance(4_999_999)
    assert reader.read(10) is None
    clock.advance(1)
    assert rows(reader.read(10)) == [{"x": 3}]
    assert reader.read(10) is None
    assert reader.finished
    assert reader.read(10) is None


def rows(batch: Batch | None) -> list[dict[str, Any]]:
    return [] if batch is None else batch.to_pylist()


def test_an_abort_fails_where_it_stands() -> None:
    source = testing.ListSource([{"x": 1}, testing.Abort("the tape broke"), {"x": 2}])
    batches = testing.read_all(source)
    assert next(batches).to_pylist() == [{"x": 1}]
    with pytest.raises(testing.AbortError, match="^the tape broke$"):
        next(batches)


def test_an_unbounded_list_waits_at_its_end() -> None:
    reader = testing.ListSource([{"x": 1}], bounded=False).open(testing.instance_context())
    assert rows(reader.read(10)) == [{"x": 1}]
    assert reader.read(10) is None
    assert not reader.finished
    ready_ns = reader.next_ready_ns()
    assert ready_ns is not None
    assert ready_ns > 0


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_listed_rows_are_dealt_out_in_turn(parallelism: int) -> None:
    listed: list[Any] = [{"x": i} for i in range(7)]
    listed.insert(3, testing.Pause())
    source = pickle.loads(pickle.dumps(testing.ListSource(listed, batch_rows=2)))
    for instance in range(parallelism):
        batches = list(testing.read_all(source, instance, parallelism))
        assert all(batch.num_rows <= 2 for batch in batches)
        got = [row["x"] for batch in batches for row in batch.to_pylist()]
        assert got == list(range(7))[instance::parallelism]


def test_a_collecting_sink_is_found_through_its_copies() -> None:
    sink = testing.CollectingSink()
    travelled = pickle.loads(pickle.dumps(sink)).configured(whale.Settings())
    testing.write_all(travelled, [Batch.from_pydict({"x": np.arange(2)})])
    assert sink.rows == [{"x": 0}, {"x": 1}]
    assert sink.table.column_names == ["x"]


def test_a_collecting_sink_says_why_it_is_empty() -> None:
    sink = testing.CollectingSink()
    with pytest.raises(OutputError) as error:
        _ = sink.rows
    assert str(error.value) == (
        "this CollectingSink received nothing: the job has not ended well, or it published in "
        "another process; then use job.results(id)"
    )


def test_an_abandoned_source_is_closed() -> None:
    closed = []

    def numbers() -> Any:
        try:
            for number in range(100):
                yield {"x": number}
        finally:
            closed.append(True)

    from whale_ray.operators.sources import iterable

    batches = testing.read_all(iterable(numbers), max_rows=2)
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert closed == [True]
