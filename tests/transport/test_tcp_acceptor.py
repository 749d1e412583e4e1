"""A flood of connections: hosts of the job are accepted, and links that are up continue."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
from collections.abc import Iterator

import pytest

from tests.transport.links import SECRET, Hosts, Source, Target, hosts_fixture
from tests.transport.strangers import Service, Stranger
from whale_ray.transport.links.handshake import Identity, Initiator

HALF_OPEN_MAX = 8
ACCEPTS_MAX = 2
CROWD = 1000
pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    yield from hosts_fixture(
        half_open_max=HALF_OPEN_MAX,
        handshake_timeout_ms=3000,
        silence_timeout_ms=600_000,
        reconnect_backoff_ms=1,
        reconnect_backoff_max_ms=4,
    )


@pytest.fixture
def service(hosts) -> Service:
    return Service(hosts)


def hello(host: str = "child-2") -> bytes:
    """Return a host's first message."""
    return Initiator(Identity("job", 1, 1, host), SECRET, secrets.token_bytes(32)).hello


class Flood:
    """Many connections that say nothing; each is opened again as soon as it was closed."""

    def __init__(self, address: tuple[str, int], content: bytes = b"") -> None:
        self._address = address
        self._content = content
        self._ended = select.epoll()
        self._socks: dict[int, socket.socket] = {}
        self.opened = 0
        for _ in range(CROWD):
            self._open()

    def _open(self) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(self._address)
        with contextlib.suppress(OSError):  # if it is not connected yet, it sends nothing
            sock.send(self._content)
        self._socks[sock.fileno()] = sock
        self._ended.register(sock.fileno(), select.EPOLLRDHUP)
        self.opened += 1

    def step(self) -> None:
        """Open all anew that were closed."""
        for fd, _ in self._ended.poll(0):
            self._ended.unregister(fd)
            self._socks.pop(fd).close()
            self._open()

    def close(self) -> None:
        for sock in self._socks.values():
            sock.close()
        self._ended.close()


@pytest.mark.parametrize("content", [b"", hello()[:-1]], ids=["idle", "nearly a hello"])
def test_a_child_comes_up_during_a_flood_and_a_link_that_stands_goes_on(hosts, service, content):
    hosts.until(lambda: hosts.up("child"), service.step)
    parent = service.parent
    with contextlib.closing(Flood(hosts.addresses["parent"], content)) as flood:
        hosts.until(lambda: parent.refused["evicted"] > 2 * HALF_OPEN_MAX, flood.step)
        hosts.add("child-2", listens=False)
        hosts.dial("child-2", "parent")
        source, target = Source(50, lambda n: n * 37 % 1000), Target()
        parent.offer(8, source.tap, ["child-2"])
        hosts.endpoints["child-2"].subscribe(8, target.mirror, "parent")
        hosts.until(lambda: target.over, flood.step, source.step, target.step)
        assert target.received == source.all
        hosts.until(lambda: flood.opened > 2 * CROWD, flood.step)
        assert len(parent._acceptor) <= HALF_OPEN_MAX
        service.goes_on()
        flood.step()
    for line in parent.statistics():
        assert (line.connections, line.failures) == (1, {}), "in the first time, and in for good"
    assert set(parent.refused) <= {"evicted", "late", "truncated", "ECONNRESET"}


def test_a_poll_accepts_few(hosts, service):
    hosts.until(lambda: hosts.up("child"), service.step)
    strangers = [Stranger(hosts) for _ in range(4 * HALF_OPEN_MAX)]
    parent = service.parent
    seen = 0
    for _ in range(2 * len(strangers)):
        parent.poll()
        now = len(parent._acceptor) + sum(parent.refused.values())
        assert now - seen <= ACCEPTS_MAX
        seen = now
    assert seen == len(strangers)
    assert len(parent._acceptor) == HALF_OPEN_MAX
    for stranger in strangers:
        stranger.sock.close()
    service.goes_on()


def test_the_oldest_silent_connection_is_closed_first_and_introduced_ones_last(hosts, service):
    hosts.until(lambda: hosts.up("child"), service.step)
    parent = service.parent

    def come(content: bytes = b"") -> Stranger:
        stranger = Stranger(hosts)
        stranger.send(content)
        hosts.poll(5)
        return stranger

    introduced = [come(hello()) for _ in range(HALF_OPEN_MAX - 2)]
    idle = [come() for _ in range(2)]
    for _ in range(20):
        idle.append(come())
        idle[-3].until_ended()
    assert parent.refused == {"evicted": 20}
    assert "too many connections waited for their proof" in parent.last_refusal
    introduced += [come(hello()) for _ in range(2)]
    for stranger in idle[-2:]:
        stranger.until_ended()
    assert len(parent._acceptor) == HALF_OPEN_MAX
    for stranger in introduced:
        stranger.hear()
        assert not stranger.ended
    introduced.append(come())
    introduced.pop(0).until_ended()
    for stranger in introduced:
        stranger.hear()
        assert not stranger.ended
        stranger.sock.close()
    service.goes_on()


def test_a_connection_whose_bytes_have_just_arrived_is_not_closed(hosts, service):
    """Their bytes are there, but no poll has seen them yet."""
    hosts.until(lambda: hosts.up("child"), service.step)
    oldest = Stranger(hosts)
    hosts.poll(5)
    others = [Stranger(hosts) for _ in range(HALF_OPEN_MAX - 1)]
    hosts.until(lambda: len(service.parent._acceptor) == HALF_OPEN_MAX)
    newcomer = Stranger(hosts)
    oldest.send(hello())
    service.parent._accept(hosts.clock.monotonic_ns())
    others[0].until_ended()
    hosts.until(lambda: len(oldest.got) > 0, oldest.hear)
    assert not oldest.ended
    for stranger in (oldest, newcomer, *others):
        stranger.sock.close()


def test_only_hosts_of_the_job_come_in_and_no_other_name_is_remembered(hosts):
    hosts.add("parent", hosts=["child", "parent"])
    for host in ("child", "another"):
        hosts.add(host, listens=False)
        hosts.dial(host, "parent")
    parent, another = hosts.endpoints["parent"], hosts.endpoints["another"]
    hosts.until(lambda: hosts.up("child") and another.refused["not accepted"] > 2)
    assert parent.refused["not accepted"] > 2
    assert parent.last_refusal == (
        "handshake refused: host 'another': no host of this job has that name"
    )
    (lost,) = another.unreachable(hosts.clock.monotonic_ns())
    assert lost.why == "it refused: not accepted"
    assert [line.host for line in parent.statistics()] == ["child"]


def test_what_came_with_a_connection_is_looked_at_when_it_is_accepted(hosts, service):
    hosts.until(lambda: hosts.up("child"), service.step)
    quick = Stranger(hosts)
    quick.send(hello())
    service.parent.poll()
    (connection,) = service.parent._manager.handshaking
    assert connection.side.introduced, "it needs no second turn, which a flood might not leave it"
    quick.sock.close()
