"""Batches from Python as a source, against the tables of which they are made."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.sources.opened import Opened, message_of, rows_of
from whale_ray import functions
from whale_ray.configs.errors import InputError
from whale_ray.operators import sources
from whale_ray.testing import VirtualClock, check_source, instance_context

SIZES = (3, 0, 5, 1, 8, 2)


def numbered(sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """Return batches of so many rows, numbered throughout."""
    ends = np.cumsum(sizes)
    return [{"n": np.arange(end - size, end)} for size, end in zip(sizes, ends, strict=True)]


def with_pauses(first: int = 0) -> Iterator[dict[str, Any] | None]:
    """Yield batches from a number on, with None between some of them."""
    for number, batch in enumerate(numbered()[first:], first):
        if number % 2:
            yield None
        yield batch


def no_batches() -> list[Any]:
    return []


def as_table(columns: dict[str, Any]) -> pa.Table:
    return pa.table({name: pa.array(values) for name, values in columns.items()})


@pytest.mark.parametrize("resume", [None, with_pauses], ids=["skips", "seeks"])
def test_it_keeps_the_contract_of_sources(resume: Callable[[int], Any] | None) -> None:
    check_source(lambda: sources.batches(with_pauses, resume=resume))
    check_source(lambda: sources.batches(with_pauses, {"n": "int64"}, resume=resume))


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    stops=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), max_size=4),
    max_rows=st.integers(1, 5),
    seeks=st.booleans(),
)
def test_rows_are_read_once_however_often_and_by_however_many_it_is_resumed(
    sizes: list[int], stops: list[tuple[int, int]], max_rows: int, seeks: bool
) -> None:
    def from_number(first: int) -> Iterator[Any]:
        return islice(numbered(sizes), first, None)

    source = sources.batches(partial(numbered, sizes), resume=from_number if seeks else None)
    found: list[str] = []
    positions = None
    for reads, parallelism in stops:
        opened = [Opened(source, each, parallelism, positions) for each in range(parallelism)]
        for one in opened:
            for _ in range(reads):
                found += one.read(max_rows)
        positions = [one.position() for one in opened]
    found += Opened(source, 0, 1, positions).rest()
    assert sorted(found) == sorted(repr({"n": n}) for n in range(sum(sizes)))


COLUMNS = {
    "id": np.array([2**53 + 1, -7]),
    "km": np.array([0.5, np.inf]),
    "name": ["ö", "b"],
}


@pytest.mark.parametrize(
    "made",
    [
        dict,
        as_table,
        lambda columns: as_table(columns).to_batches()[0],
        pd.DataFrame,
        lambda columns: duckdb.from_arrow(as_table(columns)),
        whale.Batch.from_pydict,
    ],
    ids=["arrays", "table", "record batch", "pandas", "duckdb", "whale"],
)
@pytest.mark.parametrize("schema", [None, {"id": "int64", "km": "float64", "name": "string"}])
def test_every_kind_of_batch_is_taken(made: Callable[[Any], Any], schema: Any) -> None:
    batches = [dict(COLUMNS), made(COLUMNS), {name: COLUMNS[name] for name in ("name", "km", "id")}]
    expected = as_table(COLUMNS).to_pylist() * 3
    assert rows_of(sources.batches(lambda: batches, schema)) == expected
    assert rows_of(sources.batches(lambda: batches[::-1], schema)) == expected


def test_a_declared_schema_converts_and_leaves_out() -> None:
    def made() -> Iterator[Any]:
        yield {"n": [1, None], "more": ["x", "y"]}
        yield pa.table({"more": ["z"], "n": pa.array([2], pa.int32())})
        yield pd.DataFrame({"n": [3.0]})

    source = sources.batches(made, {"n": "int64"})
    assert str(source.schema()) == "n: int64"
    assert [row["n"] for row in rows_of(source)] == [1, None, 2, 3]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"n": ["a"]}, "batch 1: the column 'n' is string here, and int64 as in the first batch"),
        ({"n": [0.5]}, "batch 1: the column 'n' is double here, and int64 as in the first batch"),
        ({"m": [1]}, "batch 1: its columns: no column 'n'; it has 'm'"),
        ({"n": [1], "m": [1]}, "batch 1: the first batch had no column 'm'; pass schema="),
        ({"n": 1}, "batch 1: column 'n' is an int, not one value per row"),
        ([{"n": 1}], "batch 1: a list is no batch: yield mappings of column name to array"),
        (pd.Series([1]), "batch 1: pandas() got a Series"),
    ],
)
def test_a_batch_that_is_not_like_the_first_is_refused(second: object, message: str) -> None:
    def made() -> Iterator[Any]:
        yield {"n": [1]}
        yield second

    assert message_of(InputError, sources.batches(made)).startswith(message)


def test_a_value_that_a_declared_type_cannot_hold_is_refused() -> None:
    table = pa.table({"n": [2**40]})
    source = sources.batches(lambda: [table], {"n": "int32"})
    assert message_of(InputError, source) == (
        "batch 0: the column 'n': Integer value 1099511627776 not in range: -2147483648 to"
        " 2147483647; declare a wider type"
    )
    texts = sources.batches(lambda: [pa.table({"n": ["7"]})], {"n": "int32"})
    assert message_of(InputError, texts) == (
        "batch 0: the column 'n' is string here, and int32 as declared; convert it"
    )


def test_all_instances_have_the_columns_of_the_first_batch() -> None:
    def made() -> Iterator[Any]:
        yield {"n": [0.5]}
        yield {"n": [1]}

    with pytest.raises(InputError, match=r"batch 1: the column 'n' is int64 here, and double as"):
        rows_of(sources.batches(made), 1, 2)


def test_columns_are_learnt_once_and_kept_in_positions() -> None:
    def made(first: int = 0) -> Iterator[Any]:
        yield from [{"n": pa.array([None], pa.int32())}, {"n": [1]}][first:]

    tables = sources.batches(lambda: map(as_table, made()), resume=lambda n: map(as_table, made(n)))
    opened = Opened(tables, 0, 1)
    assert opened.read(9) == ["{'n': None}"]
    resumed = Opened(tables, 0, 1, [opened.position()])
    with pytest.raises(InputError, match="batch 1: the column 'n' is int64 here, and int32"):
        resumed.read(9)


def test_a_pause_is_taken_only_where_there_is_no_batch() -> None:
    def made() -> Iterator[Any]:
        yield None
        yield {"n": [0]}
        yield {"n": [1]}

    clock = VirtualClock()
    reader = sources.batches(made).open(instance_context(1, 2, clock=clock))
    assert reader.read(1) is None
    ready_ns = reader.next_ready_ns()
    assert ready_ns is not None
    assert ready_ns > clock.monotonic_ns()
    assert reader.read(1) is None  # another instance's
    assert reader.next_ready_ns() is None
    batch = reader.read(1)
    assert batch is not None
    assert batch.to_pylist() == [{"n": 1}]


def test_a_gauge_tells_how_many_batches_are_still_skipped() -> None:
    opened = Opened(sources.batches(numbered), 0, 1)
    assert opened.reader.gauges() == {}
    assert [opened.read(9) for _ in range(2)] == [
        [repr({"n": n}) for n in range(3)],
        [repr({"n": n}) for n in range(3, 8)],
    ]
    reader = Opened(sources.batches(numbered), 0, 1, [opened.position()]).reader
    found = []
    while (batch := reader.read(9)) is None:
        found.append(reader.gauges())
    assert batch.to_pylist() == [{"n": 8}]
    assert reader.gauges() == {}
    assert found[0] == {"batches to skip": {"0": 1}}
    seeks = sources.batches(numbered, resume=lambda first: numbered()[first:])
    assert Opened(seeks, 0, 1, [opened.position()]).reader.gauges() == {}


def test_its_generator_is_closed() -> None:
    closed = []

    def made() -> Iterator[Any]:
        try:
            yield {"n": [1]}
            yield {"n": [2]}
        finally:
            closed.append(True)

    reader = sources.batches(made).open(instance_context(0, 1))
    assert reader.read(1) is not None
    reader.close()
    assert closed == [True]


def test_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"batches\(\) got a dict: pass a function without arg"):
        sources.batches({"n": [1]})  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InputError, match="takes as resume= a function of the number"):
        sources.batches(numbered, resume=no_batches)  # type: ignore[arg-type]  # on purpose
    assert message_of(InputError, sources.batches(lambda: {"n": [1]})) == (
        "the function of batches() returned a dict: return a list of batches, or yield them"
    )
    assert pickle.loads(pickle.dumps(sources.batches(numbered))).describe() == (
        "batches numbered(), bounded"
    )


def test_windows_of_batches_are_those_of_their_rows() -> None:
    rng = np.random.default_rng(3)
    seconds, keys = np.sort(rng.integers(0, 60, 5_000)), rng.integers(0, 5, 5_000)
    parts = np.array_split(np.arange(5_000), 17)
    topology = whale.Topology("counts")
    source = whale.sources.batches(lambda: [{"s": seconds[p], "key": keys[p]} for p in parts])
    rows = topology.source(source, event_time="s", event_time_unit="s")
    counts = rows.group_by(whale.window("s", "10 seconds"), "key").agg(
        functions.count().alias("rows")
    )
    counts.select("window_start", "key", "rows").sink(whale.sinks.collect(), id="out")
    found = whale.run(topology).results("out").to_arrow().to_pandas()
    starts = pd.to_datetime(seconds // 10 * 10, unit="s")
    expected = pd.DataFrame({"start": starts, "key": keys}).value_counts().to_dict()
    assert found.set_index(["window_start", "key"])["rows"].to_dict() == expected
