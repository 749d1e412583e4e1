"""Readers and writers killed at random: see ring_stress.py, which this runs and which checks.

A failure prints `replay: seed=… round=…`; `python -m tests.transport.ring_stress SEED ROUNDS`
plays the same rounds again.
"""

from __future__ import annotations

import pytest
from numba import njit

from tests.transport.stress_runs import play
from whale_ray.transport import doorbell, ring_kernels
from whale_ray.transport.deferred_compiling import entry_point


@pytest.mark.long
def test_kills_lose_and_double_nothing():
    totals = play("ring_stress", seed=1, rounds=20)
    # The seed alone decides who is killed; the rounds without a kill send 6,524 frames.
    assert totals["readers_killed"] == 20
    assert totals["writers_killed"] == 7
    assert totals["frames"] > 6524


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "seed", [11, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in (12, 13))]
)
def test_many_kills_lose_and_double_nothing(seed: int):
    totals = play("ring_stress", seed, rounds=400)
    assert totals["readers_killed"] > 250
    assert totals["writers_killed"] > 150


@pytest.mark.long
@pytest.mark.parametrize(
    "function",
    [
        ring_kernels.commit,
        ring_kernels.release,
        ring_kernels.reserve,
        ring_kernels.is_evicted,
        doorbell._announce_sleep,
    ],
)
def test_fences_stand_where_a_look_could_come_too_early(function):
    """No run can show that one is missing: the window is some nanoseconds wide."""
    entry_point(function)
    fresh = njit(function.py_func)  # what comes from the cache cannot be inspected
    fresh.compile(function.signatures[0])
    assert "fence seq_cst" in fresh.inspect_llvm(function.signatures[0])
