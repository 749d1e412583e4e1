"""Compiled keyed processes compute as Python does, or refuse: one loop, compared row by row."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

import whale_ray as whale
from whale_ray import state
from whale_ray.api.submission import run
from whale_ray.errors import TopologyError, UsageError, UserFunctionError

LEAST = -(2**63)


def computes(self: Any, row: Any, out: Any) -> None:
    """Compute with columns and handles of few bits, and with shifts and powers."""
    self.small.set(row.f)
    self.few.set(row.b)
    out.emit_row(
        inverted=~row.u,
        square=row.f * row.f,
        mixed=1e-9 * (row.f - row.u),
        root=math.sqrt(abs(row.f)),
        kept=self.small.get() * 3,
        kept_few=self.few.get() << 9,
        power=row.b**3 + 3**row.c - row.b**0,
        powers=row.f**3 + 1.1**row.c + (row.f * row.f + 0.1) ** 0.3 + row.c**0.5,
        shifted=row.n >> row.u,
        gone=(row.n - row.n) << row.u,
        inverse=row.u**-1,
        halves=row.u // -2,
    )


SCHEMA = {
    "inverted": "int64",
    **dict.fromkeys(("square", "mixed", "root", "kept"), "double"),
    **dict.fromkeys(("kept_few", "power"), "int64"),
    "powers": "double",
    **dict.fromkeys(("shifted", "gone"), "int64"),
    "inverse": "double",
    "halves": "int64",
}


def by_python(self: Any, row: Any, out: Any) -> None:
    computes(self, row, out)


def class_of(method: Any, schema: dict[str, str]) -> Any:
    declared = {"small": state.value("float32"), "few": state.value("int16")}
    body = {**declared, "on_row": method, "schema": whale.Schema.of(**schema)}
    return type("Computing", (whale.KeyedProcess,), body)


ROWS = [
    {"n": n, "u": u, "b": b, "f": f, "c": u % 40}
    for n, u, b, f in [(5, 3, -128, 0.1), (-7, 200, 127, 1e10), (LEAST, 64, 100, -2.7)]
]
TYPES = {"n": "int64", "u": "uint8", "b": "int8", "f": "float32", "c": "int16"}


def results(kind: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    topology = whale.Topology("numbers")
    stream = topology.source(whale.sources.iterable(rows, schema=TYPES), id="rows")
    stream.key_by("n").process(kind, id="op", parallelism=1).sink(whale.sinks.collect(), id="out")
    return run(topology).results("out").to_arrow().to_pylist()


def test_numbers_of_few_bits_are_computed_as_python_does() -> None:
    found = results(class_of(whale.compiled(computes), SCHEMA), ROWS)
    assert found == results(class_of(by_python, SCHEMA), ROWS)


def cut(self: Any, row: Any, out: Any) -> None:
    values = (int(row.f), math.floor(row.f), round(row.f))
    out.emit_row(a=values[row.u])


def magnitude(self: Any, row: Any, out: Any) -> None:
    out.emit_row(a=abs(row.n))


def quotient(self: Any, row: Any, out: Any) -> None:
    out.emit_row(a=row.n // row.b)


def emits_fractions(self: Any, row: Any, out: Any) -> None:
    out.emit_row(a=row.f * 1)


def shifts(self: Any, row: Any, out: Any) -> None:
    out.emit_row(a=row.n >> row.b)


def powers(self: Any, row: Any, out: Any) -> None:
    out.emit_row(a=row.n**row.b)


def loses_digits(self: Any, row: Any, out: Any) -> None:
    out.emit_row(a=row.n + 0)


def squares(self: Any, row: Any, out: Any) -> None:
    out.emit_row(a=row.n**2)


def squares_in_a_list(self: Any, row: Any, out: Any) -> None:
    values = [row.n, 1]
    values[row.b - 2] *= row.n
    out.emit_row(a=values[0])


def moves(self: Any, row: Any, out: Any) -> None:
    out.emit_row(a=row.n << row.b)


class Factor(IntEnum):
    TWO = 2


def multiplies_by_a_constant(self: Any, row: Any, out: Any) -> None:
    out.emit_row(a=row.n * row.n + row.b * Factor.TWO)


def doubles(self: Any, row: Any, out: Any) -> None:
    out.emit_row(a=row.n * Factor.TWO)


GOOD = {"n": 9, "u": 0, "b": 2, "f": 3.0, "c": 0}


@pytest.mark.parametrize(
    ("method", "kind", "good", "bad"),
    [
        (cut, "int64", 3, {"f": math.nan}),
        (cut, "int64", 3, {"f": 1e19, "u": 1}),
        (cut, "int64", 3, {"f": -math.inf, "u": 2}),
        (magnitude, "int64", 9, {"n": LEAST}),
        (quotient, "int64", 4, {"n": LEAST, "b": -1}),
        (emits_fractions, "int64", 3, {"f": 1.5}),
        (emits_fractions, "uint8", 3, {"f": -1.0}),
        (emits_fractions, "int64", 3, {"f": math.nan}),
        (shifts, "int64", 2, {"b": -1}),
        (powers, "int64", 81, {"b": -1}),
        (powers, "int64", 81, {"n": -3, "b": 40}),
        (squares, "int64", 81, {"n": 3_037_000_500}),
        (squares_in_a_list, "int64", 81, {"n": 3_037_000_500}),
        (multiplies_by_a_constant, "int64", 85, {"n": 3_037_000_500}),
        (doubles, "int64", 18, {"n": 2**62}),
        (moves, "int64", 36, {"n": 1, "b": 63}),
        (moves, "int64", 36, {"n": -1, "b": 64}),
        (moves, "int64", 36, {"b": -1}),
        (loses_digits, "bool", True, {"n": 7}),
        (emits_fractions, "bool", True, {"f": math.nan}),
        (loses_digits, "double", 9, {"n": 2**53 + 1}),
        (loses_digits, "float32", 9, {"n": 2**24 + 1}),
    ],
)
def test_what_has_no_such_value_is_refused_with_its_row(
    method: Any, kind: str, good: Any, bad: dict[str, Any]
) -> None:
    process = class_of(whale.compiled(method), {"a": kind})
    fits = {**GOOD, "n": 1, "f": 1.0} if kind == "bool" else GOOD
    assert results(process, [fits]) == [{"a": good}]
    with pytest.raises(UsageError, match=r"has no value .* fit its column, at ") as caught:
        results(process, [fits, {**GOOD, **bad}])
    assert f" at {{n={bad.get('n', 9)}," in str(caught.value)


PRICES = np.array([1, 2])


def priced(self: Any, row: Any, out: Any) -> None:
    out.emit_row(a=PRICES[row.b])


def test_a_place_beyond_an_array_is_an_error() -> None:
    process = class_of(whale.compiled(priced), {"a": "int64"})
    assert results(process, [{**GOOD, "b": 1}]) == [{"a": 2}]
    with pytest.raises(UserFunctionError, match="IndexError"):
        results(process, [GOOD])


def has_no_value(self: Any, row: Any, out: Any) -> None:
    if row.n > 0:
        price = row.f
    out.emit_row(a=price)


def may_not_run(self: Any, row: Any, out: Any) -> None:
    for n in range(row.n):
        last = n
    out.emit_row(a=last)


def adds_to_nothing(self: Any, row: Any, out: Any) -> None:
    while row.n > 3:
        total += 1  # noqa: F821, F841 - what is refused
        break


def uses_a_name_of_the_loop(self: Any, row: Any, out: Any) -> None:
    _count = 3
    out.emit_row(a=_count)


def writes_a_global(self: Any, row: Any, out: Any) -> None:
    global LEAST  # noqa: PLW0603 - what is refused
    LEAST = 3


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (has_no_value, "price may have no value: assign it before"),
        (may_not_run, "last may have no value: assign it before"),
        (adds_to_nothing, "total may have no value: assign it before"),
        (uses_a_name_of_the_loop, "the name _count is one of the loop's own: choose another"),
        (writes_a_global, "global is not compiled: keep values in declared state"),
    ],
)
def test_names_that_would_be_other_ones_in_a_loop_are_refused(method: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        class_of(whale.compiled(method), {"a": "double"})


def always_has_values(self: Any, row: Any, out: Any) -> None:
    if row.n > 7:
        a = 1
    elif row.n < 0:
        return
    else:
        a = 2
    for _ in range(2):
        b = a
    while True:
        c = b
        if c:
            break
    squares = [d * d for d in range(2)]
    if (e := c + 1) > 2:
        e, f = 7, 1
    else:
        f = 3
    total = 0
    for g in range(row.n):
        if g == 1:
            continue
        total += g
    out.emit_row(a=a + b + c + e + f + squares[1] + total)


def test_names_with_a_value_on_every_way_are_taken() -> None:
    class_of(whale.compiled(always_has_values), {"a": "int64"})


BIG = 2.0**127
KINDS = {"total": "sum", "least": "min", "most": "max", "last": "value"}


def keeps(self: Any, row: Any, out: Any) -> None:
    self.total.add(row.x)
    self.least.add(-row.x * row.by)
    self.most.add(row.x * row.by)
    self.last.set(row.x * row.by)
    out.emit_row(total=self.total.get(), last=self.last.get())


def kept_by_python(self: Any, row: Any, out: Any) -> None:
    keeps(self, row, out)


@pytest.mark.parametrize("method", [whale.compiled(keeps), kept_by_python])
@pytest.mark.parametrize(
    ("rows", "refused"),
    [
        ([(BIG, 1), (BIG, 1)], "total"),
        ([(-BIG, 1), (-BIG, 1)], "total"),
        ([(BIG, 2)], "least"),
        ([(-BIG, 2)], "least"),
        ([(BIG, 1), (-BIG, 1), (math.inf, 1), (-math.inf, 1), (math.nan, 1)], None),
    ],
)
def test_no_finite_number_becomes_infinite_in_float32(
    method: Any, rows: list[tuple[float, int]], refused: str | None
) -> None:
    declared = {name: getattr(state, kind)("float32") for name, kind in KINDS.items()}
    emitted = whale.Schema.of(total="double", last="double")
    body = {**declared, "on_row": method, "schema": emitted}
    topology = whale.Topology("float32")
    given = whale.sources.iterable([{"k": 1, "x": x, "by": by} for x, by in rows])
    stream = topology.source(given, id="rows").key_by("k")
    kind = type("Keeping", (whale.KeyedProcess,), body)
    stream.process(kind, id="op", parallelism=1).sink(whale.sinks.collect(), id="out")
    if refused is not None:
        with pytest.raises(UsageError, match=f"'{refused}' leaves its type float32 .*: declare a"):
            run(topology)
        return
    found = run(topology).results("out").to_arrow().to_pydict()
    with np.errstate(invalid="ignore"):
        x = np.array([one for one, _ in rows], np.float32)
        np.testing.assert_array_equal(found["total"], np.cumsum(x))
    np.testing.assert_array_equal(found["last"], x)
