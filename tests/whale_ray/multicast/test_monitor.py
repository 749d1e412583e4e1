"""When the tree changes its degree: rules and theorems at their borders, whole runs, both ways."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import SettingsError
from whale_ray.configs.settings import MulticastSettings
from whale_ray.multicast.monitor import (
    PERIOD_MAX_NS,
    PERIOD_MIN_NS,
    Decision,
    Monitor,
    Reason,
    Sample,
    asks_for_scale_down,
    asks_for_scale_up,
    multicast_rate_per_s,
    period_ns,
    scale_down_fits,
    scale_up_pays,
)
from whale_ray.multicast.out_degree import Costs, affordable_degree

QUEUE = 1024.0
WATERLINE = 0.9 * QUEUE
SEND_S = 5.2e-6
MS = 1_000_000
HOSTS = 480


def fluid(monitor: Monitor, rates, *, noise=None, capacity=QUEUE, send_s=SEND_S) -> list[int]:
    """Run one sender as a fluid, a rate per sample, switches of 20 ms; return its degrees."""
    now_ns, queue, ready_ns, target = 0, 0.0, None, monitor.degree
    degrees = [monitor.degree]
    for rate in rates:
        step_ns = monitor.period_ns
        now_ns += step_ns
        offered = rate * (noise() if noise else 1.0) * step_ns / 1e9
        queue = max(0.0, queue + offered - step_ns / 1e9 / (monitor.degree * send_s))
        sample = Sample(now_ns, offered, min(queue, capacity), capacity, 0.0, send_s)
        if ready_ns is not None and now_ns >= ready_ns:
            monitor.ended(now_ns, target)
            degrees.append(target)
            ready_ns = None
        decision = monitor.observe(sample, HOSTS)
        if decision.throttle_to_slices_per_s is not None:
            queue = min(queue, capacity)
        if decision.degree != monitor.degree:
            monitor.began(now_ns)
            target, ready_ns = decision.degree, now_ns + 20 * MS
    return degrees


# --- rules -----------------------------------------------------------------------------------


def test_scale_down_at_the_threshold():
    """ΔL/(l_w - l) ≥ 0.8: from 400 on, l = (l_w·0.8 + 400)/1.8 is the border."""
    border = (0.8 * WATERLINE + 400) / 1.8
    assert asks_for_scale_down(400, border + 0.01, WATERLINE, 0.8)
    assert not asks_for_scale_down(400, border - 0.01, WATERLINE, 0.8)


@given(st.floats(0, QUEUE))
def test_at_or_above_the_waterline_it_always_asks(before):
    """The published code divides by zero there, or finds a negative ratio, and does nothing."""
    assert asks_for_scale_down(before, WATERLINE, WATERLINE, 0.8)
    assert asks_for_scale_down(before, QUEUE, WATERLINE, 0.8)


@given(st.floats(0, WATERLINE - 1), st.floats(0, 1))
def test_a_queue_that_does_not_grow_below_the_waterline_does_not_ask(before, share):
    """The published code never updates l', so that any long queue looks like growth."""
    assert not asks_for_scale_down(before, before * share, WATERLINE, 0.8)


def test_scale_up_at_the_threshold():
    assert asks_for_scale_up(100, 40, 0.6)
    assert not asks_for_scale_up(100, 40.1, 0.6)
    assert not asks_for_scale_up(100, 150, 0.6)
    assert asks_for_scale_up(0, 0, 0.6)
    assert not asks_for_scale_up(0, 1, 0.6)


def test_theorem_4_in_the_form_of_the_design():
    """512 slices of room, growth of 10,000/s: 51.2 ms are the border. The paper's form has v_in."""
    assert scale_down_fits(1024, 512, 110_000, 100_000, 0.0511)
    assert not scale_down_fits(1024, 512, 110_000, 100_000, 0.0512)
    assert scale_down_fits(1024, 512, 90_000, 100_000, 1e9)
    assert not scale_down_fits(1024, 1024, 110_000, 100_000, 1e-9)


def test_theorem_5():
    """γ' = 100, γ = 150 per second, 50 ms: X > 100·150·0.05/50 = 15 deliveries, or 0.1 s."""
    assert scale_up_pays(100, 150, 0.05, 0.101)
    assert not scale_up_pays(100, 150, 0.05, 0.1)
    assert not scale_up_pays(100, 100, 0.0, 1e9)
    assert not scale_up_pays(150, 100, 0.0, 1e9)


def test_the_multicast_rate_follows_the_layers():
    costs = Costs(1e-6, 2e-6)
    assert multicast_rate_per_s(7, 2, costs) == pytest.approx(7 / 9e-6)
    assert multicast_rate_per_s(7, 3, costs) == pytest.approx(7 / 7e-6)
    assert multicast_rate_per_s(0, 3, costs) == 0


@given(st.floats(1, 1024), st.floats(0, 1e9))
def test_a_period_is_a_quarter_of_what_fills_the_queue(capacity, rate):
    period = period_ns(capacity, rate)
    assert PERIOD_MIN_NS <= period <= PERIOD_MAX_NS
    if period > PERIOD_MIN_NS:
        assert period * rate <= capacity * 1e9 / 4 * (1 + 1e-9)


# --- the monitor -----------------------------------------------------------------------------


def test_the_rate_is_smoothed():
    """α = 0.5: 1000, then 0.5·1000 + 0.5·2000; not 0, as in the published code."""
    monitor = Monitor(MulticastSettings(), 2, 0)
    monitor.observe(Sample(100 * MS, 100, 0, QUEUE), HOSTS)
    assert monitor.rate_slices_per_s == pytest.approx(1000)
    monitor.observe(Sample(200 * MS, 200, 0, QUEUE), HOSTS)
    assert monitor.rate_slices_per_s == pytest.approx(1500)


def test_costs_are_averaged():
    monitor = Monitor(MulticastSettings(rate_smoothing=0.75), 2, 0)
    monitor.observe(Sample(1 * MS, 1, 0, QUEUE, 4e-6, 8e-6), HOSTS)
    monitor.observe(Sample(2 * MS, 1, 0, QUEUE), HOSTS)
    assert monitor.costs == Costs(4e-6, 8e-6)
    monitor.observe(Sample(3 * MS, 1, 0, QUEUE, 8e-6, 4e-6), HOSTS)
    assert monitor.costs.serialize_s == pytest.approx(5e-6)
    assert monitor.costs.send_s == pytest.approx(7e-6)


def test_before_anything_arrives_nothing_is_decided():
    monitor = Monitor(MulticastSettings(), 2, 0)
    for tick in range(1, 10):
        found = monitor.observe(Sample(tick * MS, 0, 0, QUEUE), HOSTS)
        assert found == Decision(2, Reason.RATE_UNKNOWN)
    assert monitor.period_ns == PERIOD_MAX_NS


def test_it_scales_down_at_the_papers_rates():
    monitor = Monitor(MulticastSettings(), 9, 0)
    assert fluid(monitor, [80_000] * 400)[-1] == 2


def test_it_scales_up_when_the_load_falls():
    """The published monitor cannot: its ratio is negative whenever a queue shrinks."""
    monitor = Monitor(MulticastSettings(), 1, 0)
    degrees = fluid(monitor, [30_000] * 400)
    assert degrees == [1, affordable_degree(34_500, Costs(0, SEND_S), 0.45 * QUEUE, HOSTS).degree]


def test_the_papers_steps_go_down_and_up_again():
    """30→60→80→100→80 k/s: as often down as the steps ask for, and up at the end."""
    monitor = Monitor(MulticastSettings(rate_hysteresis=0.05, dwell_min_ms=100), 6, 0)
    rates = [1e3 * k for k in (30, 60, 80, 100, 80) for _ in range(600)]
    degrees = fluid(monitor, rates)
    assert degrees[0] == 6 and min(degrees) == 1 and degrees[-1] == 2
    lowest = degrees.index(1)
    assert degrees[: lowest + 1] == sorted(degrees[: lowest + 1], reverse=True)
    assert degrees[lowest:] == sorted(degrees[lowest:])


@given(
    st.floats(100, 180_000), st.integers(1, 9), st.sampled_from([0, 10, 1000]), st.floats(0, 0.9)
)
def test_a_constant_rate_leads_to_at_most_one_switch(rate, degree, dwell_ms, smoothing):
    settings = MulticastSettings(dwell_min_ms=dwell_ms, rate_smoothing=smoothing)
    monitor = Monitor(settings, degree, 0)
    assert len(fluid(monitor, [rate] * 500)) <= 2


@given(st.floats(1_000, 150_000), st.integers(1, 9), st.integers(0, 1000))
def test_noise_within_the_hysteresis_never_makes_it_turn_round(rate, degree, seed):
    """Up or down, but not both: ±5 % of noise against a margin of 15 %."""
    chance = random.Random(seed)
    monitor = Monitor(MulticastSettings(dwell_min_ms=0), degree, 0)
    degrees = fluid(monitor, [rate] * 500, noise=lambda: chance.uniform(0.95, 1.05))
    after_the_first = degrees[1:]
    assert after_the_first == sorted(after_the_first, reverse=True) or len(degrees) <= 2


def test_a_load_that_no_degree_sustains_is_throttled():
    monitor = Monitor(MulticastSettings(), 1, 0)
    found = monitor.observe(Sample(10 * MS, 10_000, QUEUE, QUEUE, 0.0, SEND_S), HOSTS)
    assert found.degree == 1
    assert found.throttle_to_slices_per_s == pytest.approx(1 / SEND_S, rel=0.01)
    assert found.throttle_to_slices_per_s < 1 / SEND_S


def test_a_scale_down_that_comes_too_late_throttles_first():
    """Theorem 4 is not met: a full queue must not get more than the old tree serves."""
    monitor = Monitor(MulticastSettings(), 4, 0)
    found = monitor.observe(Sample(10 * MS, 600, QUEUE, QUEUE, 0.0, SEND_S), HOSTS)
    assert (found.degree, found.reason) == (3, Reason.SCALE_DOWN)
    assert found.throttle_to_slices_per_s == pytest.approx(1 / (4 * SEND_S))


def test_a_queue_that_children_press_back_does_not_shrink_the_degree():
    monitor = Monitor(MulticastSettings(), 3, 0)
    for tick in range(1, 20):
        found = monitor.observe(Sample(tick * 10 * MS, 100, QUEUE, QUEUE, 0.0, SEND_S), HOSTS)
        assert found == Decision(3, Reason.AFFORDABLE)


def test_between_switches_it_dwells_unless_the_waterline_is_reached():
    monitor = Monitor(MulticastSettings(dwell_min_ms=1000), 9, 0)
    monitor.began(1 * MS)
    monitor.ended(2 * MS, 8)
    grown = monitor.observe(Sample(3 * MS, 60, 0.0, QUEUE, 0.0, SEND_S), HOSTS)
    assert grown == Decision(8, Reason.AFFORDABLE)
    grown = monitor.observe(Sample(4 * MS, 60, 600.0, QUEUE, 0.0, SEND_S), HOSTS)
    assert grown == Decision(8, Reason.DWELL)
    grown = monitor.observe(Sample(5 * MS, 60, 1000.0, QUEUE, 0.0, SEND_S), HOSTS)
    assert (grown.degree, grown.reason) == (3, Reason.SCALE_DOWN)


def test_while_a_switch_is_under_way_nothing_is_decided():
    monitor = Monitor(MulticastSettings(), 9, 0)
    monitor.began(1 * MS)
    found = monitor.observe(Sample(3 * MS, 300, QUEUE, QUEUE, 0.0, SEND_S), HOSTS)
    assert (found.degree, found.reason) == (9, Reason.SWITCHING)


def test_the_duration_of_a_switch_is_measured():
    monitor = Monitor(MulticastSettings(switch_prior_ms=50), 2, 0)
    assert monitor.switch_s == 0.05
    monitor.ended(5 * MS, 3)
    assert (monitor.degree, monitor.switches) == (2, 0)
    monitor.began(10 * MS)
    monitor.ended(210 * MS, 3)
    assert (monitor.degree, monitor.switch_s, monitor.switches) == (3, 0.2, 1)
    monitor.began(300 * MS)
    monitor.ended(310 * MS, 3)
    assert (monitor.switch_s, monitor.switches) == (0.2, 1)
    monitor.began(400 * MS)
    monitor.ended(410 * MS, 2)
    assert monitor.switch_s == pytest.approx(0.105)


def test_a_scale_up_that_does_not_pay_is_left():
    settings = MulticastSettings(dwell_min_ms=0, switch_prior_ms=60_000)
    monitor = Monitor(settings, 5, 0)
    found = monitor.observe(Sample(10 * MS, 10, 0, QUEUE, 0.0, SEND_S), HOSTS)
    assert found == Decision(5, Reason.DOES_NOT_PAY)


@pytest.mark.parametrize("destinations", [0, 1])
def test_few_destinations_never_switch(destinations):
    monitor = Monitor(MulticastSettings(), 1, 0)
    for tick in range(1, 20):
        found = monitor.observe(Sample(tick * MS, 1, 0, QUEUE, 0.0, SEND_S), destinations)
        assert found.degree == 1


@pytest.mark.parametrize(
    "sample",
    [
        Sample(0, 1, 1, QUEUE),
        Sample(5, -1, 1, QUEUE),
        Sample(5, 1, -1, QUEUE),
        Sample(5, 1, 1, math.nan),
        Sample(5, math.inf, 1, QUEUE),
    ],
    ids=["time", "arrived", "queue", "capacity", "infinite"],
)
def test_invalid_samples_raise_value_error(sample):
    with pytest.raises(ValueError, match="not a sample"):
        Monitor(MulticastSettings(), 1, 0).observe(sample, 1)


def test_settings_outside_their_range_are_refused():
    with pytest.raises(ValueError, match="1 or more"):
        Monitor(MulticastSettings(), 0, 0)
    with pytest.raises(SettingsError, match="would oscillate"):
        MulticastSettings(queue_target_fraction=0.95)
    with pytest.raises(SettingsError, match="threshold_up"):
        MulticastSettings(threshold_up=0.0)
