"""Fingerprints of functions differ if the functions compute anything else."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

import whale_ray as whale
from whale_ray.operators.expressions.function_parts import fingerprint_of


def made(text: str, **known: Any) -> Callable[..., Any]:
    """Return the function `f` of a text that knows some globals."""
    namespace = {"numba": numba, "whale": whale, "np": np, **known}
    exec(text, namespace)  # noqa: S102  # a text of this file
    function: Callable[..., Any] = namespace["f"]
    return function


def fingerprint(text: str, **known: Any) -> str | None:
    return fingerprint_of(made(text, **known))


def double(value: Any) -> Any:
    return value * 2


def test_each_name_counts_for_the_function_that_it_means() -> None:
    text = "def f(x): return a(x) + b(x) * 10 + c(x) * 100"
    first, second = whale.compiled(double), whale.compiled(lambda value: value * 3)
    assert fingerprint(text, a=first, b=second, c=first) is not None
    assert fingerprint(text, a=first, b=second, c=first) != fingerprint(
        text, a=first, b=second, c=second
    )


def test_what_is_only_known_by_name_may_be_anything() -> None:
    pair = namedtuple("pair", ("left", "right"))
    assert fingerprint("def f(x): return pair(x, 1).left", pair=pair) is None
    assert fingerprint("def f(x): return some[0](x)", some=(double, 1)) is None
    assert fingerprint("def f(x): return double(x)", double=double) is None, "numba may overload it"
    assert fingerprint("def f(x): return kind(x)", kind=np.float32) is not None
    assert fingerprint("def f(x): return kinds[0](x)", kinds=(np.float32, 1)) is not None


def test_how_numba_compiles_a_called_function_counts() -> None:
    text = "def f(x): return called(x)"
    strict, fast = numba.njit(double), numba.njit(fastmath=True)(double)
    assert fingerprint(text, called=strict) not in (None, fingerprint(text, called=fast))


def test_default_arguments_count_with_all_their_content() -> None:
    text = "def f(x, rates=rates): return x * rates[1000]"
    rates = np.arange(2000)
    other = rates.copy()
    other[1000] = 7
    assert fingerprint(text, rates=rates) not in (None, fingerprint(text, rates=other))


def test_functions_that_call_themselves_have_a_fingerprint() -> None:
    text = "@numba.njit\ndef g(x): return 1 if x < 2 else x * g(x - {})\ndef f(x): return g(x)"
    assert fingerprint(text.format(1)) not in (None, fingerprint(text.format(2)))


def test_numba_keeps_the_values_with_which_it_compiled_a_called_function() -> None:
    text = "rate = 2\n@numba.njit\ndef g(x): return x * rate\ndef f(x): return g(x)"
    function = made(text)
    before = fingerprint_of(function)
    called = function.__globals__["g"]
    assert called(5) == 10
    assert fingerprint_of(function) == before is not None
    function.__globals__["rate"] = 3
    assert called(5) == 10, "numba has read the rate"
    assert fingerprint_of(function) is None


def test_a_compiled_function_has_the_outer_values_of_the_time_when_it_is_called() -> None:
    text = "rate = 2\n@whale.compiled\ndef f(x): return x * rate"
    function: Any = made(text)
    rows = whale.Batch.from_pydict({"x": [1, 5]}).to_arrow()

    def result() -> list[int]:
        topology = whale.Topology("rates")
        stream = topology.source(whale.sources.arrow(rows), id="rows")
        stream.select(function("x").alias("y")).sink(whale.sinks.collect(), id="out")
        return [row["y"] for row in whale.run(topology).results("out").preview()]

    assert result() == [2, 10]
    before = function.fingerprint()
    function.py_func.__globals__["rate"] = 3
    assert function.fingerprint() == before, "it is compiled with the rate before"
    assert result() == [3, 15]
    assert function.fingerprint() != before
