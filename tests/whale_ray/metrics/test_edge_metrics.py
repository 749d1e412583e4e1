"""The transports of a running job's edges, and how metrics show them."""

from __future__ import annotations

import json
from dataclasses import replace

import whale_ray as whale
from whale_ray.api.job import Job, JobRunner
from whale_ray.configs.settings import Settings
from whale_ray.metrics.edge_metrics import EdgeMetrics, carriers_as_dict, edge_metrics
from whale_ray.metrics.job_metrics import JobMetrics
from whale_ray.metrics.relay_metrics import RelayMetrics, describe_links
from whale_ray.multicast.trees import chain
from whale_ray.plan.data_path import data_paths
from whale_ray.plan.physical import PhysicalPlan
from whale_ray.plan.planner import plan_unsized
from whale_ray.transport.links.statistics import LinkStatistics

VERBS = "verbs READ on rxe0"


class Echo(whale.Process):
    """Emits what it gets."""

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        out.emit(batch)


def plan_of(hosts: int, route: str = "star") -> PhysicalPlan:
    topology = whale.Topology("carried")
    rows = topology.source(whale.sources.iterable([{"v": 1}]), id="rows")
    kept = rows.filter(whale.col("v") > 0, id="kept").broadcast()
    every = kept.process(Echo, id="every", parallelism=hosts)
    every.local_or_shuffle().process(Echo, id="own", parallelism=hosts).sink(
        whale.sinks.collect(), id="out"
    )
    settings = Settings().with_overrides({"runtime.hosts": hosts, "runtime.route": route})
    return plan_unsized(topology.logical_plan(), settings, hosts)


def link(host: str, way: str, **changes: object) -> LinkStatistics:
    blank = LinkStatistics(host, bool(way), 0, 0, 0, 0, 1, 0, 0, 0, 0)
    return replace(blank, carrier=way.partition(" ")[0], way=way, **changes)


def relay(host: int, *links: LinkStatistics) -> RelayMetrics:
    return RelayMetrics(f"host-{host}", 0.0, links, {})


def test_within_a_worker_nothing_but_calls_and_its_own_memory() -> None:
    assert [
        (one.source, one.target, one.carried_by) for one in edge_metrics(plan_of(1), {}, ())
    ] == [
        ("rows", "kept", "fused"),
        ("kept", "every", "memory of each worker"),
        ("every", "own", "memory of each worker"),
        ("own", "out", "fused"),
    ]


def test_each_link_on_an_edges_way_counts_with_what_carries_it() -> None:
    relays = (
        relay(0, link("host-1", VERBS), link("host-2", "tcp"), link("host-3", "")),
        relay(1, link("host-2", "elsewhere")),
    )
    by_target = {one.target: one for one in edge_metrics(plan_of(4), {}, relays)}
    assert by_target["every"] == EdgeMetrics(
        "kept", "every", 0, "shared memory", {VERBS: 1, "tcp": 1, "no link": 1}
    )
    assert by_target["every"].carried_by == (
        "shared memory; between hosts no link (1 link), tcp (1 link), verbs READ on rxe0 (1 link)"
    )
    assert by_target["own"].carried_by == "memory of each worker"


def test_a_tree_that_was_switched_has_other_links() -> None:
    plan = plan_of(3)
    (ring,) = plan.rings_of_edge(0)
    links = {one.target: one.links for one in data_paths(plan, {ring.id: chain(0, (2, 1))})}
    assert links["every"] == ((0, 2), (2, 1))
    assert {one.target: one.links for one in data_paths(plan)}["every"] == ((0, 1), (0, 2))


def metrics_with(*relays: RelayMetrics) -> JobMetrics:
    edges = edge_metrics(plan_of(2), {}, relays)
    return JobMetrics((), 0.0, 0, relays, edges=edges)


FALLEN = link(
    "host-1",
    "tcp",
    without_verbs="a link over verbs broke before (verbs: flushed)",
    without_verbs_ns=1_500_000_000,
    sent_by_carrier={"verbs": 700, "tcp": 70},
    received_by_carrier={"verbs": 9},
    failures={"verbs: flushed": 1},
)


def test_a_link_that_fell_back_to_tcp_is_marked() -> None:
    assert metrics_with(relay(0, FALLEN)).watch_line() == "host-0 → host-1 FELL BACK to tcp"
    never = replace(FALLEN, sent_by_carrier={"tcp": 70})
    assert metrics_with(relay(0, never), relay(1, link("host-0", VERBS))).watch_line() == ""


def test_links_are_summed_up_with_the_reasons_of_those_without_verbs() -> None:
    told = describe_links((relay(0, FALLEN, link("host-2", VERBS)), relay(1, FALLEN)))
    assert told == (
        "2 by tcp (a link over verbs broke before (verbs: flushed)), 1 by verbs READ on rxe0"
    )


def test_the_plain_form_survives_json() -> None:
    metrics = metrics_with(relay(0, FALLEN))
    told = json.loads(json.dumps(carriers_as_dict(metrics.edges, metrics.relays)))
    assert told["edges"][1] == {
        "from": "kept",
        "to": "every",
        "carried_by": "shared memory; between hosts tcp (1 link)",
    }
    assert told["links"] == [
        {
            "from": "host-0",
            "to": "host-1",
            "carried_by": "tcp",
            "sent_bytes": {"verbs": 700, "tcp": 70},
            "received_bytes": {"verbs": 9},
            "without_verbs": "a link over verbs broke before (verbs: flushed)",
            "without_verbs_s": 1.5,
            "failures": {"verbs: flushed": 1},
        }
    ]


def test_a_notebook_shows_what_carries_edges_and_links() -> None:
    class Running(JobRunner):
        def state(self) -> str:
            return "running"

        def metrics(self) -> JobMetrics:
            return metrics_with(relay(0, FALLEN))

        stop = reconfigure = join = lambda *_: None  # type: ignore[assignment]  # not called

    shown = Job("id", "carried", Running())._repr_html_()
    assert "<td>shared memory; between hosts tcp (1 link)</td>" in shown
    assert "<td>a link over verbs broke before (verbs: flushed)</td>" in shown
