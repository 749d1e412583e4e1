"""Every shape of tree, and both addressings, over RDMA queue pairs and nothing else."""

from __future__ import annotations

import pytest

import whale_ray as whale
from tests.whale_ray.hosts.emulated import MARKS, PATIENCE_S, wait_long_for
from tests.whale_ray.hosts.emulated import SETTINGS as EMULATED
from tests.whale_ray.hosts.test_job_trees import Check, has_switched, rows_in
from whale_ray.api.submission import submit

pytestmark = [pytest.mark.rdma, pytest.mark.long, *MARKS]

HOSTS = 4
RATE_PER_S, ROWS = 1000.0, 200_000


def test_every_row_comes_once_by_verbs_alone_whatever_the_tree() -> None:
    topology = whale.Topology("verbs-trees")
    source = whale.sources.poisson(RATE_PER_S, lambda n, _: {"n": n, "pad": n * 3}, limit=ROWS)
    every = topology.source(source, id="rows").broadcast()
    checked = every.process(Check, id="every", parallelism=HOSTS + 1)
    checked.sink(whale.sinks.collect(), id="out")
    settings = {
        **EMULATED,
        "runtime.hosts": HOSTS,
        "runtime.route": "binomial",
        "runtime.addressing": "instance-oriented",
    }
    job = submit(topology, on="processes", workers=HOSTS, settings=settings)
    wait_long_for(job, lambda: rows_in(job, "every") > 0)
    for times, route in enumerate(("star", "chain", "non-blocking"), 1):
        job.set_route(route)
        wait_long_for(job, lambda times=times: has_switched(job, times))
        if route == "star":
            job.set_addressing("worker-oriented")
    rows = rows_in(job, "every")
    wait_long_for(job, lambda: rows_in(job, "every") > rows)
    job.stop(drain=True, timeout_s=PATIENCE_S)
    found = job.results("out").to_arrow().to_pylist()
    assert len({row["seen"] for row in found}) == 1
    assert [row["wrong"] for row in found] == [0] * (HOSTS + 1)
    metrics = job.metrics()
    (edge,) = (one for one in metrics.edges if one.target == "every")
    assert edge.inside == "shared memory"
    assert sum(edge.ways.values()) >= HOSTS - 1
    assert all(way.startswith("verbs READ on rxe") for way in edge.ways), edge.ways
    for relay in metrics.relays:
        for link in relay.links:
            assert set(link.sent_by_carrier) == {"verbs"}, link
            assert link.without_verbs == ""
    assert job.outcome().restarts == 0
