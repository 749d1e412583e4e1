"""Relays of hosts that share one multicast stream: real multicast streams, links and rings.

What a relay writes and reads lies in its host's memory, with the workers; so it can be killed at
any moment, and another one takes its place.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

from tests.simulation.scenarios.hosts import SimulatedHost
from tests.simulation.scenarios.workload import Load, Producer, Reader
from tests.simulation.simulator import Actions, Send
from whale_ray.configs.settings import MulticastSettings
from whale_ray.multicast.switch_vertex import SwitchVertex
from whale_ray.multicast.tree_messages import Relocated, TreeNews, TreeOrders
from whale_ray.multicast.tree_state import (
    TreeState,
)
from whale_ray.multicast.trees import Tree
from whale_ray.plan.hosts import host_name
from whale_ray.relay import multicast_stream
from whale_ray.relay.multicast_stream import MulticastStream
from whale_ray.relay.multicast_streams import MulticastStreams
from whale_ray.transport.mirror import MirrorRing, RingTap, make_memory
from whale_ray.transport.retention import Retention
from whale_ray.transport.ring import RingConsumer, RingProducer
from whale_ray.transport.ring_layout import RingLayout
from whale_ray.transport.segment import Segment
from whale_ray.transport.tcp.endpoint import TcpEndpoint

STREAM = 0
CONTROLLER = "controller"
_ORDER_BYTES = 500
"""Approximate size of a message between controller and relays."""

Addresses = dict[int, tuple[str, int]]
"""Where each host's relay listens; the number tells one process from the next."""


class HostMemory:
    """The workers of a host and what they own; outlives its relays."""

    def __init__(self, host: int, load: Load, ring_bytes: int, chance: random.Random) -> None:
        """Make the stream's ring, on the host of its source, or its mirror's memory."""
        self.host = host
        self.producer: Producer | None = None
        self.retention: Callable[[], Retention | None] = lambda: None
        """Makes what the source's relay retains beyond the ring."""
        self.kept: Retention | None = None
        self.readers: list[Reader] = []
        readers = chance.choice((1, 1, 2))
        layout = RingLayout(ring_bytes, readers + 1)
        if host == 0:
            segment = Segment.create(layout.total_bytes, "ring", "simulation", "private")
            ring = RingProducer(segment, layout, poison_released=True)
            self.segment = segment.share()  # the producer closes its own at the end
            self.producer = Producer(ring, load, chance)
        else:
            label = f"mirror of {host}"
            self.segment, _ = make_memory(ring_bytes, readers + 1, "simulation", label, "private")
        self.tap_place = readers
        for number in range(readers):
            consumer = RingConsumer(self.segment.share(), number)
            consumer.open()
            where = f"{host_name(host)}, reader {number}"
            self.readers.append(Reader(consumer, load, chance, where))

    def tap(self, *, resume: bool) -> RingTap:
        """Tap the source's ring."""
        return RingTap(self.segment.share(), self.tap_place, resume=resume)

    def new_retention(self) -> Retention | None:
        """Return an empty retention; what the one before it had is lost."""
        self.forget()
        self.kept = self.retention()
        return self.kept

    def forget(self) -> None:
        """Lose what a relay retained."""
        if self.kept is not None:
            self.kept.close()
            self.kept = None


class Relay(SimulatedHost):
    """One relay process."""

    def __init__(
        self,
        memory: HostMemory,
        chance: random.Random,
        settings: MulticastSettings,
        addresses: Addresses,
        tree: Tree,
        state: TreeState | None,
    ) -> None:
        """Serve the stream; `state` has the tree as it is if another relay was there before."""
        super().__init__(host_name(memory.host), chance)
        self.memory = memory
        self.readers = memory.readers
        self.producers = [] if memory.producer is None else [memory.producer]
        self.streams = MulticastStreams(
            memory.host,
            cast("TcpEndpoint", self),  # a SimulatedHost does what an endpoint does
            settings,
            dict(addresses),
            (),
            self._tell,
            cpu_ns=lambda: 0,  # a run depends on nothing but its seed
        )
        self.stream = self._open(tree, state)
        self.streams.add(self.stream, 0, is_root=memory.host == tree.root)

    def _open(self, tree: Tree, state: TreeState | None) -> MulticastStream:
        """As `StreamOpener` does."""
        memory, resume = self.memory, state is not None
        links = cast("TcpEndpoint", self)
        if memory.host == tree.root:
            retention = memory.new_retention()
            tap = memory.tap(resume=resume)
            offer = self.offer(STREAM, tap, dynamic=True, retention=retention)
            vertex = SwitchVertex.of(memory.host, tree)
            if state is not None:
                vertex = SwitchVertex.root_from(state.record, 0, offer.held_from, offer.head)
            return MulticastStream(STREAM, vertex, offer, None, links)
        mirror = MirrorRing.over(memory.segment, poison_released=True)
        incoming = self.subscribe(STREAM, mirror, None)
        tap = RingTap.of(mirror, memory.tap_place, resume=resume)
        offer = self.offer(STREAM, tap, dynamic=True)
        vertex = SwitchVertex.of(memory.host, tree)
        if state is not None:
            epoch, received = state.record.last_epoch, mirror.published
            vertex = SwitchVertex(memory.host, tree.root, None, epoch=epoch, received=received)
        return MulticastStream(STREAM, vertex, offer, incoming, links)

    def _tell(self, news: TreeNews) -> None:
        self.connector.actions.append(Send(CONTROLLER, news, _ORDER_BYTES))

    def relocated(self, host: int, address: tuple[str, int]) -> None:
        """Note that a host's relay is a new process; the next tick handles it."""
        self.streams.order(Relocated(host, address))

    def receive(self, sender: str, message: object, now_ns: int) -> Actions:
        """Take what the controller orders, or what happens to a connection."""
        if isinstance(message, TreeOrders):
            self.streams.order(message)
            return self.tick(now_ns)
        return super().receive(sender, message, now_ns)

    def look_around(self, now_ns: int) -> bool:
        """As `relay.Relay` does: take the other relays' messages and the controller's orders."""
        while (received := self.receive_control()) is not None:
            host, packed = received
            assert packed[:1] == multicast_stream.TAG
            self.streams.receive_from(int(host.rpartition("-")[2]), packed[1:])
        self.streams.turn(now_ns)
        return self.streams.may_have_changed

    def next_due_ns(self, now_ns: int) -> int:
        """Return when there will be something to do."""
        due_ns = super().next_due_ns(now_ns)
        return max(now_ns + 1, min(due_ns, self.streams.next_due_ns))
