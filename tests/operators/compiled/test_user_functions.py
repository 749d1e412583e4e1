"""Functions of users that numba compiles: in a loop, over columns, and what is refused."""

from __future__ import annotations

import gc
import math
import random
import re
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import cloudpickle
import numba
import numpy as np
import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray import col
from whale_ray.configs.errors import ExpressionError, TopologyError, UserFunctionError
from whale_ray.operators.compiled.loop_function import may_be_kept
from whale_ray.operators.compiled.loop_text import write_loop
from whale_ray.operators.expressions.compiled_function import CompiledFunction
from whale_ray.operators.transforms import MapExpressions
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import DataType, Schema

_COUNTS: list[int] = []
_SCHEMA = Schema.of(x="int64", s="string", t="timestamp[us, tz=UTC]")


@whale.compiled
def root(x: float) -> float:
    """Return the square root; fails below zero."""
    if x < 0:
        raise ValueError("below zero")
    return math.sqrt(x)


def _run(mode: str, rows: list[dict[str, Any]], where: Any) -> list[dict[str, Any]]:
    schema = Schema.of(x="float64")
    batch = Batch(schema, [Column.of([row["x"] for row in rows], schema.fields[0].type)], len(rows))
    topology = whale.Topology("roots")
    stream = topology.source(whale.sources.arrow(batch.to_arrow()), id="rows")
    stream.filter(where, id="some").select(root("x").alias("y"), id="roots").sink(
        whale.sinks.collect(), id="out"
    )
    job = whale.run(topology, settings={"runtime.pipelines": mode})
    return job.results("out").to_arrow().to_pylist()


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_a_function_is_called_only_for_rows_that_are_there(mode: str) -> None:
    rows = [{"x": 4.0}, {"x": -1.0}, {"x": None}, {"x": 9.0}]
    assert _run(mode, rows, col("x") >= 0) == [{"y": 2.0}, {"y": 3.0}]
    assert _run(mode, rows, col("x").is_null()) == [{"y": None}]


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_what_it_raises_names_its_operator(mode: str) -> None:
    with pytest.raises(UserFunctionError, match=r"below zero\nin operator 'roots'"):
        _run(mode, [{"x": 4.0}, {"x": -1.0}], col("x") < 9)


@pytest.mark.parametrize("with_table", [False, True])
def test_what_it_raises_before_an_aggregate_names_its_operator(with_table: bool) -> None:
    topology = whale.Topology("sums")
    rows = topology.source(whale.sources.arrow(pa.table({"k": [1, 1], "x": [4.0, -1.0]})), id="in")
    some = rows.filter(col("x") < 9, id="some")
    if with_table:
        some = some.join_table(pa.table({"k": [1, 2], "name": ["a", "b"]}), on="k", id="named")
    roots = some.with_column("y", root("x"), id="roots")
    sums = roots.group_by("k").agg(whale.functions.sum("y"), aggregation="late_merge")
    sums.sink(whale.sinks.collect(), id="out")
    with pytest.raises(UserFunctionError, match=r"below zero\nin operator 'roots'"):
        whale.run(topology, settings={"runtime.pipelines": "compiled"})


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_what_it_raises_in_an_aggregate_names_that(mode: str) -> None:
    topology = whale.Topology("sums")
    rows = topology.source(whale.sources.arrow(pa.table({"k": [1, 1], "x": [4.0, -1.0]})), id="in")
    sums = rows.filter(col("x") < 9, id="some").group_by("k")
    total = whale.functions.sum(root("x")).alias("total")
    sums.agg(total, id="sums", aggregation="late_merge").sink(whale.sinks.collect(), id="out")
    with pytest.raises(UserFunctionError, match=r"below zero\nin operator 'sums'"):
        whale.run(topology, settings={"runtime.pipelines": mode})


def test_a_place_beyond_an_array_is_an_error() -> None:
    """Reading there, numba returns what lies behind the array, or ends the process."""
    prices = np.array([1.5, 2.5])
    priced = whale.compiled(lambda at: prices[at])
    assert priced("x").evaluate(Batch.from_pydict({"x": [1, 0]})).to_pylist() == [2.5, 1.5]
    with pytest.raises(IndexError):
        priced("x").evaluate(Batch.from_pydict({"x": [1, 2]}))


def test_columns_are_counted_and_numbers_are_constants() -> None:
    add = whale.compiled(lambda a, b: a + b)
    batch = Batch.from_pydict({"x": np.array([1, 2])})
    assert add("x", 0.5).evaluate(batch).to_pylist() == [1.5, 2.5]
    with pytest.raises(ExpressionError, match="takes 2 columns, not 1"):
        add("x")


@whale.compiled
def scattered(x: int) -> int:
    """Return a number made of bits beyond the 64th, which are lost."""
    return (x * 6364136223846793005 + 1442695040888963407) // 7


@whale.compiled
def has_next(x: int) -> bool:
    """Return whether there is a greater number of 64 bits."""
    return x + 1 > x


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_integers_wrap_whatever_is_known_of_them(mode: str) -> None:
    numbers = np.array([1, -5, 2**63 - 1, 2**62 + 7])
    topology = whale.Topology("wrapping")
    rows = topology.source(whale.sources.arrow(pa.table({"x": numbers})), id="rows")
    known = col("x") % 1000 + whale.lit(2**62)
    made = rows.select(scattered(known).alias("y"), has_next("x").alias("more"))
    made.sink(whale.sinks.collect(), id="out")
    job = whale.run(topology, settings={"runtime.pipelines": mode})
    with np.errstate(over="ignore"):
        raised = np.fmod(numbers, 1000) + 2**62
        wanted = (raised * 6364136223846793005 + 1442695040888963407) // 7
    found = job.results("out").to_arrow().to_pydict()
    assert found == {"y": wanted.tolist(), "more": [True, True, False, True]}


def _doubled(x: int) -> int:
    return 2 * x


_doubles = whale.compiled(_doubled)


@whale.compiled
def doubled_and_one(x: int) -> int:
    """Call another compiled function."""
    return _doubles(x) + 1  # type: ignore[operator,return-value] # numba calls the function itself


@whale.compiled
def calls_a_plain_function(x: int) -> int:
    """Call what numba knows nothing of."""
    return _doubled(x) + 1


def test_a_function_may_call_another_that_is_compiled() -> None:
    batch = Batch.from_pydict({"x": np.array([1, -2])})
    assert doubled_and_one("x").evaluate(batch).to_pylist() == [3, -3]
    with pytest.raises(ExpressionError, match="mark _doubled with @whale.compiled, too, or use a"):
        calls_a_plain_function("x").evaluate(batch)


def test_rows_of_a_key_may_call_a_compiled_function() -> None:
    class Sums(whale.KeyedProcess):
        total = whale.state.sum("int64")
        schema = whale.Schema.of(total="int64")

        @whale.compiled
        def on_row(self, row: Any, out: Any) -> None:
            self.total.add(_doubles(row.x))
            out.emit_row(total=self.total.get())

    topology = whale.Topology("sums")
    rows = topology.source(whale.sources.iterable([{"k": 1, "x": 2}, {"k": 1, "x": 3}]), id="rows")
    rows.key_by("k").process(Sums, id="sums").sink(whale.sinks.collect(), id="out")
    assert whale.run(topology).results("out").preview() == [{"total": 4}, {"total": 10}]


@pytest.mark.parametrize("verb", ["map", "filter", "flat_map"])
def test_a_function_without_its_columns_says_how_it_is_called(verb: str) -> None:
    stream = whale.Topology("bare").source(whale.sources.iterable([{"x": 1}]), id="rows")
    with pytest.raises(TopologyError, match=r"call it with columns, root\('column'\), in filter"):
        getattr(stream, verb)(root)


@pytest.mark.parametrize("verb", ["map", "filter", "flat_map"])
def test_a_function_of_numbas_takes_no_rows(verb: str) -> None:
    stream = whale.Topology("bare").source(whale.sources.iterable([{"x": 1}]), id="rows")
    with pytest.raises(TopologyError, match=r"call whale.compiled\(_doubled\)\('column'\), in fil"):
        getattr(stream, verb)(numba.njit(_doubled))


def _inverse(x: float) -> float:
    return 1 / x


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_a_function_of_numbas_joins_the_loop_as_it_is(mode: str) -> None:
    own = numba.njit(fastmath={"nnan"})(_inverse)
    inverse = whale.compiled(own)
    assert inverse.dispatcher is own
    topology = whale.Topology("inverses")
    rows = topology.source(whale.sources.arrow(pa.table({"x": [4.0, None, 0.0]})), id="rows")
    some = rows.filter(col("x").is_null() | (col("x") > 0), id="some")
    some.select(inverse("x").alias("y"), id="ys").sink(whale.sinks.collect(), id="out")
    settings = {"runtime.pipelines": mode}
    in_loop = re.search(r"ys +compiled loop +some → ys", str(topology.explain(settings=settings)))
    assert (in_loop is not None) == (mode == "compiled")
    job = whale.run(topology, settings=settings)
    assert job.results("out").preview() == [{"y": 0.25}, {"y": None}]


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_a_function_of_numbas_raises_where_it_divides_by_zero(mode: str) -> None:
    inverse = whale.compiled(numba.njit(_inverse))
    topology = whale.Topology("inverses")
    rows = topology.source(whale.sources.arrow(pa.table({"x": [4.0, 0.0]})), id="rows")
    rows.select(inverse("x").alias("y"), id="ys").sink(whale.sinks.collect(), id="out")
    with pytest.raises(UserFunctionError, match=r"division by zero\nin operator 'ys'"):
        whale.run(topology, settings={"runtime.pipelines": mode})


def test_a_signature_of_its_own_is_kept() -> None:
    halved = whale.compiled(numba.njit("float64(float64)")(lambda x: x // 2))
    numbers = Batch.from_pydict({"x": np.array([5, 7])})
    assert halved("x").evaluate(numbers).to_pylist() == [2.0, 3.0]
    assert str(halved("x").evaluate(numbers).type) == "float64"
    text = whale.compiled(numba.njit("int64(int64, int64)")(lambda x, _y: x))
    with pytest.raises(ExpressionError, match="takes no"):
        text.result_type((numba.types.unicode_type, numba.int64))


def test_a_function_of_numbas_travels_with_its_options() -> None:
    factor = 3
    triple = whale.compiled(numba.njit(fastmath=True)(lambda x: x * factor))
    again = cloudpickle.loads(cloudpickle.dumps(triple))
    assert again.dispatcher.targetoptions["fastmath"] is True
    assert again("x").evaluate(Batch.from_pydict({"x": np.array([2])})).to_pylist() == [6]


def test_a_loop_is_kept_by_the_options_of_a_function_of_numbas() -> None:
    plain, fast, again = (
        whale.compiled(numba.njit(**options)(_inverse))
        for options in ({}, {"fastmath": True}, {"fastmath": True})
    )
    assert text_of(fast) == text_of(again) != text_of(plain)
    assert text_of(fast)[1]
    called_before = numba.njit(_inverse)
    called_before(2.0)  # it has read its outer values, which may be others by now
    assert not text_of(whale.compiled(called_before))[1]


def _prints(x: int) -> int:
    print(x)  # noqa: T201 - what is refused
    return x


def _counts(x: int) -> int:
    global _COUNTS  # noqa: PLW0603 - what is refused
    _COUNTS = [x]
    return x


def _outer() -> Callable[[int], int]:
    seen = 0

    def counts(x: int) -> int:
        nonlocal seen
        seen += 1
        return seen

    return counts


def _yields(x: int) -> Any:
    yield x


def _with_default(x: int, *others: int) -> int:
    return x + len(others)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_prints, "_prints calls print: a compiled function only computes"),
        (_counts, "_counts changes the global '_COUNTS'"),
        (_outer(), "counts changes the outer variable 'seen'"),
        (_yields, "_yields yields values"),
        (_with_default, "one value each: name them one by one"),
        (lambda x: x * random.random(), "uses the module random|uses random numbers"),
        (lambda x: x + np.random.default_rng().random(), "uses random numbers"),
        (lambda x: x + time.time(), "uses the module time"),
        (lambda x: x + sum([time.time() for _ in range(2)]), "uses the module time: "),
        (lambda x: _prints(x) + 1, "calls _prints, which calls print"),
        (numba.njit(_prints), "_prints calls print"),
        (numba.njit(parallel=True)(_doubled), "_doubled is compiled with parallel=True"),
        (numba.jit(forceobj=True)(_doubled), "for Python's objects: use numba.njit"),
        (len, "takes a plain function or one of numba.njit, not len"),
    ],
)
def test_what_does_more_than_compute_is_refused(function: Any, why: str) -> None:
    with pytest.raises(TopologyError, match=why):
        whale.compiled(function)


def test_variables_of_inner_functions_are_its_own() -> None:
    def sums(x: int) -> int:
        total = x

        def added(by: int) -> int:
            return total + by

        return added(1)

    assert isinstance(whale.compiled(sums), CompiledFunction)


@pytest.mark.parametrize(
    ("function", "column", "why"),
    [
        (lambda x: x, "s", "takes no string: compiled functions know numbers"),
        (lambda x: x.foo, "x", "cannot be compiled for .int64.: Unknown attribute 'foo'"),
        (lambda x: (x, x), "x", "returns UniTuple.* which is no column"),
        (lambda x: None if x > 0 else x, "x", "which is no column: return one number"),
    ],
)
def test_types_that_do_not_compile_are_refused_before_the_job_starts(
    function: Any, column: str, why: str
) -> None:
    rows = Batch.empty(_SCHEMA).to_arrow()
    topology = whale.Topology("refused")
    stream = topology.source(whale.sources.arrow(rows), id="rows")
    wrong = stream.with_column("y", whale.compiled(function)(column))
    wrong.sink(whale.sinks.collect(), id="out")
    with pytest.raises(TopologyError, match=why):
        whale.run(topology)


def _scaled(by: Any) -> CompiledFunction:
    return whale.compiled(lambda x: x * by)


def _calling(by: int) -> CompiledFunction:
    inner = _scaled(by).dispatcher
    return whale.compiled(lambda x: inner(x) + 1)


def text_of(function: CompiledFunction) -> tuple[str, bool]:
    """Return the text of a loop that calls a function, and whether it may be kept."""
    chain = [MapExpressions({"y": function("x")}, keep=False)]
    loop = write_loop(chain, _SCHEMA, nullable=False, has_times=False)
    return loop.text, may_be_kept(loop.functions)


def test_a_loop_is_kept_with_all_that_its_functions_refer_to() -> None:
    assert text_of(_scaled(2)) == text_of(_scaled(2))
    assert text_of(_scaled(2)) != text_of(_scaled(3))
    assert text_of(_calling(1)) == text_of(_calling(1))
    assert text_of(_calling(1)) != text_of(_calling(2))
    assert text_of(_scaled(np.arange(3)[1]))[1]


_FACTOR = 2


def _scaled_inside(x: int) -> int:
    return sum([_FACTOR * x for _ in range(1)])


def test_what_only_functions_inside_a_function_refer_to_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = text_of(whale.compiled(_scaled_inside))
    monkeypatch.setattr(f"{__name__}._FACTOR", 3)
    assert text_of(whale.compiled(_scaled_inside)) != before


def test_a_loop_is_not_kept_if_it_depends_on_what_a_module_of_the_users_holds() -> None:
    constants = ModuleType("constants")
    constants.factor = 2  # type: ignore[attr-defined]  # made here
    assert not text_of(whale.compiled(lambda x: x * constants.factor))[1]
    assert text_of(whale.compiled(lambda x: math.floor(x) + 1))[1]


def test_it_travels_as_the_function_alone() -> None:
    again = cloudpickle.loads(cloudpickle.dumps(root("x")))
    batch = Batch.from_pydict({"x": np.array([4.0])})
    assert str(again) == "root(x)" and again.evaluate(batch).to_pylist() == [2.0]


def test_times_are_whole_numbers_of_their_unit() -> None:
    seconds = whale.compiled(lambda t: t // 1_000_000)
    column = Column.of([0, 5_000_000, None], DataType.parse("timestamp[us, tz=UTC]"))
    batch = Batch(Schema.of(t="timestamp[us, tz=UTC]"), [column], 3)
    assert seconds("t").evaluate(batch).to_pylist() == [0, 5, None]


def test_the_loop_over_columns_goes_with_its_function() -> None:
    function = CompiledFunction(lambda x: x + 1)
    results = np.zeros(3, np.int64)
    function.loop(np.array([True, False, True]), results, np.array([4, 5, 6]))
    assert results.tolist() == [5, 0, 7]
    loop = weakref.ref(function.loop)
    del function
    gc.collect()
    assert loop() is None
