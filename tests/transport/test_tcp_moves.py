"""Streams that change their parent while they flow, between endpoints over real sockets."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest

from tests.transport.links import ADDRESS, RING_BYTES, STREAM, Hosts, Source, Target, hosts_fixture
from whale_ray.transport.links.attached import Offer
from whale_ray.transport.links.link import Role
from whale_ray.transport.mirror import RingTap
from whale_ray.transport.retention import Retention

ROOT = "root"


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    yield from hosts_fixture()


def sizes(number: int) -> int:
    return random.Random(number).choice([0, 10, 500, 5000, 16_000])


class Tree:
    """One stream from a root to all other hosts, each of which may become the parent of another."""

    def __init__(self, hosts: Hosts, others: list[str], frames: int, stream: int = STREAM) -> None:
        self.hosts, self.others, self.stream = hosts, others, stream
        self.source = Source(frames, sizes)
        self.retention = Retention(1 << 22, 0, RING_BYTES, chunk_bytes=1 << 15)
        self.offers: dict[str, Offer] = {}
        self.targets: dict[str, Target] = {}
        self.parents: dict[str, str | None] = dict.fromkeys(others)
        self.root = ROOT

    def build(self, root: str = ROOT) -> None:
        self.root = root
        end = self.hosts.endpoints[root]
        self.offers[root] = end.offer(
            self.stream, self.source.tap, dynamic=True, retention=self.retention
        )
        for host in self.others:
            endpoint = self.hosts.endpoints[host]
            target = self.targets[host] = Target(RING_BYTES, readers=2)
            tap = RingTap.of(target.mirror, 1)
            self.offers[host] = endpoint.offer(self.stream, tap, dynamic=True)
            incoming = endpoint.subscribe(self.stream, target.mirror, None)
            assert incoming.parent is None
            self.move(host, root)

    def below(self, host: str) -> set[str]:
        found = {host}
        for _ in self.others:
            found |= {child for child, parent in self.parents.items() if parent in found}
        return found

    def move(self, host: str, parent: str | None) -> bool:
        """Have `host` read on from `parent`, if that still holds what is next."""
        former, received = self.parents[host], self.targets[host].mirror.received
        if parent == former:
            return False
        if parent is not None and self.offers[parent].admit(host, received) > received:
            self.offers[parent].dismiss(host)
            return False
        self.hosts.endpoints[host].move(self.stream, parent)
        self.parents[host] = parent
        if former is not None:
            self.offers[former].dismiss(host)
        return True

    def step(self) -> None:
        self.source.step()
        for target in self.targets.values():
            target.step()
        # The source's host retains what some target has not received.
        least = min(target.mirror.received for target in self.targets.values())
        self.offers[self.root].retain_from(least)

    @property
    def over(self) -> bool:
        return all(target.over for target in self.targets.values())

    def check(self) -> None:
        for host, target in self.targets.items():
            assert target.received == self.source.all, host


def linked(hosts: Hosts, names: list[str]) -> None:
    """Make hosts that all dial one another."""
    for name in names:
        hosts.add(name)
    for one in names:
        for other in names:
            if one != other:
                hosts.dial(one, other)


@pytest.mark.parametrize("seed", range(4))
def test_moves_at_any_time_lose_and_double_nothing(hosts, seed):
    chance = random.Random(seed)
    others = ["a", "b", "c"]
    linked(hosts, [ROOT, *others])
    tree = Tree(hosts, others, 500)
    tree.build()
    moves = 0

    def wander() -> None:
        nonlocal moves
        if chance.random() < 0.4:
            host = chance.choice(others)
            allowed = {ROOT, *others} - tree.below(host)
            parent = chance.choice([None, *sorted(allowed), *sorted(allowed)])
            moves += tree.move(host, parent)
            if chance.random() < 0.3:
                moves += tree.move(host, ROOT)
        if moves > 60:
            for host in others:
                if tree.parents[host] is None:
                    assert tree.move(host, ROOT), "the root holds everything"

    hosts.until(lambda: tree.over, tree.step, wander)
    tree.check()
    assert moves > 20
    statistics = [line for end in hosts.endpoints.values() for line in end.statistics()]
    assert all(not line.failures for line in statistics), "no link broke"
    hosts.until(lambda: all(end.delivered for end in hosts.endpoints.values()))


def test_a_half_received_message_is_discarded_when_the_parent_changes(hosts):
    linked(hosts, [ROOT, "a", "b"])
    tree = Tree(hosts, ["a", "b"], 400)
    tree.build()
    hosts.until(lambda: hosts.up(*hosts.endpoints))
    for end in hosts.endpoints.values():
        for connection in end._links.values():
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    endpoint = hosts.endpoints["b"]
    moved_within = 0

    def move_within_a_message() -> None:
        nonlocal moved_within
        parent = tree.parents["b"]
        connection = endpoint._links.get((parent, Role.PARENT))
        if connection is None or not connection._missing:
            return
        if tree.move("b", ROOT if parent == "a" else "a"):
            moved_within += 1
            waste = connection.link._waste
            assert all(place.obj is waste.obj for place in connection._places)

    hosts.until(lambda: tree.over, tree.step, move_within_a_message)
    tree.check()
    stale = sum(line.stale for line in endpoint.statistics())
    assert stale >= moved_within > 0


def test_two_hosts_are_parents_of_each_other_and_swap(hosts):
    linked(hosts, ["a", "b", "c"])
    trees = []
    for stream, (root, other) in enumerate([("a", "b"), ("b", "a")]):
        tree = Tree(hosts, [other, "c"], 300, stream)
        tree.build(root)
        trees.append(tree)
    chance = random.Random(1)

    def swap() -> None:
        tree = chance.choice(trees)
        host = chance.choice(tree.others)
        allowed = sorted({tree.root, *tree.others} - tree.below(host))
        tree.move(host, chance.choice(allowed))

    hosts.until(lambda: all(tree.over for tree in trees), *(tree.step for tree in trees), swap)
    for tree in trees:
        tree.check()


def test_a_new_parent_may_have_no_link_yet_and_not_have_admitted(hosts):
    for name in (ROOT, "a", "b"):
        hosts.add(name)
    hosts.dial("a", ROOT)
    tree = Tree(hosts, ["a"], 200)
    tree.build()
    late = Target(RING_BYTES, readers=1)
    incoming = hosts.endpoints["b"].subscribe(STREAM, late.mirror, "a")
    hosts.endpoints["b"].dial("a", hosts.addresses["a"])
    hosts.until(lambda: hosts.up("b"))
    hosts.poll(20)
    assert incoming.received == 0, "not admitted"
    assert tree.offers["a"].admit("b", 0) == 0

    def step() -> None:
        tree.step()
        late.step()

    hosts.until(lambda: incoming.received > RING_BYTES, step)
    assert hosts.endpoints["b"].unreachable(hosts.clock.monotonic_ns()) == ()
    position = incoming.received
    assert tree.offers[ROOT].admit("b", position) == position
    hosts.endpoints["b"].move(STREAM, ROOT)  # which is not dialled yet
    assert incoming.parent == ROOT
    hosts.endpoints["b"].dial(ROOT, hosts.addresses[ROOT])
    tree.offers["a"].dismiss("b")
    hosts.endpoints["b"].undial("a")
    hosts.until(lambda: late.over and tree.over, step)
    assert late.received == tree.source.all
    assert hosts.endpoints["a"].unreachable(hosts.clock.monotonic_ns()) == ()


def test_undial_needs_all_streams_to_have_moved(hosts):
    linked(hosts, [ROOT, "a"])
    tree = Tree(hosts, ["a"], 10)
    tree.build()
    with pytest.raises(ValueError, match=r"streams \[7\] are still read from host 'root'"):
        hosts.endpoints["a"].undial(ROOT)


def test_a_child_that_wants_released_bytes_is_named_and_keeps_its_link(hosts):
    linked(hosts, [ROOT, "a", "b"])
    tree = Tree(hosts, ["a"], 200)
    tree.build()
    hosts.until(lambda: tree.over, tree.step)
    late = Target(RING_BYTES)
    tree.offers[ROOT].admit("b", 0)
    incoming = hosts.endpoints["b"].subscribe(STREAM, late.mirror, ROOT)
    hosts.until(lambda: tree.offers[ROOT].starved == {"b": 0})
    assert hosts.endpoints["b"].send_control(ROOT, b"I starve").name == "SENT"
    hosts.until(lambda: hosts.endpoints[ROOT].receive_control() == ("b", b"I starve"))
    assert incoming.received == 0
    assert all(not line.failures for line in hosts.endpoints[ROOT].statistics())


def test_a_host_that_comes_back_elsewhere_is_dialled_there_at_once(hosts):
    linked(hosts, [ROOT, "a"])
    tree = Tree(hosts, ["a"], 400)
    tree.build()
    hosts.until(lambda: tree.targets["a"].mirror.received > RING_BYTES, tree.step)
    # Another process takes over the root: its tap goes on where the ring says.
    old = hosts.endpoints.pop(ROOT)
    hosts.addresses[ROOT] = hosts.add(ROOT, listens=False).listen(ADDRESS)
    segment = tree.source.producer.segment
    tree.source.tap = RingTap(segment.share(), 0, resume=True)
    offer = tree.offers[ROOT] = hosts.endpoints[ROOT].offer(STREAM, tree.source.tap, dynamic=True)
    offer.retain_from(offer.tap.released)
    received = tree.targets["a"].mirror.received
    assert offer.admit("a", received) <= received
    hosts.endpoints["a"].send_control(ROOT, b"to the one that has died")
    hosts.endpoints["a"].forget(ROOT)
    assert hosts.endpoints["a"].unreachable(hosts.clock.monotonic_ns()) == ()
    hosts.dial("a", ROOT)
    hosts.endpoints["a"].send_control(ROOT, b"to the new one")
    hosts.until(lambda: tree.over, tree.step)
    tree.check()
    assert hosts.endpoints[ROOT].receive_control() == ("a", b"to the new one")
    old.close()


def test_control_messages_pass_while_links_come_and_go(hosts):
    for name in ("a", "b"):
        hosts.add(name)
    chance = random.Random(1)
    sent = dict.fromkeys(("a", "b"), 0)
    taken = dict.fromkeys(("a", "b"), 0)
    dialled = {"a": False, "b": False}
    hosts.dial("a", "b")
    dialled["a"] = True

    def talk() -> None:
        for one, other in (("a", "b"), ("b", "a")):
            endpoint = hosts.endpoints[one]
            if sent[one] < 300:
                outcome = endpoint.send_control(other, b"%d" % sent[one])
                sent[one] += outcome.name == "SENT"
            while (message := endpoint.receive_control()) is not None:
                assert message == (other, b"%d" % taken[one])
                taken[one] += 1
            if chance.random() < 0.05:
                if dialled[one] and dialled[other]:
                    endpoint.undial(other)
                    dialled[one] = False
                elif not dialled[one]:
                    hosts.dial(one, other)
                    dialled[one] = True

    hosts.until(lambda: taken == {"a": 300, "b": 300}, talk)
