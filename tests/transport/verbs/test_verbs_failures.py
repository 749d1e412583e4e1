"""Failures of verbs under way are reported, and nothing is lost, torn or left behind."""

from __future__ import annotations

import pytest

from tests.transport.links import RING_BYTES, STREAM, Hosts, Source, Target
from tests.transport.test_tcp_moves import ROOT, Tree, linked
from tests.transport.verbs.conftest import DEVICES, carriers, finish, flow, pair
from tests.transport.verbs.fabric import READ, REMOTE_READ, REMOTE_WRITE, SEND, WRITE, Fabric
from whale_ray.transport.mirror import RingTap
from whale_ray.transport.verbs.device import Device
from whale_ray.transport.verbs.frames import FRAME_BYTES
from whale_ray.transport.verbs.library import status_in_words

ONE_SIDED = [("read", READ), ("write", WRITE)]
SILENCE_MS = 3000
REFUSED = {"verbs: access refused by the peer", "verbs: flushed"}
"""What the side learns that asked, and the other one, whose queue pair breaks as well."""


def failures(hosts: Hosts) -> set[str]:
    """Return all reasons for which links broke or streams went by frames."""
    return {
        reason
        for end in hosts.endpoints.values()
        for line in end.statistics()
        for reason in line.failures
    }


def die(hosts: Hosts, host: str) -> None:
    """End a host's process: the kernel closes what it has, and nobody says goodbye."""
    endpoint = hosts.endpoints.pop(host)
    for connection in endpoint._descriptors:
        endpoint._connector.drop(connection)
    endpoint._links.clear()
    endpoint._manager.handshaking.clear()
    endpoint.close()


def stop_amid(hosts: Hosts, fabric: Fabric, opcode: int, source: Source, target: Target) -> None:
    """Let a part of the stream arrive, and the next request of an opcode stay under way."""
    flow(hosts, source, target)
    fabric.unread.add(opcode)

    def under_way() -> bool:
        return any(one.opcode == opcode for pair in fabric.pairs.values() for one in pair.sends)

    hosts.until(under_way, source.step, target.step)


# --- a peer that vanishes -----------------------------------------------------------------------


@pytest.mark.parametrize(("data", "opcode"), ONE_SIDED)
def test_a_peer_that_is_lost_amid_a_message_tears_no_tuple(make, fabric, data, opcode):
    """Half of the bytes have moved: they count as if none had."""
    hosts = make(verbs_data=data)
    source, target = pair(hosts)
    flow(hosts, source, target)
    fabric.torn.add(opcode)
    finish(hosts, source, target)
    assert not fabric.torn
    assert carriers(hosts) == ["tcp", "tcp"]
    assert "verbs: the peer does not answer" in failures(hosts)


@pytest.mark.parametrize(("data", "opcode"), ONE_SIDED)
@pytest.mark.parametrize("torn", [False, True])
def test_a_parent_that_dies_amid_a_message_is_replaced_and_nothing_is_torn(
    make, fabric, data, opcode, torn
):
    hosts = make(verbs_data=data)
    source, target = pair(hosts)
    if torn:
        flow(hosts, source, target)
        fabric.torn.add(opcode)
        hosts.until(lambda: not fabric.torn, source.step, target.step)
    else:
        stop_amid(hosts, fabric, opcode, source, target)
    received = target.mirror.received
    die(hosts, "parent")
    fabric.unread.clear()
    for _ in range(20):
        hosts.poll()
        target.step()
    assert target.mirror.received == received
    source.tap = RingTap(source.producer.segment.share(), 0, resume=True)
    hosts.add("parent")
    hosts.endpoints["parent"].offer(STREAM, source.tap, ["child"])
    hosts.endpoints["child"].forget("parent")
    hosts.dial("child", "parent")
    finish(hosts, source, target)


@pytest.mark.parametrize(("data", "opcode"), ONE_SIDED)
def test_a_child_that_dies_amid_a_message_blocks_nothing(make, fabric, data, opcode):
    hosts = make(verbs_data=data)
    source, target = pair(hosts)
    stop_amid(hosts, fabric, opcode, source, target)
    die(hosts, "child")
    fabric.unread.clear()
    parent = hosts.endpoints["parent"]
    hosts.until(lambda: not parent._links)
    assert set(failures(hosts)) <= {"closed by peer", "verbs: the peer does not answer"}
    hosts.add("child", listens=False)
    hosts.endpoints["child"].subscribe(STREAM, target.mirror, "parent")
    hosts.dial("child", "parent")
    finish(hosts, source, target)


@pytest.mark.parametrize("talks", [False, True], ids=["idle", "talks"])
def test_a_peer_that_is_frozen_is_noticed_as_soon_as_over_tcp(make, fabric, talks):
    """Its device goes on taking what comes, while there are buffers: that is no sign of life."""
    hosts = make(silence_timeout_ms=SILENCE_MS, heartbeat_interval_ms=SILENCE_MS // 12)
    source, target = pair(hosts)
    finish(hosts, source, target)
    while hosts.poll(20):
        pass
    child, parent = hosts.endpoints.pop("child"), hosts.endpoints["parent"]
    frozen_ns = hosts.clock.monotonic_ns()
    while failures(hosts) != {"silent"}:
        assert hosts.clock.monotonic_ns() - frozen_ns <= SILENCE_MS * 1_000_000
        if talks:
            parent.send_control("child", b"are you there?")
        hosts.poll()
        hosts.clock.advance(10_000_000)
    hosts.endpoints["child"] = child


@pytest.mark.parametrize("polls", range(14))
def test_a_host_that_leaves_while_a_queue_pair_is_negotiated_leaves_nothing_behind(
    make, fabric, polls
):
    hosts = make()
    hosts.add("parent")
    hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    hosts.poll(polls)
    hosts.endpoints.pop("child").close()
    hosts.poll(20)
    left = {type(one).__name__ for one in fabric.open.values()}
    assert left == {"Opened", "Domain"}, "the parent's device"


# --- completions that tell of errors, keys that do not fit --------------------------------------


@pytest.mark.parametrize("status", [1, 2, 4, 5, 7, 9, 10, 11, 12, 13, 99])
@pytest.mark.parametrize(("data", "opcode"), [*ONE_SIDED, ("send", SEND)])
def test_a_failed_request_is_reported_and_loses_no_byte(make, fabric, data, opcode, status):
    hosts = make(verbs_data=data)
    source, target = pair(hosts)
    flow(hosts, source, target)
    fabric.statuses[opcode] = status
    finish(hosts, source, target)
    assert not fabric.statuses
    assert carriers(hosts) == ["tcp", "tcp"]
    assert f"verbs: {status_in_words(status)}" in failures(hosts)
    lines = [line for end in hosts.endpoints.values() for line in end.statistics()]
    words = f"failed: {status_in_words(status)}"
    assert any(line.last_failure.endswith(words) for line in lines)


@pytest.mark.parametrize(("data", "opcode"), ONE_SIDED)
@pytest.mark.parametrize("spoiled", [{"rkey": 1}, {"remote": RING_BYTES}, {"remote": -RING_BYTES}])
def test_a_wrong_key_or_memory_beyond_the_ring_moves_no_byte(make, fabric, data, opcode, spoiled):
    hosts = make(verbs_data=data)
    source, target = pair(hosts)
    flow(hosts, source, target)
    fabric.spoiled[opcode] = spoiled
    finish(hosts, source, target)
    assert not fabric.spoiled
    assert carriers(hosts) == ["tcp", "tcp"]
    assert REFUSED & failures(hosts)


@pytest.mark.parametrize("data", ["read", "write"])
def test_the_keys_of_a_finished_job_are_useless(make, fabric, data):
    hosts = make(verbs_data=data)
    source, target = pair(hosts)
    flow(hosts, source, target)
    assert any(region.access & (REMOTE_READ | REMOTE_WRITE) for region in fabric.regions.values())
    finish(hosts, source, target)
    hosts.close()
    assert not fabric.regions
    assert not fabric.pairs


# --- a stream that moves away while it is read ---------------------------------------------------


def test_leaving_waits_for_reads_under_way(make, fabric):
    """The former parent must keep the bytes as they are until then."""
    hosts = make(verbs_data="read")
    linked(hosts, [ROOT, "a"])
    tree = Tree(hosts, ["a"], 400)
    tree.build()
    hosts.until(lambda: len(tree.targets["a"].received) > 30, tree.step)
    fabric.unread.add(READ)

    def under_way() -> bool:
        return any(one.opcode == READ for pair in fabric.pairs.values() for one in pair.sends)

    hosts.until(under_way, tree.step)
    lent = tree.offers[ROOT].outgoing["a"]
    tree.move("a", None)
    for _ in range(50):
        hosts.poll()
    assert lent.lent_from is not None
    assert lent.sender.subscribed_now
    fabric.unread.clear()
    hosts.until(lambda: lent.lent_from is None)
    tree.move("a", ROOT)
    hosts.until(lambda: tree.over, tree.step)
    tree.check()


# --- memory that cannot be registered -----------------------------------------------------------


@pytest.mark.parametrize(("device", "what"), [("rxe0", "the ring"), ("rxe1", "the mirror")])
@pytest.mark.parametrize("data", ["read", "write"])
def test_a_ring_too_large_to_register_goes_by_frames_on_either_side(
    make, fabric, data, device, what
):
    fabric.devices[device].locked_bytes_max = 96 * FRAME_BYTES + RING_BYTES // 2
    hosts = make(verbs_data=data)
    finish(hosts, *pair(hosts))
    assert carriers(hosts) == ["verbs", "verbs"]
    (line,) = hosts.endpoints["parent" if device == "rxe0" else "child"].statistics()
    assert line.failures == {"verbs: not registered": 1}
    assert line.last_failure.startswith(
        f"{what} of stream {STREAM} of 1 MiB cannot be registered with RDMA device {device!r}: no "
        "memory can be locked (the limit is "
    )
    assert "ulimit -l unlimited" in line.last_failure


# --- devices ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lacking", DEVICES)
def test_a_device_without_a_capability_is_left_for_tcp_and_both_sides_say_so(make, fabric, lacking):
    fabric.devices[lacking].reads = 0
    hosts = make()
    finish(hosts, *pair(hosts))
    assert carriers(hosts) == ["tcp", "tcp"]
    (parent,), (child,) = (end.statistics() for end in hosts.endpoints.values())
    mine, other = (parent, child) if lacking == "rxe0" else (child, parent)
    assert mine.without_verbs.startswith(f"RDMA device {lacking!r} allows no READ (max_qp_rd_atom")
    assert other.without_verbs == "it offers none"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("data", ["read", "write", "send"])
def test_a_device_that_is_pulled_out_amid_a_stream(make, fabric, data, device):
    hosts = make(verbs_data=data)
    source, target = pair(hosts)
    flow(hosts, source, target)
    fabric.pull(device)
    finish(hosts, source, target)
    assert carriers(hosts) == ["tcp", "tcp"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_that_is_pulled_out_while_nothing_flows(make, fabric, device):
    """Only heartbeats are sent, and no descriptor reports completions any more."""
    hosts = make()
    source, target = pair(hosts)
    flow(hosts, source, target)
    while hosts.poll():
        target.step()
    fabric.pull(device)
    hosts.until(lambda: carriers(hosts) == ["tcp", "tcp"])
    finish(hosts, source, target)


def test_a_device_that_takes_a_whole_host_along_with_it(make, fabric):
    """All that is made with it refuses to be closed, which must not end the host."""
    hosts = make()
    source, target = pair(hosts)
    flow(hosts, source, target)
    for device in DEVICES:
        fabric.pull(device)
    hosts.close()
    assert not fabric.open


def test_what_was_opened_is_closed_if_the_rest_fails(fabric):
    fabric.devices["rxe0"].gids.clear()
    with pytest.raises(Exception, match="has no address"):
        Device(fabric.library, "rxe0")
    assert not fabric.open
