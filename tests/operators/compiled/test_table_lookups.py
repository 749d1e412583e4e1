"""Table joins in compiled loops against those that are done batch by batch, on random rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.operators.compiled.compiled_cases import batches
from whale_ray.operators.compiled.compiled_chain import CompiledChain
from whale_ray.operators.compiled.table_lookup import TableLookup
from whale_ray.operators.expressions.expression import col
from whale_ray.operators.joins import broadcast_table, unique_rows
from whale_ray.operators.joins.broadcast_table import BroadcastTable
from whale_ray.operators.joins.equi_join import How
from whale_ray.operators.joins.table_join import TableJoin
from whale_ray.operators.joins.unique_rows import index_keys
from whale_ray.operators.transforms import FilterExpression, MapExpressions
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import DataType, Schema

_BEFORE = FilterExpression((col("i16") > 0) | col("f64").is_null())
_AFTER = FilterExpression(col("i32") % 2 == 0)
_TEXTS = (
    "",
    "view",
    "vie",
    "ä",
    "a longer text than sixteen bytes",
    "none has this one",
    "\0\0\0\0",
)
_INTEGERS = (0, 1, -1, 2, 127, -128, 2**31 - 1, 2**63 - 1)
_DENSE = (3, -1, 0, 2, 127, 125, *range(5, 40))
_CASES = (
    ("s", "string", _TEXTS, "inner"),
    ("r", "string", _TEXTS, "left"),
    ("i64", "int64", _INTEGERS, "semi"),
    ("i8", "int64", _INTEGERS, "anti"),
    ("i32", "int64", _DENSE, "left"),
    ("i64", "int64", _DENSE, "inner"),
)


def _table(key: str, kind: str, keys: list, how: How) -> BroadcastTable:
    table = BroadcastTable(TableJoin(((key, "key"),), how=how), instance_context())
    schema = Schema.of(key=kind, name="string", weight="float64")
    names = [None if number % 3 == 1 else f"name {number}" for number in range(len(keys))]
    weights = [None if number % 4 == 2 else number / 7 for number in range(len(keys))]
    columns = zip((keys, names, weights), schema, strict=True)
    made = [Column.of(values, field.type) for values, field in columns]
    table.add(Batch(schema, made, len(keys)))
    table.finish()
    return table


def _one_by_one(table: BroadcastTable, batch: Batch) -> tuple[Batch | None, list[int]]:
    """Return what comes of rows, operator by operator, and how many came out of each."""
    before = _BEFORE.apply(batch)
    if before is None:
        return None, [0, 0, 0]
    pieces = [piece for piece in table.join(before) if piece.num_rows]
    if not pieces:
        return None, [before.num_rows, 0, 0]
    joined = Batch.concat(pieces)
    after = _AFTER.apply(joined)
    return after, [before.num_rows, joined.num_rows, 0 if after is None else after.num_rows]


@pytest.mark.parametrize(("key", "kind", "keys", "how"), _CASES)
def test_a_table_join_in_a_loop_finds_the_rows_that_the_join_finds(
    key: str, kind: str, keys: tuple, how: How
) -> None:
    tables = [_table(key, kind, list(keys[first:]), how) for first in (0, 3)]
    chains = [CompiledChain([_BEFORE, table, _AFTER], "compiled") for table in tables]

    @settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
    @given(batches(), st.integers(0, 1))
    def compare(batch: Batch, which: int) -> None:
        expected, counts = _one_by_one(tables[which], batch)
        passed = chains[which].pass_through(batch)
        assert passed is not None
        assert list(passed.counts) == counts
        assert (passed.rows is None) == (expected is None)
        if passed.rows is not None and expected is not None:
            assert passed.rows.schema == expected.schema
            for mine, theirs in zip(passed.rows.columns, expected.columns, strict=True):
                assert mine.equals(theirs), (mine.to_pylist(), theirs.to_pylist())
            assert np.array_equal(passed.rows.times, expected.times)

    compare()


_SEAMLESS = tuple(range(-1, 60))
_NUMBERS = Schema.of(key="int64", weight="float64", rank="int32", large="bool", name="string")


@pytest.mark.parametrize("keys", [_SEAMLESS, _SEAMLESS[:20] + _SEAMLESS[21:]])
@pytest.mark.parametrize("how", ["inner", "anti", "left"])
def test_numbers_of_keys_that_lie_close_together_are_those_of_their_rows(
    keys: tuple[int, ...], how: How
) -> None:
    """The loop reads them at the key's place; `name`, and all where a row may lack, it cannot."""
    table = BroadcastTable(TableJoin((("i32", "key"),), how=how), instance_context())
    values = (
        keys,
        [number / 7 for number in range(len(keys))],
        range(len(keys)),
        [key > 9 for key in keys],
    )
    texts = [f"name {key}" for key in keys]
    columns = [
        Column.of(list(one), field.type)
        for one, field in zip((*values, texts), _NUMBERS, strict=True)
    ]
    table.add(Batch(_NUMBERS, columns, len(keys)))
    table.finish()
    chain = CompiledChain([table], "compiled")

    @settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.none() | st.integers(-4, 64) | st.just(-(2**31)), min_size=1))
    def compare(wanted: list[int | None]) -> None:
        schema = Schema.of(i32="int32")
        batch = Batch(schema, [Column.of(wanted, schema.fields[0].type)], len(wanted))
        passed = chain.pass_through(batch)
        assert passed is not None
        found = [] if passed.rows is None else passed.rows.to_pylist()
        rows = dict(zip(keys, zip(*values, texts, strict=True), strict=True))
        names = [] if how == "anti" else _NUMBERS.names
        nothing = (None,) * len(names)
        assert found == [
            {"i32": key, **dict(zip(names, rows.get(key, nothing), strict=False))}
            for key in wanted
            if how == "left" or (key in rows) == (how == "inner")
        ]

    compare()


def test_only_the_columns_that_are_selected_are_looked_up() -> None:
    table = _table("s", "string", list(_TEXTS), "inner")
    chosen = MapExpressions.select([col("name").alias("who"), col("i64")])
    chain = CompiledChain([table, chosen], "compiled")
    columns = [
        Column.of(["view"], DataType.parse("string")),
        Column.of([1], DataType.parse("int64")),
    ]
    passed = chain.pass_through(Batch(Schema.of(s="string", i64="int64"), columns, 1))
    assert passed is not None and passed.rows is not None
    assert passed.rows.to_pylist() == [{"who": None, "i64": 1}]
    assert passed.counts == (1, 1)


def test_a_table_with_other_rows_is_looked_up_anew() -> None:
    table = _table("i64", "int64", [1, 2], "inner")
    chain = CompiledChain([table, MapExpressions.select([col("i64"), col("name")])], "compiled")
    rows = Batch(Schema.of(i64="int64"), [Column.of([2, 3], DataType.parse("int64"))], 2)

    def found() -> list:
        passed = chain.pass_through(rows)
        assert passed is not None and passed.rows is not None
        return [row["i64"] for row in passed.rows.to_pylist()]

    assert found() == [2]
    table.add(
        Batch(
            Schema.of(key="int64", name="string", weight="float64"),
            [
                Column.of([3], DataType.parse("int64")),
                Column.of(["three"], DataType.parse("string")),
                Column.of([None], DataType.parse("float64")),
            ],
            1,
        )
    )
    table.finish()
    assert found() == [2, 3]


def test_keys_of_one_size_are_told_apart_by_each_byte_and_from_other_sizes() -> None:
    keys = ["0123456789ab", "0123456789ac", "x123456789ab"]  # a word, and part of another
    near = [f"{key[:at]}?{key[at + 1 :]}" for key in keys for at in range(12)]
    texts = [*near, *keys, "", "0123456789a", "0123456789abc", *keys]
    table = _table("s", "string", keys, "semi")
    chain = CompiledChain([table], "compiled")
    rows = Batch(Schema.of(s="string"), [Column.of(texts, DataType.parse("string"))], len(texts))

    def found() -> list:
        passed = chain.pass_through(rows)
        assert passed is not None and passed.rows is not None
        return passed.rows.column("s").to_pylist()

    assert found() == [*keys, *keys]
    lookup = table.lookup
    assert isinstance(lookup, TableLookup) and lookup.key_bytes == 12
    other = [["0123456789abc"], ["longer"], [None]]
    schema = Schema.of(key="string", name="string", weight="float64")
    made = [Column.of(one, field.type) for one, field in zip(other, schema, strict=True)]
    table.add(Batch(schema, made, 1))
    table.finish()
    assert found() == [*keys, "0123456789abc", *keys]


@pytest.mark.parametrize(
    ("keys", "rows_max", "why"),
    [
        ([5, 6, 5], 10, "a table in which a key is there twice"),
        ([5, 6, 7], 2, "a table of more than 2 rows"),
        ([None, None], 10, "a table without rows"),
    ],
)
def test_a_table_that_a_loop_cannot_look_up_is_joined_batch_by_batch(
    keys: list, rows_max: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast_table, "ROWS_MAX", rows_max)
    table = _table("i64", "int64", keys, "inner")
    assert table.lookup.refusal == why
    rows = Batch(Schema.of(i64="int64"), [Column.of([5], DataType.parse("int64"))], 1)
    assert CompiledChain([table], "compiled").pass_through(rows) is None


def test_a_table_whose_index_has_no_room_is_joined_batch_by_batch() -> None:
    """It was there before, and a job that runs without its index must not fail for it."""
    table = BroadcastTable(TableJoin((("i64", "key"),), how="inner"), instance_context())
    keys = Column.of(list(range(1_000)), DataType.parse("int64"))
    table.add(Batch(Schema.of(key="int64"), [keys], 1_000))
    table.finish()
    budget = table._context.state_budget
    budget.take("other", budget.free_bytes - 1_000, 0)
    assert table.lookup.refusal == "a table for whose index runtime.state_bytes has no memory left"
    assert budget.free_bytes == 1_000


@pytest.mark.parametrize(
    ("join", "table", "why"),
    [
        (TableJoin((("a", "a"),), has_changes=True), {"a": "int64"}, "a table that changes"),
        (TableJoin((("a", "a"), ("b", "b"))), {"a": "int64"}, "a key of several columns"),
        (TableJoin((("a", "a"),)), {"a": "float64"}, "a key of type float64"),
        (TableJoin((("a", "a"),)), None, "a table whose columns are known when rows come"),
    ],
)
def test_a_join_says_why_no_loop_does_it(
    join: TableJoin, table: dict[str, str] | None, why: str
) -> None:
    schema = None if table is None else Schema.of(**table)
    assert TableLookup(join, schema).refusal.startswith(why)


def test_every_key_has_a_place_however_many_there_are() -> None:
    texts = [f"{number:0{number % 40}d}" for number in range(3000)]
    kept = list(dict.fromkeys(texts))
    for keys in (
        Column.of(kept, DataType.parse("string")),
        Column.of(range(3000), DataType.parse("int64")),
    ):
        slots = index_keys(keys)
        assert slots is not None
        assert sorted(slots[slots >= 0].tolist()) == list(range(len(keys)))
    assert index_keys(Column.of([*kept, kept[7]], DataType.parse("string"))) is None
    assert index_keys(Column.of([*range(0, 90_000, 30), 990], DataType.parse("int64"))) is None


def test_a_loop_that_was_compiled_before_waits_for_as_many_rows_as_the_table_has_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = _table("i64", "int64", [1, 5, 99, 7], "inner")
    monkeypatch.setattr("whale_ray.transport.generated.is_kept", lambda text: True)
    chain = CompiledChain([table], "auto")
    rows = Batch(Schema.of(i64="int64"), [Column.of([2, 99], DataType.parse("int64"))], 2)
    assert [chain.pass_through(rows) for _ in range(2)] == [None, None]
    passed = chain.pass_through(rows)
    assert passed is not None and passed.counts == (1,)


def test_the_index_of_texts_is_compiled_after_a_million_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = _table("s", "string", list(_TEXTS), "inner")
    monkeypatch.setattr("whale_ray.transport.generated.is_kept", lambda text: False)
    monkeypatch.setattr(unique_rows, "_text_filler", None)  # nobody may call it
    chain = CompiledChain([table], "auto")
    texts = Column.of(["view"] * 100, DataType.parse("string"))
    rows = Batch(Schema.of(s="string"), [texts], 100)
    assert chain.pass_through(rows) is None
