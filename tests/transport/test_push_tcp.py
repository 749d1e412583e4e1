"""Push channels between hosts over real loopback sockets: the contract, and broken connections.

Both hosts live in one process here. Before and after each call their endpoints are polled until
both sides know the same, so that the outcome depends on nothing but the calls.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.transport.conformance import ChannelConformance, Ends, Make
from tests.transport.frames import payload, receive, send
from tests.transport.links import Hosts
from tests.transport.test_tcp_conformance import Settled
from whale_ray.transport.channel import Outcome
from whale_ray.transport.push.layout import PushLayout
from whale_ray.transport.push.tcp import TcpPushReceivingEnd, TcpPushSendingEnd

SLOT_BYTES = 256
CHANNEL = 5


class Network:
    """A sending and a receiving host, whoever of them dials."""

    def __init__(
        self,
        layout: PushLayout,
        *,
        sender_dials: bool = False,
        hosts: Hosts | None = None,
        **options: object,
    ):
        # Virtual time passes whenever nothing happens, so no link may count as silent for long.
        self.hosts = hosts or Hosts(silence_timeout_ms=600_000, heartbeat_interval_ms=60_000)
        near = self.hosts.add("near", listens=not sender_dials)
        far = self.hosts.add("far", listens=sender_dials)
        self.sender = TcpPushSendingEnd(near, "far", CHANNEL, layout)
        self.receiver = TcpPushReceivingEnd(far, "near", CHANNEL, layout, **options)
        self.outlet, self.inlet = self.sender._outlet, self.receiver._inlet
        self.hosts.dial(*(("near", "far") if sender_dials else ("far", "near")))
        self.hosts.until(self.up)

    def up(self) -> bool:
        endpoints = self.hosts.endpoints.values()
        return all(one.up for endpoint in endpoints for one in endpoint.statistics())

    def settle(self) -> None:
        self.hosts.until(self._settled)

    def _settled(self) -> bool:
        """Return whether nothing is under way, as both sides see it."""
        word = self.inlet.credits_in_all
        near, far = self.outlet._protocol, self.inlet._protocol
        if (near.returned, near.peer_closed) != (word >> 1, bool(word & 1)):
            return False
        if near.peer_closed:
            return True
        used = self.sender._sender._state[7]  # uses sent
        return far.received == used and (not self.sender._sender._closed or far.end == used)

    def cut(self) -> None:
        """Break every connection; the hosts find out when they poll."""
        for endpoint in self.hosts.endpoints.values():
            for connection in tuple(endpoint._links.values()):
                connection.sock.shutdown(2)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
        self.hosts.close()


@pytest.fixture
def network() -> Iterator:
    """Return a function that makes networks, which are closed at the end."""
    made: list[Network] = []

    def make(slots: int = 8, **options: object) -> Network:
        made.append(Network(PushLayout(slots, SLOT_BYTES), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


class PushBetweenHosts(ChannelConformance):
    """The contract; `network` makes the hosts."""

    memory = "push channel"
    smallest_frame_bytes = SLOT_BYTES

    @pytest.fixture
    def make(self, network) -> Make:
        def build(ring_bytes: int, receivers: int, **options: object) -> Ends:
            assert receivers == 1
            one = network(ring_bytes // SLOT_BYTES, **options)
            return Ends(
                Settled(one.sender, one), [Settled(one.receiver, one)], one.sender.max_frame_bytes
            )

        return build


class TestTcpPush(PushBetweenHosts):
    """Over TCP."""


def send_while_links_break(one: Network, chance: random.Random, messages: int) -> None:
    """Send and receive messages, and cut all connections now and then; none is lost or doubled."""
    sent = received = 0
    while received < messages:
        if chance.random() < 0.02:
            one.cut()
        if chance.random() < 0.5 and sent < messages:
            sent += send(one.sender, payload(sent, chance.randrange(800))) is Outcome.SENT
        one.hosts.poll()
        content = receive(one.receiver)
        if content is not None:
            assert content == payload(received, len(content))
            received += 1
    one.sender.close()
    one.hosts.until(lambda: one.receiver.closed_by_peer and one.sender.delivered)
    assert sum(s.connections for e in one.hosts.endpoints.values() for s in e.statistics()) > 2


@pytest.mark.parametrize("sender_dials", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_broken_connections_lose_and_double_nothing(network, seed, sender_dials):
    send_while_links_break(network(sender_dials=sender_dials), random.Random(seed), 400)
