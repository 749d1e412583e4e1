"""Loops that end in a partial aggregate against operators one by one, on random rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.compiled.compiled_cases import SCHEMA, batches
from tests.operators.windows.driving import Emitted
from whale_ray.configs.errors import BadRowError
from whale_ray.operators.compiled.aggregating_chain import AggregatingChain
from whale_ray.operators.compiled.aggregating_text import write_aggregating_loop
from whale_ray.operators.expressions.emitters.code import NotCompilable
from whale_ray.operators.joins.broadcast_table import BroadcastTable
from whale_ray.operators.joins.equi_join import How
from whale_ray.operators.joins.table_join import TableJoin
from whale_ray.operators.transforms import FilterExpression, MapExpressions
from whale_ray.operators.windows import loop_groups, partial_windows, text_codes
from whale_ray.operators.windows.aggregate_windows import AggregateWindows
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.partial_windows import PartialWindows
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.state.budget import StateBudget
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import Schema

F, col = whale.functions, whale.col
US = 1_000
AGGREGATES = (
    F.count().alias("rows"),
    F.count("f64").alias("numbers"),
    F.sum("i64").alias("sum"),
    F.avg("u8").alias("mean"),
    F.sum("f64").alias("total"),
    F.avg("f32").alias("average"),
    F.min("i16").alias("least"),
    F.max("f64").alias("most"),
    F.min("f32").alias("lowest"),
    F.max("t").alias("newest"),
    F.max("b").alias("any"),
    F.min_by("i32", "f64").alias("least_by"),
    F.max_by("f32", "i16").alias("most_by"),
    F.var_samp("i32").alias("variance"),
    F.stddev_pop(col("f64") * 2).alias("deviation"),
)
WINDOWED = Aggregation(("name", "i8", "c"), TimeWindow("t", 7 * US, 3 * US, 1 * US), AGGREGATES)
WHOLE = Aggregation(("u32",), None, (F.sum("i64").alias("sum"), F.count().alias("rows")))
TEXTS = Aggregation(("s", "i8", "r"), TimeWindow("t", 10 * US, 10 * US, 0), AGGREGATES)
FILTER = FilterExpression((col("i16") > 0) | col("f64").is_null())


def _names(greatest: int = 2**31 - 1, how: How = "left") -> BroadcastTable:
    """Return a table in which several keys have one name, and some have none."""
    table = BroadcastTable(TableJoin((("i32", "number"),), how=how), instance_context())
    values = {"number": [0, 1, -1, 2, 7, greatest], "name": ["a", "b", "a", None, "b", "é"]}
    table.add(Batch.from_pydict(values, Schema.of(number="int64", name="string")))
    table.finish()
    return table


TABLES = (_names(), _names(9))
"""The keys of the first one are hashed, those of the other are found by their distance."""


def _partial(
    asked: Aggregation, budget: StateBudget | None = None, *, keeps_open: bool = False
) -> PartialWindows:
    context = instance_context(operator_id="partial")
    made = PartialWindows(asked, None, keeps_open=keeps_open)
    made.open(context if budget is None else replace(context, state_budget=budget), "sums")
    return made


def _one_by_one(
    partial: PartialWindows, table: BroadcastTable | None, rows: Batch
) -> tuple[int, list[Batch]]:
    """Let operators take a batch one after another; return how many rows came to the aggregate."""
    passed = FILTER.apply(rows)
    if passed is None or not passed.num_rows:
        return 0, []
    if table is not None:
        pieces = [piece for piece in table.join(passed) if piece.num_rows]
        if not pieces:
            return 0, []
        passed = Batch.concat(pieces)
    return passed.num_rows, partial.add(passed)


def _as_bits(deltas: Sequence[Batch], keys: int) -> dict[Any, Any]:
    """Return the state of each group, floats as their bits; a group is in one delta alone."""
    found: dict[Any, Any] = {}
    for batch in deltas:
        columns = []
        for column in batch.columns:
            bits = column.to_pylist()
            if column.type.family.startswith("float"):
                bits = column.data.view(np.uint64 if column.data.itemsize == 8 else np.uint32)
            columns.append(list(bits))
        for row in zip(*columns, strict=True):
            assert row[: keys + 1] not in found
            found[row[: keys + 1]] = row[keys + 1 :]
    return found


TIMES = st.lists(st.integers(-20 * US, 20 * US), min_size=12, max_size=12)


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "table"),
    [*((WINDOWED, table) for table in TABLES), (WHOLE, None), (TEXTS, None)],
)
def test_the_groups_are_those_of_the_operators_to_the_last_bit(
    asked: Aggregation, table: BroadcastTable | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_groups, "_GROUPS_AT_FIRST", 2)  # so that it grows
    monkeypatch.setattr(text_codes, "_TEXTS_AT_FIRST", 1)
    monkeypatch.setattr(text_codes, "_BYTES_PER_TEXT", 4)
    operators = (FILTER,) if table is None else (FILTER, table)
    keys = len(asked.keys)
    taken = _partial(asked)
    chain = AggregatingChain(operators, taken, "compiled")

    @settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.tuples(batches(), TIMES), min_size=1, max_size=4))
    def compare(drawn: list[tuple[Batch, list[int]]]) -> None:
        expected = _partial(asked)
        for batch, times in drawn:
            rows = batch.with_times(np.array(times[: batch.num_rows]))
            passed = chain.aggregate(rows)
            assert passed is not None and not passed.deltas
            count, _ = _one_by_one(expected, table, rows)
            assert (passed.rows, passed.counts[-1]) == (count, count)
        mine, theirs = taken.flush("end"), expected.flush("end")
        assert [one.schema for one in mine] == [one.schema for one in theirs]
        assert _as_bits(mine, keys) == _as_bits(theirs, keys)
        assert [one.times[0] for one in mine] == [one.times[0] for one in theirs]

    compare()


def _rows(keys: Sequence[int], times_ns: Sequence[int] | None = None) -> Batch:
    count = len(keys)
    columns = {
        field.name: np.zeros(count, field.type.storage)
        for field in SCHEMA
        if field.type.kind == "fixed"
    }
    columns |= {"u32": np.array(keys, np.uint32), "i16": np.ones(count, np.int16)}
    made = [
        Column(field.type, columns[field.name])
        if field.name in columns
        else Column.of([""] * count, field.type)
        for field in SCHEMA
    ]
    times = np.arange(count) if times_ns is None else np.array(times_ns)
    return Batch(SCHEMA, made, count).with_times(times)


def test_a_full_table_leaves_as_deltas_in_the_middle_of_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_groups, "GROUPS_MIN", 3)
    monkeypatch.setattr(loop_groups, "GROUPS_MAX", 3)
    partial = _partial(WHOLE)
    chain = AggregatingChain((FILTER,), partial, "compiled")
    passed = chain.aggregate(_rows([1, 2, 1, 3, 4, 1, 5, 5]))
    assert passed is not None and passed.rows == 8
    deltas = [*passed.deltas, *partial.flush("end")]
    counted = [
        dict(zip(one.columns[0].data.tolist(), one.columns[-1].data.tolist(), strict=True))
        for one in deltas
    ]
    assert counted == [{1: 2, 2: 1, 3: 1}, {4: 1, 1: 1, 5: 2}]
    assert partial.flushes == {"table": 1, "end": 1}


def test_rows_of_several_blocks_are_counted_once_though_the_table_is_often_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_groups, "GROUPS_MIN", 3)
    monkeypatch.setattr(loop_groups, "GROUPS_MAX", 3)
    random = np.random.default_rng(1)
    keys, times_ns = random.integers(0, 5, 1000), random.integers(-20 * US, 20 * US, 1000)
    kept, known = random.integers(0, 2, 1000), random.integers(0, 2, 1000)
    rows = _rows(keys.tolist(), times_ns.tolist()).with_column("i16", kept.astype(np.int16))
    rows = rows.with_column("i32", np.where(known, 7, 100).astype(np.int32))
    partial = _partial(replace(WHOLE, window=TimeWindow("t", 10 * US, 10 * US, 0)))
    filters = (FilterExpression(col("u32") < 4), FILTER, _names(9, "inner"))
    passed = AggregatingChain(filters, partial, "compiled").aggregate(rows)
    assert passed is not None
    conditions = np.logical_and.accumulate([keys < 4, kept > 0, known > 0])
    assert passed.counts == tuple(conditions.sum(axis=1))
    expected = Counter(
        zip(keys[conditions[-1]], times_ns[conditions[-1]] // (10 * US), strict=True)
    )
    counted: Counter[tuple[int, int]] = Counter()
    for one in [*passed.deltas, *partial.flush("end")]:
        found, slices, *_, rows_of_groups = (column.data for column in one.columns)
        for group in zip(found, slices, rows_of_groups, strict=True):
            counted[group[:2]] += group[2]
    assert counted == expected


def test_groups_at_places_of_a_table_and_blocks_within_a_slice_are_those_of_the_operators() -> None:
    random = np.random.default_rng(1)
    table = _names(9, "inner")
    asked = Aggregation(
        ("name",), TimeWindow("t", 1000 * US, 1000 * US, 0), (F.count().alias("n"),)
    )
    taken, expected = _partial(asked), _partial(asked)
    chain = AggregatingChain((FILTER, table), taken, "compiled")
    mine, theirs = [], []
    # Two windows after one another, then mixed; one window, backwards; the same again.
    for first, step, disorder, flushes in (
        *((650, 1, 0, False), (700, 1, 600, True)),
        *((1800, -1, 0, True), (1800, -1, 0, True)),
    ):
        times = (first + step * np.arange(700) + random.integers(0, disorder + 1, 700)) * US
        rows = _rows([0] * 700, times.tolist())
        rows = rows.with_column("i16", (np.arange(700) % 5 > 0).astype(np.int16))
        rows = rows.with_column("i32", random.integers(-1, 5, 700).astype(np.int32))
        passed = chain.aggregate(rows)
        count, _ = _one_by_one(expected, table, rows)
        assert passed is not None and passed.rows == count
        if flushes:
            mine.append(taken.flush("end"))
            theirs.append(expected.flush("end"))
    for one, other in zip(mine, theirs, strict=True):
        assert _as_bits(one, 1) == _as_bits(other, 1)
        assert [batch.times[0] for batch in one] == [batch.times[0] for batch in other]


@pytest.mark.parametrize("table", TABLES)
def test_groups_that_stay_are_found_again(table: BroadcastTable) -> None:
    random = np.random.default_rng(2)
    asked = Aggregation(("name",), TimeWindow("t", 10 * US, 10 * US, 0), AGGREGATES[:3])
    taken, expected = _partial(asked, keeps_open=True), _partial(asked, keeps_open=True)
    chain = AggregatingChain((FILTER, table), taken, "compiled")
    for one in (taken, expected):
        one.closes(-1)
    for first in range(0, 60, 6):  # each batch reaches into the next two windows
        times = first * US + random.integers(0, 20 * US, 300)
        rows = _rows([0] * 300, times.tolist())
        rows = rows.with_column("i32", random.integers(-1, 8, 300).astype(np.int32))
        passed = chain.aggregate(rows)
        count, _ = _one_by_one(expected, table, rows)
        assert passed is not None and passed.rows == count
        mine: list[Batch] = []
        theirs: list[Batch] = []
        for one, flushed in (taken, mine), (expected, theirs):
            if one.closes(first * US):
                flushed.extend(one.flush_closed("window"))
                one.passed_on(first * US)
                assert not one.is_empty
            if first == 54:
                flushed.extend(one.flush("end"))
        assert _as_bits(mine, 1) == _as_bits(theirs, 1)
        assert [batch.times[0] for batch in mine] == [batch.times[0] for batch in theirs]


def test_groups_by_several_columns_of_a_table_have_hashes_of_their_own() -> None:
    numbers = np.arange(900)
    table = BroadcastTable(TableJoin((("u32", "number"),), how="inner"), instance_context())
    named = {key: [str(one) for one in numbers // by % 30] for key, by in (("x", 1), ("y", 30))}
    schema = Schema.of(number="int64", x="string", y="string")
    table.add(Batch.from_pydict({"number": numbers, **named}, schema))
    table.finish()
    partial = _partial(replace(WHOLE, keys=("x", "y")))
    assert AggregatingChain((table,), partial, "compiled").aggregate(_rows(numbers.tolist()))
    groups = partial.loop_groups
    assert len(groups) == len(np.unique(groups.records["hash"][1 : 1 + len(groups)])) == 900


def _worded(texts: Sequence[str | None]) -> Batch:
    rows = _rows([0] * len(texts))
    columns = list(rows.columns)
    columns[SCHEMA.index("s")] = Column.of(list(texts), "string")
    return Batch(SCHEMA, columns, len(texts)).with_times(rows.times)


def test_texts_of_groups_that_have_left_make_room_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partial_windows, "TABLE_BYTES_MAX", 1 << 18)
    partial = _partial(Aggregation(("s",), None, (F.count().alias("rows"),)))
    chain = AggregatingChain((), partial, "compiled")
    long = "a" * 50_000  # less than half of the memory, but more than a quarter
    assert chain.aggregate(_worded([long])) is not None
    assert len(partial.flush("marker")) == 1
    passed = chain.aggregate(_worded(["b", "c", "b"]))
    assert passed is not None and not passed.deltas
    (deltas,) = partial.flush("end")
    assert deltas.columns[0].to_pylist() == ["b", "c"]


def test_ties_are_those_of_rows_in_order_whoever_took_them() -> None:
    aggregates = (F.min_by("i64", "i16").alias("first"), F.min("f64").alias("zero"))
    asked = Aggregation(("u32",), None, aggregates)
    partial, merging = _partial(asked), AggregateWindows(asked)
    merging.open(instance_context(operator_id="ties"))
    chain = AggregatingChain((), partial, "compiled")
    out = Emitted()
    for number, by_loop in enumerate([True, False, False, True, True, False]):
        zero = -0.0 if number == 0 else 0.0
        rows = (
            _rows([1]).with_column("i64", np.array([number])).with_column("f64", np.array([zero]))
        )
        passed = chain.aggregate(rows) if by_loop else None
        for deltas in passed.deltas if passed is not None else partial.add(rows):
            merging.on_batch(deltas, out)
    for deltas in partial.flush("end"):
        merging.on_batch(deltas, out)
    merging.close(out)
    (row,) = out.rows
    assert (row["first"], np.signbit(row["zero"])) == (5, True)
    assert partial.flushes == {"order": 3, "end": 1}


def test_texts_that_fill_their_memory_leave_as_deltas_and_one_larger_than_that_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partial_windows, "TABLE_BYTES_MAX", 20_000)
    partial = _partial(Aggregation(("s",), None, (F.count().alias("rows"),)))
    chain = AggregatingChain((), partial, "compiled")
    words = [str(number) * 1_000 for number in range(9)]
    texts = [*words, None, "", words[0], "x" * 50_000, *words, "x" * 50_000, None]
    passed = chain.aggregate(_worded(texts))
    assert passed is not None and passed.rows == len(texts)
    deltas = [*passed.deltas, *partial.flush("end")]
    counted: Counter[str | None] = Counter()
    for one in deltas:
        for row in one.to_pylist():
            counted[row["s"]] += next(
                value for name, value in row.items() if name.endswith("count")
            )
    assert counted == Counter(texts)
    assert partial.flushes["table"] > 1
    partial.loop_groups.close()
    assert partial._context.state_budget.used_bytes == 0


def test_a_sum_that_leaves_its_type_names_operator_key_and_window() -> None:
    asked = replace(WHOLE, window=TimeWindow("t", 10 * US, 10 * US, 0))
    partial, merging = _partial(asked), AggregateWindows(asked)
    merging.open(instance_context(operator_id="sums"))
    rows = _rows([6, 7, 7])
    rows = rows.with_column("i64", np.array([2**62, 2**62, 2**62]))
    assert AggregatingChain((), partial, "compiled").aggregate(rows) is not None
    for deltas in partial.flush("end"):
        merging.on_batch(deltas, Emitted())
    named = r"'sums': sum\(i64\).* of key .*7.* in the window 1970-.* does not fit"
    with pytest.raises(BadRowError, match=named):
        merging.on_watermark(99 * US, Emitted())


def test_rows_that_may_be_late_or_leave_the_years_are_left_to_the_operators() -> None:
    asked = replace(WHOLE, window=TimeWindow("t", 10 * US, 10 * US, 0))
    partial = _partial(asked)
    chain = AggregatingChain((FILTER,), partial, "compiled")
    partial.closes(25 * US - 1)
    assert chain.aggregate(_rows([1, 2], [20 * US, 31 * US])) is not None
    assert chain.aggregate(_rows([1, 2], [20 * US - 1, 31 * US])) is None
    assert chain.aggregate(_rows([1], [2**63 - 1])) is None


def test_no_loop_where_memory_for_state_is_short() -> None:
    budget = StateBudget(1 << 20)
    chain = AggregatingChain((FILTER,), _partial(WHOLE, budget), "compiled")
    assert chain.aggregate(_rows([1])) is None
    assert budget.used_bytes == 0


@pytest.mark.parametrize(
    ("keys", "aggregate", "why"),
    [
        (("f64",), F.count(), "f64, a key of type float64"),
        (("u32",), F.count_distinct("i64"), "count_distinct(i64), which has no compiled form"),
        (("u32",), F.min("s"), "min(s), which has no compiled form"),
    ],
)
def test_what_has_no_compiled_form_is_said(keys: tuple[str, ...], aggregate: Any, why: str) -> None:
    asked = Aggregation(keys, None, (aggregate,))
    with pytest.raises(NotCompilable) as found:
        write_aggregating_loop((), asked, SCHEMA, nullable=True, has_times=True)
    assert str(found.value) == why


def test_a_table_with_other_rows_has_other_codes() -> None:
    table = _names()
    asked = Aggregation(("name",), None, (F.count().alias("rows"),))
    partial = _partial(asked)
    chosen = MapExpressions.select([col("name")])
    chain = AggregatingChain((table, chosen), partial, "compiled")
    assert chain.aggregate(_rows([0])) is not None
    columns = Schema.of(number="int64", name="string")
    table.add(Batch.from_pydict({"number": [9], "name": ["z"]}, columns))
    table.finish()
    passed = chain.aggregate(_rows([0]))
    assert passed is not None
    deltas = [*passed.deltas, *partial.flush("end")]
    assert [one.to_pylist()[0]["name"] for one in deltas] == ["a", "a"]
    assert partial.flushes == {"columns": 1, "end": 1}
