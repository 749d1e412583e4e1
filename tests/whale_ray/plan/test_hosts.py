"""Which host a worker lives on, and the routes of streams between hosts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import SettingsError
from whale_ray.multicast.trees import (
    Route,
)
from whale_ray.plan.hosts import (
    HostLayout,
    assign_hosts,
)
from whale_ray.plan.streams import RingSpec, StreamPlan

ROUTES: tuple[Route, ...] = ("star", "chain", "binomial", "non-blocking")


def test_workers_are_spread_in_blocks() -> None:
    layout = assign_hosts(3, 7, "star")
    assert layout.of_worker == (0, 0, 0, 1, 1, 2, 2)
    assert layout.names == ("host-0", "host-1", "host-2")
    assert layout.workers_on(1) == (3, 4)
    assert layout.hosts_of([6, 0, 1]) == (0, 2)
    assert assign_hosts(0, 3, "star").count == 1


def counts(workers: int, *weights: int) -> list[int]:
    """Return how many workers each host gets, given the hosts' weights."""
    layout = assign_hosts(len(weights), workers, "star", weights)
    return [len(layout.workers_on(host)) for host in range(len(weights))]


def test_hosts_get_workers_by_their_weights() -> None:
    assert counts(16, 2, 14) == [2, 14]
    assert counts(8, 2, 14) == [1, 7]
    assert counts(32, 2, 14) == [4, 28]
    assert counts(7, 4, 4, 4) == [3, 2, 2]
    assert counts(3, 1, 100, 1) == [1, 1, 1]
    assert counts(4, 0, 8) == [1, 3]
    assert counts(4, 0, 0) == [2, 2]
    assert assign_hosts(2, 4, "chain", (1, 3)).of_worker == (0, 1, 1, 1)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(0, 60))
def test_no_host_is_left_out_or_gets_more_than_its_capacity(weights: list[int], more: int) -> None:
    workers = len(weights) + more
    shares = counts(workers, *weights)
    assert sum(shares) == workers
    assert min(shares) >= 1
    by_weight = sorted(zip(weights, shares, strict=True))
    for (lighter, less), (heavier, most) in pairwise(by_weight):
        assert less <= most or lighter == heavier
    if workers <= sum(weights):
        assert all(n <= max(1, weight) for n, weight in zip(shares, weights, strict=True))


def test_fewer_workers_than_hosts_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"runtime\.hosts=4, but there are only 3 workers"):
        assign_hosts(4, 3, "star")


def test_the_trees_of_all_routes() -> None:
    layouts = {route: HostLayout(tuple(range(8)), route) for route in ROUTES}
    assert layouts["star"].tree(1, [0, 1, 3]).parents == {3: 1, 0: 1}
    assert layouts["chain"].tree(1, [0, 1, 3]).parents == {3: 1, 0: 3}
    assert layouts["chain"].tree(1, [1]).parents == {}
    assert layouts["binomial"].tree(0, range(8)).children[0] == (1, 2, 4)
    assert layouts["non-blocking"].tree(0, range(8)).children[0] == (1, 2, 4)
    capped = HostLayout(tuple(range(8)), "non-blocking", degree=2)
    assert capped.tree(0, range(8)).children[0] == (1, 2)


@st.composite
def plans(draw: st.DrawFn) -> StreamPlan:
    workers = draw(st.integers(1, 12))
    hosts = assign_hosts(draw(st.integers(1, workers)), workers, draw(st.sampled_from(ROUTES)))
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
            forwards = plan.is_multicast(ring) or bool(plan.children_of(ring, host))
            assert (relay in members) == forwards
            assert all(plan.host_of(member) == host for member in members)
            assert plan.host_of(plan.writer_on(ring, host)) == host
            readers += [member for member in members if member < plan.workers]
        assert sorted(readers) == list(ring.consumer_workers)
    assert plan.ring_bytes_total == sum(4096 * (1 + len(plan.parents_of(r))) for r in plan.rings)
