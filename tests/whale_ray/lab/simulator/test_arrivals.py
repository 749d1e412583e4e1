"""Schedules of emissions, and how tuples are cut into slices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_ray.configs.errors import UsageError
from whale_ray.lab.simulator.arrivals import RateStep, all_at_once, cut_into_slices, paced, poisson


def test_a_poisson_process_has_its_rate_and_variance() -> None:
    emitted = poisson([RateStep(1000.0, 200.0)], 1)
    assert (np.diff(emitted) >= 0).all()
    counts = np.histogram(emitted, np.arange(201))[0]
    assert counts.mean() == pytest.approx(1000, rel=0.01)
    assert counts.var() == pytest.approx(1000, rel=0.3)
    gaps = np.diff(emitted)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.02)


def test_steps_follow_each_other() -> None:
    emitted = poisson([RateStep(100.0, 50.0), RateStep(1000.0, 50.0)], 2)
    counts = np.histogram(emitted, [0, 50, 100])[0]
    assert counts[0] == pytest.approx(5_000, rel=0.05)
    assert counts[1] == pytest.approx(50_000, rel=0.05)
    even = paced([RateStep(10.0, 1.0), RateStep(5.0, 1.0)])
    assert even.tolist() == pytest.approx([*np.arange(10) / 10, *(1 + np.arange(5) / 5)])


def test_a_seed_is_a_schedule() -> None:
    steps = [RateStep(50.0, 10.0)]
    assert poisson(steps, 1).tolist() == poisson(steps, 1).tolist()
    assert poisson(steps, 1).tolist() != poisson(steps, 2).tolist()
    assert all_at_once(3).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (RateStep(0.0, 1.0), "a rate of 0: it must be above 0"),
        (RateStep(-5.0, 1.0), "a rate of -5: it must be above 0"),
        (RateStep(float("nan"), 1.0), "a rate of nan: it must be above 0"),
        (RateStep(1.0, 0.0), "a duration of 0: it must be above 0"),
        (
            RateStep(1.0, 0.5),
            "0.5 slices expected: simulate 1 to 200,000,000; change the rate or the duration",
        ),
    ],
)
def test_impossible_schedules_are_refused(step: RateStep, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        poisson([step], 1)
    assert str(refused.value) == message


def cut_plainly(emitted: list[float], wait: float, most: int) -> list[tuple[float, int]]:
    """Cut tuples one by one, as the rule says."""
    slices: list[tuple[float, int]] = []
    first: float | None = None
    count = 0
    for moment in emitted:
        if first is not None and moment > first + wait:
            slices.append((first + wait, count))
            first = None
        if first is None:
            first, count = moment, 0
        count += 1
        if count == most:
            slices.append((moment, count))
            first = None
    if first is not None:
        slices.append((first + wait, count))
    return slices


@settings(max_examples=60)
@given(
    gaps=st.lists(st.floats(0, 5), min_size=1, max_size=40),
    wait=st.floats(0, 10),
    most=st.integers(1, 8),
)
def test_slices_are_cut_by_size_and_by_time(gaps: list[float], wait: float, most: int) -> None:
    emitted = np.cumsum(gaps)
    cut = cut_into_slices(emitted, wait, most)
    expected = cut_plainly(emitted.tolist(), wait, most)
    assert list(zip(cut.at_s.tolist(), cut.tuples.tolist(), strict=True)) == expected
    assert cut.tuples.sum() == len(gaps)
