"""Endpoints, rings and streams between hosts for tests: real loopback sockets, time by hand."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from whale_ray.configs.settings import TransportSettings
from whale_ray.transport.channel import Outcome
from whale_ray.transport.clock import SystemClock, VirtualClock
from whale_ray.transport.links.handshake import Identity
from whale_ray.transport.mirror import MirrorRing, RingTap
from whale_ray.transport.ring import RingConsumer, RingProducer
from whale_ray.transport.ring_layout import RingLayout
from whale_ray.transport.segment import Segment
from whale_ray.transport.tcp.endpoint import TcpEndpoint
from whale_ray.transport.verbs.carriers import Load

SECRET = bytes(range(32))
ADDRESS = "127.0.0.1"
STREAM = 7
RING_BYTES = 1 << 16
PATIENCE_S = 60
"""What a busy machine may take for a step that needs milliseconds."""


def payload(number: int, size: int) -> bytes:
    """Return `size` bytes that only frame `number` of that size has."""
    return random.Random(f"{number}/{size}").randbytes(size)


def private_ring(
    ring_bytes: int = RING_BYTES, readers: int = 1, *, poison: bool = True
) -> RingProducer:
    """Return a ring's sending end over private memory, whose readers attach later."""
    layout = RingLayout(ring_bytes, readers)
    segment = Segment.create(layout.total_bytes, "ring", "test", "private")
    return RingProducer(segment, layout, poison_released=poison)


def put(producer: RingProducer, content: bytes) -> Outcome:
    """Send a copy of `content`."""
    return producer.put_copy(np.frombuffer(content, np.uint8))


def take(consumer: RingConsumer) -> list[bytes]:
    """Return copies of all frames that are there."""
    contents = []
    while (frame := consumer.get()) is not None:
        contents.append(frame.data.tobytes())
        consumer.release_buffer(frame)
    return contents


class Source:
    """A ring with a tap that fills itself with numbered frames."""

    def __init__(self, frames: int, sizes: Callable[[int], int], ring_bytes: int = RING_BYTES):
        self.producer = private_ring(ring_bytes)
        self.tap = RingTap.beside(self.producer)
        self._frames = frames
        self._sizes = sizes
        self._ready = b""
        self._ready_number = -1
        self.sent = 0
        self.back_pressured = 0

    def content(self, number: int) -> bytes:
        return payload(number, self._sizes(number))

    @property
    def all(self) -> list[bytes]:
        """Everything that will have been sent."""
        return [self.content(number) for number in range(self._frames)]

    def step(self, until: int | None = None) -> None:
        """Send what fits, up to frame `until`; close behind the last frame."""
        while self.sent < (self._frames if until is None else until):
            if self._ready_number != self.sent:
                self._ready, self._ready_number = self.content(self.sent), self.sent
            if put(self.producer, self._ready) is not Outcome.SENT:
                self.back_pressured += 1
                return
            self.sent += 1
        if self.sent == self._frames:
            self.producer.close()


class Target:
    """A mirror with one reader that collects what it gets."""

    def __init__(self, ring_bytes: int = RING_BYTES, readers: int = 1):
        self.mirror = MirrorRing.create(
            ring_bytes, readers, "test", "mirror", kind="private", poison_released=True
        )
        self.consumer = self.mirror.consumer(0)
        self.received: list[bytes] = []

    def step(self) -> None:
        self.received += take(self.consumer)

    @property
    def over(self) -> bool:
        return self.consumer.closed_by_peer


class Hosts:
    """Endpoints by name, all polled by one thread; the clock is virtual.

    With `load_verbs` and `devices` they find RDMA devices, and take turns with these.
    """

    def __init__(
        self,
        load_verbs: Load | None = None,
        devices: Sequence[str] = ("",),
        **settings: object,
    ) -> None:
        self.load_verbs = load_verbs
        self.devices = devices
        self.clock = VirtualClock(1_000_000_000)
        self.settings = TransportSettings(**settings)
        self.endpoints: dict[str, TcpEndpoint] = {}
        self.addresses: dict[str, tuple[str, int]] = {}

    def add(
        self,
        host: str,
        *,
        listens: bool = True,
        secret: bytes = SECRET,
        identity: Identity | None = None,
        hosts: Collection[str] | None = None,
    ) -> TcpEndpoint:
        """Make an endpoint for `host`, which listens unless told otherwise."""
        endpoint = TcpEndpoint(
            identity or Identity("job", 1, 1, host),
            secret,
            dataclasses.replace(
                self.settings, rdma_device=self.devices[len(self.endpoints) % len(self.devices)]
            ),
            self.clock.monotonic_ns,
            random.Random(host),
            hosts=hosts,
            load_verbs=self.load_verbs,
        )
        self.endpoints[host] = endpoint
        if listens:
            self.addresses[host] = endpoint.listen(ADDRESS)
        return endpoint

    def dial(self, child: str, parent: str) -> None:
        """Let `child` dial `parent`."""
        self.endpoints[child].dial(parent, self.addresses[parent])

    def stream(
        self, source: Source, parent: str, children: Collection[str], stream: int = STREAM
    ) -> list[Target]:
        """Send `source` from `parent` to all `children`, which have dialled it."""
        self.endpoints[parent].offer(stream, source.tap, children)
        targets = [Target(source.tap.capacity) for _ in children]
        for child, target in zip(children, targets, strict=True):
            self.endpoints[child].subscribe(stream, target.mirror, parent)
        return targets

    def poll(self, times: int = 1) -> bool:
        """Poll all endpoints in turn, and let the virtual time pass while nothing happens."""
        moved = False
        for _ in range(times):
            busy = [endpoint.poll() for endpoint in self.endpoints.values()]
            if not any(busy):
                self.clock.advance(500_000)
            moved |= any(busy)
        return moved

    def until(self, done: Callable[[], bool], *steps: Callable[[], object]) -> None:
        """Poll, and take `steps` in between, until `done`; fail if it takes too long."""
        clock = SystemClock()
        deadline_ns = clock.monotonic_ns() + PATIENCE_S * 1_000_000_000
        while not done():
            self.poll()
            for step in steps:
                step()
            assert clock.monotonic_ns() < deadline_ns, "it does not come to an end"

    def up(self, *hosts: str) -> bool:
        """Return whether all links of `hosts` stand."""
        now_ns = self.clock.monotonic_ns()
        return all(
            not self.endpoints[host].unreachable(now_ns) and self.endpoints[host].statistics()
            for host in hosts
        )

    def close(self) -> None:
        for endpoint in self.endpoints.values():
            endpoint.close()


def hosts_fixture(**settings: object) -> Iterator[Hosts]:
    """Yield `Hosts` and close them; for fixtures."""
    hosts = Hosts(**settings)
    yield hosts
    hosts.close()
