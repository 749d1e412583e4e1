"""Rows from Python as a source."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.configs.errors import BadRowError, InputError
from whale_ray.operators import learnt_schema, sources
from whale_ray.testing import VirtualClock, instance_context, read_all


def squares() -> Iterator[dict[str, int]]:
    for number in range(10):
        yield {"x": number, "square": number**2}


def rows_of(source: sources.Source, instance: int = 0, parallelism: int = 1) -> list[Any]:
    batches = read_all(source, instance, parallelism, max_rows=4)
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_function_is_called_anew_each_time() -> None:
    source = sources.iterable(squares)
    assert source.replayable
    assert source.bounded
    assert rows_of(source) == rows_of(source) == list(squares())
    assert rows_of(pickle.loads(pickle.dumps(source))) == list(squares())
    assert source.describe() == "iterable squares(), bounded"
    assert sources.iterable(squares, bounded=False).describe() == (
        "iterable squares(), without an end"
    )


@pytest.mark.parametrize("parallelism", [2, 3])
def test_rows_are_assigned_round_robin(parallelism: int) -> None:
    source = sources.iterable(list(squares()))
    for instance in range(parallelism):
        assert rows_of(source, instance, parallelism) == list(squares())[instance::parallelism]
    assert source.describe() == "iterable 10 rows"


def test_an_iterator_is_read_once_and_cannot_be_pickled() -> None:
    source = sources.iterable(squares())
    assert not source.replayable
    assert rows_of(source) == list(squares())
    with pytest.raises(InputError) as error:
        pickle.dumps(source)
    assert str(error.value) == (
        "a generator cannot be sent to another process; pass the function that makes it, not its "
        "result: iterable(rows) instead of iterable(rows())"
    )


def test_an_iterator_that_was_read_or_is_shared_loses_no_rows_silently() -> None:
    source = sources.iterable(squares())
    remedy = (
        "a generator can be read only once; pass the function that makes it, iterable(rows) "
        "instead of iterable(rows())"
    )
    with pytest.raises(InputError) as error:
        rows_of(source, 1, 2)
    assert str(error.value) == (
        f"iterable generator, bounded cannot be read by several instances: {remedy}"
    )
    assert rows_of(source) == list(squares())
    for again in (source, source.with_bad_rows("drop")):
        with pytest.raises(InputError) as error:
            rows_of(again)
        assert str(error.value) == f"iterable generator, bounded was read before: {remedy}"


def test_tuples_need_a_schema() -> None:
    source = sources.iterable([(1, "a"), (2, None)], schema={"x": "int32", "name": "string"})
    assert str(source.schema()) == "x: int32, name: string"
    assert rows_of(source) == [{"x": 1, "name": "a"}, {"x": 2, "name": None}]


def test_none_means_no_row_at_present() -> None:
    clock = VirtualClock(start_ns=5)
    source = sources.iterable([{"x": 1}, None, {"x": 2}])
    reader = source.open(instance_context(clock=clock))
    first = reader.read(10)
    assert first is not None
    assert first.to_pylist() == [{"x": 1}]
    assert not reader.finished
    ready_ns = reader.next_ready_ns()
    assert ready_ns is not None
    assert ready_ns > 5
    second = reader.read(10)
    assert second is not None
    assert second.to_pylist() == [{"x": 2}]
    assert reader.finished


def test_an_infinite_generator_is_read_as_asked() -> None:
    source = sources.iterable(lambda: ({"x": x} for x in itertools.count()), bounded=False)
    assert not source.bounded
    reader = source.open(instance_context(1, 2))
    batch = reader.read(3)
    assert batch is not None
    assert batch["x"].tolist() == [1, 3, 5]
    assert not reader.finished
    reader.close()
    reader.close()


SECOND_NS = 1_000_000_000


def seldom(clock: VirtualClock, values: list[Any], *, waits: bool) -> Iterator[Any]:
    """Yield a row every 0.4 s, waiting for it or saying that there is none now; then no more."""
    for n, value in enumerate(values):
        clock.advance(SECOND_NS * 2 // 5)
        yield {"n": n, "x": value}
        if not waits:
            yield None
    while True:
        yield None


@pytest.mark.parametrize("waits", [False, True])
def test_unbounded_rows_are_read_although_a_column_has_only_nulls(waits: bool) -> None:
    clock = VirtualClock()
    source = sources.iterable(
        lambda: seldom(clock, [None] * 5 + ["late"], waits=waits), bounded=False
    )
    reader = source.open(instance_context(clock=clock))
    read: list[tuple[int, Any]] = []
    while len(read) < 6:
        batch = reader.read(8192)
        if batch is not None:
            assert str(batch.schema) == "n: int64, x: string"
            read += [(clock.monotonic_ns(), row) for row in batch.to_pylist()]
    assert [row for _, row in read] == [{"n": n, "x": None} for n in range(5)] + [
        {"n": 5, "x": "late"}
    ]
    for at_ns, row in read:
        assert at_ns - SECOND_NS * 2 // 5 * (row["n"] + 1) <= SECOND_NS * 6 // 5


@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_a_wrong_presumption_of_text_fails_the_job(policy: Any) -> None:
    clock = VirtualClock()
    source = sources.iterable(
        lambda: seldom(clock, [None] * 5 + [7], waits=False), bounded=False
    ).with_bad_rows(policy)
    reader = source.open(instance_context(clock=clock))
    with pytest.raises(InputError) as error:
        list(iter(lambda: reader.read(8192), "no batch is that"))
    assert str(error.value) == (
        "column 'x' held nothing but nulls in the first 4 rows, so it was presumed to be "
        "text, but a later value has the type int64: pass schema=, or rows "
        "without it"
    )


def test_a_limited_number_of_unbounded_rows_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learnt_schema, "WAITING_ROWS_MAX", 10)
    rows = ({"n": n, "x": None} for n in itertools.count())
    reader = sources.iterable(rows, bounded=False).open(instance_context())
    batch = reader.read(8)
    assert batch is not None
    assert str(batch.schema) == "n: int64, x: string"


MIXED = [{"x": 1}, {"x": "two"}, {"x": 3}, {"y": 4}, {"x": None}]


def test_rows_that_do_not_fit_are_refused_or_counted() -> None:
    source = sources.iterable(MIXED, schema={"x": "int64"})
    with pytest.raises(BadRowError) as error:
        rows_of(source)
    assert str(error.value).startswith("row 1: ")
    assert str(error.value).endswith(
        ": {'x': 'two'}; correct it, pass schema=, or pass on_bad_rows='drop' to leave such rows "
        "out and count them"
    )
    reader = source.with_bad_rows("drop").open(instance_context())
    batch = reader.read(100)
    assert batch is not None
    assert batch.to_pylist() == [{"x": 1}, {"x": 3}, {"x": None}]
    assert dict(reader.rejected) == {"row does not fit the schema": 2}


def test_the_first_rows_decide_the_schema() -> None:
    reader = sources.iterable([{"x": 1}, {"x": 2}, {"x": 3.5}]).open(instance_context())
    assert reader.read(2) is not None
    with pytest.raises(BadRowError, match="^row 2: "):
        reader.read(2)


def test_values_that_are_not_rows_are_refused() -> None:
    with pytest.raises(InputError) as error:
        sources.iterable({"x": [1, 2]})  # type: ignore[arg-type]  # the mistake tested
    assert str(error.value) == (
        "iterable() got a dict; pass a list of rows, or a function that returns rows, "
        "each a mapping of column name to value"
    )


def test_what_can_never_be_a_row_is_refused_at_once_not_at_an_end_that_never_comes() -> None:
    def endless() -> Iterator[Any]:
        return itertools.repeat((1, 2))

    for bounded in (True, False):
        reader = sources.iterable(endless, bounded=bounded).open(instance_context(0, 1))
        with pytest.raises(BadRowError, match=r"row 0: rows without names; give a schema, or"):
            reader.read(1000)


def test_a_table_is_no_row_and_the_message_has_one_line() -> None:
    tables = sources.iterable(lambda: [whale.Batch.from_pydict({"n": [1, 2]})])
    with pytest.raises(BadRowError) as raised:
        rows_of(tables)
    assert str(raised.value) == (
        "row 0: a Batch is no row: sources.batches takes what yields tables:"
        " Batch(2 rows; n: int64) {n=1} {n=2}; correct it, pass schema=, or pass"
        " on_bad_rows='drop' to leave such rows out and count them"
    )


def test_a_reader_that_skips_tells_how_far_it_has_to_go() -> None:
    def rows() -> Iterator[dict[str, int]]:
        return ({"n": n} for n in range(100))

    schema = {"n": "int64"}
    positions = []
    for instance in range(2):
        reader = sources.iterable(rows, schema).open(instance_context(instance, 2))
        while (batch := reader.read(1)) is not None and batch.to_pylist() != [{"n": 78 + instance}]:
            assert reader.gauges() == {}
        positions.append(reader.position())
    for instance in range(2):
        context = instance_context(instance, 2)
        again = sources.iterable(rows, schema).open_at(context, positions)
        assert again.gauges() == {"rows to skip": {str(instance): 80 + instance}}
        batch = again.read(100)
        assert batch is not None
        assert batch.to_pylist()[0] == {"n": 80 + instance}
        assert again.gauges() == {}
        seeking = sources.iterable(
            rows, schema, resume=lambda first: ({"n": n} for n in range(first, 100))
        )
        assert seeking.open_at(context, positions).gauges() == {}
