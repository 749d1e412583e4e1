"""Transforms: the same result as Python over dict rows, event times kept, mistakes named."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_ray.configs.errors import ExpressionError, UsageError
from whale_ray.operators.expressions.expression import col, lit
from whale_ray.operators.transforms import (
    FilterColumns,
    FilterExpression,
    FilterRows,
    FlatMapBatches,
    FlatMapRows,
    MapBatches,
    MapExpressions,
    MapRows,
    RowFailure,
    Transform,
)
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

_SCHEMA = Schema.of(id="string", n="int32", t="timestamp[ms, tz=UTC]")


def _batch(numbers: list[int | None], with_times: bool = True) -> Batch:
    start = datetime.datetime(2008, 5, 17, tzinfo=datetime.UTC)
    columns = {
        "id": [f"v{index}" for index in range(len(numbers))],
        "n": numbers,
        "t": [start + datetime.timedelta(minutes=index) for index in range(len(numbers))],
    }
    batch = Batch.from_pydict(columns, _SCHEMA).with_origin(99)
    times = np.arange(len(numbers), dtype=np.int64) * 1000
    return batch.with_times(times) if with_times else batch


def _times(batch: Batch | None) -> list[int]:
    assert batch is not None
    assert batch.times is not None
    assert batch.origin_ns == 99
    return [int(time) for time in batch.times]


_FILTERS: dict[str, Transform] = {
    "expression": FilterExpression(col("n") > 2),
    "columns": FilterColumns(lambda batch: batch["n"] > 2),
    "rows": FilterRows(lambda row: row.n is not None and row.n > 2),
}


@pytest.mark.parametrize("kind", _FILTERS)
@settings(max_examples=20, deadline=None)
@given(numbers=st.lists(st.none() | st.integers(0, 5), max_size=12))
def test_filters_keep_what_python_keeps(kind: str, numbers: list[int | None]) -> None:
    batch = _batch(numbers)
    kept = [at for at, number in enumerate(numbers) if number is not None and number > 2]
    result = _FILTERS[kind].apply(batch)
    if not kept:
        assert result is None
        return
    assert result is not None
    assert result.to_pylist() == [batch.to_pylist()[at] for at in kept]
    assert _times(result) == [1000 * at for at in kept]


def test_a_filter_of_rows_takes_booleans_of_numpy() -> None:
    kept = FilterRows(lambda row: np.bool_(row.n > 2) if row.n else False).apply(_batch([0, 3, 1]))
    assert kept is not None
    assert kept["n"].tolist() == [3]


def test_a_filter_that_keeps_all_copies_nothing() -> None:
    batch = _batch([3, 4])
    assert all(transform.apply(batch) is batch for transform in _FILTERS.values())


def test_filter_without_event_times() -> None:
    result = _FILTERS["columns"].apply(_batch([1, 3], with_times=False))
    assert result is not None
    assert result.times is None


_DOUBLED = [{"id": "v0", "twice": 6}, {"id": "v1", "twice": 8}]
_MAPS: dict[str, Transform] = {
    "expressions": MapExpressions.select([col("id"), (col("n") * 2).alias("twice")]),
    "columns": MapBatches(lambda batch: {"id": batch["id"], "twice": batch["n"] * 2}),
    "batch": MapBatches(lambda batch: batch.select(["id"]).with_column("twice", batch["n"] * 2)),
    "rows": MapRows(lambda row: {"id": row["id"], "twice": row.n * 2}),
}


@pytest.mark.parametrize("kind", _MAPS)
def test_maps_agree(kind: str) -> None:
    result = _MAPS[kind].apply(_batch([3, 4]))
    assert result is not None
    assert result.to_pylist() == _DOUBLED
    assert _times(result) == [0, 1000]


def test_with_columns_computes_all_from_the_input() -> None:
    swap = MapExpressions.with_columns({"n": lit(0), "old": col("n")})
    result = swap.apply(_batch([3, 4]))
    assert result is not None
    assert result.schema.names == ("id", "n", "t", "old")
    assert [(row["n"], row["old"]) for row in result.rows()] == [(0, 3), (0, 4)]


def test_select_twice_the_same_name() -> None:
    with pytest.raises(ExpressionError) as caught:
        MapExpressions.select([col("a"), lit(1).alias("a")])
    assert str(caught.value) == "two columns are called 'a': give one another name with alias"


def _repeated(batch: Batch, counts: np.ndarray[Any, Any]) -> tuple[dict[str, Any], Any]:
    parents = np.repeat(np.arange(len(batch)), counts)
    ids = batch["id"].to_numpy()[parents]
    return {"id": ids, "k": np.concatenate([np.arange(count) for count in counts])}, parents


def _taken(batch: Batch) -> Batch:
    columns, parents = _repeated(batch, batch["n"])
    return batch.take(parents).select(["id"]).with_column("k", columns["k"])


_FLAT_MAPS: dict[str, Transform] = {
    "rows": FlatMapRows(lambda row: [{"id": row.id, "k": k} for k in range(row.n)]),
    "generator": FlatMapRows(lambda row: ({"id": row.id, "k": k} for k in range(row.n))),
    "parents": FlatMapBatches(lambda batch: _repeated(batch, batch["n"])),
    "taken": FlatMapBatches(_taken),
}


@pytest.mark.parametrize("kind", _FLAT_MAPS)
def test_flat_maps_keep_the_parents_time(kind: str) -> None:
    result = _FLAT_MAPS[kind].apply(_batch([2, 0, 1]))
    assert result is not None
    assert result.to_pylist() == [{"id": "v0", "k": 0}, {"id": "v0", "k": 1}, {"id": "v2", "k": 0}]
    assert _times(result) == [0, 0, 2000]


@pytest.mark.parametrize(
    "transform",
    [
        FlatMapRows(lambda row: None),
        FlatMapRows(lambda row: []),
        FlatMapBatches(lambda batch: None),
        FlatMapBatches(lambda batch: batch.slice(0, 0)),
    ],
)
def test_flat_maps_without_a_row(transform: Transform) -> None:
    assert transform.apply(_batch([1, 2])) is None


def test_flat_map_on_columns_without_event_times_needs_no_parents() -> None:
    result = FlatMapBatches(lambda batch: {"n": [1, 2, 3]}).apply(_batch([5], with_times=False))
    assert result is not None
    assert (result.num_rows, result.times) == (3, None)


# ---- the columns that functions make -------------------------------------------------------------


def test_learnt_columns_keep_the_types_of_text_and_times() -> None:
    transform = MapRows(lambda row: {**row, "speed": row.n / 2, "why": None if row.n else "x"})
    result = transform.apply(_batch([0, 3]))
    assert result is not None
    shown = {field.name: field.type.name for field in result.schema}
    assert shown == {
        "id": "string",
        "n": "int64",
        "t": "timestamp[ms, tz=UTC]",
        "speed": "float64",
        "why": "string",
    }


def test_a_column_that_is_null_in_the_first_rows_keeps_its_own_type() -> None:
    result = MapRows(lambda row: {"n": None, "id": row.id}).apply(_batch([1]))
    assert result is not None
    assert str(result.schema) == "n: int32, id: string"


def test_learnt_columns_are_fixed_from_then_on() -> None:
    transform = MapRows(lambda row: {"x": row.n if row.n < 3 else "many"}).instance()
    first = transform.apply(_batch([1, 2]))
    assert first is not None
    with pytest.raises(UsageError) as caught:
        transform.apply(_batch([1, 5]))
    message = str(caught.value)
    assert message.startswith("map function <lambda>: column 'x', int64: Could not convert 'many'")
    assert message.endswith(
        "(the columns were learnt from its first rows: x: int64; declare them with"
        " schema=whale.Schema.of(…))"
    )


def test_each_instance_learns_for_itself() -> None:
    transform = MapRows(lambda row: {"x": row.n})
    one, other = transform.instance(), transform.instance()
    assert one.apply(_batch([1])) is not None
    assert transform.output_schema(_SCHEMA) is None
    text = Batch.from_pydict({"n": ["a"]})
    result = other.apply(text)
    assert result is not None
    assert str(result.schema) == "x: string"


def test_declared_columns() -> None:
    schema = Schema.of(x="float32", why="string")
    transforms: list[Transform] = [
        MapRows(lambda row: {"why": None, "x": row.n}, schema),
        MapBatches(lambda batch: {"why": [None] * len(batch), "x": batch["n"]}, schema),
    ]
    for transform in transforms:
        assert transform.output_schema(_SCHEMA) == schema
        result = transform.apply(_batch([1, 2]))
        assert result is not None
        assert result.schema == schema
        assert result.to_pylist() == [{"x": 1.0, "why": None}, {"x": 2.0, "why": None}]


def test_output_schema_of_expressions() -> None:
    select = MapExpressions.select([col("id"), (col("n") / 2).alias("half")])
    assert str(select.output_schema(_SCHEMA)) == "id: string, half: float64"
    with pytest.raises(ExpressionError, match="no column 'm'; it has n"):
        MapExpressions.with_column("x", col("m")).output_schema(Schema.of(n="int32"))
    with pytest.raises(ExpressionError, match="a filter needs a condition, and n is int32"):
        FilterExpression(col("n")).output_schema(_SCHEMA)
    assert FilterExpression(col("n") > 1).output_schema(_SCHEMA) == _SCHEMA


# ---- mistakes ----------------------------------------------------------------------------------


def half(batch: Batch) -> dict[str, Any]:
    return {"n": batch["n"][::2]}


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            MapBatches(half),
            "map function half: it returned 1 rows for 2; use flat_map to change the number of"
            " rows, filter to drop some",
        ),
        (
            MapBatches(lambda batch: batch["n"]),
            "map function <lambda>: it returned a ndarray; return a Batch or a mapping of column"
            " name → array",
        ),
        (
            MapBatches(lambda batch: {"n": batch["n"], "one": 1}),
            "map function <lambda>: column 'one' is an int; give one value per row, such as"
            " np.full(len(batch), 1)",
        ),
        (
            MapBatches(lambda batch: {"n": batch["n"], "m": [1, 2, 3]}),
            "map function <lambda>: column 'm' has 3 rows, the batch 2",
        ),
        (
            MapBatches(lambda batch: None),
            "map function <lambda>: it returned None; return a Batch or a mapping of column name →"
            " array",
        ),
        (
            MapRows(lambda row: row.n),
            "map function <lambda>: it returned an int for a row; return a mapping of column name"
            " → value, such as {**row, 'speed': 0}",
        ),
        (
            MapRows(lambda row: {"x": None}),
            "map function <lambda>: column 'x' holds nothing but nulls; declare its type with"
            " schema=whale.Schema.of(…)",
        ),
        (
            FlatMapRows(lambda row: {"x": 1}),
            "flat_map function <lambda>: it returned a dict; return a list of rows, or yield them",
        ),
        (
            FlatMapRows(lambda row: [1]),
            "flat_map function <lambda>: it returned an int for a row; return a mapping of column"
            " name → value, such as {**row, 'speed': 0}",
        ),
        (
            FlatMapBatches(lambda batch: {"x": [1, 2]}),
            "flat_map function <lambda>: its rows have no event time; return (rows, parents), with"
            " the number of the input row that each row comes from, or rows made by batch.take",
        ),
        (
            FlatMapBatches(lambda batch: ({"x": [1, 2]}, [0])),
            "flat_map function <lambda>: its parents are int64 (1,); give the input row of each"
            " row, integers of shape (2,)",
        ),
        (
            FlatMapBatches(lambda batch: ({"x": [1, 2]}, [0, 2])),
            "flat_map function <lambda>: parent 2 is no row of the 2 that came in",
        ),
        (
            FilterColumns(lambda batch: batch["n"]),
            "filter function <lambda> returned int32 of shape (2,): return one boolean per row,"
            " shape (2,), such as batch['speed'] > 0",
        ),
        (
            FilterColumns(lambda batch: None),
            "filter function <lambda> returned None: return one boolean per row, shape (2,), such"
            " as batch['speed'] > 0",
        ),
        (
            FilterRows(lambda row: None if row.n == 2 else True),
            "filter function <lambda> returned None: return True or False (without `return`, a"
            " function returns None); input: {id='v1', n=2, t=datetime.datetime(2008, 5, 17, 0, 1,"
            " tzinfo=datetime.timezone.utc)}",
        ),
        (
            FilterRows(lambda row: row.id),
            "filter function <lambda> returned a str: return True or False (bool(…) makes one);"
            " input: {id='v0', n=1, t=datetime.datetime(2008, 5, 17, 0, 0,"
            " tzinfo=datetime.timezone.utc)}",
        ),
    ],
)
def test_wrong_results(transform: Transform, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        transform.apply(_batch([1, 2]))
    assert str(caught.value) == message


def test_rows_with_other_columns() -> None:
    transform = MapRows(lambda row: {"x": 1} if row.n == 1 else {"y": 1})
    with pytest.raises(UsageError, match="row 1 lacks column 'x'"):
        transform.apply(_batch([1, 2]))


def divide(row: Any) -> Any:
    return {"x": 1 // row.n}


def divide_many(row: Any) -> Any:
    yield {"x": 1}
    yield {"x": 1 // row.n}


@pytest.mark.parametrize(
    "transform", [MapRows(divide), FilterRows(divide), FlatMapRows(divide_many)]
)
def test_a_raising_function_keeps_its_traceback_and_names_its_row(transform: Transform) -> None:
    with pytest.raises(RowFailure) as caught:
        transform.apply(_batch([1, 2, 0, 4]))
    failure = caught.value
    assert failure.row_index == 2
    assert failure.preview.startswith("{id='v2', n=0, t=")
    assert isinstance(failure.__cause__, ZeroDivisionError)
    frames = failure.__cause__.__traceback__
    names = []
    while frames is not None:
        names.append(frames.tb_frame.f_code.co_name)
        frames = frames.tb_next
    assert names[-1] in {"divide", "divide_many"}
    assert pickle.loads(pickle.dumps(failure)).row_index == 2


def test_a_raising_function_on_columns_passes_through() -> None:
    with pytest.raises(KeyError, match="mine"):
        MapBatches(lambda batch: {}["mine"]).apply(_batch([1]))


@pytest.mark.parametrize(
    ("transform", "shown"),
    [
        (_MAPS["expressions"], "select id, (n * 2) AS twice"),
        (MapExpressions.with_column("k", col("n") + 1), "with (n + 1) AS k"),
        (_FILTERS["expression"], "filter (n > 2)"),
        (FilterColumns(half), "filter by half (columns)"),
        (FilterRows(divide), "filter by divide (rows)"),
        (MapBatches(half), "map by half (columns)"),
        (MapRows(divide), "map by divide (rows)"),
        (FlatMapRows(divide_many), "flat map by divide_many (rows)"),
    ],
)
def test_describe(transform: Transform, shown: str) -> None:
    assert transform.describe() == shown


def test_transforms_can_be_pickled() -> None:
    add: Callable[[Any], Any] = lambda row: {"x": row.n + 1}  # noqa: E731 - a lambda is meant
    for transform in (MapRows(add), _FILTERS["expression"], _MAPS["expressions"]):
        result = cloudpickle.loads(cloudpickle.dumps(transform)).apply(_batch([3]))
        assert result.num_rows == 1
