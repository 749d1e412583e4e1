"""Which host a worker lives on, and the routes of streams between hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import SettingsError
from whale_ray.plan.hosts import HostLayout, Route, lay_hosts
from whale_ray.plan.streams import RingSpec, StreamPlan

ROUTES: list[Route] = ["star", "chain"]


def test_workers_are_spread_in_blocks() -> None:
    layout = lay_hosts(3, 7, "star")
    assert layout.of_worker == (0, 0, 0, 1, 1, 2, 2)
    assert layout.names == ("host-0", "host-1", "host-2")
    assert layout.workers_on(1) == (3, 4)
    assert layout.hosts_of([6, 0, 1]) == (0, 2)
    assert lay_hosts(0, 3, "star").count == 1


def test_fewer_workers_than_hosts_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"runtime\.hosts=4, but there are only 3 workers"):
        lay_hosts(4, 3, "star")


def test_a_star_and_a_chain() -> None:
    star, chain = (HostLayout((0, 1, 2, 3), route) for route in ROUTES)
    assert star.parents(1, [0, 1, 3]) == {0: 1, 3: 1}
    assert chain.parents(1, [0, 1, 3]) == {3: 1, 0: 3}
    assert chain.parents(1, [1]) == {}


@st.composite
def plans(draw: st.DrawFn) -> StreamPlan:
    workers = draw(st.integers(1, 12))
    hosts = lay_hosts(draw(st.integers(1, workers)), workers, draw(st.sampled_from(ROUTES)))
    worker = st.integers(0, workers - 1)
    readers = st.sets(worker, min_size=1).map(lambda found: tuple(sorted(found)))
    pairs = draw(st.lists(st.tuples(worker, readers), max_size=8))
    rings = (RingSpec(i, 0, by, to, 4096) for i, (by, to) in enumerate(pairs))
    return StreamPlan(workers, tuple(rings), hosts)


@given(plans())
def test_every_reader_is_served_on_its_own_host(plan: StreamPlan) -> None:
    """Each host with readers gets a stream once, along a tree from its origin."""
    for ring in plan.rings:
        parents, origin = plan.parents_of(ring), plan.origin_of(ring)
        assert set(parents) | {origin} == {origin, *plan.hosts.hosts_of(ring.consumer_workers)}
        for host in parents:
            steps = 0
            while host != origin:
                host = parents[host]  # noqa: PLW2901  # up the tree
                steps += 1
                assert steps <= plan.hosts.count
        readers = []
        for host in {origin, *parents}:
            members = plan.members_reading(ring, host)
            relay = plan.relay_of(host)
            assert (relay in members) == bool(plan.children_of(ring, host))
            assert all(plan.host_of(member) == host for member in members)
            assert plan.host_of(plan.writer_on(ring, host)) == host
            readers += [member for member in members if member < plan.workers]
        assert sorted(readers) == list(ring.consumer_workers)
    assert plan.ring_bytes_total == sum(4096 * (1 + len(plan.parents_of(r))) for r in plan.rings)
