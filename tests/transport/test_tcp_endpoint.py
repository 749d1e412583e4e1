"""Endpoints over real loopback sockets: many streams, slow readers, chains, control, clear errors.

One thread polls all hosts; the time that they see is virtual, so nothing here is timed.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterator

import pytest

from tests.transport.links import (
    ADDRESS,
    RING_BYTES,
    STREAM,
    Hosts,
    Source,
    Target,
    hosts_fixture,
    payload,
    private_ring,
    put,
)
from whale_ray.configs.errors import CorruptedMessageError, ResourceError, SettingsError
from whale_ray.transport.channel import Outcome
from whale_ray.transport.clock import SystemClock
from whale_ray.transport.doorbell import Doorbell
from whale_ray.transport.mirror import RingTap
from whale_ray.transport.tcp.connection import TURN_BYTES
from whale_ray.transport.tcp.sockets import Listener

SIZES = (0, 1, 56, 57, 1000, 16_000)
pytestmark = pytest.mark.usefixtures("no_leaks")


def sizes(number: int) -> int:
    return SIZES[number % len(SIZES)]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    yield from hosts_fixture(silence_timeout_ms=600_000)


def star(hosts: Hosts, *children: str) -> None:
    """Make a parent and children that dial it."""
    hosts.add("parent")
    for child in children:
        hosts.add(child, listens=False)
        hosts.dial(child, "parent")


def test_a_stream_reaches_every_child_whole(hosts):
    children = [f"child-{number}" for number in range(4)]
    star(hosts, *children)
    source = Source(300, sizes)
    targets = hosts.stream(source, "parent", children)
    hosts.until(
        lambda: all(target.over for target in targets),
        source.step,
        *(target.step for target in targets),
    )
    for target in targets:
        assert target.received == source.all
    hosts.until(lambda: all(endpoint.delivered for endpoint in hosts.endpoints.values()))
    assert hosts.up(*children)
    up = {line.host: line for line in hosts.endpoints["parent"].statistics()}
    assert sorted(up) == children
    assert all(line.up and line.connections == 1 and not line.failures for line in up.values())
    assert up["child-0"].bytes_sent > sum(map(len, source.all))


def test_an_unread_stream_blocks_no_other(hosts):
    star(hosts, "child")
    streams = range(20)
    sources = [Source(200, sizes) for _ in streams]
    targets = [
        hosts.stream(source, "parent", ["child"], stream)[0]
        for stream, source in zip(streams, sources, strict=True)
    ]
    reading = targets[1:]
    hosts.until(
        lambda: all(target.over for target in reading),
        *(source.step for source in sources),
        *(target.step for target in reading),
    )
    assert [target.received for target in reading] == [source.all for source in sources[1:]]
    assert targets[0].mirror.received <= RING_BYTES
    assert len(hosts.endpoints["child"]._links) == 1, "all over one connection"
    (line,) = hosts.endpoints["parent"].statistics()
    assert line.back_pressured >= 1
    assert not hosts.endpoints["parent"].delivered
    hosts.until(lambda: targets[0].over, sources[0].step, targets[0].step)
    assert targets[0].received == sources[0].all


def test_a_slow_reader_for_long_is_back_pressure_and_nothing_else(hosts):
    star(hosts, "child")
    source = Source(1000, lambda _n: 1000)
    (target,) = hosts.stream(source, "parent", ["child"])
    hosts.until(lambda: source.back_pressured > 10, source.step)
    minutes = 10
    for _ in range(minutes * 60):
        hosts.clock.advance(1_000_000_000)
        source.step()
        hosts.poll(2)
    assert hosts.up("child")
    parent, child = (hosts.endpoints[host].statistics()[0] for host in ("parent", "child"))
    assert parent.connections == child.connections == 1
    assert parent.back_pressured == 1
    assert source.back_pressured > minutes * 60
    assert source.producer.statistics().lag_bytes[0] <= RING_BYTES
    assert target.mirror.received <= RING_BYTES
    (connection,) = hosts.endpoints["parent"]._links.values()
    assert not connection.unsent, "nothing is queued beside the ring"
    hosts.until(lambda: target.over, source.step, target.step)
    assert target.received == source.all


def test_a_chain_forwards_what_it_has_not_published(hosts):
    first, second, third = "first", "second", "third"
    for host in (first, second, third):
        hosts.add(host)
    hosts.dial(second, first)
    hosts.dial(third, second)
    source = Source(400, sizes)
    hosts.endpoints[first].offer(STREAM, source.tap, [second])
    middle, last = Target(readers=2), Target()
    hosts.endpoints[second].subscribe(STREAM, middle.mirror, first)
    tap = RingTap.of(middle.mirror, 1)
    hosts.endpoints[second].offer(STREAM, tap, [third])
    hosts.endpoints[third].subscribe(STREAM, last.mirror, second)
    seen_first = []

    def watch() -> None:
        """Publication comes last: once readers of the second host see it, it is on its way."""
        sender = hosts.endpoints[second]._neighbours.offers[STREAM].outgoing[third].sender
        if sender.subscribed_now and sender.limit >= middle.mirror.published:
            seen_first.append(sender.sent >= middle.mirror.published)

    hosts.until(lambda: middle.over and last.over, source.step, watch, middle.step, last.step)
    assert middle.received == last.received == source.all
    assert len(seen_first) > 10
    hosts.until(lambda: all(endpoint.delivered for endpoint in hosts.endpoints.values()))


def test_a_slow_end_of_a_chain_blocks_the_source(hosts):
    for host in ("first", "second", "third"):
        hosts.add(host)
    hosts.dial("second", "first")
    hosts.dial("third", "second")
    source = Source(1000, lambda _n: 1000)
    hosts.endpoints["first"].offer(STREAM, source.tap, ["second"])
    middle, last = Target(readers=2), Target()
    hosts.endpoints["second"].subscribe(STREAM, middle.mirror, "first")
    hosts.endpoints["second"].offer(STREAM, RingTap.of(middle.mirror, 1), ["third"])
    hosts.endpoints["third"].subscribe(STREAM, last.mirror, "second")
    hosts.until(lambda: source.back_pressured > 100, source.step, middle.step)
    assert source.tap.head <= 3 * RING_BYTES, "a ring and two mirrors"
    hosts.until(lambda: middle.over and last.over, source.step, middle.step, last.step)
    assert middle.received == last.received == source.all


def test_two_hosts_may_be_each_others_parents(hosts):
    hosts.add("one")
    hosts.add("two")
    hosts.dial("one", "two")
    hosts.dial("two", "one")
    sources = {"one": Source(200, sizes), "two": Source(150, sizes)}
    (to_two,) = hosts.stream(sources["one"], "one", ["two"], 1)
    (to_one,) = hosts.stream(sources["two"], "two", ["one"], 2)
    steps = [one.step for one in (*sources.values(), to_one, to_two)]
    hosts.until(lambda: to_two.over and to_one.over, *steps)
    assert to_two.received == sources["one"].all
    assert to_one.received == sources["two"].all


def test_a_child_may_ask_before_there_is_anything_to_offer(hosts):
    star(hosts, "child")
    target = Target()
    hosts.endpoints["child"].subscribe(STREAM, target.mirror, "parent")
    hosts.until(lambda: hosts.up("child"))
    hosts.poll(20)
    source = Source(50, sizes)
    hosts.endpoints["parent"].offer(STREAM, source.tap, ["child"])
    hosts.until(lambda: target.over, source.step, target.step)
    assert target.received == source.all


def test_a_child_that_cannot_be_served_loses_its_link(hosts):
    star(hosts, "child")
    target = Target(2 * RING_BYTES)
    hosts.endpoints["child"].subscribe(STREAM, target.mirror, "parent")
    hosts.until(lambda: hosts.up("child"))
    hosts.poll(20)
    parent = hosts.endpoints["parent"]
    parent.offer(STREAM, Source(1, sizes).tap, ["child"])
    assert parent.statistics()[0].failures == {"protocol": 1}
    assert parent.last_refusal == "the mirror of stream 7 has 131,072 bytes, its ring 65,536"
    (lost,) = parent.unreachable(hosts.clock.monotonic_ns())
    assert (lost.host, lost.why) == ("child", parent.last_refusal)


def test_frames_larger_than_a_message_go_out_in_pieces(hosts):
    star(hosts, "child")
    ring_bytes = 4 << 20
    source = Source(12, lambda number: 300_000 + number * 60_000, ring_bytes)
    (target,) = hosts.stream(source, "parent", ["child"])
    hosts.until(lambda: target.over, source.step, target.step)
    assert target.received == source.all


def test_a_child_that_leaves_blocks_nothing(hosts):
    star(hosts, "stays", "leaves")
    source = Source(500, sizes)
    stays, leaves = hosts.stream(source, "parent", ["stays", "leaves"])
    hosts.until(lambda: len(leaves.received) > 10, source.step, stays.step, leaves.step)
    leaves.consumer.close()
    hosts.until(lambda: stays.over, source.step, stays.step)
    assert stays.received == source.all
    assert leaves.received == source.all[: len(leaves.received)]
    hosts.until(lambda: hosts.endpoints["parent"].delivered)
    assert hosts.endpoints["leaves"].delivered


def test_when_all_children_have_left_the_producer_learns_it(hosts):
    star(hosts, "child")
    source = Source(10_000, sizes)
    (target,) = hosts.stream(source, "parent", ["child"])
    hosts.until(lambda: len(target.received) > 10, source.step, target.step)
    target.consumer.close()
    hosts.until(lambda: source.producer.closed_by_peer, source.step)
    assert put(source.producer, b"x") is Outcome.CLOSED


def test_a_poll_receives_a_bounded_part_of_what_is_there(hosts):
    star(hosts, "child")
    source = Source(400, lambda _n: 200_000, 1 << 25)
    (target,) = hosts.stream(source, "parent", ["child"])
    child, parent = hosts.endpoints["child"], hosts.endpoints["parent"]
    hosts.until(lambda: target.over or source.sent > 100, source.step)
    before = target.mirror.received
    while parent.poll():
        pass
    child.poll()
    assert target.mirror.received - before <= 2 * TURN_BYTES
    hosts.until(lambda: target.over, source.step, target.step)


def test_a_ring_overwritten_by_its_own_host_is_an_error_there(hosts):
    star(hosts, "child")
    producer = private_ring()
    tap = RingTap.beside(producer)
    hosts.endpoints["parent"].offer(STREAM, tap, ["child"])
    hosts.endpoints["child"].subscribe(STREAM, Target().mirror, "parent")
    hosts.until(lambda: hosts.up("child"))
    hosts.poll(20)
    put(producer, b"x")
    producer.segment.words(producer.layout.data_offset, producer.layout.data_offset + 8)[0] = -5
    with pytest.raises(CorruptedMessageError, match="its memory was overwritten"):
        hosts.poll(20)


def test_control_messages_go_both_ways_once_and_in_order(hosts):
    star(hosts, "child")
    parent, child = hosts.endpoints["parent"], hosts.endpoints["child"]
    assert parent.send_control("child", b"x") is Outcome.CLOSED, "nobody knows that host yet"
    hosts.until(lambda: hosts.up("child"))
    assert child.send_control("parent", bytes(65_537)) is Outcome.TOO_LARGE
    got: dict[str, list[bytes]] = {"parent": [], "child": []}
    sent = {"parent": 0, "child": 0}

    def step() -> None:
        for host, other in (("parent", "child"), ("child", "parent")):
            content = payload(sent[host], 1 + sent[host] * 97 % 65_536)
            if sent[host] < 600:
                outcome = hosts.endpoints[host].send_control(other, content)
                sent[host] += outcome is Outcome.SENT
            found = hosts.endpoints[host].receive_control()
            if found is not None:
                assert found[0] == other
                got[host].append(found[1])

    hosts.until(lambda: len(got["parent"]) == len(got["child"]) == 600, step)
    for contents in got.values():
        assert contents == [payload(n, 1 + n * 97 % 65_536) for n in range(600)]


def test_control_messages_that_are_not_taken_block_the_sender(hosts):
    star(hosts, "child")
    hosts.until(lambda: hosts.up("child"))
    child = hosts.endpoints["child"]
    sent = 0
    for _ in range(1000):
        sent += child.send_control("parent", b"x" * 100) is Outcome.SENT
        hosts.poll()
    assert sent == hosts.settings.control_queue_messages
    assert child.send_control("parent", b"x") is Outcome.BACK_PRESSURED
    assert hosts.endpoints["parent"].receive_control() == ("child", b"x" * 100)
    hosts.until(lambda: child.send_control("parent", b"more") is Outcome.SENT)


def test_a_sleeping_host_is_woken_by_its_sockets():
    """Two doorbells, no virtual time: whoever finds nothing to do sleeps until a socket rings."""
    hosts = Hosts()
    clock = SystemClock()
    bells = {host: Doorbell.private() for host in ("parent", "child")}
    for host, bell in bells.items():
        hosts.add(host)
        hosts.endpoints[host]._clock_ns = clock.monotonic_ns
        hosts.endpoints[host].watch(bell)
    with pytest.raises(RuntimeError, match="watched already"):
        hosts.endpoints["child"].watch(bells["child"])
    hosts.dial("child", "parent")
    child = hosts.endpoints["child"]
    while not hosts.up("child"):
        hosts.endpoints["parent"].poll()
        child.poll()
    child.poll()
    while child.poll():
        pass

    def ready() -> bool:
        """Have the parent say something while the child is about to sleep; asked once."""
        hosts.endpoints["parent"].send_control("child", b"wake up")
        while not hosts.endpoints["parent"].poll():
            pass
        return False

    assert bells["child"].wait(60_000_000_000, ready), "rung, long before the time was up"
    while (found := child.receive_control()) is None:
        child.poll()
    assert found == ("parent", b"wake up")
    hosts.close()
    with pytest.raises(ValueError, match="no doorbell to ring"):
        Hosts().add("nobody", listens=False).watch()


def test_impossible_addresses_are_refused(hosts):
    endpoint = hosts.add("parent")
    with pytest.raises(RuntimeError, match="listens already"):
        endpoint.listen(ADDRESS)
    lost = hosts.add("lost", listens=False)
    with pytest.raises(ResourceError) as caught:
        lost.dial("far", ("no.such.host.invalid", 5))
    assert str(caught.value).startswith(
        "host 'far' cannot be found: 'no.such.host.invalid' port 5 does not resolve ("
    )
    with pytest.raises(ResourceError, match="host 'lost' cannot be found: 'no.such"):
        lost.listen("no.such.host.invalid")
    with pytest.raises(ResourceError) as caught:
        lost.listen("192.0.2.1")
    assert str(caught.value) == (
        "host 'lost' cannot listen at '192.0.2.1': Cannot assign requested address; it needs an "
        "address of the machine that it runs on"
    )


def test_a_host_listens_at_its_address_alone(hosts):
    hosts.add("parent")
    address, port = hosts.addresses["parent"]
    assert address == ADDRESS
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))  # free: it is not bound to all addresses


def test_a_port_range_that_is_taken():
    with socket.socket() as taken:
        taken.bind((ADDRESS, 0))
        low = taken.getsockname()[1]
        taken.listen()
        hosts = Hosts(port_range_low=low, port_range_high=low)
        with pytest.raises(ResourceError) as caught:
            hosts.add("parent")
        assert str(caught.value) == (
            f"host 'parent' cannot listen at '127.0.0.1': ports {low} to {low} are all taken; "
            "every host and every job on a machine needs a port of its own: widen "
            "transport.port_range_low and transport.port_range_high"
        )
        hosts.close()
    with pytest.raises(SettingsError, match="port_range_low .9. must not exceed"):
        Hosts(port_range_low=9, port_range_high=8)


def test_ports_that_are_reserved(monkeypatch):
    """As for a user whom the kernel lets bind no port below 1024."""

    class Reserving(socket.socket):
        def bind(self, address: tuple[str, int]) -> None:
            if address[1] < 1024:
                raise PermissionError(errno.EACCES, "Permission denied")
            raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(socket, "socket", Reserving)
    for low, high, said in (
        (80, 80, "this process is not permitted to bind ports 80 to 80 (those below 1024 are"),
        (1022, 1025, "ports 1022 to 1025 are all taken or not permitted (2 of them); every host"),
    ):
        with pytest.raises(ResourceError) as caught:
            Listener("full", ADDRESS, low, high)
        assert str(caught.value).startswith(f"host 'full' cannot listen at '127.0.0.1': {said}")


def test_the_first_free_port_of_the_range_is_taken():
    chance = random.Random(5)
    for _ in range(100):
        low = chance.randrange(20_000, 60_000)
        with socket.socket() as taken:
            try:
                taken.bind((ADDRESS, low))
                taken.listen()
            except OSError:
                continue
            hosts = Hosts(port_range_low=low, port_range_high=low + 20)
            hosts.add("parent")
            assert low < hosts.addresses["parent"][1] <= low + 20
            hosts.close()
            return


def test_streams_are_offered_and_subscribed_once(hosts):
    endpoint = hosts.add("parent")
    endpoint.offer(STREAM, Source(1, sizes).tap, ["child"])
    with pytest.raises(ValueError, match="stream 7 is offered already"):
        endpoint.offer(STREAM, Source(1, sizes).tap, ["child"])
    with pytest.raises(ValueError, match="stream 8 is offered to nobody"):
        endpoint.offer(8, Source(1, sizes).tap, [])
    endpoint.subscribe(9, Target().mirror, "parent-of-parent")
    with pytest.raises(ValueError, match="stream 9 is subscribed already"):
        endpoint.subscribe(9, Target().mirror, "another")


def test_a_host_at_rest_has_nothing_due_now(hosts):
    """Whatever a stream's story was: else its relay would turn in circles."""
    star(hosts, "child")
    sources = [Source(40, sizes) for _ in range(3)]
    targets = [
        hosts.stream(source, "parent", ["child"], stream)[0]
        for stream, source in enumerate(sources)
    ]
    steps = [one.step for one in (*sources[:2], *targets)]
    hosts.until(lambda: targets[0].over and len(targets[1].received) > 5, *steps)
    targets[1].consumer.close()
    for _ in range(50):
        hosts.clock.advance(1_000_000)
        while any(endpoint.poll() for endpoint in hosts.endpoints.values()):
            pass
        for endpoint in hosts.endpoints.values():
            assert endpoint.next_due_ns > hosts.clock.monotonic_ns()


def test_closing_is_final_and_announced(hosts):
    star(hosts, "child")
    hosts.until(lambda: hosts.up("child"))
    parent = hosts.endpoints.pop("parent")
    parent.close()
    parent.close()
    assert not parent.poll()
    assert parent.send_control("child", b"x") is Outcome.CLOSED
    hosts.until(lambda: not hosts.up("child"))
    (line,) = hosts.endpoints["child"].statistics()
    assert line.failures["closed on purpose"] == 1
