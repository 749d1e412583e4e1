"""The processor time of a thread, without what was spent compiling functions."""

from __future__ import annotations

import threading
import time

import numpy as np

from whale_ray.transport.compile_time import compiling_ns
from whale_ray.transport.compiling import njit
from whale_ray.transport.thread_time import thread_work_ns


@njit()
def halved(value):
    return value / 2


@njit()
def quarter(value):
    return halved(halved(value))


def spent_compiling_ns(call):
    before_ns = compiling_ns()
    call()
    return compiling_ns() - before_ns


def test_compiling_is_left_out_and_work_is_not():
    began_ns = time.thread_time_ns()
    spent_ns = spent_compiling_ns(lambda: quarter(2.0))
    assert 0 < spent_ns <= time.thread_time_ns() - began_ns  # no function is counted twice
    assert spent_compiling_ns(lambda: quarter(3.0)) == 0  # it is compiled
    assert spent_compiling_ns(lambda: np.sort(np.arange(100_000))) == 0
    assert spent_compiling_ns(lambda: quarter(np.float32(1))) > 0  # another version


def test_the_time_without_it_goes_on_like_the_threads():
    in_all_ns, without_ns = time.thread_time_ns(), thread_work_ns()
    spent_ns = spent_compiling_ns(lambda: njit()(lambda value: value * 3)(1))
    worked_ns = thread_work_ns() - without_ns
    assert 0 < worked_ns < time.thread_time_ns() - in_all_ns - spent_ns


def test_what_another_thread_compiles_is_not_left_out():
    compiled = njit()(lambda value: value + 1)

    def compile_elsewhere():
        thread = threading.Thread(target=lambda: compiled(1))
        thread.start()
        thread.join()

    assert spent_compiling_ns(compile_elsewhere) == 0
    assert len(compiled.signatures) == 1
    assert spent_compiling_ns(lambda: compiled(2)) == 0


def test_a_compilation_that_fails_is_left_out_too():
    refused = njit()(lambda value: value.no_such_attribute)

    def fails():
        try:
            refused(1)
        except Exception:  # noqa: BLE001  # numba's own error
            return
        raise AssertionError

    quarter(4.0)
    assert spent_compiling_ns(fails) > 0
    assert spent_compiling_ns(lambda: quarter(4.0)) == 0  # nothing is thought to be under way
