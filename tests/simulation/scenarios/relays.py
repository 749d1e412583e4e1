"""Relays of hosts that share one multicast stream: real multicast streams, links and rings.

What a relay writes and reads lies in its host's memory, with the workers; so it can be killed at
any moment, and another one takes its place.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

from tests.simulation.scenarios.hosts import SimulatedHost
from tests.simulation.scenarios.workload import MS, Load, Producer, Reader
from tests.simulation.simulator import Actions, Send
from whale_ray.configs.settings import MulticastSettings
from whale_ray.multicast.switch_vertex import SwitchVertex
from whale_ray.multicast.tree_messages import (
    HostUnreachable,
    Relocated,
    TreeOrders,
    TreeReport,
)
from whale_ray.multicast.tree_state import (
    TreeState,
)
from whale_ray.multicast.trees import Tree
from whale_ray.plan.hosts import host_name
from whale_ray.relay.multicast_stream import MulticastStream
from whale_ray.relay.multicast_streams import MulticastStreams
from whale_ray.relay.relay_loop import RelayLoop
from whale_ray.relay.watermark_exchange import WatermarkExchange
from whale_ray.transport.doorbell import LAST_WATERMARK_NS, DoorbellBoard
from whale_ray.transport.mirror import MirrorRing, RingTap, make_memory
from whale_ray.transport.retention import Retention
from whale_ray.transport.ring import RingConsumer, RingProducer
from whale_ray.transport.ring_layout import RingLayout
from whale_ray.transport.segment import Segment
from whale_ray.transport.tcp.endpoint import TcpEndpoint

STREAM = 0
CONTROLLER = "controller"
SLEEP_MAX_NS = 50 * MS
UNREACHABLE_AFTER_NS = 2_000 * MS
"""Longer than any misfortune lasts: a relay that waits so long waits for nobody."""
_ORDER_BYTES = 500
"""Approximate size of a message between controller and relays."""

Addresses = dict[int, tuple[str, int]]
"""Where each host's relay listens; the number tells one process from the next."""


class TimedSource:
    """A source that publishes its watermark now and then, up to its end."""

    def __init__(
        self, board: DoorbellBoard, slot: int, ends_ns: int, chance: random.Random
    ) -> None:
        self._board = board
        self._slot = slot
        self._ends_ns = ends_ns
        self._chance = chance
        self.next_ns: int | None = 0
        """When it goes on; None once it has ended."""

    def step(self, now_ns: int) -> None:
        """Publish what is due."""
        if self.next_ns is None or now_ns < self.next_ns:
            return
        has_ended = now_ns >= self._ends_ns
        self._board.set_watermark(self._slot, LAST_WATERMARK_NS if has_ended else now_ns)
        self.next_ns = None if has_ended else now_ns + 1 + self._chance.randrange(10 * MS)


class HostMemory:
    """The workers of a host and what they own; outlives its relays."""

    def __init__(
        self,
        host: int,
        load: Load,
        ring_bytes: int,
        chance: random.Random,
        slot_hosts: tuple[int, ...] = (),
    ) -> None:
        """Make the stream's ring, on the host of its source, or its mirror's memory.

        `slot_hosts` has the hosts of sources that are aligned by their watermarks.
        """
        self.host = host
        self.slot_hosts = slot_hosts
        self.board = DoorbellBoard.create(0, len(slot_hosts), "simulation", kind="private")
        self.timed_sources: list[TimedSource] = []
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

    def publish_watermarks(self, ends_ns: int, chance: random.Random) -> None:
        """Let this host's sources with watermarks begin; they end at `ends_ns`."""
        for slot, host in enumerate(self.slot_hosts):
            if host == self.host:
                self.timed_sources.append(TimedSource(self.board, slot, ends_ns, chance))

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
        endpoint = cast("TcpEndpoint", self)  # a SimulatedHost does what an endpoint does
        watermarks = WatermarkExchange(memory.board, endpoint, memory.slot_hosts, memory.host)
        self.streams = MulticastStreams(
            memory.host,
            endpoint,
            settings,
            dict(addresses),
            watermarks.parents,
            self._tell,
            cpu_ns=lambda: 0,  # a run depends on nothing but its seed
        )
        self._loop = RelayLoop(
            memory.host,
            tuple(host_name(host) for host in sorted(addresses)),
            self,
            self.streams,
            watermarks,
            sleep_max_ns=SLEEP_MAX_NS,
            unreachable_after_ns=UNREACHABLE_AFTER_NS,
            tell=_refuse,
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

    def _tell(self, news: TreeReport) -> None:
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

    def turn(self, now_ns: int) -> int:
        """Take the turn that a relay takes; return how long it may sleep."""
        for source in self.memory.timed_sources:
            source.step(now_ns)
        times = [one.next_ns for one in self.memory.timed_sources if one.next_ns is not None]
        return min([self._loop.turn(now_ns), *(at_ns - now_ns for at_ns in times)])


def _refuse(unreachable: HostUnreachable) -> None:
    raise AssertionError(unreachable.reason)
