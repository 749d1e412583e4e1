"""Compiled loops against the kernels, bit by bit, on random rows and random expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.operators.compiled.compiled_cases import (
    SCHEMA,
    batched,
    batches,
    compilable,
    few_of_each_kernel,
    kernels_of,
    named,
    trees,
)
from whale_ray.configs.errors import ExpressionError
from whale_ray.operators.compiled import chain_loops, loop_text
from whale_ray.operators.compiled.compiled_chain import CompiledChain, longest_loop
from whale_ray.operators.compiled.loop_text import write_loop
from whale_ray.operators.expressions import functions as F  # noqa: N812 - as in PySpark
from whale_ray.operators.expressions import kernels
from whale_ray.operators.expressions.emitters import trees as emitter_trees
from whale_ray.operators.expressions.emitters.code import NotCompilable
from whale_ray.operators.expressions.expression import Expression, col, lit
from whale_ray.operators.transforms import FilterExpression, MapExpressions, Transform
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import DataType

_AT_ONCE = 12
_ALL = named(list(compilable()))
_FEW = list(few_of_each_kernel())
_COMPUTED = [
    CompiledChain([MapExpressions(dict(part), keep=False)], "compiled")
    for part in batched(named(_FEW).items(), _AT_ONCE)
]
_PARTS = [MapExpressions(dict(part), False) for part in batched([*_ALL.items()][::3], _AT_ONCE)]
_FILTERED = CompiledChain(
    [
        FilterExpression((col("s") == "view") | (col("i32") % 3 == 0)),
        MapExpressions.with_columns({"twice": col("i64") * 2, "r": col("s")}),
        MapExpressions.with_columns({"q": F.coalesce(col("s").cast("string"))}),
        MapExpressions.select([col("s").alias("kept"), *map(col, ("twice", "r", "q", "f64"))]),
        FilterExpression((col("twice") > 0) | col("f64").is_null()),
    ],
    "compiled",
)


def _one_by_one(transforms: list[Transform], batch: Batch) -> tuple[Batch | None, list[int]]:
    """Return what the kernels make of rows, and how many came out of each operator."""
    passed: Batch | None = batch
    counts = []
    for transform in transforms:
        passed = None if passed is None else transform.apply(passed)
        counts.append(0 if passed is None else passed.num_rows)
    return passed, counts


def _without_nan_bits(column: Column) -> Column:
    """Return a column whose NaNs are all the same: which of two NaNs a sum keeps is not defined."""
    if column.data.dtype.kind != "f":
        return column
    data = np.where(np.isnan(column.data), np.array(np.nan, column.data.dtype), column.data)
    return Column(column.type, data, None, column.validity)


def _assert_same(mine: Batch, theirs: Batch) -> None:
    assert mine.schema == theirs.schema
    for field, here, there in zip(mine.schema, mine.columns, theirs.columns, strict=True):
        same = _without_nan_bits(here).equals(_without_nan_bits(there))
        assert same, (field, here.to_pylist(), there.to_pylist())
    assert (mine.times is None) == (theirs.times is None)
    assert mine.times is None or np.array_equal(mine.times, theirs.times)


def _compare(chain: CompiledChain, transforms: list[Transform], batch: Batch) -> None:
    theirs, counts = _one_by_one(transforms, batch)
    passed = chain.pass_through(batch)
    assert passed is not None
    assert list(passed.counts) == counts
    assert (passed.rows is None) == (theirs is None)
    if passed.rows is not None and theirs is not None:
        _assert_same(passed.rows, theirs)


@pytest.mark.long
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(batches())
def test_every_emitter_computes_what_its_kernel_does(batch: Batch) -> None:
    for chain in _COMPUTED:
        _compare(chain, list(chain._operators), batch)


@pytest.mark.long
@pytest.mark.parametrize("part", _PARTS)
def test_every_emitter_with_all_types(part: MapExpressions) -> None:
    chain = CompiledChain([part], "compiled")

    @settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
    @given(batches())
    def compare(batch: Batch) -> None:
        _compare(chain, [part], batch)

    compare()


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(batches())
def test_a_chain_of_filters_and_projections_is_the_same_as_one_after_another(batch: Batch) -> None:
    _compare(_FILTERED, list(_FILTERED._operators), batch)


@pytest.mark.long
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(trees(), min_size=4, max_size=8), batches(40))
def test_random_expressions_compiled(expressions: list[Expression], batch: Batch) -> None:
    known = []
    for one in expressions:
        try:
            write_loop([MapExpressions({"x": one}, False)], SCHEMA, nullable=True, has_times=True)
        except NotCompilable:
            continue
        known.append(one)
    if not known:
        return
    transform = MapExpressions(named(known), keep=False)
    _compare(CompiledChain([transform], "compiled"), [transform], batch)


def test_a_whole_number_over_a_float32_is_not_rounded_before() -> None:
    u32, f32 = np.array([29_289_641], np.uint32), np.array([3.0], np.float32)
    chain = CompiledChain([MapExpressions({"x": col("u") / col("f")}, False)], "compiled")
    passed = chain.pass_through(Batch.from_pydict({"u": u32, "f": f32}))
    assert passed is not None and passed.rows is not None
    assert passed.rows.column("x").to_pylist() == [29_289_641 / 3]


def test_every_emitter_belongs_to_a_kernel() -> None:
    from importlib import import_module

    for module in emitter_trees.EMITTING_MODULES:
        emitters = import_module(f"{emitter_trees.__package__}.{module}")
        beside = import_module(f"{kernels.__name__}.{module}")
        offered = [name for name in emitters.__all__ if name != "float_to_integer"]
        assert offered and not [name for name in offered if not hasattr(beside, name)]


def test_the_cases_use_every_emitter() -> None:
    used = set().union(*map(kernels_of, _FEW))
    from importlib import import_module

    offered = {
        f"{module}.{name}"
        for module in emitter_trees.EMITTING_MODULES
        for name in import_module(f"{emitter_trees.__package__}.{module}").__all__
    }
    assert offered - used == {"casts.float_to_integer"}  # which only other emitters call


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (
            MapExpressions({"x": F.upper("s")}, False),
            "upper, which has no compiled form, in upper(s)",
        ),
        (
            FilterExpression(col("b") < col("c")),
            "the order of bool in (b < c)",
        ),
        (
            MapExpressions({"x": F.hour(col("m").cast("timestamp[us, tz=Europe/Rome]"))}, False),
            "CAST of timestamp[us, tz=UTC] AS timestamp[us, tz=Europe/Rome]"
            " in CAST(m AS timestamp[us, tz=Europe/Rome])",
        ),
        (
            MapExpressions({"x": col("i32") + lit(0.5).cast("decimal(3, 1)")}, False),
            "values of type decimal128(3, 1) in CAST(0.5 AS decimal128(3, 1))",
        ),
        (MapExpressions({"x": col("i32")}, False), "it only chooses or renames columns"),
        (MapExpressions({"x": lit("text")}, False), "a column of constant string"),
    ],
)
def test_what_has_no_compiled_form_says_why(transform: Transform, why: str) -> None:
    assert longest_loop([transform], SCHEMA, nullable=False, has_times=True) == (None, why)


def test_a_wrong_expression_is_left_to_the_kernels_which_say_what_is_wrong() -> None:
    wrong = FilterExpression(col("nothing") > 1)
    loop, _ = longest_loop([wrong], SCHEMA, nullable=False, has_times=False)
    assert loop is None
    with pytest.raises(ExpressionError, match="no column 'nothing'"):
        wrong.apply(Batch.empty(SCHEMA))


def _rows(count: int) -> Batch:
    return Batch.from_pydict({"n": np.arange(count, dtype=np.int64)})


def _chain(mode: Any) -> CompiledChain:
    return CompiledChain([FilterExpression(col("n") % 7 == lit(mode == "auto").cast("int"))], mode)


def test_interpreted_compiles_nothing_and_compiled_at_once() -> None:
    assert _chain("interpreted").pass_through(_rows(10)) is None
    passed = _chain("compiled").pass_through(_rows(10))
    assert passed is not None and passed.rows is not None
    assert passed.rows.to_pydict() == {"n": [0, 7]}
    assert passed.counts == (2,)


def _wide(columns: int, second: int | None) -> Batch:
    """Return two rows of so many columns, the second of them with this value."""
    return Batch.from_pydict(
        {f"c{n}": Column.of([1, second], DataType.parse("int64")) for n in range(columns)}
    )


def test_a_loop_that_nulls_make_too_long_leaves_rows_with_nulls_to_the_kernels() -> None:
    columns = 60
    operator = FilterExpression(col("c0") > 0)
    schema = _wide(columns, 2).schema
    assert longest_loop([operator], schema, nullable=False, has_times=False)[0] is not None
    assert longest_loop([operator], schema, nullable=True, has_times=False)[0] is None
    chain = CompiledChain([operator], "compiled")
    assert chain.pass_through(_wide(columns, None)) is None
    passed = chain.pass_through(_wide(columns, 2))
    assert passed is not None and passed.counts == (2,)


@pytest.mark.long
def test_a_loop_that_nulls_make_shorter_leaves_the_later_operators_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operators = [
        FilterExpression(col("c0") > 0),
        MapExpressions.select([(col("c0") + col(f"c{n}")).alias(f"s{n}") for n in range(20)]),
    ]
    schema = _wide(20, 2).schema
    found = set()
    for limit in range(400):
        monkeypatch.setattr(loop_text, "VALUES_MAX", limit)
        covered = [
            0 if one is None else len(one.schemas)
            for one, _ in (
                longest_loop(operators, schema, nullable=nullable, has_times=False)
                for nullable in (False, True)
            )
        ]
        if covered == [2, 1]:
            found.add(limit)
    monkeypatch.setattr(loop_text, "VALUES_MAX", max(found))
    _compare(CompiledChain(operators, "compiled"), operators[:1], _wide(20, None))


def test_auto_compiles_once_a_million_rows_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whale_ray.transport.generated.is_kept", lambda text: False)
    begun: list[Callable[[], None]] = []
    monkeypatch.setattr(chain_loops, "begin_beside", begun.append)
    condition = FilterExpression(col("n") % 7 == lit(1).cast("int"))
    chain = CompiledChain([condition], "auto")
    assert chain.pass_through(_rows(1 << 20)) is None and not begun
    assert [chain.pass_through(_rows(10)) for _ in range(2)] == [None, None]
    (compile_it,) = begun
    compile_it()
    passed = chain.pass_through(_rows(10))
    assert passed is not None and passed.counts == (2,)


def test_a_loop_that_numba_refuses_is_interpreted_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from numba.core.errors import TypingError

    def refuse(*arguments: object, **options: object) -> object:
        msg = "no such function"
        raise TypingError(msg)

    monkeypatch.setattr("whale_ray.transport.generated.compile_text", refuse)
    chain = _chain("compiled")
    assert (chain.pass_through(_rows(10)), chain.pass_through(_rows(10))) == (None, None)
    (record,) = caplog.records
    assert "cannot be compiled and is interpreted: no such function" in record.getMessage()
