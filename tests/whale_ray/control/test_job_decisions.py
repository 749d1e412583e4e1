"""The log of decisions on a job: what switches and partial aggregates decide, and its limits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.configs.settings import Settings
from whale_ray.control.job_decisions import JobDecisions
from whale_ray.metrics.counters import InstanceMetrics, MemberCounters
from whale_ray.multicast.tree_state import SwitchReport, TreeLoad
from whale_ray.multicast.trees import chain, star
from whale_ray.optimizer.decisions import Decides, OptimizerDecision
from whale_ray.plan.logical import OperatorKind
from whale_ray.plan.planner import plan
from whale_ray.testing import ListSource

S = 1_000_000_000
BEFORE = OptimizerDecision("rows", Decides.DOP, 1, "dop", {}, "the user has set it")


def planned(**settings: Any):
    topology = whale.Topology("sums")
    columns = whale.Schema.of(key="int64", value="int64", at_ms="int64")
    listed = ListSource([{"key": 1, "value": 2, "at_ms": 3}], schema=columns)
    rows = topology.source(
        listed, id="rows", event_time="at_ms", event_time_unit="ms", max_out_of_order_ms=0
    )
    summed = rows.group_by(whale.window("at_ms", "1 second"), "key").agg(
        whale.functions.sum("value").alias("sum"), id="sums"
    )
    summed.sink(whale.sinks.collect(), id="out")
    return plan(topology.logical_plan(), Settings().with_overrides(settings), 2)


def test_a_switch_of_a_tree_is_a_decision_with_the_numbers_that_led_to_it():
    physical = planned()
    stream = physical.rings[0].id
    load = TreeLoad(1000.0, 2, 5.0, 100.0, 0.0001, "active scale-up")
    switch = SwitchReport(
        stream, "scale-up", chain(0, [1, 2]), star(0, [1, 2]), 3, 4, decided_ns=3 * S, load=load
    )
    kept = JobDecisions(physical, [BEFORE], 1 * S)
    for _ in range(2):  # the same one again is not kept twice
        kept.note_switches([switch])
    first, step = kept.log.steps
    assert first == BEFORE
    assert (step.decides, step.value, step.at_s) == (Decides.OUT_DEGREE, 2, 2.0)
    assert step.operator == physical.edges[physical.rings[0].edge].source_operator
    assert step.numbers["lambda_per_s"] == 1000
    assert step.numbers["t_d_s"] == 0.0001
    assert step.reason == "scale-up: active scale-up"
    again = replace(switch, decided_ns=5 * S)  # the next attempt counts from 1 again
    kept.note_switches([switch, again])
    assert [one.at_s for one in kept.log.steps[1:]] == [2.0, 4.0]


def looks(operator: str, *counts: tuple[int, int, int]) -> list[list[MemberCounters]]:
    found = []
    for rows, out, deltas in counts:
        one = InstanceMetrics(operator, 0, 0, rows_in=rows, rows_out=out, deltas_out=deltas)
        found.append([MemberCounters(0, 0, 0, (one,))])
    return found


def test_a_partial_aggregate_that_steps_aside_and_comes_back_is_kept_each_time_it_changes():
    physical = planned(**{"runtime.aggregation": "auto"})
    (partial,) = (node.id for node in physical.logical.of_kind(OperatorKind.PARTIAL))
    kept = JobDecisions(physical, [], 0)
    seen = looks(
        partial,
        (0, 0, 0),
        (4096, 4000, 4000),  # deltas
        (8192, 8096, 4000),  # rows that are passed on
        (9192, 9096, 4000),
        (19192, 9106, 4010),  # deltas again
    )
    for before, now in pairwise(seen):
        kept.note_merges(before, now, S)
    assert [one.value for one in kept.log.steps] == [1, 0, 1]
    assert kept.log.steps[0].operator == partial
    assert kept.log.steps[1].numbers == {"rows_in": 4096, "deltas_out": 0, "passed_on": 4096}
    assert {one.formula for one in kept.log.steps} == {"rows in / deltas out ≥ 2"}


def test_the_first_look_at_a_partial_aggregate_counts_all_its_rows():
    physical = planned(**{"runtime.aggregation": "auto"})
    (partial,) = (node.id for node in physical.logical.of_kind(OperatorKind.PARTIAL))
    kept = JobDecisions(physical, [], 0)
    (now,) = looks(partial, (4096, 4000, 1000))
    kept.note_merges([], now, S)
    assert [one.numbers for one in kept.log.steps] == [
        {"rows_in": 4096, "deltas_out": 1000, "passed_on": 3000}
    ]


def test_the_oldest_decisions_are_left_out_and_counted():
    kept = JobDecisions(planned(), [BEFORE], 0)
    for second in range(1_010):
        kept.add(BEFORE, second * S)
    assert len(kept.log.steps) == 1_001
    assert kept.log.steps[0].at_s is None
    assert kept.log.steps[-1].at_s == pytest.approx(1_009)
    assert kept.log.left_out == 10
