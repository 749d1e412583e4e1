"""Whom a host misses: hosts whose link is needed, and no others. Pure, without a connection."""

from __future__ import annotations

import random
from socket import AddressFamily

import pytest

from tests.transport.links import private_ring
from whale_ray.transport.links.link import Role
from whale_ray.transport.links.neighbours import Neighbours
from whale_ray.transport.links.reachability import Reachability
from whale_ray.transport.mirror import RingTap

CHILD = "child"
REASONS = ["silent", "closed on purpose", "connection reset"]
MS = 1_000_000


@pytest.fixture
def offer_to_child():
    neighbours = Neighbours(8, MS, lambda: 1)
    offer, _ = neighbours.offer(7, RingTap.beside(private_ring()), (), dynamic=True)
    return neighbours, offer


def unreachable(reachability: Reachability, now_ns: int) -> list[tuple[str, int]]:
    return [(one.host, one.silent_ns) for one in reachability.unreachable(now_ns, ())]


@pytest.mark.parametrize("reason", REASONS)
def test_a_child_is_missed_only_as_long_as_it_is_served(offer_to_child, reason):
    neighbours, offer = offer_to_child
    reachability = Reachability(neighbours, (MS, MS), random.Random(1))
    reachability.begin(0)
    reachability.up(CHILD, Role.CHILD)
    reachability.broken(CHILD, Role.CHILD, 10 * MS, reason)
    assert unreachable(reachability, 20 * MS) == [], "its goodbye may have been lost"

    offer.admit(CHILD, 0)
    reachability.up(CHILD, Role.CHILD)
    reachability.broken(CHILD, Role.CHILD, 30 * MS, reason)
    assert unreachable(reachability, 50 * MS) == [(CHILD, 20 * MS)]

    offer.dismiss(CHILD)
    assert unreachable(reachability, 60 * MS) == []


@pytest.mark.parametrize("reason", REASONS)
def test_a_parent_is_missed_whatever_broke_its_link(offer_to_child, reason):
    neighbours, _ = offer_to_child
    reachability = Reachability(neighbours, (MS, MS), random.Random(1))
    reachability.begin(0)
    reachability.dial("parent", (AddressFamily.AF_INET, ("10.0.0.1", 1)), 0)
    reachability.dialled("parent")
    reachability.up("parent", Role.PARENT)
    assert unreachable(reachability, 5 * MS) == []
    reachability.broken("parent", Role.PARENT, 10 * MS, reason)
    assert unreachable(reachability, 20 * MS) == [("parent", 10 * MS)]
