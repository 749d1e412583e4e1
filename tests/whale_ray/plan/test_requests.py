"""Resource requests of operators: the placement of instances, and what workers reserve."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray.configs.settings import Settings
from whale_ray.plan.explain import explain
from whale_ray.plan.placement import StageRequest, fit_requests, place
from whale_ray.plan.planner import plan_unsized
from whale_ray.plan.requests import Cluster, ClusterNode, ResourceRequest, worker_demands


class Keep(whale.Process):
    def on_row(self, row: Any, out: Any) -> None:
        pass


def topology(**asked: Any) -> whale.Topology:
    made = whale.Topology("asking")
    rows = made.source(whale.sources.iterable([{"v": 1}]), id="rows")
    kept = rows.broadcast().process(Keep, id="keep", parallelism=4, **asked)
    kept.sink(whale.sinks.collect(), id="out", parallelism=1)
    return made


PLAIN = ClusterNode("plain", 2, {"CPU": 2.0}, "10.0.0.1")
WITH_GPUS = ClusterNode("gpus", 2, {"CPU": 2.0, "GPU": 4.0}, "10.0.0.2")


def two_hosts() -> Settings:
    return Settings().with_overrides({"runtime.hosts": 2})


def test_instances_go_where_the_gpus_are() -> None:
    plan = plan_unsized(topology(num_gpus=1).logical_plan(), two_hosts(), 4, [PLAIN, WITH_GPUS])
    assert plan.stage_of("keep").instance_worker == (2, 2, 3, 3)
    unasked = plan_unsized(topology().logical_plan(), two_hosts(), 4, [PLAIN, WITH_GPUS])
    assert unasked.stage_of("keep").instance_worker == (0, 1, 2, 3)


def test_a_worker_reserves_what_its_instances_ask_for_together() -> None:
    asked = topology(num_gpus=0.4, num_cpus=0.5, resources={"scanner": 0.3})
    plan = plan_unsized(asked.logical_plan(), Settings(), 1)
    assert worker_demands(plan, 1.0) == [{"CPU": 2.0, "GPU": 2.0, "scanner": 1.2}]
    plan = plan_unsized(topology(num_gpus=0.25).logical_plan(), Settings(), 2)
    assert worker_demands(plan, 1.0) == [{"CPU": 1.0, "GPU": 0.5}] * 2
    assert worker_demands(plan, 0.0) == [{"CPU": 0.0, "GPU": 0.5}] * 2
    plan = plan_unsized(topology(num_cpus=0).logical_plan(), Settings(), 5)
    assert sorted(demand["CPU"] for demand in worker_demands(plan, 1.0)) == [0.0] * 4 + [1.0]


def test_the_plan_of_a_cluster_says_what_is_reserved_where() -> None:
    free = {"plain": {"CPU": 2.0}, "gpus": {"CPU": 1.0, "GPU": 4.0}}
    cluster = Cluster((PLAIN, WITH_GPUS), 1.0, free)
    shown = str(explain(topology(num_gpus=1).logical_plan(), two_hosts(), 4, cluster=cluster))
    table = shown[shown.index("Ray: 2 hosts") :].split("\n\n", maxsplit=1)[0].splitlines()
    rows = [" ".join(line.split()) for line in table[2:]]
    assert rows == [
        "host-0 10.0.0.1 workers 0–1 2 CPU 2 CPU 2 CPU",
        "host-1 10.0.0.2 workers 2–3 2 CPU, 4 GPU 1 CPU, 4 GPU 2 CPU, 4 GPU",
    ]
    assert "each asks Ray for" in shown


def test_resource_requests_without_ray_are_reported_as_without_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    whale.run(topology(num_gpus=1, resources={"scanner": 0.5}))
    assert caplog.messages == [
        "topology 'asking': what 'keep' (1 GPU, 0.5 scanner) asks Ray for has no effect without Ray"
    ]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"num_gpus": -1}, "operator 'keep': num_gpus is -1: pass a number from 0 on"),
        ({"num_cpus": "2"}, "operator 'keep': num_cpus is '2': pass a number from 0 on"),
        (
            {"resources": {"GPU": 1}},
            "operator 'keep': resources has 'GPU': pass Ray's custom resources by name, and "
            "num_cpus= or num_gpus= for CPU and GPU",
        ),
        (
            {"resources": ["scanner"]},
            "operator 'keep': resources is a list: pass a mapping of names and amounts, such "
            "as {'scanner': 1}",
        ),
    ],
)
def test_invalid_amounts_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(whale.errors.TopologyError) as refused:
        topology(**asked)
    assert str(refused.value) == message


@given(st.data())
def test_no_node_gets_more_than_it_has_and_all_is_placed_if_it_fits(data: st.DataObject) -> None:
    has = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    workers_each = data.draw(st.lists(st.integers(1, 3), min_size=len(has), max_size=len(has)))
    parallelisms = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    host_of = [host for host, count in enumerate(workers_each) for _ in range(count)]
    nodes = [ClusterNode(str(host), 1, {"GPU": float(count)}) for host, count in enumerate(has)]
    placed = place(parallelisms, len(host_of))
    requests = [
        StageRequest(f"stage-{stage}", stage, ResourceRequest((("GPU", 1.0),)))
        for stage in range(len(parallelisms))
    ]
    if sum(parallelisms) > sum(has):
        with pytest.raises(whale.errors.ResourceError, match="asks Ray for 1 GPU"):
            fit_requests(placed, requests, host_of, nodes, range(len(host_of)))
        return
    fitted = fit_requests(placed, requests, host_of, nodes, range(len(host_of)))
    used = Counter(host_of[worker] for stage in fitted for worker in stage)
    assert all(used[host] <= count for host, count in enumerate(has))
    assert [len(stage) for stage in fitted] == parallelisms
    assert all(list(stage) == sorted(stage) for stage in fitted)
