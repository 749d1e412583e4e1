"""Hosts that sleep as relays do: one turn for each wake-up, then sleep until the doorbell rings.

Real sockets, real threads. Nothing else would wake them within the patience of these tests: no
heartbeat is due, so a ring that is lost shows.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from tests.transport.links import (
    ADDRESS,
    PATIENCE_S,
    RING_BYTES,
    SECRET,
    STREAM,
    Hosts,
    Source,
    hosts_fixture,
    take,
)
from whale_ray.configs.settings import TransportSettings
from whale_ray.transport.clock import SystemClock
from whale_ray.transport.doorbell import Doorbell
from whale_ray.transport.links.handshake import Identity
from whale_ray.transport.links.link import Role
from whale_ray.transport.mirror import MirrorRing, RingTap
from whale_ray.transport.tcp.endpoint import TcpEndpoint
from whale_ray.transport.verbs.library import Library

HOUR_NS = 3_600_000_000_000
QUIET = TransportSettings(heartbeat_interval_ms=60_000, silence_timeout_ms=600_000)
pytestmark = pytest.mark.usefixtures("no_leaks")
hosts = pytest.fixture(hosts_fixture)


class RestingHost:
    """An endpoint in a thread of its own, and what its turns do besides polling."""

    def __init__(
        self,
        name: str,
        settings: TransportSettings = QUIET,
        load_verbs: Callable[[], Library] | None = None,
    ) -> None:
        self.bell = Doorbell.private()
        self.clock = SystemClock()
        self.endpoint = TcpEndpoint(
            Identity("job", 1, 1, name),
            SECRET,
            settings,
            self.clock.monotonic_ns,
            random.Random(name),
            self.bell,
            load_verbs=load_verbs,
        )
        self.step: Callable[[], bool] = bool
        self.over = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self.endpoint.watch()
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self.over:
                self.bell.rest(self._turn)
        except BaseException as error:
            self.failure = error
            raise

    def _turn(self) -> int:
        endpoint, now_ns = self.endpoint, self.clock.monotonic_ns()
        endpoint.poll(now_ns)
        if self.step() or self.over or endpoint.unfinished or not endpoint.arm(now_ns):
            return 0
        # Delayed grants are due within milliseconds, everything else within a minute.
        return max(0, min(HOUR_NS, endpoint.next_due_ns - now_ns))

    def stop(self) -> None:
        self.over = True
        self.bell.ring()
        self._thread.join(PATIENCE_S)
        self.endpoint.close()
        assert not self._thread.is_alive()
        assert self.failure is None


def reader(mirror: MirrorRing, line: int, bell: Doorbell, relay: Doorbell) -> tuple[list, Callable]:
    """Return what a worker's thread receives, and what the thread does."""
    consumer = mirror.consumer(line, relay)
    received: list[bytes] = []

    def read() -> None:
        while not consumer.closed_by_peer:
            if not bell.wait(HOUR_NS, lambda: consumer.available() or consumer.closed_by_peer):
                return
            received.extend(take(consumer))

    return received, read


def test_no_ring_is_lost_between_hosts_that_take_one_turn_for_each_wake():
    pass_along_a_chain([RestingHost(name) for name in ("first", "second", "third")], 2000)


def pass_along_a_chain(hosts: list[RestingHost], frames: int) -> None:
    """Send `frames` along three hosts.

    The rings are so small that all hosts wait for each other all the time.
    """
    first, second, third = hosts
    source = Source(frames, lambda number: number * 37 % 9000)
    first.endpoint.offer(STREAM, source.tap, ["second"])
    bells = [Doorbell.private() for _ in range(2)]
    middle = MirrorRing.create(RING_BYTES, 2, "test", "middle", [bells[0]], kind="private")
    last = MirrorRing.create(RING_BYTES, 1, "test", "last", [bells[1]], kind="private")
    read_middle, middle_reads = reader(middle, 0, bells[0], second.bell)
    read_last, last_reads = reader(last, 0, bells[1], third.bell)
    second.endpoint.subscribe(STREAM, middle, "first")
    second.endpoint.offer(STREAM, RingTap.of(middle, 1), ["third"])
    third.endpoint.subscribe(STREAM, last, "second")
    second.endpoint.dial("first", first.endpoint.listen(ADDRESS))
    third.endpoint.dial("second", second.endpoint.listen(ADDRESS))

    def fill() -> bool:
        before = source.sent
        source.step()
        return source.sent > before

    first.step = fill
    threads = [threading.Thread(target=read, daemon=True) for read in (middle_reads, last_reads)]
    for one in (*threads, first, second, third):
        one.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for host in (first, second, third):
        host.stop()
    assert read_middle == source.all
    assert read_last == source.all


def test_what_was_asked_for_since_the_last_poll_is_unfinished(hosts):
    parent, child = hosts.add("parent"), hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    hosts.until(lambda: hosts.up("child"))
    hosts.until(lambda: not parent.unfinished and not child.unfinished)
    child.send_control("parent", b"a question")
    assert child.unfinished
    heard = []
    hosts.until(lambda: any(heard), lambda: heard.append(parent.receive_control()))
    assert heard[-1] == ("child", b"a question")
    hosts.until(lambda: not parent.unfinished and not child.unfinished)


def test_only_a_waiting_host_is_woken_for_room(hosts: Hosts):
    """Each acknowledgement of the network makes room, but wakes no host by itself."""
    parent, child = hosts.add("parent"), hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    source = Source(3, lambda _: 1 << 22, ring_bytes=1 << 25)
    (target,) = hosts.stream(source, "parent", ["child"])
    hosts.until(lambda: "child" in parent._neighbours.offers[STREAM].outgoing)
    hosts.until(lambda: parent._neighbours.offers[STREAM].outgoing["child"].sender.subscribed_now)
    connection = parent._links["child", Role.CHILD]
    assert connection.writable
    assert not connection.told_of_room
    source.step()
    for _ in range(1000):
        parent.poll()
        if not connection.writable:
            break
    assert connection.told_of_room
    hosts.until(lambda: target.over, target.step)
    assert target.received == source.all
    assert connection.writable
    assert not connection.told_of_room
    assert not child._links["parent", Role.PARENT].told_of_room
