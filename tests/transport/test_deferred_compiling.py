"""Functions with declared signatures are compiled when first used, and for these types only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numba
import numpy as np
import pytest

from whale_ray.transport.compiling import njit
from whale_ray.transport.deferred_compiling import COMPILE_AT_IMPORT_VARIABLE, entry_point

_SIGNATURE = numba.float64(numba.float64[::1], numba.int64)


def _nth(values: Any, at: int) -> float:
    return float(values[at] * 2.0)


def _function() -> Any:
    return njit(_SIGNATURE)(_nth)


def test_nothing_is_compiled_before_the_first_call() -> None:
    function = _function()
    assert not function.signatures
    assert function(np.array([1.0, 3.0]), 1) == 6.0
    assert function.signatures == [_SIGNATURE.args]


def test_the_first_call_converts_and_refuses_as_later_ones_do() -> None:
    for function in (_function(), _function()):
        assert function(np.array([1.0, 3.0]), np.int32(1)) == 6.0
        for _ in range(2):
            with pytest.raises(TypeError, match="No matching definition"):
                function(np.array([1, 3]), 1)
    fresh = _function()
    for wrong in ((np.array([1, 3]), 1), (np.arange(4.0)[::2], 1), (np.array([1.0]),)):
        with pytest.raises(TypeError):
            fresh(*wrong)
    assert fresh(np.array([1.0, 3.0]), 0) == 2.0


def test_a_function_that_calls_it_compiles_it_for_its_own_types() -> None:
    function = _function()

    def caller(values: Any) -> float:
        return float(function(values, np.int32(1)) + 1.0)

    assert njit(numba.float64(numba.float64[::1]))(caller)(np.array([1.0, 3.0])) == 7.0
    assert function.signatures == [_SIGNATURE.args]


def test_its_entry_point_is_there_at_once() -> None:
    assert entry_point(_function())(np.array([1.0, 3.0]), 1) == 6.0


def test_threads_that_come_at_once_get_the_same_function() -> None:
    function, begin = _function(), Barrier(4)

    def call(_: int) -> float:
        begin.wait()
        return float(function(np.array([1.0, 3.0]), 1))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(call, range(4))) == [6.0] * 4
    assert len(function.signatures) == 1


def test_with_the_variable_it_is_compiled_where_it_is_defined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(COMPILE_AT_IMPORT_VARIABLE, "1")
    assert _function().signatures == [_SIGNATURE.args]
