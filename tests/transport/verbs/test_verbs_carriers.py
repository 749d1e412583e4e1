"""What carries a link: the choice, and what happens when a device fails. Devices are pretended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transport.links import RING_BYTES, STREAM, Hosts, Source, Target
from tests.transport.verbs.conftest import DEVICES
from tests.transport.verbs.fabric import READ, SEND, WRITE, Fabric, two_hosts
from whale_ray.configs.errors import ResourceError
from whale_ray.transport.links.link import LinkBrokenError, Role
from whale_ray.transport.verbs.connection import VerbsConnection
from whale_ray.transport.verbs.equipment import Data
from whale_ray.transport.verbs.letters import LETTER_BYTES
from whale_ray.transport.verbs.negotiation import Negotiation

FRAMES = 200
NONE = Fabric().library


@pytest.fixture
def fabric() -> Fabric:
    return two_hosts()


@pytest.fixture
def make(fabric: Fabric) -> Iterator:
    """Return a function that makes hosts over `fabric`, which are closed at the end."""
    made: list[Hosts] = []

    def build(**settings: object) -> Hosts:
        options = {"reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 4, **settings}
        made.append(Hosts(lambda: fabric.library, DEVICES, **options))
        return made[-1]

    yield build
    for hosts in made:
        hosts.close()


def size(number: int) -> int:
    return 100 + number * 37 % 5000


def pair(hosts: Hosts) -> tuple[Source, Target]:
    """Link two hosts and let a stream flow between them."""
    hosts.add("parent")
    hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    source = Source(FRAMES, size)
    (target,) = hosts.stream(source, "parent", ["child"])
    return source, target


def finish(hosts: Hosts, source: Source, target: Target) -> None:
    hosts.until(lambda: target.over, source.step, target.step)
    assert target.received == source.all
    hosts.until(lambda: all(endpoint.delivered for endpoint in hosts.endpoints.values()))


def carriers(hosts: Hosts) -> list[str]:
    return [line.carrier for end in hosts.endpoints.values() for line in end.statistics()]


def test_two_hosts_with_devices_use_them(make):
    hosts = make()
    finish(hosts, *pair(hosts))
    assert carriers(hosts) == ["verbs", "verbs"]


def test_tcp_may_be_chosen(make):
    hosts = make(between_hosts="tcp")
    finish(hosts, *pair(hosts))
    assert carriers(hosts) == ["tcp", "tcp"]


@pytest.mark.parametrize("lacking", ["parent", "child"])
def test_one_host_without_a_device_is_enough_for_tcp(make, lacking):
    hosts = make()
    usual = hosts.load_verbs
    for host in ("parent", "child"):
        hosts.load_verbs = (lambda: NONE) if host == lacking else usual
        hosts.add(host)
    hosts.dial("child", "parent")
    source = Source(FRAMES, size)
    (target,) = hosts.stream(source, "parent", ["child"])
    finish(hosts, source, target)
    assert carriers(hosts) == ["tcp", "tcp"]
    other = "child" if lacking == "parent" else "parent"
    declined = hosts.endpoints[other].without_verbs
    assert declined == {lacking: "it offers none"}
    assert list(hosts.endpoints[lacking].without_verbs.values()) == [
        f"RDMA device {DEVICES[lacking == 'child']!r} cannot be opened (Failed to open device "
        f"{DEVICES[lacking == 'child']}); name another, or set transport.between_hosts to tcp"
    ]


def test_who_insists_says_why_there_is_no_link(make):
    hosts = make(between_hosts="verbs")
    hosts.add("child", listens=False)
    hosts.settings = hosts.settings.__class__(between_hosts="tcp")
    hosts.add("parent")
    hosts.dial("child", "parent")
    child = hosts.endpoints["child"]
    hosts.until(lambda: child.refused["no verbs"] > 1)
    (lost,) = child.unreachable(hosts.clock.monotonic_ns())
    assert lost.why == "no RDMA verbs with host 'parent': it offers none"


def test_who_insists_does_not_begin_without(make):
    hosts = make(between_hosts="verbs")
    hosts.load_verbs = lambda: NONE
    with pytest.raises(ResourceError, match="RDMA device 'rxe0' cannot be opened"):
        hosts.add("parent")


@pytest.mark.parametrize("data", ["read", "write", "send"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_device_that_fails_costs_no_byte(make, fabric, data, device):
    hosts = make(verbs_data=data)
    source, target = pair(hosts)
    hosts.until(lambda: len(target.received) > 30, source.step, target.step)
    assert carriers(hosts) == ["verbs", "verbs"]
    fabric.devices[device].works = False
    finish(hosts, source, target)
    assert carriers(hosts) == ["tcp", "tcp"]
    failures = {
        reason for end in hosts.endpoints.values() for reason in end.statistics()[0].failures
    }
    assert any(reason.startswith("verbs: ") for reason in failures)
    why = {why for end in hosts.endpoints.values() for why in end.without_verbs.values()}
    assert any("a link over verbs broke before (verbs: " in one for one in why)


def test_a_network_that_swallows_everything_is_left_for_tcp(make, fabric):
    """No completion, no error: the sockets still work, so only silence tells."""
    hosts = make()
    source, target = pair(hosts)
    hosts.until(lambda: len(target.received) > 30, source.step, target.step)
    fabric.unread = {SEND, READ, WRITE}
    finish(hosts, source, target)
    assert carriers(hosts) == ["tcp", "tcp"]
    assert any(end.statistics()[0].failures["silent"] for end in hosts.endpoints.values())


def test_rings_too_large_to_be_locked_go_by_letters(make, fabric):
    for device in fabric.devices.values():
        device.locked_bytes_max = 96 * LETTER_BYTES + RING_BYTES // 2
    hosts = make()
    finish(hosts, *pair(hosts))
    assert carriers(hosts) == ["verbs", "verbs"]
    (line,) = hosts.endpoints["child"].statistics()
    assert line.failures == {"verbs: not registered": 1}
    assert line.last_failure.startswith(
        "the mirror of stream 7 of 1 MiB cannot be registered with RDMA device 'rxe1': no memory"
    )


def test_a_host_that_may_lock_nothing_stays_with_tcp(make, fabric):
    fabric.devices["rxe1"].locked_bytes_max = LETTER_BYTES
    hosts = make()
    finish(hosts, *pair(hosts))
    assert carriers(hosts) == ["tcp", "tcp"]
    (why,) = hosts.endpoints["child"].without_verbs.values()
    assert why.startswith("the letters of a link of 2 MiB cannot be registered with RDMA device")
    (why,) = hosts.endpoints["parent"].without_verbs.values()
    assert why.startswith("the peer says: the letters of a link of 2 MiB cannot be registered")


@pytest.mark.parametrize(("data", "opcode"), [("read", READ), ("write", WRITE)])
def test_what_is_under_way_keeps_its_place_in_the_ring(make, fabric, data, opcode):
    """Even if the child is dismissed meanwhile: else other bytes would arrive."""
    hosts = make(verbs_data=data)
    hosts.add("parent")
    hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    source = Source(FRAMES, size)
    offer = hosts.endpoints["parent"].offer(STREAM, source.tap, dynamic=True)
    assert offer.admit("child", 0) == 0
    target = Target(source.tap.capacity)
    hosts.endpoints["child"].subscribe(STREAM, target.mirror, "parent")
    hosts.until(lambda: len(target.received) > 10, source.step, target.step)
    fabric.unread = {opcode}
    for _ in range(30):
        source.step()
        hosts.poll()
    sender = offer.outgoing["child"].sender
    assert target.mirror.received < sender.sent
    held = sender.acknowledged
    offer.dismiss("child")
    for _ in range(30):
        source.step()
        hosts.poll()
    assert source.tap.released <= held
    fabric.unread = set()
    stop = sender.sent
    hosts.until(lambda: target.mirror.received == stop, target.step)
    hosts.until(lambda: source.tap.released >= stop, source.step, target.step)
    assert target.received == source.all[: len(target.received)]


@pytest.mark.parametrize(("data", "opcode"), [("read", READ), ("write", WRITE)])
def test_a_new_parent_is_granted_no_more_while_the_old_ones_bytes_may_come(
    make, fabric, data, opcode
):
    hosts = make(verbs_data=data)
    for host in ("old", "new", "child"):
        hosts.add(host)
    source = Source(FRAMES, size)
    offers = {"old": hosts.endpoints["old"].offer(STREAM, source.tap, dynamic=True)}
    offers["old"].retain_from(0)
    offers["old"].admit("child", 0)
    hosts.dial("child", "old")
    hosts.dial("child", "new")
    target = Target(source.tap.capacity)
    child = hosts.endpoints["child"]
    incoming = child.subscribe(STREAM, target.mirror, "old")
    hosts.until(lambda: hosts.up("child"))
    fabric.unread = {opcode}
    hosts.until(lambda: offers["old"].outgoing["child"].sender.sent > 0, source.step)
    for _ in range(20):
        hosts.poll()
    limit = incoming.receiver.granted.limit
    child.move(STREAM, "new")
    assert incoming._fences == 1
    for _ in range(20):
        hosts.poll()
        assert incoming.receiver.granted.limit == limit
    assert incoming._fences == 1
    fabric.unread = set()
    hosts.until(lambda: incoming._fences == 0)


def test_a_link_that_breaks_lifts_its_fences(make, fabric):
    hosts = make(verbs_data="write")
    source, target = pair(hosts)
    hosts.until(lambda: len(target.received) > 10, source.step, target.step)
    child = hosts.endpoints["child"]
    fabric.unread = {SEND}
    child.move(STREAM, None)
    incoming = child._neighbours.incoming[STREAM]
    assert incoming._fences == 1
    connection = child._links["parent", Role.PARENT]
    assert isinstance(connection, VerbsConnection)
    connection.sock.shutdown(2)
    hosts.until(lambda: incoming._fences == 0)


# --- agreeing on a queue pair -----------------------------------------------------------------


def nothing():
    raise ResourceError("nothing left")


@pytest.mark.parametrize("said", [bytes(192), b"GET / HTTP/1.1".ljust(192)])
def test_nonsense_in_answer_to_an_offer(said):
    negotiation = Negotiation(nothing, Data.READ, 10)
    assert len(negotiation.first) == negotiation.needs == 192
    with pytest.raises(LinkBrokenError, match="with nonsense"):
        negotiation.receive(said)


def test_an_offer_is_declined_with_its_reason():
    one, other = (Negotiation(nothing, Data.READ, 10) for _ in range(2))
    assert one.receive(other.first) == b""
    assert one.done
    assert one.take_over() is None
    assert one.why_not == "nothing left"


def test_an_offer_that_nobody_answers():
    negotiation = Negotiation(nothing, Data.READ, 10)
    negotiation.check_time(9)
    with pytest.raises(LinkBrokenError, match="took too long"):
        negotiation.check_time(10)
    with pytest.raises(LinkBrokenError, match="closed the connection before a queue pair"):
        negotiation.ended()
