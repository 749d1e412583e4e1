"""Compiled keyed processes: the same rows as from the same method as Python runs it."""

from __future__ import annotations

import math
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray import state
from whale_ray.api.submission import run, submit
from whale_ray.errors import TopologyError, UsageError, WhaleError
from whale_ray.operators.keyed import compiled_rows
from whale_ray.transport import generated

SCHEMA = {"name": "string", "n": "int32", "x": "double", "t": "int64"}
TENTH = 0.1


def on_row(self: Any, row: Any, out: Any) -> None:
    """Use every kind of state that has a fixed width."""
    if row.n < 0:
        self.clear()
        return
    self.seen.add()
    if self.seen.get() % 3 == 0:
        self.last.set(row.n)
    self.total.add(row["n"])
    self.mass.add(row.x * TENTH)
    self.least.add(row.x)
    self.most.add(row.n)
    for _ in range(2):
        self.twice.add(row.n)
    self.quiet.set(out.time_ns + 5_000_000_000)
    if row.n == 7:
        self.last.clear()
        self.quiet.clear()
    has_last = self.last.exists
    out.emit_row(
        name=self.key.name,
        seen=self.seen.get(),
        mass=math.floor(self.mass.get() * 1000) / 1000,
        least=self.least.get(),
        most=self.most.get(0),
        last=self.last.get(-1),
        twice=self.twice.get(),
        has_last=has_last,
        n=row.n,
    )


def on_timer(self: Any, timer: Any, out: Any) -> None:
    self.total.set(self.total.get() * 10)
    self.last.set(int(self.total.get()))


BODY: dict[str, Any] = {
    "seen": state.count,
    "total": lambda: state.sum("int64"),
    "mass": lambda: state.sum("double"),
    "twice": lambda: state.sum("int16"),
    "least": lambda: state.min("double"),
    "most": lambda: state.max("int32"),
    "last": lambda: state.value("int64"),
    "quiet": state.timer,
}
EMITTED = whale.Schema.of(
    name="string",
    seen="int64",
    mass="double",
    least="double",
    most="int32",
    last="int64",
    twice="int16",
    has_last="bool",
    n="int32",
)


def class_of(method: Any) -> Any:
    declared = {name: make() for name, make in BODY.items()}
    body = {**declared, "on_row": method, "on_timer": on_timer, "schema": EMITTED}
    return type("Measured", (whale.KeyedProcess,), body)


def by_python(self: Any, row: Any, out: Any) -> None:
    on_row(self, row, out)


Interpreted = class_of(by_python)
Compiled = class_of(whale.compiled(on_row))


def results(
    kind: Any, rows: list[tuple[Any, ...]], runner: Any = run, **options: Any
) -> list[dict[str, Any]]:
    topology = whale.Topology("measured")
    given_rows = [dict(zip(SCHEMA, row, strict=True)) for row in rows]
    source = whale.sources.iterable(given_rows, schema=SCHEMA)
    stream = topology.source(source, id="rows", event_time="t", event_time_unit="s")
    stream = stream.key_by("name").process(kind, id="op", parallelism=2)
    stream.sink(whale.sinks.collect(), id="out")
    found = runner(topology, **options).results("out").to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["name"], row["seen"], row["mass"], row["n"]))


numbers = st.one_of(st.floats(-9, 9), st.sampled_from([math.nan, -0.0, math.inf]))
some_rows = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-1, 9), numbers, st.integers(0, 3)),
    min_size=1,
    max_size=60,
)


@settings(max_examples=30, deadline=None)
@given(some_rows, st.sampled_from([1, 5, 8192]))
def test_compiled_rows_are_those_of_python(rows: list[Any], batch_rows: int) -> None:
    time, timed = 0, []
    for name, n, x, step in rows:
        time += 2 * step
        timed.append((name, n, x if math.isfinite(x) else float(n), time))
    options = {"settings": {"runtime.source_batch_rows": batch_rows}}
    assert results(Compiled, timed, **options) == results(Interpreted, timed, **options)


def test_extremes_take_nan_for_the_greatest_number() -> None:
    class Extremes(whale.KeyedProcess):
        least = state.min("double")
        most = state.max("double")
        seen = state.count()
        schema = whale.Schema.of(
            name="string", seen="int64", mass="double", n="int32", least="double"
        )

        @whale.compiled
        def on_row(self, row: Any, out: Any) -> None:
            self.seen.add(1)
            self.least.add(row.x)
            self.most.add(row.x)
            out.emit_row(
                name=row.name,
                seen=self.seen.get(),
                mass=self.most.get(),
                n=row.n,
                least=self.least.get(),
            )

    values = [math.nan, 2.0, 1.0, math.nan, 5.0]
    found = results(Extremes, [("a", 0, x, t) for t, x in enumerate(values)])
    assert np.array_equal([r["least"] for r in found], [math.nan, 2, 1, 1, 1], equal_nan=True)
    assert all(math.isnan(row["mass"]) for row in found)


def test_a_sum_that_leaves_its_type_is_named_with_its_row() -> None:
    rows = [("a", 30_000 // 2, 0.0, 1), ("a", 9_000, 0.0, 2)]
    with pytest.raises(UsageError) as caught:
        results(Compiled, rows)
    assert "'twice' leaves its type int16 at {name='a', n=9000," in str(caught.value)


def computes(self: Any, row: Any, out: Any) -> None:
    """Compute with whole numbers that leave 64 bits for large `n`."""
    self.seen.add()
    product = 1
    for _ in range(2):
        product *= row.n
    is_positive = product * 4 > 0
    lower = -(row.n * (1 << 32)) - 1
    out.emit_row(
        name=row.name,
        seen=self.seen.get(),
        mass=row.x + row.n,
        n=row.n,
        product=product,
        positive=is_positive,
        lower=lower,
    )


def computes_by_python(self: Any, row: Any, out: Any) -> None:
    computes(self, row, out)


def class_that(method: Any, emitted: dict[str, str], **declared: Any) -> Any:
    schema = whale.Schema.of(**emitted)
    body = {"seen": state.count(), **declared, "on_row": method, "schema": schema}
    return type("Computing", (whale.KeyedProcess,), body)


COMPUTED = {"name": "string", "seen": "int64", "mass": "double", "n": "int32"}
MORE = {**COMPUTED, "product": "int64", "positive": "bool", "lower": "int64"}
ComputesCompiled = class_that(whale.compiled(computes), MORE)
ComputesInterpreted = class_that(computes_by_python, MORE)
EDGES = [0, 1, -1, 46341, 2**30, 1_518_500_249, 1_518_500_250, 2**31 - 1, -(2**31) + 1, -(2**31)]
edge_numbers = st.sampled_from(EDGES) | st.integers(-(2**31), 2**31 - 1)


@settings(max_examples=40, deadline=None)
@given(st.lists(edge_numbers, min_size=1, max_size=5))
def test_whole_numbers_are_those_of_python_or_refused_with_their_row(found: list[int]) -> None:
    rows = [("a", n, 0.5, t) for t, n in enumerate(found)]
    beyond = [n for n in found if n * n * 4 >= 2**63 or -(n << 32) - 1 >= 2**63]
    if not beyond:
        assert results(ComputesCompiled, rows) == results(ComputesInterpreted, rows)
        return
    with pytest.raises(UsageError, match="leaves 64 bits") as caught:
        results(ComputesCompiled, rows)
    assert f"n={beyond[0]}," in str(caught.value)


def sets(self: Any, row: Any, out: Any) -> None:
    self.small.set(row.n)


def adds(self: Any, row: Any, out: Any) -> None:
    self.small.add(row.n)


def emits(self: Any, row: Any, out: Any) -> None:
    self.seen.add()
    out.emit_row(name=row.name, seen=self.seen.get(), mass=row.x, n=row.n * 100)


@pytest.mark.parametrize("n", [128, -129])
@pytest.mark.parametrize(("method", "kind"), [(sets, state.value), (adds, state.max)])
def test_a_value_that_leaves_its_type_is_named_with_its_row(method: Any, kind: Any, n: int) -> None:
    narrow = class_that(whale.compiled(method), COMPUTED, small=kind("int8"))
    assert results(narrow, [("a", n // 2, 0.0, 0)]) == []
    with pytest.raises(UsageError, match=f"'small' leaves its type int8 at {{name='a', n={n},"):
        results(narrow, [("a", 1, 0.0, 0), ("a", n, 0.0, 1)])


def test_what_is_emitted_does_not_leave_its_column() -> None:
    narrow = class_that(whale.compiled(emits), {**COMPUTED, "n": "int16"})
    assert [row["n"] for row in results(narrow, [("a", 327, 0.0, 0)])] == [32_700]
    with pytest.raises(UsageError, match=r"a whole number leaves .* at {name='a', n=328,"):
        results(narrow, [("a", 328, 0.0, 0)])


def test_nulls_are_refused_with_their_row() -> None:
    with pytest.raises(UsageError, match="knows no nulls, and 'n' is null in {name='b', n=None"):
        results(Compiled, [("a", 1, 0.0, 1), ("b", None, 0.0, 2)])


def compiled_class(method: Any, **declared: Any) -> Any:
    return type("Bad", (whale.KeyedProcess,), {**declared, "on_row": whale.compiled(method)})


def emits_in_a_loop(self: Any, row: Any, out: Any) -> None:
    for _ in range(3):
        out.emit_row(n=row.n)


def returns_in_a_loop(self: Any, row: Any, out: Any) -> None:
    while True:
        return


def uses_text(self: Any, row: Any, out: Any) -> None:
    self.text.set("x")


def uses_self(self: Any, row: Any, out: Any) -> None:
    self.other = 3


def emits_two_ways(self: Any, row: Any, out: Any) -> None:
    out.emit_row(n=row.n)
    out.emit_row(m=row.n)


def asks_for_none(self: Any, row: Any, out: Any) -> None:
    if row.n is None:
        self.seen.add(1)


def uses_uint64(self: Any, row: Any, out: Any) -> None:
    self.big.add(1)


def passes_row_on(self: Any, row: Any, out: Any) -> None:
    abs(row)


def sets_nothing(self: Any, row: Any, out: Any) -> None:
    self.seen.set()


def adds_twice(self: Any, row: Any, out: Any) -> None:
    self.seen.add(1, row.n)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (sets_nothing, "self.seen.set is compiled only as set(x)"),
        (adds_twice, "self.seen.add is compiled only as add() or add(x)"),
        (emits_in_a_loop, "one emit_row for each row, or remove @whale.compiled"),
        (asks_for_none, "ask .exists of a handle, or fill columns before"),
        (uses_uint64, "self.big keeps uint64, which is not compiled: declare int64"),
        (returns_in_a_loop, "return inside a loop is not compiled"),
        (uses_text, "self.text: value of string has no fixed width"),
        (uses_self, "self.other is no declared state with fixed width"),
        (emits_two_ways, "all emit_row must have the same columns, in the same order"),
        (passes_row_on, "row itself is no value in compiled code"),
    ],
)
def test_what_is_not_compiled_is_refused_with_its_line(method: Any, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        compiled_class(
            method, text=state.value("string"), big=state.sum("uint64"), seen=state.count()
        )
    assert str(caught.value).startswith("Bad.on_row is compiled, and in line ")
    assert str(caught.value).endswith(message)


def computes_with_text(self: Any, row: Any, out: Any) -> None:
    self.seen.add(row.name)


def adds_a_fraction(self: Any, row: Any, out: Any) -> None:
    self.seen.add(row.x)


def emits_undeclared(self: Any, row: Any, out: Any) -> None:
    out.emit_row(n=row.n)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (computes_with_text, "computes with 'name', a string: compiled code knows numbers"),
        (adds_a_fraction, "Bad.on_row cannot be compiled: "),
        (emits_undeclared, "emits n: declare their types, schema = whale.Schema.of"),
    ],
)
def test_what_does_not_fit_the_columns_is_refused(method: Any, message: str) -> None:
    with pytest.raises(WhaleError, match=message):
        results(compiled_class(method, seen=state.count()), [("a", 1, 0.5, 1)])


class Halves(whale.KeyedProcess):
    """Emits nothing that the input has."""

    seen = state.count()
    schema = whale.Schema.of(half="uint64", last="uint64")

    @whale.compiled
    def on_row(self, row: Any, out: Any) -> None:
        out.emit_row(half=row.n // 2, last=row.n % 10 if row.n > 7 else 7)


def halves_of(*numbers: int) -> list[tuple[int, int]]:
    topology = whale.Topology("halves")
    source = whale.sources.iterable([{"n": n} for n in numbers], schema={"n": "uint64"})
    topology.source(source, id="rows").key_by("n").process(Halves).sink(
        whale.sinks.collect(), id="out"
    )
    found = run(topology).results("out").to_arrow().to_pylist()
    return sorted((row["half"], row["last"]) for row in found)


def test_numbers_without_a_sign_are_computed_exactly_or_refused() -> None:
    exact = [3, 2**53 + 1, 2**63 - 1]
    assert halves_of(*exact) == [(n // 2, n % 10 if n > 7 else 7) for n in exact]
    with pytest.raises(UsageError, match=r"below 2\^63, and 'n' is 9223372036854775808 in {n="):
        halves_of(3, 2**63)


def multiplies_by(factor: Any) -> Any:
    class Multiplies(whale.KeyedProcess):
        seen = state.count()
        schema = whale.Schema.of(product="int64")

        @whale.compiled
        def on_row(self, row: Any, out: Any) -> None:
            out.emit_row(product=row.n * factor)

    return Multiplies


class Factor(IntEnum):
    """Its values may change without the code that refers to them."""

    TWO = 2


def test_a_loop_is_kept_for_other_processes_if_it_is_known_what_it_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (generated.FOLDER_VARIABLE, generated.NOT_KEPT_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def found(factor: Any) -> tuple[list[int], int]:
        """Return the products of a process that has loaded no loop, and how many it loads."""
        compiled_rows._LOOPS.clear()
        method = multiplies_by(factor)
        topology = whale.Topology("products")
        source = whale.sources.iterable([{"n": 1}, {"n": 7}], schema={"n": "int64"})
        products = topology.source(source, id="rows").key_by("n").process(method)
        products.sink(whale.sinks.collect(), id="out")
        rows = run(topology).results("out").to_arrow()["product"].to_pylist()
        ((_, loop),) = next(iter(compiled_rows._LOOPS.values())).values()
        return rows, sum(loop.stats.cache_hits.values())

    assert found(2) == ([2, 14], 0)
    assert found(2) == ([2, 14], 1)
    assert found(3) == ([3, 21], 0)
    for _ in range(2):
        assert found(Factor.TWO) == ([2, 14], 0)


class Signless(whale.KeyedProcess):
    seen = state.count()
    schema = whale.Schema.of(n="int64")

    @whale.compiled
    def on_row(self, row: Any, out: Any) -> None:
        out.emit_row(n=abs(row.n) * Factor.TWO)


@whale.compiled
def tenfold(n: Any) -> Any:
    return 10 * n


def test_a_loop_is_compiled_anew_once_a_name_of_pythons_is_a_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found() -> list[int]:
        topology = whale.Topology("signless")
        source = whale.sources.iterable([{"n": -3}], schema={"n": "int64"})
        numbers = topology.source(source, id="rows").key_by("n").process(Signless)
        numbers.sink(whale.sinks.collect(), id="out")
        return run(topology).results("out").to_arrow()["n"].to_pylist()

    assert found() == [6]
    monkeypatch.setattr(sys.modules[__name__], "abs", tenfold, raising=False)
    assert found() == [-60]


class Totals(whale.KeyedProcess):
    """Emits totals, multiplied; classes derived from it keep other totals."""

    total: Any = state.min("int8")
    schema = whale.Schema.of(total="int64")

    @whale.compiled
    def on_row(self, row: Any, out: Any) -> None:
        self.total.add(row.n)
        out.emit_row(total=self.total.get() * MULTIPLIED_BY)


MULTIPLIED_BY = 2


def test_a_loop_is_that_of_its_class_and_of_the_values_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Greatest(Totals):
        seen = state.count()
        total = state.max("int64")

    rows = [{"key": 1, "n": n} for n in (3, 100, 7)]

    def found(method: Any) -> list[int]:
        topology = whale.Topology("totals")
        source = whale.sources.iterable(rows, schema={"key": "int64", "n": "int64"})
        totals = topology.source(source, id="rows").key_by("key").process(method)
        totals.sink(whale.sinks.collect(), id="out")
        return run(topology).results("out").to_arrow()["total"].to_pylist()

    assert found(Totals) == [6, 6, 6]
    assert found(Greatest) == [6, 200, 200]
    monkeypatch.setattr(sys.modules[__name__], "MULTIPLIED_BY", 3)
    assert found(Totals) == [9, 9, 9]


def test_classes_of_a_script_travel_to_workers_by_value(no_leaks: None) -> None:
    rows = [("abc"[t % 3], t % 5, float(t), t) for t in range(100)]
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        found = results(Compiled, rows, runner=in_processes)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert found == results(Interpreted, rows)


def in_processes(topology: whale.Topology) -> Any:
    return submit(topology, on="processes", workers=2).wait(60)
