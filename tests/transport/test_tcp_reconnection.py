"""Links over real sockets that are cut on purpose: every byte arrives once, on whatever link."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.transport.links import (
    STREAM,
    Hosts,
    Source,
    Target,
    hosts_fixture,
)
from whale_ray.transport.channel import Outcome
from whale_ray.transport.links.handshake import Identity
from whale_ray.transport.links.link import Role
from whale_ray.transport.links.statistics import Unreachable
from whale_ray.transport.mirror import RingTap
from whale_ray.transport.tcp.connection import TcpConnection

RING_BYTES = 1 << 20
FRAME_BYTES = 100_000


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    yield from hosts_fixture(reconnect_backoff_ms=1, reconnect_backoff_max_ms=4)


def connection_of(hosts: Hosts, host: str, peer: str, role: Role) -> TcpConnection | None:
    return hosts.endpoints[host]._links.get((peer, role))


def shut(sock: socket.socket) -> None:
    """End a connection in both directions, as its owner's death would."""
    sock.shutdown(socket.SHUT_RDWR)


def half_close(sock: socket.socket) -> None:
    """End one direction."""
    sock.shutdown(socket.SHUT_WR)


def reset(sock: socket.socket) -> None:
    """Make the peer see a reset, and the owner an error, whatever is under way."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    twin = socket.socket(fileno=sock.detach())
    twin.close()


CUTS = {"parent": (Role.CHILD, "child"), "child": (Role.PARENT, "parent")}


@pytest.mark.parametrize("host", CUTS)
@pytest.mark.parametrize("how", [shut, half_close])
@pytest.mark.parametrize("seed", [1, 2])
def test_cuts_in_the_middle_of_messages(hosts, host, how, seed):
    chance = random.Random(seed)
    hosts.add("parent")
    hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    sources = [Source(150, lambda n: FRAME_BYTES - 600 * n, RING_BYTES) for _ in range(2)]
    targets = [
        hosts.stream(source, "parent", ["child"], stream)[0]
        for stream, source in enumerate(sources)
    ]
    role, peer = CUTS[host]
    middles = cuts = 0

    def maybe_cut() -> None:
        nonlocal middles, cuts
        connection = connection_of(hosts, host, peer, role)
        receiving = connection_of(hosts, "child", "parent", Role.PARENT)
        if connection is None or receiving is None or cuts >= 30 or chance.random() < 0.6:
            return
        middles += receiving._missing > 0
        cuts += 1
        with contextlib.suppress(OSError):  # the other side has closed it already
            how(connection.sock)

    steps = [one.step for one in (*sources, *targets)]
    hosts.until(lambda: all(target.over for target in targets), *steps, maybe_cut)
    assert [target.received for target in targets] == [source.all for source in sources]
    assert cuts > 5
    assert middles > 0
    hosts.until(lambda: all(endpoint.delivered for endpoint in hosts.endpoints.values()))
    (line,) = hosts.endpoints["child"].statistics()
    assert sum(line.failures.values()) >= line.connections - 1 >= 5


def test_a_reset_is_a_broken_link(hosts):
    hosts.add("parent")
    hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    source = Source(60, lambda _n: FRAME_BYTES, RING_BYTES)
    (target,) = hosts.stream(source, "parent", ["child"])
    hosts.until(lambda: len(target.received) > 10, source.step, target.step)
    connection = connection_of(hosts, "parent", "child", Role.CHILD)
    assert connection is not None
    # A byte too much on the parent's side, then the end: the kernel answers with a reset.
    reset(connection.sock.dup())
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    hosts.endpoints["parent"]._connector.drop(connection)
    link = hosts.endpoints["parent"]._links.pop(("child", Role.CHILD)).link
    assert link is not None
    link.broken("test")
    hosts.until(lambda: target.over, source.step, target.step)
    assert target.received == source.all
    failures = hosts.endpoints["child"].statistics()[0].failures
    assert set(failures) <= {"ECONNRESET", "closed by peer"}
    assert failures


def test_a_relay_in_the_middle_that_loses_both_links(hosts):
    for host in ("first", "second", "third"):
        hosts.add(host)
    hosts.dial("second", "first")
    hosts.dial("third", "second")
    source = Source(100, lambda n: 1 + n * 997, RING_BYTES)
    hosts.endpoints["first"].offer(STREAM, source.tap, ["second"])
    middle, last = Target(RING_BYTES, readers=2), Target(RING_BYTES)
    hosts.endpoints["second"].subscribe(STREAM, middle.mirror, "first")
    hosts.endpoints["second"].offer(STREAM, RingTap.of(middle.mirror, 1), ["third"])
    hosts.endpoints["third"].subscribe(STREAM, last.mirror, "second")
    chance = random.Random(3)

    def maybe_cut() -> None:
        for connection in tuple(hosts.endpoints["second"]._links.values()):
            if chance.random() < 0.1:
                shut(connection.sock)

    hosts.until(lambda: middle.over and last.over, source.step, middle.step, last.step, maybe_cut)
    assert middle.received == last.received == source.all


def test_control_messages_survive_cuts(hosts):
    hosts.add("parent")
    hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    hosts.until(lambda: hosts.up("child"))
    chance = random.Random(4)
    sent, got = 0, []

    def step() -> None:
        nonlocal sent
        if sent < 300:
            sent += hosts.endpoints["child"].send_control("parent", b"%d" % sent) is Outcome.SENT
        found = hosts.endpoints["parent"].receive_control()
        got.extend([] if found is None else [found[1]])
        connection = connection_of(hosts, "child", "parent", Role.PARENT)
        if connection is not None and chance.random() < 0.05:
            shut(connection.sock)

    hosts.until(lambda: len(got) == 300, step)
    assert got == [b"%d" % number for number in range(300)]
    assert hosts.endpoints["child"].statistics()[0].connections > 4


def frozen(hosts: Hosts, host: str, for_ns: int, step: Callable[[], object]) -> None:
    """Poll all hosts but `host` for a while: it hangs, its kernel does not."""
    endpoint = hosts.endpoints.pop(host)
    end_ns = hosts.clock.monotonic_ns() + for_ns
    while hosts.clock.monotonic_ns() < end_ns:
        hosts.poll()
        step()
        hosts.clock.advance(10_000_000)
    hosts.endpoints[host] = endpoint


@pytest.mark.parametrize("host", CUTS)
def test_a_host_that_hangs_for_long_is_silent_and_then_goes_on(hosts, host):
    hosts.add("parent")
    hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    source = Source(80, lambda _n: FRAME_BYTES, RING_BYTES)
    (target,) = hosts.stream(source, "parent", ["child"])
    hosts.until(lambda: len(target.received) > 10, source.step, target.step)
    frozen(hosts, host, 20_000_000_000, source.step)
    other = "child" if host == "parent" else "parent"
    now_ns = hosts.clock.monotonic_ns()
    (lost,) = hosts.endpoints[other].unreachable(now_ns)
    assert lost.host == host
    assert 16_000_000_000 < lost.silent_ns <= 20_000_000_000
    # A child is not dialled, so the last that its parent knows is how the link ended.
    assert lost.why == "no answer" if host == "parent" else "has been silent for" in lost.why
    failures = hosts.endpoints[other].statistics()[0].failures
    assert failures["silent"] == 1
    hosts.until(lambda: target.over, source.step, target.step)
    assert target.received == source.all
    assert hosts.up("child", "parent")


def test_a_host_that_is_not_there_yet_is_dialled_again_and_again(hosts):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    child = hosts.add("child", listens=False)
    child.dial("parent", ("127.0.0.1", port))
    begun_ns = hosts.clock.monotonic_ns()
    hosts.until(lambda: child.statistics()[0].failures.get("ECONNREFUSED", 0) > 20)
    assert child.statistics()[0].failures.keys() == {"ECONNREFUSED"}
    (lost,) = child.unreachable(hosts.clock.monotonic_ns())
    assert lost == Unreachable(
        "parent", hosts.clock.monotonic_ns() - begun_ns, "connection refused"
    )
    assert child.next_due_ns <= hosts.clock.monotonic_ns() + 500_000_000
    hosts.add("parent")
    hosts.dial("child", "parent")  # now it listens, at another port
    hosts.until(lambda: hosts.up("child"))


def test_a_child_that_dials_anew_replaces_its_former_link(hosts):
    hosts.add("parent")
    hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    source = Source(100, lambda n: 1000 + n, RING_BYTES)
    hosts.endpoints["parent"].offer(STREAM, source.tap, ["child"])
    hosts.until(lambda: hosts.up("child"))
    former = hosts.endpoints.pop("child")  # it is not polled any more, and its socket stays open
    hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    target = Target(RING_BYTES)
    hosts.endpoints["child"].subscribe(STREAM, target.mirror, "parent")
    hosts.until(lambda: target.over, source.step, target.step)
    assert target.received == source.all
    assert hosts.endpoints["parent"].statistics()[0].failures == {"replaced": 1}
    former.close()


def test_a_child_of_a_later_attempt_is_no_child_of_this_one(hosts):
    hosts.add("parent")
    hosts.add("child", listens=False, identity=Identity("job", 2, 1, "child"))
    hosts.dial("child", "parent")
    hosts.until(lambda: hosts.endpoints["child"].refused["older attempt"] > 2)
    assert not hosts.up("child")
    assert "is at attempt 1, this is 2" in hosts.endpoints["child"].last_refusal


def why(hosts: Hosts, host: str, lost: str) -> str:
    """Return why `lost` cannot be reached from `host`."""
    now_ns = hosts.clock.monotonic_ns()
    (found,) = (one for one in hosts.endpoints[host].unreachable(now_ns) if one.host == lost)
    return found.why


def test_the_reason_why_a_host_cannot_be_reached_is_reported(hosts):
    hosts.add("parent", identity=Identity("job", 2, 1, "parent"))
    hosts.add("late", listens=False)  # of attempt 1
    hosts.dial("late", "parent")
    hosts.endpoints["parent"].offer(STREAM, Source(1, lambda _n: 1).tap, ["late", "lost"])
    assert why(hosts, "parent", "late") == "it has not dialled"
    hosts.until(lambda: hosts.endpoints["late"].refused["older attempt"] > 0)
    assert why(hosts, "late", "parent") == "it refused: older attempt"
    assert why(hosts, "parent", "lost") == (
        "it has not dialled; somebody was turned away: host 'late' is at attempt 1, this is 2"
    )


def test_a_host_that_takes_the_connection_and_says_nothing(hosts):
    child = hosts.add("child", listens=False)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        child.dial("parent", mute.getsockname())
        assert why(hosts, "child", "parent") == "no answer"
        hosts.until(lambda: child.refused["late"] == 1)
        assert why(hosts, "child", "parent") == "no answer"


def test_silence_begins_with_the_first_poll(hosts):
    """What a host does between `dial` and its loop may take as long as it likes."""
    parent = hosts.add("parent")
    child = hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    parent.offer(STREAM, Source(1, lambda _n: 1).tap, ["child"])
    for endpoint, other in ((parent, "child"), (child, "parent")):
        hosts.clock.advance(3600_000_000_000)
        assert [
            (lost.host, lost.silent_ns) for lost in endpoint.unreachable(hosts.clock.monotonic_ns())
        ] == [(other, 0)]
        endpoint.poll()
        hosts.clock.advance(5)
        assert [
            (lost.host, lost.silent_ns) for lost in endpoint.unreachable(hosts.clock.monotonic_ns())
        ] == [(other, 5)]


@pytest.mark.parametrize("host", CUTS)
def test_a_peer_that_was_rejected_loses_its_link_and_comes_again(hosts, host):
    hosts.add("parent")
    hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    source = Source(60, lambda _n: FRAME_BYTES, RING_BYTES)
    (target,) = hosts.stream(source, "parent", ["child"])
    hosts.until(lambda: len(target.received) > 10, source.step, target.step)
    endpoint, (_, peer) = hosts.endpoints[host], CUTS[host]
    endpoint.reject(peer, "a message of 3 bytes")
    assert why(hosts, host, peer) == f"host {peer!r} sent nonsense: a message of 3 bytes"
    endpoint.reject(peer, "and another")  # it had arrived before the link was closed
    assert endpoint.statistics()[0].failures == {"rejected": 2}
    assert not endpoint.statistics()[0].up
    hosts.until(lambda: target.over, source.step, target.step)
    assert target.received == source.all
    assert hosts.up("parent", "child")
    with pytest.raises(ValueError, match="host 'nobody' is not known here"):
        endpoint.reject("nobody", "nothing")
