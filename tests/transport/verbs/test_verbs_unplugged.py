"""A real device whose network goes down amid a stream, and comes back: one of our own, so as root.

That is all that can be done to soft-RoCE while it is used: taking the device itself away waits in
the kernel until nobody has it open any more.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.transport.links import Hosts
from tests.transport.verbs.conftest import carriers, cut, finish, flow, machine_of, pair
from whale_ray.transport.verbs.library import Library

pytestmark = pytest.mark.rdma

DEVICE, INTERFACE, PEER = "rxe7", "whale-rxe0", "whale-rxe1"
RETRY_MS = 10_000


def run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, timeout=60)


@pytest.fixture
def library() -> Iterator[Library]:
    """Return the library, which finds one device more."""
    found = machine_of("soft-RoCE").library
    if os.geteuid():
        pytest.skip("no RDMA device of our own: only root adds them")
    run(f"ip link add {INTERFACE} type veth peer name {PEER}")
    try:
        run(f"ip addr add 198.51.100.7/24 dev {INTERFACE}")
        run(f"ip link set {PEER} up")
        run(f"ip link set {INTERFACE} up")
        run(f"rdma link add {DEVICE} type rxe netdev {INTERFACE}")
        yield found
    finally:
        run(f"ip link delete {INTERFACE}")  # this removes its RDMA device, too


@pytest.mark.parametrize("data", ["read", "write"])
def test_a_network_that_goes_down_and_comes_back(library, data, caplog):
    hosts = Hosts(
        lambda: library,
        [DEVICE],
        verbs_data=data,
        reconnect_backoff_ms=1,
        reconnect_backoff_max_ms=4,
        silence_timeout_ms=3_000,
        verbs_retry_ms=RETRY_MS,
    )
    try:
        source, target = pair(hosts)
        flow(hosts, source, target)
        with caplog.at_level(logging.WARNING):
            run(f"ip link set {INTERFACE} down")
            hosts.until(lambda: carriers(hosts) == ["tcp", "tcp"], source.step, target.step)
        assert any("it goes on over TCP" in record.getMessage() for record in caplog.records)
        assert any(line.fell_back for end in hosts.endpoints.values() for line in end.statistics())
        run(f"ip link set {INTERFACE} up")
        hosts.clock.advance(RETRY_MS * 1_000_000)
        cut(hosts)
        assert carriers(hosts) == ["verbs", "verbs"]
        finish(hosts, source, target)
    finally:
        hosts.close()
