"""Trees that adjust themselves in the simulator: when, where to, how, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.whale_ray.lab.simulator.test_simulated_multicast import check
from whale_ray.lab.simulator.arrivals import RateStep, paced, poisson
from whale_ray.lab.simulator.control import ParentSwitch, SwitchUnderWay
from whale_ray.lab.simulator.model import Scenario, SliceCosts
from whale_ray.lab.simulator.run import simulate
from whale_ray.multicast.switch_protocol import SwitchPhase, SwitchRecord
from whale_ray.multicast.switching import change_degree
from whale_ray.multicast.trees import Vertex, non_blocking_tree

US = 1e-6
CONTROL_S = 3e-4
COSTS = SliceCosts(0.0, 5.2 * US, control_s=CONTROL_S)
"""The constant in the authors' published code: 30, 60, 80, 100 k/s afford 6, 3, 2, 1 children."""
STEPS = [RateStep(rate * 1e3, 0.4) for rate in (30, 60, 80, 100, 80)]


def test_the_papers_rate_steps_lead_to_the_degrees_of_the_model() -> None:
    scenario = Scenario(29, COSTS)
    outcome = simulate(scenario, poisson(STEPS, 3))
    check(outcome)
    # 60 k/s afford 3, 80 k/s 2, 100 k/s 1, of at most 5 that a binomial tree uses.
    down = [one for one in outcome.switches if one.degree_after < one.degree_before]
    assert [one.degree_after for one in down] == [3, 2, 1]
    for begin_s, switch in zip((0.4, 0.8, 1.2), down, strict=True):
        assert begin_s < switch.began_s < begin_s + 0.3
        assert switch.reason == "negative scale-down"
        assert 4 * CONTROL_S < switch.duration_s < 0.05
    assert outcome.carried == pytest.approx(1.0, abs=0.03)


def test_less_load_widens_the_tree_again() -> None:
    outcome = simulate(Scenario(29, COSTS), poisson([RateStep(90e3, 1.5), RateStep(20e3, 1.5)], 4))
    check(outcome)
    last = outcome.switches[-1]
    assert (last.degree_after, last.reason) == (5, "active scale-up")
    assert last.began_s > 1.5
    after = outcome.emitted_s > last.ended_s
    latencies = (outcome.received_s - outcome.emitted_s)[after]
    # Five layers, and a queue at half load.
    assert 5 * 5.2 * US <= latencies.mean() < 15 * 5.2 * US


@settings(max_examples=10)
@given(
    rate=st.floats(5e3, 150e3),
    destinations=st.integers(2, 40),
    first=st.integers(1, 6),
)
def test_a_constant_rate_leads_to_one_switch_at_most(
    rate: float, destinations: int, first: int
) -> None:
    scenario = Scenario(destinations, COSTS)
    outcome = simulate(scenario, paced([RateStep(rate, 0.4)]), first)
    check(outcome)
    assert len(outcome.switches) <= 1


def test_a_load_that_no_tree_sustains_is_throttled_and_loses_nothing() -> None:
    scenario = Scenario(9, COSTS, queue_slices=100)
    outcome = simulate(scenario, poisson([RateStep(300e3, 0.3)], 5))
    check(outcome)
    assert outcome.scenario.affordable_degree(300e3) == 1
    assert outcome.held_back_s > 0
    assert outcome.throughput_per_s == pytest.approx(1 / (5.2 * US), rel=0.05)


@pytest.mark.parametrize("control_s", [1e-5, 1e-3, 2e-2])
def test_a_switch_takes_as_long_as_its_messages_and_the_queue(control_s: float) -> None:
    costs = SliceCosts(0.0, 5.2 * US, control_s=control_s)
    outcome = simulate(Scenario(20, costs), poisson([RateStep(20e3, 0.2), RateStep(60e3, 0.4)], 6))
    check(outcome)
    # PREPARE, READY, COMMIT, LEAVE, LEFT, DONE: the answer to a COMMIT at the very least.
    assert outcome.switches
    for switch in outcome.switches:
        assert switch.duration_s >= 4 * control_s


def test_switches_move_as_few_edges_as_the_protocol_plans() -> None:
    outcome = simulate(Scenario(29, COSTS), poisson(STEPS, 3))
    tree = Scenario(29, COSTS).tree()
    for switch in outcome.switches:
        planned = change_degree(tree, switch.degree_after)
        assert switch.moved_edges == len(planned.moves)
        tree = planned.after


def test_the_protocols_vertices_check_who_reads_what() -> None:
    """A vertex that would read past the cut from its old parent is refused by its own machine."""
    tree = non_blocking_tree(0, range(1, 8), 3)
    under_way = SwitchUnderWay(change_degree(tree, 2), 50, 1.0, CONTROL_S, SwitchRecord(tree))
    assert under_way.heard_s == pytest.approx(1.0 + 3 * CONTROL_S)
    before = under_way.heard_s - 1e-4
    passages: dict[Vertex, ParentSwitch] = {
        vertex: ParentSwitch(under_way.heard_s, 50, before) for vertex in under_way.moves
    }
    ended_s, record = under_way.finish(passages)
    # LEAVE, LEFT, DONE follow.
    assert ended_s == pytest.approx(under_way.heard_s + 3 * CONTROL_S)
    assert record.phase is SwitchPhase.STABLE
    assert record.epoch == 50
    assert record.tree.degree == 2


def test_a_late_vertex_delays_the_end_of_the_switch() -> None:
    tree = non_blocking_tree(0, range(1, 8), 3)
    under_way = SwitchUnderWay(change_degree(tree, 2), 50, 1.0, CONTROL_S, SwitchRecord(tree))
    passages: dict[Vertex, ParentSwitch] = {
        vertex: ParentSwitch(under_way.heard_s, 50, 1.5) for vertex in under_way.moves
    }
    ended_s, _ = under_way.finish(passages)
    assert ended_s == pytest.approx(1.5 + 3 * CONTROL_S)


def test_throttling_spreads_what_enters() -> None:
    """Once the tree is as narrow as can be, the source is held to what that carries."""
    scenario = Scenario(4, COSTS, queue_slices=200)
    outcome = simulate(scenario, poisson([RateStep(400e3, 0.3)], 7), 1)
    check(outcome)
    gaps = np.diff(outcome.entered_s[outcome.slices // 2 :])
    assert gaps.mean() == pytest.approx(5.2 * US, rel=0.05)
