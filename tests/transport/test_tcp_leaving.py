"""Hosts that hang up, and hosts that are declared dead: what is reported, and what is lost."""

from __future__ import annotations

import pytest

from tests.transport.links import RING_BYTES, STREAM, Source, hosts_fixture
from whale_ray.transport.channel import Outcome

hosts = pytest.fixture(hosts_fixture)
LONG_NS = 60_000_000_000


def test_a_host_that_hung_up_and_reads_nothing_from_here_is_not_reported(hosts):
    """As one that told the successor of a root's relay that it leaves, and was answered."""
    root = hosts.add("root")
    child = hosts.add("child", listens=False)
    source = Source(100, lambda n: 1000 + n, RING_BYTES)
    root.offer(STREAM, source.tap, (), dynamic=True)
    hosts.dial("child", "root")
    assert child.send_control("root", b"leave") is Outcome.SENT
    heard = []
    hosts.until(lambda: any(heard), lambda: heard.append(root.receive_control()))
    child.undial("root")
    hosts.poll(20)
    hosts.clock.advance(LONG_NS)
    assert root.unreachable(hosts.clock.monotonic_ns()) == ()


def test_a_child_that_hung_up_is_reported_while_it_is_to_read_from_here(hosts):
    parent = hosts.add("parent")
    hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    source = Source(100, lambda n: 1000 + n, RING_BYTES)
    hosts.stream(source, "parent", ["child"])
    hosts.until(lambda: hosts.up("child"))
    hosts.endpoints["child"].close()
    hosts.endpoints.pop("child")
    hosts.poll(20)
    hosts.clock.advance(LONG_NS)
    (missed,) = parent.unreachable(hosts.clock.monotonic_ns())
    assert missed.host == "child"


@pytest.mark.parametrize("who", ["parent", "child"])
def test_a_live_host_that_is_declared_dead_loses_a_link_and_no_byte(hosts, who):
    """The report of a death may arrive when the successor's link is up already."""
    hosts.add("parent")
    hosts.add("child")
    hosts.dial("child", "parent")
    source = Source(300, lambda n: 1000 + n, RING_BYTES)
    (target,) = hosts.stream(source, "parent", ["child"])
    other = {"parent": "child", "child": "parent"}[who]
    for count in (50, 100, 150):
        hosts.until(lambda count=count: len(target.received) > count, source.step, target.step)
        hosts.endpoints[who].forget(other)
        if who == "child":
            hosts.dial("child", "parent")
    hosts.until(lambda: target.over, source.step, target.step)
    assert target.received == source.all
