"""Loops over columns whose texts are codes of a dictionary, against operators on plain text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.compiled.compiled_cases import TEXTS, compilable, named
from whale_ray.operators.compiled.aggregating_chain import AggregatingChain
from whale_ray.operators.compiled.coded_texts import CodedParts, KeptForDictionaries
from whale_ray.operators.compiled.compiled_chain import CompiledChain
from whale_ray.operators.expressions.emitters.code import EntryTable
from whale_ray.operators.expressions.expression import col, when
from whale_ray.operators.joins.broadcast_table import BroadcastTable
from whale_ray.operators.joins.table_join import TableJoin
from whale_ray.operators.transforms import FilterExpression, MapExpressions
from whale_ray.operators.windows import text_codes
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.partial_windows import PartialWindows
from whale_ray.testing import instance_context
from whale_ray.transport.wire.arrow_dictionaries import DICTIONARIES_KEPT, DictionaryBatches
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.coded_column import CodedColumn, Dictionary
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import Schema

F = whale.functions
SCHEMA = Schema.of(s="string", r="large_string", x="int64")
KINDS = {"s": pa.string(), "r": pa.large_string()}
INDICES = (pa.int32(), pa.int8(), pa.int64(), pa.uint16())


@st.composite
def dictionaries(draw: st.DrawFn) -> pa.RecordBatch:
    """Draw rows whose texts are dictionary arrays, with nulls or none, each text twice at times."""
    rows = draw(st.integers(8, 16))
    arrays = []
    for kind in KINDS.values():
        texts = draw(st.lists(st.sampled_from(TEXTS) | st.text(max_size=5), min_size=1, max_size=5))
        places = st.integers(0, len(texts) - 1)
        if draw(st.booleans()):
            places = st.none() | places
        indices = draw(st.lists(places, min_size=rows, max_size=rows))
        codes = pa.array(indices, draw(st.sampled_from(INDICES)))
        arrays.append(pa.DictionaryArray.from_arrays(codes, pa.array(texts, kind)))
    numbers = draw(st.lists(st.integers(-3, 3) | st.none(), min_size=rows, max_size=rows))
    names = list(SCHEMA.names)
    batch = pa.RecordBatch.from_arrays([*arrays, pa.array(numbers, pa.int64())], names)
    first = draw(st.integers(0, 3))
    return batch.slice(first)


def _plain(rows: pa.RecordBatch) -> Batch:
    """Return the same rows as Arrow decodes them."""
    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in rows.columns
    ]
    return _timed(Batch.from_arrow(pa.RecordBatch.from_arrays(columns, rows.schema.names)))


def _timed(batch: Batch) -> Batch:
    return batch.with_times(np.arange(batch.num_rows))


def _assert_same(mine: Batch, theirs: Batch) -> None:
    assert mine.schema.names == theirs.schema.names
    for here, there in zip(mine.columns, theirs.columns, strict=True):
        assert here.equals(there), (here.to_pylist(), there.to_pylist())


MANY = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(dictionaries(), st.data())
def test_coded_columns_are_what_arrow_decodes(rows: pa.RecordBatch, data: st.DataObject) -> None:
    coded, plain = _timed(DictionaryBatches().batch(rows)), _plain(rows)
    assert list(coded.coded) == [0, 1] and coded.owned
    columns = [Column(c.type, c.data, c.offsets, c.validity) for c in coded.columns]
    assert coded.nbytes == Batch(coded.schema, columns, times=coded.times).nbytes
    _assert_same(coded, plain)
    chosen = data.draw(st.lists(st.integers(0, coded.num_rows - 1), max_size=20))
    taken = coded.take(np.array(chosen, np.int64))
    assert list(taken.coded) == [0, 1]
    _assert_same(taken, plain.take(np.array(chosen, np.int64)))
    _assert_same(coded.slice(1, 5), plain.slice(1, 5))
    _assert_same(coded.select(["r"]).take([2, 1]), plain.select(["r"]).take([2, 1]))
    _assert_same(Batch.concat([coded, plain]), Batch.concat([plain, plain]))
    assert coded.to_pylist() == plain.to_pylist() and coded.to_arrow() == plain.to_arrow()


def test_an_index_outside_a_coded_column_is_refused() -> None:
    codes = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int32()), pa.array(["a"]))
    coded = DictionaryBatches().batch(pa.RecordBatch.from_arrays([codes], ["s"]))
    for outside in (-1, 2):
        with pytest.raises(whale.errors.InputError, match="outside the batch's rows"):
            coded.take([outside])


def test_the_same_texts_share_a_dictionary_and_many_texts_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def batch(texts: list[str], codes: list[int]) -> Any:
        array = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(texts))
        return made.batch(pa.RecordBatch.from_arrays([array], ["s"])).columns[0]

    made = DictionaryBatches()
    first, again, grown = batch(["a", "b"], [1, 0]), batch(["a", "b"], [1]), batch(["a"], [0])
    assert first.dictionary is again.dictionary is not grown.dictionary
    assert batch(["a", "b"], [1]).dictionary is first.dictionary  # by turns
    for number in range(DICTIONARIES_KEPT):
        batch([f"{number}"], [0])
    assert batch(["a", "b"], [1, 0]).dictionary is not first.dictionary  # bounded
    assert not isinstance(batch(["c", "d"], [1]), CodedColumn)  # more texts than rows
    monkeypatch.setattr("whale_ray.transport.wire.arrow_dictionaries.DICTIONARY_TEXTS_MAX", 1)
    assert batch(["a", "b"], [1, 0, 0]).to_pylist() == ["b", "a", "a"]


_EXPRESSIONS = named(
    [one for one in compilable() if set(one.columns) <= {"s", "r"} and str(one) != "(r < NULL)"][
        ::2
    ]
    + [
        when(col("s") == "view", col("x")).otherwise(F.length("s")),
        (col("s") == "vie") & (col("x") > 0),
    ]
)
_BY_KERNELS = named(
    [
        col("s").like("%ie_") | col("r").rlike("^v.*s$"),
        (F.upper("s") == "VIEW") & (col("x") > 0),
        when(F.instr("r", "e") > 1, F.length(F.reverse("s"))),
        F.regexp_extract("s", "(i.)", 1) == F.lower("s"),
        col("s").cast("int"),
        F.nullif(col("s"), F.lower("s")).is_null(),
    ]
)
_FILTER = FilterExpression((col("s") != "click") | col("r").startswith("v"))
_RENAMED = MapExpressions.with_columns({"r": col("s").cast("string"), "kept": F.coalesce("r")})
_CHAIN = CompiledChain([_FILTER, _RENAMED, FilterExpression(col("r") != "vie")], "compiled")
_COMPUTED = CompiledChain([MapExpressions(_EXPRESSIONS, keep=False)], "compiled")
_LOOKED_UP = CompiledChain([MapExpressions(_BY_KERNELS, keep=False)], "compiled")


@pytest.mark.long
@MANY
@given(st.lists(dictionaries(), min_size=1, max_size=3))
def test_expressions_over_codes_are_those_over_texts(drawn: list[pa.RecordBatch]) -> None:
    reader = DictionaryBatches()
    for rows in drawn:
        coded, plain = _timed(reader.batch(rows)), _plain(rows)
        for chain in (_CHAIN, _COMPUTED, _LOOKED_UP):
            theirs: Batch | None = plain
            for step in chain._operators:
                theirs = None if theirs is None else step.apply(theirs)
            passed = chain.pass_through(coded)
            assert passed is not None and len(passed.counts) == len(chain._operators)
            assert (passed.rows is None) == (theirs is None)
            if passed.rows is not None and theirs is not None:
                _assert_same(passed.rows, theirs)


def test_what_is_computed_for_dictionaries_that_come_by_turns_is_kept() -> None:
    entry = EntryTable(F.length("s"), 0, pa.int32(), nullable=True)
    kept = KeptForDictionaries(CodedParts(frozenset({0}), (entry,), {1: 0}))
    many = [
        CodedColumn(Dictionary(Column.of([f"{n}"], "string")), np.zeros(1, np.int32), None)
        for n in range(DICTIONARIES_KEPT + 1)
    ]
    first, second, again = (kept.arrays({0: many[at]}) for at in (0, 1, 0))
    assert [id(one) for one in again] == [id(one) for one in first]
    assert all(here is not there for here, there in zip(first, second, strict=True))
    for column in many[1:]:
        kept.arrays({0: column})
    assert kept.arrays({0: many[0]})[0] is not first[0]


def _table() -> BroadcastTable:
    table = BroadcastTable(TableJoin((("s", "name"),), how="left"), instance_context())
    values = {"name": ["view", "", "ä"], "group": ["one", "two", "one"]}
    table.add(Batch.from_pydict(values, Schema.of(name="string", group="string")))
    table.finish()
    return table


@pytest.mark.parametrize("keys", [("s", "r"), ("group", "r")])
def test_groups_by_codes_are_those_by_texts(
    keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_codes, "_TEXTS_AT_FIRST", 1)
    monkeypatch.setattr(text_codes, "_BYTES_PER_TEXT", 4)
    asked = Aggregation(keys, None, (F.count().alias("rows"), F.sum("x").alias("sum")))
    table = _table()
    joined = "group" in keys
    mine, theirs = (PartialWindows(asked, None) for _ in range(2))
    for one in (mine, theirs):
        one.open(instance_context(operator_id="partial"), "sums")
    chain = AggregatingChain((_FILTER, table) if joined else (_FILTER,), mine, "compiled")

    @MANY
    @given(st.lists(dictionaries(), min_size=1, max_size=4))
    def compare(drawn: list[pa.RecordBatch]) -> None:
        reader = DictionaryBatches()
        for rows in drawn:
            assert chain.aggregate(_timed(reader.batch(rows))) is not None
            passed = _FILTER.apply(_plain(rows))
            if passed is not None and passed.num_rows:
                theirs.add(Batch.concat(list(table.join(passed))) if joined else passed)
        assert _groups(mine) == _groups(theirs)

    compare()


def _groups(partial: PartialWindows) -> list[str]:
    return sorted(repr(row) for one in partial.flush("end") for row in one.to_pylist())
