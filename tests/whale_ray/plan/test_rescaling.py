"""Another parallelism for stages of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray.configs.errors import UsageError
from whale_ray.configs.settings import Settings
from whale_ray.plan.physical import PhysicalPlan
from whale_ray.plan.planner import plan_unsized
from whale_ray.plan.rescaling import rescale_decisions, rescaled

TIMES = pa.table({"at": pa.array([1, 2], pa.timestamp("us")), "n": [1, 2]})


class Total(whale.Process):
    def on_row(self, row: Any, out: Any) -> None:
        out.emit_row(total=row.n)


@pytest.fixture
def planned() -> PhysicalPlan:
    topology = whale.Topology("rescaled")
    rows = topology.source(whale.sources.iterable([{"n": 1}]), id="rows")
    totals = rows.key_by("n").process(Total, id="totals", parallelism=4)
    totals.filter(whale.col("total") > 0, id="some", parallelism=4).sink(
        whale.sinks.collect(), id="out"
    )
    return plan_unsized(topology.logical_plan(), Settings(), 2)


def stages_of(planned: PhysicalPlan, parallelism: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    again = plan_unsized(rescaled(planned, parallelism), Settings(), 2)
    return {stage.operators: stage.parallelism for stage in again.stages}


@pytest.mark.parametrize("named", ["totals", "some", "out"])
def test_operators_that_are_fused_stay_so(planned: PhysicalPlan, named: str) -> None:
    assert stages_of(planned, {}) == {("rows",): 1, ("totals", "some", "out"): 4}
    assert stages_of(planned, {named: 7}) == {("rows",): 1, ("totals", "some", "out"): 7}


def test_a_plan_that_is_planned_again_has_each_partial_operator_once() -> None:
    topology = whale.Topology("rescaled")
    rows = topology.source(whale.sources.arrow(TIMES), id="rows", event_time="at")
    windows = rows.group_by(whale.window("at", "1 s"))
    windows.top_n(2, by="n", id="top").sink(whale.sinks.collect(), id="top-out")
    by_n = rows.group_by(whale.window("at", "1 s"), "n")
    sums = by_n.agg(whale.functions.count(), id="sums", parallelism=2)
    sums.sink(whale.sinks.collect(), id="sums-out")
    once = plan_unsized(topology.logical_plan(), Settings(), 2)
    ids = [node.id for node in once.logical.nodes]
    assert [one for one in ids if "partial" in one] == ["top.partial", "sums.partial"]
    again = plan_unsized(rescaled(once, {}), Settings(), 2)
    assert [node.id for node in again.logical.nodes] == ids


def test_the_log_of_the_job_that_goes_on_has_what_was_rescaled(planned: PhysicalPlan) -> None:
    again = plan_unsized(rescaled(planned, {"some": 7}), Settings(), 2)
    (step,) = rescale_decisions(planned, again, "rescaled-1", 12)
    assert (step.operator, step.decides, step.value) == ("totals", "dop", 7)
    assert step.numbers == {"dop_before": 4, "epoch": 12}
    assert step.reason == "rescaled from 4: rescaled-1 was stopped, this job goes on"
    assert rescale_decisions(planned, planned, "rescaled-1", 12) == ()


@pytest.mark.parametrize(
    ("parallelism", "message"),
    [
        ({"total": 2}, "no operator 'total' whose parallelism can change; there are 'rows', 'tot"),
        ({"totals": 0}, "the parallelism of 'totals' is 0: it is a whole number, 1 or more"),
        ({"totals": True}, "the parallelism of 'totals' is True"),
        (3, r"^resume\(parallelism=…\) got 3: pass a mapping of the ids of operators to numbers"),
        ({"totals": 2, "some": 3}, "'some' is fused with operators that are to have 2 instances"),
    ],
)
def test_what_makes_no_sense_is_refused(
    planned: PhysicalPlan, parallelism: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        rescaled(planned, parallelism)
