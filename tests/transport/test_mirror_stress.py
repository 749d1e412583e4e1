"""Relays killed at random: see mirror_stress.py, which this runs and which checks."""

from __future__ import annotations

import pytest

from tests.transport.stress_runs import play


@pytest.mark.long
def test_a_relay_that_is_killed_is_replaced_without_loss():
    totals = play("mirror_stress", seed=1, rounds=4)
    # The seed alone decides how many are killed; in each round the last after the writer's end.
    assert totals["killed"] == 32
    assert totals["frames"] >= 2907


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [11, pytest.param(12, marks=pytest.mark.exhaustive)])
def test_many_relays_that_are_killed_are_replaced_without_loss(seed: int):
    assert play("mirror_stress", seed, rounds=200)["killed"] > 1500
