"""The optimizer against Aeolus' equations by hand, and against the best of all plans."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import InputError, UsageError
from whale_ray.optimizer.algorithm import Optimization, _Optimizer, _Pass, optimize
from whale_ray.optimizer.dataflow import (
    Dataflow,
    DataflowEdge,
    DataflowNode,
    Distribution,
    OptimizerLimits,
    SendingCosts,
)
from whale_ray.optimizer.decisions import (
    Choice,
    Decides,
    DecisionLog,
    choices_after,
    log_from_yaml,
    log_to_yaml,
)
from whale_ray.plan.hosts import assign_hosts
from whale_ray.plan.placement import place

US = 1_000.0
FREE = SendingCosts(message_ns=0, byte_ns=0)


def pair(rate_per_s: float, source_us: float, target_us: float, row_bytes: float = 0) -> Dataflow:
    """Return the paper's smallest dataflow: one source, one consumer (section II.1)."""
    return Dataflow(
        (
            DataflowNode("source", source_us * US, rate_per_s=rate_per_s, dop=1),
            DataflowNode("consumer", target_us * US),
        ),
        (DataflowEdge("source", "consumer", row_bytes=row_bytes),),
    )


def made(optimization: Optimization) -> dict[str, tuple[int | None, int | None]]:
    return {name: (one.dop, one.batch_rows) for name, one in optimization.choices.items()}


def test_equation_2_the_consumer_has_the_fewest_instances_that_are_idle_at_times():
    # r_i = 1,000 rows/s of 2.5 ms each are 2.5 seconds of work a second: 3 instances.
    assert made(optimize(pair(1_000, 10, 2_500), FREE))["consumer"] == (3, None)
    # 2 seconds of work a second: two would be busy without a pause, and "dop > ppt · r_i".
    assert made(optimize(pair(1_000, 10, 2_000), FREE))["consumer"] == (3, None)


def test_equation_4_the_source_has_the_smallest_batch_that_is_sent_in_time():
    # A row each 10 us: 2 us to process, 100 bytes of 20 ns; the message costs 50 us.
    # b >= 50 / (10 - 2 - 2) = 8.33
    costs = SendingCosts(message_ns=50 * US, byte_ns=20)
    optimization = optimize(pair(100_000, 2, 1, row_bytes=100), costs)
    assert optimization.choices["source"].batch_rows == 9
    # 9 rows come in 90 us, and take 50 + 9 · 4 = 86.
    rate = next(step for step in optimization.steps if step.decides is Decides.RATE_OUT)
    assert rate.value == 100_000
    assert rate.numbers["busy"] == pytest.approx(86 / 90)


def test_no_batch_where_single_rows_are_sent_in_time():
    # 2 + 3 + 5 <= 10 us
    costs = SendingCosts(message_ns=5 * US, byte_ns=30)
    assert optimize(pair(100_000, 2, 1, row_bytes=100), costs).choices["source"].batch_rows == 1


def test_equation_3_a_source_that_cannot_keep_up_emits_in_the_largest_batches_what_it_can():
    # A row each 10 us, that takes 8 + 4 and its part of 50 us: 5 rows are all that B_max allows.
    costs = SendingCosts(message_ns=50 * US, byte_ns=40)
    optimization = optimize(
        pair(100_000, 8, 1, row_bytes=100), costs, OptimizerLimits(batch_bytes_max=500)
    )
    assert optimization.choices["source"].batch_rows == 5
    assert optimization.limited_by == "source"
    # r_o = 5 / (50 + 5 · 12) us
    assert optimization.throughput == pytest.approx(5 / 110e-6 / 100_000)
    assert optimization.choices["source"].rate_out_per_s == pytest.approx(5 / 110e-6)


def test_a_node_that_not_even_the_largest_batch_helps_gets_more_instances():
    # r_i = 100,000: 4 us a row need one instance (2), but 30 us a message at most 4 rows long more:
    # 4 + 2 + 30 / 4 = 13.5 us, so two instances, who need b >= 30 / (20 - 6) = 2.1
    dataflow = Dataflow(
        (
            DataflowNode("source", 0, rate_per_s=100_000, dop=1),
            DataflowNode("middle", 4 * US),
            DataflowNode("end", 1 * US),
        ),
        (DataflowEdge("source", "middle"), DataflowEdge("middle", "end", row_bytes=100)),
    )
    source_free = SendingCosts(message_ns=30 * US, byte_ns=20)
    limits = OptimizerLimits(batch_bytes_max=400)
    assert made(optimize(dataflow, source_free, limits))["middle"] == (2, 3)


def test_rows_that_go_to_all_instances_cost_each_of_them():
    # Of 12 us a row 10 are shared out; at 100,000 rows/s: 0.2 + 1 / dop < 1, so 2 instances.
    dataflow = Dataflow(
        (
            DataflowNode("source", 0, rate_per_s=100_000, dop=1),
            DataflowNode("match", 10 * US, ppt_each_ns=2 * US),
        ),
        (DataflowEdge("source", "match", Distribution.ALL),),
    )
    optimization = optimize(dataflow, FREE)
    assert made(optimization)["match"] == (2, None)
    assert optimization.cores == pytest.approx(2 * 0.2 + 1)


def test_a_frequent_key_bounds_what_more_instances_help():
    def keyed(share: float) -> Dataflow:
        return Dataflow(
            (
                DataflowNode("source", 0, rate_per_s=100_000, dop=1),
                DataflowNode("count", 20 * US),
            ),
            (DataflowEdge("source", "count", Distribution.KEY, largest_share=share),),
        )

    assert made(optimize(keyed(0.1), FREE))["count"] == (3, None)
    # The instance of the key would have to be busy 0.6 · 2 = 120 % of the time.
    optimization = optimize(keyed(0.6), FREE)
    assert optimization.limited_by == "count"
    assert optimization.throughput == pytest.approx(1 / 1.2)
    assert "busy 120%" in str(optimization.steps[-1]) or any(
        "busy 120%" in step.reason for step in optimization.steps
    )


def test_too_few_cores_first_make_batches_large_and_then_slow_the_sources_down():
    costs = SendingCosts(message_ns=30 * US, byte_ns=0)
    dataflow = pair(100_000, 4, 20, row_bytes=1)
    # Smallest batch: the source is busy all the time; then the message's 30 us hardly count.
    assert optimize(dataflow, costs).cores == pytest.approx(1 + 2, rel=0.1)
    saved = optimize(dataflow, costs, OptimizerLimits(cores=2, batch_bytes_max=1 << 20))
    assert saved.throughput == pytest.approx(2 / 2.4, rel=1e-3)
    assert saved.limited_by == ""
    told = "keep 2.4 cores busy, there are 2; 'consumer' takes the most, 2"
    assert any(told in step.reason for step in saved.steps)


def test_each_host_must_have_the_cores_for_what_is_placed_there():
    """A source beside two of three consumers makes a host too busy, beside two of four it fits."""
    dataflow = pair(100_000, 9, 27)  # the source is busy 90 % on host-0, each consumer 90 %
    limits = OptimizerLimits(cores=6)
    assert made(optimize(dataflow, FREE, limits))["consumer"] == (3, None)
    assert optimize(dataflow, FREE, limits).throughput == 1
    assert made(optimize(dataflow, FREE, OptimizerLimits(6, 2)))["consumer"] == (3, None)
    # Three would be busy 0.9 + 2 · 0.9 of two cores, four 0.9 + 2 · 0.675.
    least = optimize(dataflow, FREE, OptimizerLimits(4, 2))
    assert made(least)["consumer"] == (4, None)
    assert least.throughput == pytest.approx(2 / 2.25, rel=1e-3)
    told = (
        "what is placed on host-0 would keep 2.25 cores busy, it has 2; 'consumer' takes the most"
    )
    assert any(told in step.reason for step in least.steps)
    with pytest.raises(UsageError, match="2 cores cannot be divided among 3 hosts"):
        OptimizerLimits(cores=2, hosts=3)


def test_several_inputs_add_up_and_outputs_of_several_edges_are_all_sent():
    dataflow = Dataflow(
        (
            DataflowNode("left", 0, rate_per_s=1_000, dop=1),
            DataflowNode("right", 0, rate_per_s=2_000, dop=2),
            DataflowNode("join", 100 * US),
            DataflowNode("few", 100 * US),
            DataflowNode("many", 100 * US),
        ),
        (
            DataflowEdge("left", "join", selectivity=4),
            DataflowEdge("right", "join", selectivity=0.5),
            DataflowEdge("join", "few", selectivity=0.1),
            DataflowEdge("join", "many", selectivity=10),
        ),
    )
    choices = optimize(dataflow, FREE).choices
    assert choices["join"].rate_out_per_s == pytest.approx(5_000 * 10.1)
    assert [choices[name].dop for name in ("join", "few", "many")] == [1, 1, 6]


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (("a", "b"), (("a", "b"), ("b", "b")), "there is a cycle among b"),
        (("a", "b"), (), "nobody feeds 'b'; connect it"),
        (("a", "a"), (), "'a' stands for two operators"),
        (("a",), (("a", "c"),), "the edge a → c names no operator with 'c'"),
    ],
)
def test_a_dataflow_that_makes_no_sense_is_refused(nodes, edges, message):
    with pytest.raises(UsageError, match=message):
        Dataflow(
            tuple(
                DataflowNode(name, 1, rate_per_s=None if place else 1, dop=1)
                for place, name in enumerate(nodes)
            ),
            tuple(DataflowEdge(*one) for one in edges),
        )


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (DataflowNode("s", 1, rate_per_s=0, dop=1), "rate_per_s is 0; it must be greater than 0"),
        (DataflowNode("s", 1, rate_per_s=1), "source 's' has no dop"),
        (DataflowNode("s", -1, rate_per_s=1, dop=1), "ppt_ns is -1"),
        (DataflowNode("s", math.nan, rate_per_s=1, dop=1), "ppt_ns is nan"),
        (DataflowNode("s", 1, rate_per_s=1, dop=0), "dop is 0; it must be at least 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(node, message):
    with pytest.raises(UsageError, match=message):
        Dataflow((node,), ())


# --- the best of all plans --------------------------------------------------------------------

DOP_MAX = 5
BATCH_MAX = 6

costs = st.integers(0, 30).map(lambda tenths: tenths * US / 10)


@st.composite
def dataflows(draw: st.DrawFn) -> Dataflow:
    count = draw(st.integers(2, 4))
    sources = draw(st.integers(1, count - 1))
    nodes = [
        DataflowNode(
            str(number),
            draw(costs),
            draw(costs) / 4,
            rate_per_s=draw(st.integers(1, 60)) * 20_000.0 if number < sources else None,
            dop=draw(st.integers(1, 3)) if number < sources else None,
        )
        for number in range(count)
    ]
    edges = []
    for target in range(sources, count):
        others = st.integers(0, target - 1)
        for source in draw(st.sets(others, min_size=1, max_size=2)):
            edges.append(
                DataflowEdge(
                    str(source),
                    str(target),
                    draw(st.sampled_from(Distribution)),
                    draw(st.sampled_from((0.0, 0.25, 1.0, 1.5))),
                    row_bytes=10,
                    largest_share=draw(st.sampled_from((0.0, 0.0, 0.3, 0.7))),
                )
            )
    return Dataflow(tuple(nodes), tuple(edges))


def demand(
    dataflow: Dataflow, costs: SendingCosts, plan: dict[str, tuple[int, int]]
) -> dict[str, float]:
    """Return how busy the busiest instance of each node is, row by row; written independently."""
    rows = {node.id: 0.0 for node in dataflow.nodes}
    busy = {}
    for node in dataflow.in_order:
        dop, batch = plan[node.id]
        here = 0.0
        work = 0.0
        if node.rate_per_s is not None:
            rows[node.id] = node.rate_per_s
            here = node.rate_per_s / dop
        for edge in dataflow.inputs(node.id):
            rate = rows[edge.source] * edge.selectivity
            rows[node.id] += rate
            part = max(1 / dop, edge.largest_share) if edge.distribution == "key" else 1 / dop
            here += rate * part
            work += rate * node.ppt_each_ns if edge.distribution == "all" else 0
        per_row = node.ppt_ns
        for edge in dataflow.outputs(node.id):
            per_row += edge.selectivity * (
                costs.message_ns / batch + edge.row_bytes * costs.byte_ns
            )
        busy[node.id] = (here * per_row + work) / 1e9
    return busy


def is_carried(dataflow: Dataflow, costs: SendingCosts, plan: dict[str, tuple[int, int]]) -> bool:
    processing = demand(dataflow, SendingCosts(0, 0), plan)
    busy = demand(dataflow, costs, plan)
    return all(processing[name] < 1 and busy[name] <= 1 + 1e-9 for name in busy)


def best_plan(dataflow: Dataflow, costs: SendingCosts) -> tuple[int, int] | None:
    """Return the fewest instances, then the fewest rows in batches, of all plans that carry."""
    ranges = [
        itertools.product(
            range(1, DOP_MAX + 1) if node.dop is None else [node.dop],
            range(1, BATCH_MAX + 1) if dataflow.outputs(node.id) else [1],
        )
        for node in dataflow.nodes
    ]
    # Whether a node keeps up depends on its own numbers alone, once all before it do.
    chosen = []
    for node, options in zip(dataflow.nodes, ranges, strict=True):
        rest = {other.id: (DOP_MAX, BATCH_MAX) for other in dataflow.nodes}
        good = [
            option
            for option in options
            if _keeps_up(dataflow, costs, rest | {node.id: option}, node.id)
        ]
        if not good:
            return None
        chosen.append(min(good))
    return sum(dop for dop, _ in chosen), sum(batch for _, batch in chosen)


def _keeps_up(
    dataflow: Dataflow, costs: SendingCosts, plan: dict[str, tuple[int, int]], name: str
) -> bool:
    processing = demand(dataflow, SendingCosts(0, 0), plan)[name]
    return processing < 1 and demand(dataflow, costs, plan)[name] <= 1 + 1e-9


@given(dataflows(), costs, costs)
def test_the_plan_is_the_best_of_all(dataflow, message_ns, byte_ns):
    sending = SendingCosts(message_ns, byte_ns / 50)
    limits = OptimizerLimits(batch_bytes_max=BATCH_MAX * 10, dop_max=DOP_MAX)
    optimization = optimize(dataflow, sending, limits)
    plan = {name: (one.dop or 0, one.batch_rows or 1) for name, one in optimization.choices.items()}
    best = best_plan(dataflow, sending)
    if best is None:
        assert optimization.throughput < 1
        assert optimization.limited_by
        return
    assert optimization.throughput == 1
    assert is_carried(dataflow, sending, plan)
    found = sum(dop for dop, _ in plan.values()), sum(batch for _, batch in plan.values())
    assert found == best


@given(dataflows(), costs, costs, st.none() | st.integers(1, 4))
def test_what_is_predicted_is_the_most_that_any_plan_carries(dataflow, message_ns, byte_ns, cores):
    sending = SendingCosts(message_ns, byte_ns / 50)
    limits = OptimizerLimits(cores=cores, batch_bytes_max=BATCH_MAX * 10, dop_max=DOP_MAX)
    throughput = optimize(dataflow, sending, limits).throughput
    assert 0 < throughput <= 1
    assert _can_carry(dataflow, sending, cores, throughput * 0.999)
    if throughput < 1:
        assert not _can_carry(dataflow, sending, cores, throughput * 1.001)


def _can_carry(
    dataflow: Dataflow, sending: SendingCosts, cores: int | None, throughput: float
) -> bool:
    """Return whether any degrees of parallelism, with the largest batches, carry so much."""
    slower = Dataflow(
        tuple(
            node
            if node.rate_per_s is None
            else DataflowNode(
                node.id, node.ppt_ns, rate_per_s=node.rate_per_s * throughput, dop=node.dop
            )
            for node in dataflow.nodes
        ),
        dataflow.edges,
    )
    fewest = {}
    for node in slower.nodes:
        dops = [node.dop] if node.dop is not None else range(1, DOP_MAX + 1)
        rest = {other.id: (DOP_MAX, BATCH_MAX) for other in slower.nodes}
        good = [
            dop
            for dop in dops
            if _keeps_up(slower, sending, rest | {node.id: (dop, BATCH_MAX)}, node.id)
        ]
        if not good:
            return False
        fewest[node.id] = (min(good), BATCH_MAX)
    return cores is None or _cores(slower, sending, fewest) <= cores * (1 + 1e-9)


def _cores(dataflow: Dataflow, sending: SendingCosts, plan: dict[str, tuple[int, int]]) -> float:
    even = Dataflow(
        dataflow.nodes,
        tuple(
            DataflowEdge(e.source, e.target, e.distribution, e.selectivity, e.row_bytes)
            for e in dataflow.edges
        ),
    )
    return sum(busy * plan[name][0] for name, busy in demand(even, sending, plan).items())


# --- the log ----------------------------------------------------------------------------------


@given(dataflows(), costs, st.none() | st.integers(1, 4))
def test_the_log_can_be_written_read_and_stepped_through(dataflow, message_ns, cores):
    optimization = optimize(dataflow, SendingCosts(message_ns, 1), OptimizerLimits(cores=cores))
    name, steps = log_from_yaml(log_to_yaml("t", optimization.steps), "t.tspec-opt")
    assert (name, steps) == ("t", optimization.steps)
    assert choices_after(steps) == dict(optimization.choices)
    states = [choices_after(steps[:count]) for count in range(len(steps) + 1)]
    assert states[0] == {}
    first = steps[0]
    assert states[1] == {first.operator: Choice(dop=int(first.value))}


def test_a_log_of_nothing_says_so_and_one_of_decisions_can_be_read_again():
    assert DecisionLog("t").choices == {}
    nodes = (DataflowNode("s", 10, rate_per_s=1e5, dop=1), DataflowNode("n", 25_000))
    found = optimize(Dataflow(nodes, (DataflowEdge("s", "n"),)), SendingCosts(1_000, 0))
    log = DecisionLog("t", found.steps)
    assert log.choices["n"].dop == 3
    assert log_from_yaml(log.to_yaml(), "log") == ("t", found.steps)


@pytest.mark.parametrize("value", [".nan", ".inf", "!!int ''", "2026-13-45", "x", "*n"])
def test_a_log_with_a_value_that_is_no_number_is_refused(value):
    text = """\
tspec-opt: 1
topology: &n 2
steps:
- {operator: n, decides: dop, value: 2, formula: f, numbers: {ppt_ns: 3}, reason: r}
"""
    assert log_from_yaml(text, "log")[1][0].numbers == {"ppt_ns": 3}
    with pytest.raises(InputError, match=r"\Alog(, line 4)?: not the log of an opt[^\n]+\Z"):
        log_from_yaml(text.replace("value: 2", f"value: {value}"), "log")


@given(st.integers(1, 12), st.data())
def test_instances_are_taken_to_be_on_the_hosts_where_the_planner_places_them(cores, data):
    """What is busy on each host, if each node keeps as many cores busy as it has instances."""
    hosts = data.draw(st.integers(1, cores))
    dops = data.draw(st.lists(st.integers(1, 15), min_size=1, max_size=5))
    nodes = [DataflowNode(f"n{i}", 0.5e9, rate_per_s=2, dop=dop) for i, dop in enumerate(dops)]
    optimizer = _Optimizer(Dataflow(tuple(nodes), ()), FREE, OptimizerLimits(cores, hosts))
    made = _Pass(cores={f"n{i}": float(d) for i, d in enumerate(dops)})
    made.dops |= {f"n{i}": d for i, d in enumerate(dops)}
    found = optimizer._by_host(made)
    of_worker = assign_hosts(hosts, cores, "star").of_worker
    placed = place(dops, cores)
    for host, (has, busy) in enumerate(found):
        assert has == of_worker.count(host)
        there = sum(of_worker[worker] == host for workers in placed for worker in workers)
        assert sum(busy.values()) == pytest.approx(there if hosts > 1 else sum(dops))
