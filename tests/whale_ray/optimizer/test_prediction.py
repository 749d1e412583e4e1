"""Costs out of trials, and predictions, against sums that are done by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.optimizer.dataflow import Dataflow, DataflowEdge, DataflowNode, SendingCosts
from whale_ray.optimizer.fitting import StageCosts, StageWork, fit_costs
from whale_ray.optimizer.prediction import PlannedEdge, PlannedStage, predict
from whale_ray.optimizer.rates import Arrivals, NodeLoad

COSTS = st.floats(0, 1e6)


def worked(costs: StageCosts, rows: float, received: float, sent: float) -> StageWork:
    """Return what a stage does that has exactly these costs."""
    work = StageWork(0, rows, received, sent)
    return StageWork(costs.cpu_ns(work), rows, received, sent)


@given(COSTS, COSTS, COSTS)
def test_costs_are_found_again(row_ns, receive_ns, send_ns):
    """Three trials that differ in their messages tell three costs apart."""
    costs = StageCosts(row_ns + 1, receive_ns, send_ns)
    trials = [
        worked(costs, 1000, 10, 20),
        worked(costs, 1000, 1000, 300),
        worked(costs, 500, 100, 500),
    ]
    found = fit_costs(trials)
    for work in trials:
        assert found.cpu_ns(work) == pytest.approx(work.cpu_ns, rel=1e-6)


@given(COSTS, COSTS, COSTS, COSTS, st.integers(2, 64), st.integers(1, 64))
def test_what_each_instance_spends_is_told_by_a_trial_with_another_number(
    row_ns, receive_ns, send_ns, each_ns, instances, planned
):
    """Two instances that follow the watermarks spend twice what one does; their rows are shared."""
    costs = StageCosts(row_ns + 1, receive_ns, send_ns, each_ns)

    def work(rows: float, received: float, sent: float, instances: int) -> StageWork:
        counts = StageWork(0, rows, received, sent, instances)
        return StageWork(costs.cpu_ns(counts), rows, received, sent, instances)

    trials = [
        work(1000, 10, 20, instances),
        work(1000, 1000, 300, instances),
        work(500, 100, 500, instances),
        work(1000, 10, 20, 1),
    ]
    found = fit_costs(trials)
    of_another = work(1000, 50, 30, planned)
    assert found.cpu_ns(of_another) == pytest.approx(of_another.cpu_ns, rel=1e-4)


def test_a_trial_that_was_cut_short_counts_less():
    """It says twice of what the others do."""
    costs = StageCosts(50, 80, 20)
    counts = ((10, 20), (100, 50), (500, 90), (900, 40))
    trials = [worked(costs, 1000, *messages) for messages in counts]
    short = replace(trials[0], cpu_ns=2 * trials[0].cpu_ns)
    errors = [
        abs(fit_costs([*trials, replace(short, weight=weight)]).cpu_ns(short) - trials[0].cpu_ns)
        for weight in (1.0, 0.1, 1e-9)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3 * trials[0].cpu_ns < errors[0]


@given(st.lists(st.floats(0.5, 2), min_size=4, max_size=4))
def test_no_cost_is_negative_whatever_was_measured(noise):
    trials = [
        StageWork(factor * (1000 * 50 + messages * 80), 1000, messages, messages)
        for factor, messages in zip(noise, (10, 100, 500, 1000), strict=True)
    ]
    found = fit_costs(trials)
    assert min(found.row_ns, found.receive_ns, found.send_ns) >= 0
    errors = [found.cpu_ns(work) / work.cpu_ns - 1 for work in trials]
    nothing_for_messages = fit_costs([StageWork(w.cpu_ns, w.rows, 0, 0) for w in trials])
    others = [nothing_for_messages.cpu_ns(work) / work.cpu_ns - 1 for work in trials]
    assert np.square(errors).sum() <= np.square(others).sum() * (1 + 1e-9)


@given(st.floats(1, 1e12), st.integers(1, 10**9), st.integers(1, 10**6), st.integers(1, 10**6))
def test_of_a_single_trial_all_is_the_cost_of_rows(cpu_ns, rows, received, sent):
    found = fit_costs([StageWork(cpu_ns, rows, received, sent)])
    assert (found.receive_ns, found.send_ns) == (0, 0)
    assert found.row_ns == pytest.approx(cpu_ns / rows)


def test_a_stage_that_did_nothing_costs_nothing():
    assert fit_costs([StageWork(0, 0, 0, 0)]) == StageCosts(0, 0, 0)


def two_stages(target_workers: tuple[int, ...], batch_rows: float, *, to_all: bool = False):
    """Return a source that reads 1,000 rows at once, and a reader: 1, 2 µs a row, 10 a message."""
    stages = (
        PlannedStage("source", StageCosts(1_000, 0, 10_000), 1.0, (0,), rows_at_once=1_000),
        PlannedStage("reader", StageCosts(2_000, 10_000, 0), 1.0, target_workers),
    )
    return stages, (PlannedEdge(0, 1, 1.0, to_all, batch_rows),)


def test_the_busiest_worker_limits_the_throughput():
    stages, edges = two_stages((1,), batch_rows=10)
    found = predict(stages, edges, cores=2, wtl_ns=1e6)
    assert found.worker_ns == pytest.approx({0: 1_000 + 10_000 / 10, 1: 2_000 + 10_000 / 10})
    assert found.rows_per_s == pytest.approx(1e9 / 3_000)


def test_too_few_cores_limit_it_together():
    stages, edges = two_stages((1,), batch_rows=10)
    found = predict(stages, edges, cores=1, wtl_ns=1e6)
    assert found.rows_per_s == pytest.approx(1e9 / 5_000)


def test_a_batch_for_two_workers_is_two_messages_and_a_single_row_one():
    ten = predict(*two_stages((0, 1), batch_rows=10), cores=2, wtl_ns=1e6)
    assert sum(ten.worker_ns.values()) == pytest.approx(3_000 + 2 * 10_000 / 5)
    single = predict(*two_stages((0, 1), batch_rows=1), cores=2, wtl_ns=1e6)
    assert sum(single.worker_ns.values()) == pytest.approx(3_000 + 2 * 10_000)


def test_rows_for_all_are_sent_once_and_received_by_each_worker():
    found = predict(*two_stages((0, 1), batch_rows=10, to_all=True), cores=2, wtl_ns=1e6)
    assert sum(found.worker_ns.values()) == pytest.approx(3_000 + 1_000 + 2 * 1_000)


def test_what_a_row_costs_each_instance_is_due_as_often_as_there_are_instances():
    source = PlannedStage("source", StageCosts(1_000, 0, 0), 1.0, (0,))
    for workers, each in (((1,), {1: 2_500}), ((0, 1, 1), {0: 1_500, 1: 3_000})):
        reader = PlannedStage("reader", StageCosts(1_500, 0, 0, each_ns=1_000), 1.0, workers)
        edge = PlannedEdge(0, 1, 1.0, False, 10)
        found = predict((source, reader), (edge,), cores=2, wtl_ns=1e6)
        expected = {0: 1_000.0, 1: 0.0}
        for worker, spent_ns in each.items():
            expected[worker] += spent_ns
        assert found.worker_ns == pytest.approx(expected)


@pytest.mark.parametrize(("spread", "messages"), [(0, 1), (0.5, 1.5), (1, 2)])
def test_a_slice_whose_rows_are_all_for_one_worker_is_one_message(spread, messages):
    stages, _ = two_stages((0, 1), batch_rows=10)
    edge = PlannedEdge(0, 1, 1.0, False, 10, spread=spread)
    found = predict(stages, (edge,), cores=2, wtl_ns=1e6)
    assert sum(found.worker_ns.values()) == pytest.approx(3_000 + 20_000 * messages / 10)


def test_rows_of_several_messages_are_sent_together_if_they_were_in_the_trials():
    """The reader gets slices of 1,000 rows; of two of them, the rows that follow are sent."""
    stages = (
        PlannedStage("source", StageCosts(1_000, 0, 0), 1.0, (0,), rows_at_once=1_000),
        PlannedStage("reader", StageCosts(0, 0, 0), 1.0, (0,)),
        PlannedStage("sink", StageCosts(0, 0, 0), 0.5, (0,)),
    )
    for batch_rows, sent in ((1e9, 1_000), (700, 700)):
        edges = (
            PlannedEdge(0, 1, 1.0, False, 1e9),
            PlannedEdge(1, 2, 0.5, False, batch_rows, gathers=2),
        )
        found = predict(stages, edges, cores=1, wtl_ns=1e3)
        assert found.slice_rows == pytest.approx((1_000, sent))


def test_a_batch_is_no_larger_than_what_follows_from_a_message_or_comes_in_time():
    stages = (
        PlannedStage("source", StageCosts(1_000, 0, 0), 1.0, (0,), rows_at_once=100),
        PlannedStage("rare", StageCosts(0, 0, 0), 1.0, (0,)),
        PlannedStage("sink", StageCosts(0, 0, 0), 0.01, (0,)),
    )
    edges = (PlannedEdge(0, 1, 1.0, False, 1e9), PlannedEdge(1, 2, 0.01, False, 1e9))
    found = predict(stages, edges, cores=1, wtl_ns=1e6)
    assert found.rows_per_s == pytest.approx(1e6)
    assert found.slice_rows == pytest.approx((1_000, 10))  # 1 ms of rows; of each 1,000 rows ten
    short = predict(stages, edges, cores=1, wtl_ns=1e3)
    assert short.slice_rows == pytest.approx((100, 1))


def test_rows_that_are_held_back_come_at_once_but_in_no_more_than_a_batch():
    """Two instances of a window let 400 rows go at once, so 200 each; a batch has 1e9 or 50."""
    stages = (
        PlannedStage("source", StageCosts(1_000, 0, 0), 1.0, (0,)),
        PlannedStage("window", StageCosts(0, 0, 0), 1.0, (0, 0)),
        PlannedStage("sink", StageCosts(0, 40_000, 0), 0.01, (0,)),
    )
    for batch_rows, sent in ((1e9, 200), (50, 50)):
        edges = (
            PlannedEdge(0, 1, 1.0, False, 1),
            PlannedEdge(1, 2, 0.01, False, batch_rows, held_rows=400),
        )
        found = predict(stages, edges, cores=1, wtl_ns=1)
        assert found.slice_rows == pytest.approx((1, sent))
        assert found.worker_ns[0] == pytest.approx(1_000 + 0.01 / sent * 40_000)


def test_latency_has_the_wait_for_a_batch_and_no_more_than_wtl():
    stages, edges = two_stages((1,), batch_rows=101)
    slow = predict(stages, edges, cores=2, wtl_ns=5e6, rate_per_s=1_000)
    assert 5e6 <= slow.latency_ns < 8e6
    fast = predict(stages, edges, cores=2, wtl_ns=5e6, rate_per_s=100_000)
    assert fast.latency_ns - slow.latency_ns < 0


def test_received_messages_count_for_the_optimizer():
    """In batches of 4 rows, each of 2 instances gets a message of each batch; of 8, every other."""
    node = DataflowNode("n", ppt_ns=100, receive_ns=1_000)
    edge = DataflowEdge("s", "n")
    arrivals = Arrivals.of([(edge, 1e5)], [4])
    load = NodeLoad(node, arrivals, (), SendingCosts(0, 0))
    assert load.processing(2) == pytest.approx(1e5 * 100 / 2 / 1e9 + 1e5 / 4 * 1_000 / 1e9)
    assert load.processing(8) == pytest.approx(1e5 * 100 / 8 / 1e9 + 1e5 / 8 * 1_000 / 1e9)


def test_what_a_row_costs_each_instance_is_not_shared_out_by_the_optimizer():
    node = DataflowNode("n", ppt_ns=1_000, progress_ns=200)
    load = NodeLoad(node, Arrivals(spread_per_s=1e6), (), SendingCosts(0, 0))
    assert load.processing(1) == pytest.approx(1.0 + 0.2)
    assert load.processing(4) == pytest.approx(1.0 / 4 + 0.2)
    assert load.cores(4, 1) == pytest.approx(1.0 + 4 * 0.2)


def test_a_node_s_own_cost_of_a_message_counts_instead_of_the_general_one():
    nodes = (DataflowNode("s", 10, rate_per_s=1e5, dop=1, message_ns=5_000), DataflowNode("n", 10))
    edge = DataflowEdge("s", "n")
    Dataflow(nodes, (edge,))
    load = NodeLoad(nodes[0], Arrivals(spread_per_s=1e5), (edge,), SendingCosts(1, 0))
    assert load.busy(1, 1) == pytest.approx(1e5 * (10 + 5_000) / 1e9)
