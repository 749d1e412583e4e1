"""The pass over slices against closed forms, and against the same model played event by event."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.whale_ray.multicast.test_out_degree import mean_queue_slices
from whale_ray.configs.errors import UsageError
from whale_ray.lab.simulator.arrivals import RateStep, all_at_once, paced, poisson
from whale_ray.lab.simulator.model import ROUTES, Scenario, SliceCosts
from whale_ray.lab.simulator.outcome import SimulationOutcome
from whale_ray.lab.simulator.run import simulate
from whale_ray.lab.simulator.shared_cores import simulate_shared

US = 1e-6
COSTS = SliceCosts(serialize_s=7 * US, send_s=5 * US)
ALONE = np.zeros(1)
SEED = 20240


def fixed(destinations: int, route: str, degree: int = 0, **more: object) -> Scenario:
    """Return a scenario whose tree does not change."""
    if route == "non-blocking":
        degree = degree or 2
    given: dict[str, Any] = {"costs": COSTS, "route": route, "degree": degree, **more}
    return Scenario(destinations, **given)


# --- closed forms ---


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("destinations", [2, 7, 30])
def test_a_lone_slice_takes_a_time_unit_per_layer(route: str, destinations: int) -> None:
    scenario = fixed(destinations, route)
    outcome = simulate(scenario, ALONE)
    layers = scenario.tree().depth
    assert outcome.received_s[0] == pytest.approx(COSTS.serialize_s + layers * COSTS.send_s)
    every = [COSTS.serialize_s + COSTS.send_s * one for one in scenario.tree().layers.values()]
    assert outcome.mean_received_s[0] == pytest.approx(np.mean(every[1:]))


@pytest.mark.smoke
def test_every_hop_of_a_chain_adds_all_its_costs() -> None:
    costs = SliceCosts(
        serialize_s=7 * US,
        send_s=5 * US,
        receive_s=3 * US,
        process_s=11 * US,
        turn_s=2 * US,
        wake_s=13 * US,
        settle_s=100 * US,
        produce_s=17 * US,
        worker_wake_s=23 * US,
        delay_s=19 * US,
    )
    outcome = simulate(fixed(9, "chain", costs=costs), ALONE)
    first = (17 + 23 + 13 + 7) * US
    hop = (5 + 2 + 19 + 13 + 3) * US
    assert outcome.received_s[0] == pytest.approx(first + 9 * hop)
    assert outcome.processed_s[0] == pytest.approx(first + 9 * hop + (11 + 23) * US)


@pytest.mark.parametrize(
    ("route", "degree", "source_degree"),
    [("star", 0, 20), ("chain", 0, 1), ("binomial", 0, 5), ("non-blocking", 3, 3)],
)
def test_throughput_is_bounded_by_the_source(route: str, degree: int, source_degree: int) -> None:
    scenario = fixed(20, route, degree)
    bound = 1 / (source_degree * COSTS.send_s + COSTS.serialize_s)
    assert simulate(scenario, all_at_once(2000)).throughput_per_s == pytest.approx(bound)
    assert COSTS.rate_max_slices_per_s(scenario.tree()) == pytest.approx(bound)


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_the_sources_queue_is_m_d_1(load: float) -> None:
    scenario = fixed(4, "star")
    service_s = COSTS.serialize_s + 4 * COSTS.send_s
    outcome = simulate(
        scenario, poisson([RateStep(load / service_s, 200_000 * service_s / load)], 1)
    )
    waiting_s = load * service_s / (2 * (1 - load))
    waited = outcome.sent_s - outcome.emitted_s - service_s
    # About five standard errors at 200,000 slices, whose waiting times depend on each other.
    tolerance = 0.02 / (1 - load)
    assert waited.mean() == pytest.approx(waiting_s, rel=tolerance)
    assert outcome.mean_queue_slices() == pytest.approx(mean_queue_slices(load), rel=tolerance)


def test_the_queue_over_time_has_the_same_mean() -> None:
    outcome = simulate(fixed(4, "star"), poisson([RateStep(30_000, 1.0)], SEED))
    lengths = outcome.queue_slices(np.linspace(0, outcome.emitted_s[-1], 200_001))
    assert lengths.mean() == pytest.approx(outcome.mean_queue_slices(), rel=0.01)
    assert lengths.min() == 0


def test_a_link_slower_than_the_processor_is_the_time_per_child() -> None:
    costs = dataclasses.replace(COSTS, occupancy_s=40 * US)
    assert costs.per_child_s == 40 * US
    outcome = simulate(fixed(5, "star", costs=costs), all_at_once(1000))
    assert outcome.throughput_per_s == pytest.approx(1 / (7 * US + 5 * 40 * US))


def test_an_idle_link_carries_its_burst_at_once_and_no_more() -> None:
    costs = SliceCosts(0.0, 1 * US, occupancy_s=100 * US, burst_s=250 * US)
    # The bucket holds two and a half slices; the rest goes at the link's rate.
    outcome = simulate(fixed(5, "star", costs=costs), ALONE)
    assert outcome.received_s[0] == pytest.approx(5 * 100 * US - 250 * US)
    slow = simulate(fixed(5, "star", costs=costs), all_at_once(500))
    assert slow.throughput_per_s == pytest.approx(1 / (5 * 100 * US))


def test_slices_that_gather_share_the_cost_of_a_turn() -> None:
    costs = SliceCosts(0.0, 1 * US, turn_s=99 * US, wake_s=50 * US)
    far_apart = simulate(fixed(3, "star", costs=costs), paced([RateStep(100, 1.0)]))
    assert far_apart.multicast.mean_s == pytest.approx((50 + 3 * 100 + 50) * US)
    gathered = simulate(fixed(3, "star", costs=costs), all_at_once(20_000))
    assert gathered.throughput_per_s == pytest.approx(1 / (3 * US), rel=0.2)


def test_a_slice_of_another_weight_costs_what_a_slice_of_that_size_does() -> None:
    heavy = dataclasses.replace(COSTS, send_s=9 * US, receive_s=4 * US, produce_s=6 * US)
    light = dataclasses.replace(COSTS, receive_s=1 * US)
    middle = dataclasses.replace(COSTS, send_s=7 * US, receive_s=2.5 * US, produce_s=3 * US)
    emitted = poisson([RateStep(20_000, 0.05)], SEED)
    weighed = simulate(
        fixed(9, "binomial", costs=heavy, fixed=light), emitted, weights=np.full(emitted.size, 0.5)
    )
    plain = simulate(fixed(9, "binomial", costs=middle), emitted)
    assert weighed.received_s == pytest.approx(plain.received_s)


# --- what must hold for every run ---


def check(outcome: SimulationOutcome) -> None:
    """Check that slices are all there, in order, in time, and within the queue."""
    capacity = outcome.scenario.queue_slices
    moments = (outcome.entered_s, outcome.sent_s, outcome.received_s, outcome.processed_s)
    for moment in moments:
        assert np.isfinite(moment).all()
        assert (np.diff(moment) >= 0).all()
    assert (outcome.entered_s >= outcome.emitted_s).all()
    assert (outcome.sent_s > outcome.entered_s).all()
    assert (outcome.received_s > outcome.entered_s).all()
    assert (outcome.mean_received_s <= outcome.received_s + 1e-12).all()
    # Slice k enters when slice k - Q has left, and not before.
    assert (outcome.entered_s[capacity:] >= outcome.sent_s[:-capacity]).all()


scenarios = st.builds(
    lambda destinations, route, queue, times: fixed(
        destinations,
        route,
        queue_slices=queue,
        costs=SliceCosts(*(one * US for one in times)),
    ),
    st.integers(2, 9),
    st.sampled_from(ROUTES),
    st.integers(1, 12),
    st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 50)),
)


@settings(max_examples=40)
@given(scenario=scenarios, rate=st.floats(1e3, 1e6), seed=st.integers(0, 99))
def test_every_slice_reaches_everybody_in_order(scenario: Scenario, rate: float, seed: int) -> None:
    check(simulate(scenario, poisson([RateStep(rate, 200 / rate)], seed)))


@settings(max_examples=25)
@given(
    scenario=scenarios,
    link=st.tuples(st.integers(0, 20), st.integers(0, 30), st.integers(0, 9), st.integers(0, 9)),
    rate=st.floats(1e3, 1e6),
    seed=st.integers(0, 99),
)
def test_events_one_by_one_come_to_the_same(
    scenario: Scenario, link: tuple[int, int, int, int], rate: float, seed: int
) -> None:
    occupancy, burst, delay, produce = (one * US for one in link)
    costs = dataclasses.replace(
        scenario.costs,
        occupancy_s=occupancy,
        burst_s=burst,
        delay_s=delay,
        produce_s=produce,
    )
    scenario = dataclasses.replace(scenario, costs=costs)
    # Whole nanoseconds, which is what events have.
    emitted = np.round(poisson([RateStep(rate, 60 / rate)], seed), 9)
    passed = simulate(scenario, emitted)
    played = simulate_shared(scenario, emitted, cores=100)
    for row in ("entered_s", "sent_s", "received_s", "mean_received_s", "processed_s"):
        assert getattr(played, row) == pytest.approx(getattr(passed, row), abs=2e-9), row


def test_a_seed_gives_the_same_run_and_another_another() -> None:
    scenario = Scenario(12, COSTS)
    one, same, other = (
        simulate(scenario, poisson([RateStep(40_000, 0.1)], seed)).received_s for seed in (1, 1, 2)
    )
    assert (one == same).all()
    assert one.size != other.size or (one != other).any()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("queue", [1, 5, 64])
def test_slow_readers_cause_back_pressure_at_the_source(route: str, queue: int) -> None:
    costs = dataclasses.replace(COSTS, process_s=1e-3)
    outcome = simulate(fixed(8, route, costs=costs, queue_slices=queue), all_at_once(1000))
    check(outcome)
    assert outcome.throughput_per_s == pytest.approx(1e3, rel=0.05)
    lengths = outcome.queue_slices(np.linspace(0, outcome.sent_s[-1], 10_000))
    assert lengths.max() == queue
    assert outcome.held_back_s > 0
    # At most the rings are full, and between source and sink there is one per hop.
    hops = max(outcome.scenario.tree().hops.values())
    under_way = np.arange(1000) - outcome.processed_s.searchsorted(outcome.entered_s, side="right")
    assert under_way.max() <= (hops + 1) * queue


def test_ten_thousand_hosts() -> None:
    scenario = fixed(10_000, "non-blocking", 3)
    outcome = simulate(scenario, poisson([RateStep(20_000, 0.01)], SEED))
    check(outcome)
    floor_s = COSTS.serialize_s + scenario.tree().depth * COSTS.send_s
    assert outcome.received_s[0] - outcome.emitted_s[0] == pytest.approx(floor_s)
    assert outcome.multicast.mean_s >= floor_s * (1 - 1e-9)


# --- few cores for many hosts ---


@pytest.mark.parametrize("cores", [1, 2])
def test_few_cores_bound_the_sum_of_all_work(cores: int) -> None:
    costs = SliceCosts(4 * US, 6 * US, 3 * US, 5 * US)
    outcome = simulate_shared(fixed(10, "chain", costs=costs), all_at_once(400), cores)
    check(outcome)
    work_s = 4 * US + 10 * (6 + 3 + 5) * US
    assert outcome.throughput_per_s == pytest.approx(cores / work_s, rel=0.05)


def test_a_slow_link_needs_no_core() -> None:
    costs = SliceCosts(1 * US, 1 * US, 1 * US, 1 * US, occupancy_s=500 * US)
    emitted = all_at_once(100)
    shared = simulate_shared(fixed(6, "binomial", costs=costs), emitted, 1)
    alone = simulate(fixed(6, "binomial", costs=costs), emitted)
    assert shared.throughput_per_s == pytest.approx(alone.throughput_per_s, rel=0.02)


def test_children_that_share_a_link_all_get_a_slice_late() -> None:
    costs = SliceCosts(0.0, 0.1 * US, occupancy_s=100 * US)
    scenario = fixed(4, "star", costs=costs)
    in_turn = simulate_shared(scenario, ALONE, 9)
    shared = simulate_shared(scenario, ALONE, 9, segment_s=1 * US)
    assert in_turn.mean_received_s[0] == pytest.approx(250 * US, rel=0.01)
    # The link carries as many bytes either way, so the last host gets them at the same time.
    assert shared.received_s[0] == pytest.approx(in_turn.received_s[0], rel=0.01)
    assert shared.mean_received_s[0] == pytest.approx(398.5 * US, rel=0.01)
    busy = simulate_shared(scenario, all_at_once(200), 9, segment_s=30 * US)
    check(busy)
    assert busy.throughput_per_s == pytest.approx(1 / (400 * US), rel=0.02)


@pytest.mark.parametrize("route", ["chain", "binomial"])
def test_relays_that_share_links_carry_as_much(route: str) -> None:
    costs = SliceCosts(0.0, 1 * US, 1 * US, occupancy_s=100 * US, delay_s=5 * US)
    scenario = fixed(8, route, costs=costs, queue_slices=5)
    in_turn = simulate_shared(scenario, all_at_once(300), 99)
    shared = simulate_shared(scenario, all_at_once(300), 99, segment_s=20 * US)
    check(shared)
    assert shared.throughput_per_s == pytest.approx(in_turn.throughput_per_s, rel=0.03)


# --- what cannot be simulated ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Scenario(1, COSTS),
            "1 destinations: one-to-many needs 2 or more, and no more than 100,000 are simulated",
        ),
        (
            lambda: Scenario(2, COSTS, "ring"),  # type: ignore[arg-type]  # what is refused
            "route 'ring' is not known; there are non-blocking, star, chain, binomial",
        ),
        (
            lambda: Scenario(2, COSTS, degree=-1),
            "an out-degree of -1: it must be 1 to 1024, or 0 to adjust itself",
        ),
        (
            lambda: Scenario(2, COSTS, "star", 2),
            "an out-degree of 2 means nothing with route star",
        ),
        (
            lambda: Scenario(2, COSTS, queue_slices=0),
            "a queue of 0 slices: it must hold 1 to 1,024",
        ),
        (
            lambda: SliceCosts(math.nan, 1.0),
            "serialize_s=nan: a cost must be a finite number of seconds, 0 or more",
        ),
        (
            lambda: SliceCosts(1.0, 0.0),
            "send_s=0 on a link without limit: a slice must cost its sender something",
        ),
        (
            lambda: simulate_shared(Scenario(2, COSTS), ALONE, 2),
            "shared cores are simulated for trees of a fixed out-degree: give --degree",
        ),
        (
            lambda: simulate_shared(fixed(2, "star"), ALONE, 0),
            "0 cores: 1 or more are needed",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError) as refused:
        make()
    assert str(refused.value) == message
