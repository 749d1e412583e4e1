"""Senders and receivers killed at random: see push_stress.py, which this runs and which checks.

A failure prints `replay: seed=… round=…`; `python -m tests.transport.push_stress SEED ROUNDS`
plays the same rounds again.
"""

from __future__ import annotations

import pytest
from numba import njit

from tests.transport.stress_runs import play
from whale_ray.transport.push import kernels as push_kernels


def test_kills_lose_and_double_nothing():
    totals = play("push_stress", seed=1, rounds=20)
    # The seed alone decides who is killed; the rounds without a kill send 8,288 messages.
    assert totals["receivers_killed"] == 10
    assert totals["senders_killed"] == 9
    assert totals["messages"] > 8288


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_many_kills_lose_and_double_nothing(seed: int):
    totals = play("push_stress", seed, rounds=400)
    assert totals["receivers_killed"] > 150
    assert totals["senders_killed"] > 150


@pytest.mark.long
@pytest.mark.parametrize(
    "function",
    [
        push_kernels.reserve_slots,
        push_kernels.commit,
        push_kernels.commit_fragments,
        push_kernels.give_back,
        push_kernels.close_sender,
        push_kernels.close_receiver,
        push_kernels.publish_arrived,
    ],
)
def test_fences_stand_where_a_wake_up_could_be_lost(function):
    """No run can show that one is missing: the window is some nanoseconds wide."""
    fresh = njit(function.py_func)  # what comes from the cache cannot be inspected
    fresh.compile(function.signatures[0])
    assert "fence seq_cst" in fresh.inspect_llvm(function.signatures[0])


@pytest.mark.long
@pytest.mark.parametrize("function", [push_kernels.commit, push_kernels.commit_fragments])
def test_the_last_word_of_a_slot_is_stored_with_release(function):
    fresh = njit(function.py_func)
    fresh.compile(function.signatures[0])
    assert "store atomic i64" in fresh.inspect_llvm(function.signatures[0])
