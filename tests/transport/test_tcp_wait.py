"""A loop that only sockets wake sleeps on them; connections within one machine stay small."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.transport.links import Hosts, hosts_fixture
from whale_ray.transport.channel import Outcome
from whale_ray.transport.tcp.sockets import (
    NOT_SENT_BYTES_MAX,
    fit_within_machine,
    prepare,
    within_machine_bytes,
)

LONG_NS = 600_000_000_000


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    yield from hosts_fixture(silence_timeout_ms=600_000, heartbeat_interval_ms=60_000)


def test_wait_ends_when_there_is_something_to_do_and_takes_nothing_away(hosts: Hosts):
    parent = hosts.add("parent")
    child = hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    hosts.until(lambda: hosts.up("parent", "child"))
    while hosts.poll():
        pass
    assert parent.send_control("child", b"now") is Outcome.SENT
    assert parent.poll()
    for _ in range(3):
        child.sockets.wait(LONG_NS)  # the test would run into its time limit if nothing ended this
    assert child.poll()
    assert child.receive_control() == ("parent", b"now")


def test_wait_lasts_no_longer_than_told(hosts: Hosts):
    endpoint = hosts.add("alone")
    for timeout_ns in (0, 1000):
        endpoint.sockets.wait(timeout_ns)
    assert not endpoint.poll()


@pytest.mark.parametrize(("address", "within"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_buffers_are_fitted_within_a_machine_and_short_to_others(address: str, within: bool):
    buffer_bytes = 1 << 20
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialled = socket.create_connection(listener.getsockname(), source_address=(address, 0))
        accepted, _ = listener.accept()
        with closing(dialled), closing(accepted):
            for sock in (dialled, accepted):
                prepare(sock, 1000)
                before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
                assert fit_within_machine(sock, buffer_bytes) == within
                after = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
                unsent = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
                assert (after >= buffer_bytes // 2) if within else (after == before)
                assert unsent == (2 * buffer_bytes if within else NOT_SENT_BYTES_MAX)


def test_many_hosts_on_a_machine_get_larger_buffers():
    assert within_machine_bytes(0, 0) == within_machine_bytes(0, 4) == 512 << 10
    assert within_machine_bytes(0, 5) == within_machine_bytes(0, 31) == 2 << 20
    assert within_machine_bytes(12_345, 31) == 12_345


def test_a_connection_that_has_gone_is_left_alone():
    sock = socket.socket()
    assert not fit_within_machine(sock, 1 << 20)  # never connected
    sock.close()
    assert not fit_within_machine(sock, 1 << 20)
