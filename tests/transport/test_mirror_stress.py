"""Relays killed at random: see mirror_stress.py, which this runs and which checks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("mirror_stress.py")


def play(seed: int, rounds: int) -> dict[str, int]:
    result = subprocess.run(
        [sys.executable, str(PROGRAM), str(seed), str(rounds)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    totals: dict[str, int] = json.loads(result.stdout)
    return totals


def test_a_relay_that_is_killed_is_replaced_without_loss():
    totals = play(seed=1, rounds=4)
    assert totals["killed"] > 10
    assert totals["frames"] > 500


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [11, 12])
def test_many_relays_that_are_killed_are_replaced_without_loss(seed: int):
    assert play(seed, rounds=200)["killed"] > 500
