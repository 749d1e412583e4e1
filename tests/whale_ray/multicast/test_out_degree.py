"""The M/D/1 model: the stable root, the paper's figures, our units, what cannot be carried."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.multicast.out_degree import (
    Costs,
    affordable_degree,
    affordable_load,
    binomial_degree,
    queue_capacity_slices,
)

PAPER = Costs(serialize_s=0.0, send_s=5.2e-6)
QUEUE = 1024

queues = st.floats(0.01, 1e6)
times = st.floats(1e-8, 1e-2)
rates = st.floats(0.1, 1e8)


def mean_queue_slices(load: float) -> float:
    """Return E(L) of an M/D/1 queue at load ρ (Eq. 2 of the paper)."""
    if load >= 1.0:
        return math.inf
    return load + load * load / (2.0 * (1.0 - load))


def test_the_load_that_fills_the_papers_queue():
    assert round(affordable_load(QUEUE), 5) == 0.99951


@pytest.mark.parametrize(("rate", "degree"), [(30_000, 6), (60_000, 3), (80_000, 2), (100_000, 1)])
def test_the_papers_rates(rate, degree):
    found = affordable_degree(rate, PAPER, QUEUE, destinations=480)
    assert (found.degree, found.throttle) == (degree, False)


@given(queues)
def test_it_is_the_stable_root_of_the_quadratic(queue):
    """ρ² - 2(Q+1)ρ + 2Q = 0 has two roots; Eq. 3 as printed gives the one beyond 1."""
    load = affordable_load(queue)
    assert 0 < load < 1
    assert load == pytest.approx(queue + 1 - math.sqrt(queue**2 + 1), rel=1e-6, abs=1e-9)
    assert mean_queue_slices(load) == pytest.approx(queue, rel=1e-3)


def test_the_printed_sign_of_equation_3_is_the_unstable_root():
    printed = 2 * QUEUE / (QUEUE + 1 - math.sqrt(QUEUE**2 + 1))
    mended = 2 * QUEUE / (QUEUE + 1 + math.sqrt(QUEUE**2 + 1))
    assert affordable_load(QUEUE) == pytest.approx(mended, rel=1e-12)
    assert round(printed) == 2049
    assert mean_queue_slices(printed) == math.inf
    # What the published code computes for 100 k/s: three children where one is affordable.
    assert math.floor(printed / (100_000 * 5.2e-3)) == 3


@given(rates, st.floats(0, 1e-2), times, queues, st.integers(0, 10_000))
def test_the_degree_is_the_highest_that_keeps_the_queue_short(rate, t_s, t_d, queue, n):
    costs = Costs(t_s, t_d)
    found = affordable_degree(rate, costs, queue, n)
    highest = binomial_degree(n)
    assert 1 <= found.degree <= highest
    load = affordable_load(queue)
    if not found.throttle:
        assert rate * costs.per_slice_s(found.degree) <= load * (1 + 1e-9)
        assert rate <= found.rate_max_slices_per_s * (1 + 1e-9)
    else:
        assert found.degree == 1
        assert rate * costs.per_slice_s(1) >= load * (1 - 1e-9)
    if found.degree < highest:
        assert rate * costs.per_slice_s(found.degree + 1) >= load * (1 - 1e-9)


@pytest.mark.parametrize("rate", [0.0, 5e-324, 1.0, 1.7e308, math.inf])
@pytest.mark.parametrize("t_s", [0.0, 5e-324, 1.7e308])
@pytest.mark.parametrize("t_d", [5e-324, 1.7e308])
@pytest.mark.parametrize("queue", [5e-324, 1.0, 1.7e308])
def test_numbers_at_the_ends_of_their_ranges_have_a_degree(rate, t_s, t_d, queue):
    assert 0 < affordable_load(queue) <= 1
    found = affordable_degree(rate, Costs(t_s, t_d), queue, 480)
    assert 1 <= found.degree <= 9
    assert found.rate_max_slices_per_s >= 0
    if rate in (0.0, math.inf):
        assert found.throttle == (rate > 0)


def test_serialization_is_paid_once_and_leaves_less_for_children():
    costs = Costs(serialize_s=5e-6, send_s=5.2e-6)
    assert affordable_degree(60_000, costs, QUEUE, 480).degree == 2
    assert affordable_degree(100_000, costs, QUEUE, 480).throttle


def test_for_a_load_that_no_degree_sustains_the_sustainable_rate_is_reported():
    found = affordable_degree(1_000_000, PAPER, QUEUE, 480)
    assert found.throttle and found.degree == 1
    assert found.rate_max_slices_per_s == pytest.approx(0.99951 / 5.2e-6, rel=1e-5)
    assert not affordable_degree(found.rate_max_slices_per_s * 0.999, PAPER, QUEUE, 480).throttle


@pytest.mark.parametrize(
    ("n", "degree"), [(0, 1), (1, 1), (2, 2), (3, 2), (7, 3), (8, 4), (480, 9), (10_000, 14)]
)
def test_the_binomial_degree_is_the_upper_bound(n, degree):
    assert binomial_degree(n) == degree
    assert affordable_degree(0.0, PAPER, QUEUE, n).degree == degree
    assert affordable_degree(1e-300, PAPER, QUEUE, n).degree == degree


def test_units_of_slices():
    assert queue_capacity_slices(4 << 20, 256 << 10) == 16
    assert queue_capacity_slices(1 << 30, 100.0) == 1024


INVALID = [
    (affordable_load, 0),
    (affordable_load, math.nan),
    (affordable_load, math.inf),
    (affordable_degree, -1.0, PAPER, QUEUE, 5),
    (affordable_degree, math.nan, PAPER, QUEUE, 5),
    (binomial_degree, -1),
    (Costs, -1e-9, 1e-6),
    (Costs, 0.0, 0.0),
    (Costs, 0.0, math.nan),
    (queue_capacity_slices, 0, 1.0),
    (queue_capacity_slices, 1, 0.0),
]


@pytest.mark.parametrize("number", range(len(INVALID)))
def test_invalid_arguments_raise_value_error(number):
    function, *arguments = INVALID[number]
    with pytest.raises(ValueError):
        function(*arguments)
