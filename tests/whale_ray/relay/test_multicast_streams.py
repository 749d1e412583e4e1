"""MulticastStreams of three hosts in a chain over real links, driven by hand in virtual time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transport.links import STREAM, Hosts, Source, Target, hosts_fixture
from whale_ray.configs.settings import MulticastSettings
from whale_ray.multicast import vertex_wire
from whale_ray.multicast.floors import Acknowledgement
from whale_ray.multicast.switch_messages import Leave
from whale_ray.multicast.switch_vertex import SwitchVertex
from whale_ray.multicast.tree_messages import Relocated, TreeReport
from whale_ray.multicast.trees import chain
from whale_ray.plan.hosts import host_name
from whale_ray.relay.multicast_stream import TAG, MulticastStream
from whale_ray.relay.multicast_streams import QUIET_TICK_NS, TICK_NS, MulticastStreams
from whale_ray.transport.mirror import RingTap

pytestmark = pytest.mark.usefixtures("no_leaks")
TREE = chain(0, (1, 2))
ROOT, MIDDLE, LEAF = range(3)
FOREVER_NS = 1 << 62


class Chain:
    """The hosts, and what their multicast streams tell the controller."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.source = Source(1000, lambda number: 500 + number % 7)
        self.targets = [Target(readers=2), Target(readers=2)]
        self.news: list[list[TreeReport]] = [[], [], []]
        for host in range(3):
            hosts.add(host_name(host))
        addresses = {host: hosts.addresses[host_name(host)] for host in range(3)}
        settings = MulticastSettings()
        self.streams = [
            MulticastStreams(
                host,
                hosts.endpoints[host_name(host)],
                settings,
                addresses,
                (),
                self.news[host].append,
                cpu_ns=lambda: 0,
            )
            for host in range(3)
        ]
        for host in range(3):
            self.streams[host].add(self._stream(host), self.now_ns, is_root=host == ROOT)

    def _stream(self, host: int) -> MulticastStream:
        endpoint = self.hosts.endpoints[host_name(host)]
        if host == ROOT:
            tap, incoming = self.source.tap, None
        else:
            mirror = self.targets[host - 1].mirror
            tap, incoming = RingTap.of(mirror, 1), endpoint.subscribe(STREAM, mirror, None)
        offer = endpoint.offer(STREAM, tap, dynamic=True)
        return MulticastStream(STREAM, SwitchVertex.of(host, TREE), offer, incoming, endpoint)

    @property
    def now_ns(self) -> int:
        return self.hosts.clock.monotonic_ns()

    def turn(self) -> None:
        """Let all relays do what they do in a turn, but for the sleep."""
        for host, streams in enumerate(self.streams):
            endpoint = self.hosts.endpoints[host_name(host)]
            while (received := endpoint.receive_control()) is not None:
                name, packed = received
                assert streams.receive_from(int(name.removeprefix("host-")), packed[len(TAG) :])
            streams.turn(self.now_ns)

    def finish(self) -> None:
        """Carry the whole stream to both readers, and let everything come to rest."""
        steps = [target.step for target in self.targets]
        self.hosts.until(
            lambda: all(target.over for target in self.targets),
            self.source.step, *steps, self.turn,
        )  # fmt: skip
        for _ in range(10):  # acknowledgements, a host further up each time
            self.hosts.until(lambda: not any(map(self.awaits_acknowledgement, range(3))), self.turn)
            self.hosts.poll()
            self.turn()

    def awaits_acknowledgement(self, host: int) -> bool:
        return self.streams[host]._streams[STREAM].has_unsent_acknowledgement

    def loads(self, host: int) -> int:
        return sum(len(one.loads) for one in self.news[host])


@pytest.fixture
def relays() -> Iterator[Chain]:
    for hosts in hosts_fixture(silence_timeout_ms=600_000):
        chain = Chain(hosts)
        yield chain


def test_the_stream_passes_and_its_end_is_acknowledged(relays):
    relays.finish()
    assert [target.received for target in relays.targets] == [relays.source.all] * 2


def test_a_host_at_rest_is_due_at_its_tick_alone(relays):
    relays.finish()
    for _ in range(3):
        relays.hosts.clock.advance(QUIET_TICK_NS)
        relays.turn()
    for host in (MIDDLE, LEAF):
        due_ns = relays.streams[host].next_due_ns
        assert relays.now_ns + TICK_NS < due_ns <= relays.now_ns + QUIET_TICK_NS
    assert relays.streams[ROOT].next_due_ns < relays.now_ns + QUIET_TICK_NS, "it reports"


def test_the_tick_repeats_the_acknowledgement_in_the_same_turn(relays):
    relays.finish()
    relays.hosts.clock.advance(QUIET_TICK_NS)
    relays.streams[LEAF].turn(relays.now_ns)
    assert not relays.awaits_acknowledgement(LEAF)
    parent = relays.hosts.endpoints[host_name(MIDDLE)]
    received: list[object] = []
    relays.hosts.until(lambda: any(received), lambda: received.append(parent.receive_control()))
    stream, message = vertex_wire.unpack(received[-1][1][len(TAG) :])
    assert (stream, type(message)) == (STREAM, Acknowledgement)


def test_a_forwarder_reports_what_passes_and_falls_silent_with_the_stream(relays):
    reporter = relays.streams[MIDDLE]._reporters[STREAM]
    reporter._reports_until_ns = FOREVER_NS  # as if its queue to a child had just been full
    relays.finish()
    relays.hosts.clock.advance(QUIET_TICK_NS)
    relays.turn()
    reported = relays.loads(MIDDLE)
    assert reported > 0
    assert relays.loads(LEAF) == 0
    root_reported = relays.loads(ROOT)
    for _ in range(5):
        relays.hosts.clock.advance(QUIET_TICK_NS)
        relays.turn()
    assert relays.loads(MIDDLE) == reported
    assert relays.loads(ROOT) == root_reported + 5, "the source's host reports always"


def test_orders_and_leave_may_change_the_tree_and_an_acknowledgement_does_not(relays):
    relays.finish()
    streams, now_ns = relays.streams[MIDDLE], relays.now_ns
    streams.turn(now_ns)
    assert not streams.may_have_changed
    acknowledgement = streams._streams[STREAM].vertex.acknowledgement
    assert streams.receive_from(LEAF, vertex_wire.pack(STREAM, acknowledgement))
    streams.turn(now_ns)
    assert not streams.may_have_changed
    streams.order(Relocated(LEAF, relays.hosts.addresses[host_name(LEAF)]))
    streams.turn(now_ns)
    assert streams.may_have_changed
    streams.turn(now_ns)
    assert not streams.may_have_changed
    leave = Leave(term=0, epoch=0, vertex=LEAF, position=0)
    assert streams.receive_from(LEAF, vertex_wire.pack(STREAM, leave))
    streams.turn(now_ns)
    assert streams.may_have_changed
