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
from whale_ray.multicast.tree_messages import Relocated, TreeNews
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
    """The hosts, and what their branches tell the controller."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.source = Source(1000, lambda number: 500 + number % 7)
        self.targets = [Target(readers=2), Target(readers=2)]
        self.news: list[list[TreeNews]] = [[], [], []]
        for host in range(3):
            hosts.add(host_name(host))
        addresses = {host: hosts.addresses[host_name(host)] for host in range(3)}
        settings = MulticastSettings()
        self.branches = [
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
            self.branches[host].add(self._branch(host), self.now_ns, is_root=host == ROOT)

    def _branch(self, host: int) -> MulticastStream:
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
        for host, branches in enumerate(self.branches):
            endpoint = self.hosts.endpoints[host_name(host)]
            while (told := endpoint.receive_control()) is not None:
                name, packed = told
                assert branches.hear(int(name.removeprefix("host-")), packed[len(TAG) :])
            branches.turn(self.now_ns)

    def finish(self) -> None:
        """Carry the whole stream to both readers, and let everything come to rest."""
        steps = [target.step for target in self.targets]
        self.hosts.until(
            lambda: all(target.over for target in self.targets),
            self.source.step, *steps, self.turn,
        )  # fmt: skip
        for _ in range(10):  # acknowledgements, a host further up each time
            self.hosts.until(lambda: not any(map(self.has_news, range(3))), self.turn)
            self.hosts.poll()
            self.turn()

    def has_news(self, host: int) -> bool:
        return self.branches[host]._branches[STREAM].has_news

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
        due_ns = relays.branches[host].next_due_ns
        assert relays.now_ns + TICK_NS < due_ns <= relays.now_ns + QUIET_TICK_NS
    assert relays.branches[ROOT].next_due_ns < relays.now_ns + QUIET_TICK_NS, "it reports"


def test_the_tick_tells_the_parent_again_in_the_same_turn(relays):
    relays.finish()
    relays.hosts.clock.advance(QUIET_TICK_NS)
    relays.branches[LEAF].turn(relays.now_ns)
    assert not relays.has_news(LEAF)
    parent = relays.hosts.endpoints[host_name(MIDDLE)]
    heard: list[object] = []
    relays.hosts.until(lambda: any(heard), lambda: heard.append(parent.receive_control()))
    stream, message = vertex_wire.unpack(heard[-1][1][len(TAG) :])
    assert (stream, type(message)) == (STREAM, Acknowledgement)


def test_a_forwarder_reports_what_passes_and_falls_silent_with_the_stream(relays):
    watch = relays.branches[MIDDLE]._watches[STREAM]
    watch._told_until_ns = FOREVER_NS  # as if its way out had just been full
    relays.finish()
    relays.hosts.clock.advance(QUIET_TICK_NS)
    relays.turn()
    told = relays.loads(MIDDLE)
    assert told > 0
    assert relays.loads(LEAF) == 0
    root_told = relays.loads(ROOT)
    for _ in range(5):
        relays.hosts.clock.advance(QUIET_TICK_NS)
        relays.turn()
    assert relays.loads(MIDDLE) == told
    assert relays.loads(ROOT) == root_told + 5, "the source's host reports always"


def test_what_may_change_the_tree_stirs_and_an_acknowledgement_does_not(relays):
    relays.finish()
    branches, now_ns = relays.branches[MIDDLE], relays.now_ns
    branches.turn(now_ns)
    assert not branches.stirred
    told = branches._branches[STREAM].vertex.acknowledgement
    assert branches.hear(LEAF, vertex_wire.pack(STREAM, told))
    branches.turn(now_ns)
    assert not branches.stirred
    branches.order(Relocated(LEAF, relays.hosts.addresses[host_name(LEAF)]))
    branches.turn(now_ns)
    assert branches.stirred
    branches.turn(now_ns)
    assert not branches.stirred
    leave = Leave(term=0, epoch=0, vertex=LEAF, position=0)
    assert branches.hear(LEAF, vertex_wire.pack(STREAM, leave))
    branches.turn(now_ns)
    assert branches.stirred
