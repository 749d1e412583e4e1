"""Streams between hosts over real loopback sockets do what every channel must do.

The ends of a channel live in one process here. Before and after each call all endpoints are
polled until both sides know the same, so that the outcome depends on nothing but the calls.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transport.conformance import BroadcastConformance, Ends, Make
from tests.transport.links import Hosts
from whale_ray.transport.channel import Channel
from whale_ray.transport.tcp.channel import TcpReceivingEnd, TcpSendingEnd

STREAM = 3


class Settled:
    """A channel's end that lets the network come to rest before and after each call."""

    def __init__(self, end: Channel, network: Network) -> None:
        self._end = end
        self._network = network

    def __getattr__(self, name: str):
        self._network.settle()
        found = getattr(self._end, name)
        if not callable(found):
            return found

        def call(*args: object) -> object:
            try:
                return found(*args)
            finally:
                self._network.settle()

        return call


class Network:
    """One sending host and its children."""

    def __init__(
        self, ring_bytes: int, receivers: int, hosts: Hosts | None = None, **options: object
    ) -> None:
        # Virtual time passes whenever nothing happens, so no link may count as silent for long.
        self.hosts = hosts or Hosts(silence_timeout_ms=600_000, heartbeat_interval_ms=60_000)
        self.children = [f"child-{number}" for number in range(receivers)]
        sender = self.hosts.add("sender")
        poison = bool(options.get("poison_released", False))
        self.sender = TcpSendingEnd(
            sender, STREAM, ring_bytes, self.children, poison_released=poison
        )
        self.receivers = []
        for child in self.children:
            endpoint = self.hosts.add(child, listens=False)
            end = TcpReceivingEnd(endpoint, STREAM, ring_bytes, "sender", **options)
            self.hosts.dial(child, "sender")
            self.receivers.append(end)
        self.hosts.until(self._all_subscribed)

    def _all_subscribed(self) -> bool:
        return all(
            outgoing.sender.subscribed_now for outgoing in self.sender._offer.outgoing.values()
        )

    def settle(self) -> None:
        self.hosts.until(self._settled)

    def _settled(self) -> bool:
        """Return whether nothing is under way, as both sides see it."""
        offer = self.sender._offer
        for receiver, outgoing in zip(self.receivers, offer.outgoing.values(), strict=True):
            mirror, sender = receiver._mirror, outgoing.sender
            if receiver._closed:
                if not outgoing.complete:
                    return False
                continue
            if mirror.published != sender.sent or mirror.finished_at != offer.tap.finished_at:
                return False
            if not mirror.finished and sender.limit != mirror.limit:
                return False
            if sender.sent != offer.tap.head and sender.limit - sender.sent >= mirror.capacity // 2:
                return False
        return True

    def close(self) -> None:
        self.hosts.close()


class LinkConformance(BroadcastConformance):
    """What also holds between hosts, whatever carries their links."""

    def hosts(self) -> Hosts | None:
        """Return the hosts to link; None for the usual ones."""
        return None

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        networks: list[Network] = []

        def build(ring_bytes: int, receivers: int, **options: object) -> Ends:
            network = Network(ring_bytes, receivers, self.hosts(), **options)
            networks.append(network)
            return Ends(
                Settled(network.sender, network),
                [Settled(receiver, network) for receiver in network.receivers],
                network.sender.max_frame_bytes,
            )

        yield build
        for network in networks:
            network.close()


class TestTcp(LinkConformance):
    pass
