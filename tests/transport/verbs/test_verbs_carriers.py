"""The carrier of a link: its choice, and failures of devices. The devices are fake."""

from __future__ import annotations

import logging

import pytest

from tests.transport.links import RING_BYTES, STREAM, Source, Target
from tests.transport.verbs.conftest import (
    DEVICES,
    FRAMES,
    carriers,
    cut,
    finish,
    flow,
    pair,
    size,
)
from tests.transport.verbs.fabric import READ, SEND, WRITE, Fabric
from whale_ray.configs.errors import ResourceError
from whale_ray.transport.links.link import LinkBrokenError, Role
from whale_ray.transport.verbs.carriers import VERBS
from whale_ray.transport.verbs.connection import VerbsConnection
from whale_ray.transport.verbs.frames import FRAME_BYTES
from whale_ray.transport.verbs.link_resources import Data
from whale_ray.transport.verbs.negotiation import Negotiation

NONE = Fabric().library


def test_two_hosts_with_devices_use_them(make):
    hosts = make()
    finish(hosts, *pair(hosts))
    assert carriers(hosts) == ["verbs", "verbs"]


def test_tcp_may_be_chosen(make):
    hosts = make(between_hosts="tcp")
    finish(hosts, *pair(hosts))
    assert carriers(hosts) == ["tcp", "tcp"]


def test_of_several_devices_a_host_uses_the_one_at_its_own_address(make, fabric):
    """Though a connection within one machine bears the same address at both ends."""
    hosts = make()
    hosts.devices = ("",)
    for host, device, address in (("one", "rxe0", "127.0.0.2"), ("other", "rxe1", "127.0.0.3")):
        fabric.devices[device].gids[:] = [f"::ffff:{address}"]
        hosts.add(host, listens=False)
        hosts.addresses[host] = hosts.endpoints[host].listen(address)
    hosts.dial("one", "other")
    hosts.until(lambda: hosts.up("one", "other"))
    ways = [line.way for end in hosts.endpoints.values() for line in end.statistics()]
    assert ways == ["verbs READ on rxe0", "verbs READ on rxe1"]


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
    (line,) = hosts.endpoints[other].statistics()
    assert (line.host, line.without_verbs) == (lacking, "it offers none")
    assert [line.without_verbs for line in hosts.endpoints[lacking].statistics()] == [
        f"RDMA device {DEVICES[lacking == 'child']!r} cannot be opened (Failed to open device "
        f"{DEVICES[lacking == 'child']})"
    ]


def test_where_verbs_are_required_the_lack_of_a_link_is_explained(make):
    hosts = make(between_hosts="verbs")
    hosts.add("child", listens=False)
    hosts.settings = hosts.settings.__class__(between_hosts="tcp")
    hosts.add("parent")
    hosts.dial("child", "parent")
    child = hosts.endpoints["child"]
    hosts.until(lambda: child.refused["no verbs"] > 1)
    (lost,) = child.unreachable(hosts.clock.monotonic_ns())
    assert lost.why == "no RDMA verbs with host 'parent': it offers none"


def test_where_verbs_are_required_a_host_without_them_does_not_start(make):
    hosts = make(between_hosts="verbs")
    hosts.load_verbs = lambda: NONE
    with pytest.raises(ResourceError, match="RDMA device 'rxe0' cannot be opened"):
        hosts.add("parent")


@pytest.mark.parametrize("data", ["read", "write", "send"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_device_that_fails_costs_no_byte(make, fabric, data, device):
    hosts = make(verbs_data=data)
    source, target = pair(hosts)
    flow(hosts, source, target)
    fabric.devices[device].works = False
    finish(hosts, source, target)
    assert carriers(hosts) == ["tcp", "tcp"]
    failures = {
        reason for end in hosts.endpoints.values() for reason in end.statistics()[0].failures
    }
    assert any(reason.startswith("verbs: ") for reason in failures)
    lines = [line for end in hosts.endpoints.values() for line in end.statistics()]
    assert any("a link over verbs broke before (verbs: " in line.without_verbs for line in lines)
    assert all(line.fell_back for line in lines)
    assert all(set(line.sent_by_carrier) == {"verbs", "tcp"} for line in lines)
    assert all(sum(line.sent_by_carrier.values()) == line.bytes_sent for line in lines)
    assert all(sum(line.received_by_carrier.values()) == line.bytes_received for line in lines)


def test_metrics_show_the_carrier_of_a_link_with_operation_device_and_bytes(make):
    hosts = make(verbs_data="write")
    finish(hosts, *pair(hosts))
    parent, child = (end.statistics()[0] for end in hosts.endpoints.values())
    assert (parent.way, child.way) == ("verbs WRITE on rxe0", "verbs WRITE on rxe1")
    assert parent.sent_by_carrier == {"verbs": parent.bytes_sent}
    assert child.received_by_carrier == {"verbs": parent.bytes_sent}
    assert (parent.without_verbs, parent.without_verbs_ns, parent.fell_back) == ("", 0, False)


def test_the_time_without_verbs_is_reported(make):
    hosts = make(between_hosts="tcp")
    finish(hosts, *pair(hosts))
    (before,) = hosts.endpoints["child"].statistics()
    hosts.clock.advance(2_000_000_000)
    (after,) = hosts.endpoints["child"].statistics()
    assert after.without_verbs == "transport.between_hosts is tcp"
    assert after.without_verbs_ns - before.without_verbs_ns == 2_000_000_000
    assert (after.way, after.fell_back) == ("tcp", False)


# --- verbs are tried again ----------------------------------------------------------------------


RETRY_NS = 10_000_000_000


def test_verbs_are_tried_again_by_the_first_dial_after_the_retry_delay(make, fabric, caplog):
    hosts = make()
    source, target = pair(hosts)
    flow(hosts, source, target)
    with caplog.at_level(logging.WARNING):
        fabric.devices["rxe1"].works = False
        hosts.until(lambda: carriers(hosts) == ["tcp", "tcp"])
    (said, *_) = [record.getMessage() for record in caplog.records]
    assert said.startswith("the link to host 'parent' over RDMA verbs broke (verbs: ")
    assert said.endswith(
        "it goes on over TCP, and nothing is lost; links dialled in 10 s or later may be of verbs "
        "again"
    )
    fabric.devices["rxe1"].works = True
    cut(hosts)
    assert carriers(hosts) == ["tcp", "tcp"]  # the retry is not due yet
    hosts.clock.advance(RETRY_NS)
    hosts.poll(20)
    assert carriers(hosts) == ["tcp", "tcp"]  # a link that is up does not change its carrier
    cut(hosts)
    assert carriers(hosts) == ["verbs", "verbs"]
    finish(hosts, source, target)


def test_the_retry_delay_grows_with_each_failure_up_to_a_limit(make, fabric):
    hosts = make()
    carried = hosts.add("child")._carriers
    carried.offered_to("parent", 0)
    now_ns, waits = 0, []
    for _ in range(9):
        carried.broken("parent", "verbs: flushed", now_ns)
        until_ns = carried._avoided["parent"].until_ns
        assert carried.offered_to("parent", until_ns - 1) == 0
        assert carried.offered_to("parent", until_ns) == VERBS
        assert carried.offered_to("another", now_ns) == VERBS
        waits.append((until_ns - now_ns) // RETRY_NS)
        now_ns = until_ns
    assert waits == [1, 2, 4, 8, 16, 32, 64, 64, 64]


@pytest.mark.parametrize(("stood_ns", "wait"), [(RETRY_NS // 2, 2), (2 * RETRY_NS, 1)])
def test_the_retry_delay_is_short_again_once_a_device_has_worked_for_long(
    make, fabric, stood_ns, wait
):
    hosts = make(silence_timeout_ms=600_000)
    pair(hosts)
    hosts.until(lambda: carriers(hosts) == ["verbs", "verbs"])
    avoided = hosts.endpoints["child"]._carriers._avoided
    for expected in (1, wait):
        fabric.devices["rxe1"].works = False
        hosts.endpoints["child"].send_control("parent", b"are you there?")
        hosts.until(lambda: carriers(hosts) == ["tcp", "tcp"])
        assert avoided["parent"].wait_ns == expected * RETRY_NS
        fabric.devices["rxe1"].works = True
        hosts.clock.advance(2 * RETRY_NS)
        cut(hosts)
        assert carriers(hosts) == ["verbs", "verbs"]
        hosts.clock.advance(stood_ns)


def test_what_ends_on_purpose_or_by_tcp_is_no_failure_of_verbs(make):
    carried = make().add("child")._carriers
    for reason in ("closed on purpose", "closed by peer", "ECONNRESET", "replaced", "protocol"):
        carried.broken("parent", reason, 0)
    assert carried.offered_to("parent", 0) == VERBS


def test_a_device_that_was_pulled_out_and_put_back_is_opened_anew(make, fabric):
    hosts = make()
    source, target = pair(hosts)
    flow(hosts, source, target)
    fabric.pull("rxe1")
    hosts.until(lambda: carriers(hosts) == ["tcp", "tcp"], source.step, target.step)
    hosts.clock.advance(RETRY_NS)
    cut(hosts)
    (line,) = hosts.endpoints["child"].statistics()
    assert (line.carrier, line.without_verbs) == (
        "tcp",
        "RDMA device 'rxe1' has no room for another queue pair: Input/output error: the device is "
        "gone; name another, or set transport.between_hosts to tcp",
    )
    cut(hosts)
    (line,) = hosts.endpoints["child"].statistics()
    assert line.without_verbs.startswith("RDMA device 'rxe1' cannot be opened (Failed to open")
    fabric.add("rxe1", "fe80::2", "::ffff:192.0.2.2")
    cut(hosts)
    assert carriers(hosts) == ["verbs", "verbs"]
    finish(hosts, source, target)


@pytest.mark.parametrize("pairs", [0, 1])
def test_a_device_without_room_for_both_queue_pairs_is_left_for_tcp(make, fabric, pairs):
    fabric.devices["rxe1"].pairs_max = pairs
    hosts = make()
    source, target = pair(hosts)
    finish(hosts, source, target)
    assert carriers(hosts) == ["tcp", "tcp"]
    (line,) = hosts.endpoints["child"].statistics()
    assert "has no room for another queue pair: " in line.without_verbs
    assert not fabric.pairs


def test_a_network_that_drops_everything_is_left_for_tcp(make, fabric):
    """No completion, no error: the sockets still work, so only silence reveals it."""
    hosts = make()
    source, target = pair(hosts)
    flow(hosts, source, target)
    fabric.unread = {SEND, READ, WRITE}
    finish(hosts, source, target)
    assert carriers(hosts) == ["tcp", "tcp"]
    assert any(end.statistics()[0].failures["silent"] for end in hosts.endpoints.values())


def test_rings_too_large_to_be_locked_go_by_frames(make, fabric):
    for device in fabric.devices.values():
        device.locked_bytes_max = 96 * FRAME_BYTES + RING_BYTES // 2
    hosts = make()
    finish(hosts, *pair(hosts))
    assert carriers(hosts) == ["verbs", "verbs"]
    (line,) = hosts.endpoints["child"].statistics()
    assert line.failures == {"verbs: not registered": 1}
    assert line.last_failure.startswith(
        "the mirror of stream 7 of 1 MiB cannot be registered with RDMA device 'rxe1': no memory"
    )


def test_a_host_that_may_lock_nothing_stays_with_tcp(make, fabric):
    fabric.devices["rxe1"].locked_bytes_max = FRAME_BYTES
    hosts = make()
    finish(hosts, *pair(hosts))
    assert carriers(hosts) == ["tcp", "tcp"]
    said = "the frames of a link of 2 MiB cannot be registered"
    (line,) = hosts.endpoints["child"].statistics()
    assert line.without_verbs.startswith(f"{said} with RDMA device 'rxe1': no memory can be locked")
    (line,) = hosts.endpoints["parent"].statistics()
    assert line.without_verbs.startswith(f"the peer says: {said}")
    assert line.without_verbs.endswith("or lower transport.ring_bytes"), "remedy and all"


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


@pytest.mark.parametrize("said", [bytes(480), b"GET / HTTP/1.1".ljust(480)])
def test_an_invalid_answer_to_an_offer_is_refused(said):
    negotiation = Negotiation(nothing, Data.READ, 10)
    assert len(negotiation.first) == negotiation.needs == 480
    with pytest.raises(LinkBrokenError, match="with invalid bytes"):
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
