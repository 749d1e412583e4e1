"""Unknown, impersonating and faulty peers that connect to an endpoint get nothing and do no harm.

In every test a real child is served meanwhile, and gets every byte.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import secrets
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.transport.links import ADDRESS, SECRET, Hosts, Target, hosts_fixture
from tests.transport.strangers import Service, Stranger
from whale_ray.transport.links import handshake, link_header
from whale_ray.transport.links.handshake import HELLO_BYTES, Identity, Initiator
from whale_ray.transport.links.link_header import encode
from whale_ray.transport.links.peer import EARLY_MAX

HALF_OPEN_MAX = 8
TIMEOUT_MS = 3000


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    yield from hosts_fixture(
        half_open_max=HALF_OPEN_MAX,
        handshake_timeout_ms=TIMEOUT_MS,
        silence_timeout_ms=600_000,
        reconnect_backoff_ms=1,
        reconnect_backoff_max_ms=4,
    )


@pytest.fixture
def service(hosts) -> Service:
    return Service(hosts)


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: parent\r\n\r\n",
    "zeros": bytes(10_000),
    "one byte": b"\x16",
    "random": random.Random(1).randbytes(5000),
    "ends like a hello": handshake._MAGIC + bytes(HELLO_BYTES - 8),
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage(hosts, service, content):
    stranger = Stranger(hosts)
    stranger.send(content)
    stranger.until_ended()
    assert stranger.got == b"" or stranger.got.startswith(handshake._MAGIC)
    assert len(stranger.got) <= 16, "no more than the version"
    assert sum(service.parent.refused.values()) == 1
    assert len(service.parent._acceptor) == len(service.parent._manager.handshaking)
    service.goes_on()


def test_half_a_handshake_ends_at_its_deadline(hosts, service):
    side = Initiator(Identity("job", 1, 1, "x"), SECRET, secrets.token_bytes(32))
    strangers = [Stranger(hosts) for _ in range(3)]
    for stranger, content in zip(strangers, (b"", side.hello[:100], side.hello), strict=True):
        stranger.send(content)
    service.goes_on()
    hosts.until(lambda: service.parent.refused["late"] == 3)
    for stranger in strangers:
        stranger.until_ended()
    assert "took too long" in service.parent.last_refusal
    assert len(service.parent._acceptor) == 0


def test_a_host_that_vanishes_during_the_handshake(hosts, service):
    side = Initiator(Identity("job", 1, 1, "x"), SECRET, secrets.token_bytes(32))
    for content in (b"", side.hello[:100], side.hello):
        stranger = Stranger(hosts)
        stranger.send(content)
        hosts.poll(5)
        stranger.sock.close()
    refused = service.parent.refused
    hosts.until(lambda: refused["truncated"] + refused["ECONNRESET"] == 3)
    service.goes_on()


def test_a_recorded_handshake(hosts, service):
    """Record a child on its way through a relay of bytes, then say the same again."""
    said = []
    with socket.create_server((ADDRESS, 0)) as ear:
        ear.setblocking(False)
        hosts.add("child-2", listens=False)
        hosts.endpoints["child-2"].dial("parent", ear.getsockname())
        hosts.poll(3)
        inner, _ = ear.accept()
        inner.setblocking(False)
        outer = Stranger(hosts)

        def relay() -> None:
            with contextlib.suppress(BlockingIOError):
                said.append(inner.recv(1 << 16))
                outer.send(said[-1])
            outer.hear()
            with contextlib.suppress(BlockingIOError):
                inner.send(outer.got)
            outer.got = b""

        hosts.until(lambda: hosts.up("child-2"), relay)
        # From here on the child sends nothing more through the relay.
        hosts.endpoints.pop("child-2").close()
        inner.close()
        outer.sock.close()
    recorded = b"".join(said)
    assert len(recorded) >= HELLO_BYTES + handshake.PROOF_BYTES
    stranger = Stranger(hosts)
    stranger.send(recorded)
    stranger.until_ended()
    assert service.parent.refused["replayed"] == 1
    assert len(stranger.got) <= HELLO_BYTES, "a challenge, and nothing behind it"
    service.goes_on()


def test_no_descriptors_left(hosts, service):
    hosts.until(lambda: hosts.up("child"), service.step)
    strangers = [Stranger(hosts) for _ in range(3)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Then no descriptor below the limit is free.
    with contextlib.ExitStack() as stack:
        lowest = max(stranger.sock.fileno() for stranger in strangers) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with contextlib.suppress(OSError):
            while True:
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        hosts.poll(10)
        assert service.parent.refused["EMFILE"] == 3
        assert not hosts.endpoints["parent"].poll(), "it does not turn in circles"
    for stranger in strangers:
        stranger.until_ended()
    service.goes_on()


def test_a_wrong_secret(hosts, service):
    impostor = hosts.add("child-2", listens=False, secret=b"x" * 32)
    hosts.dial("child-2", "parent")
    hosts.until(lambda: service.parent.refused["wrong secret"] > 2)
    hosts.until(lambda: impostor.refused["truncated"] > 2)
    assert "its secret or version may be another" in impostor.last_refusal
    assert not hosts.up("child-2")
    impostor.send_control("parent", b"from an impostor")
    hosts.poll(50)
    assert service.parent.receive_control() is None
    service.goes_on()


def test_another_version(hosts, service, monkeypatch):
    other = hosts.add("child-2", listens=False)
    hosts.dial("child-2", "parent")
    with monkeypatch.context() as patch:
        patch.setattr(handshake, "PROTOCOL_VERSION", handshake.PROTOCOL_VERSION + 1)
        other.poll()  # dials, with its hello made by that version
    hosts.until(lambda: service.parent.refused["other version"] == 1)
    assert "must run the same version of whale-ray" in service.parent.last_refusal
    service.goes_on()


def test_another_host_at_the_address_that_was_dialled(hosts, service):
    lost = hosts.add("lost", listens=False)
    lost.dial("elsewhere", hosts.addresses["parent"])
    hosts.until(lambda: lost.refused["other host"] > 1)
    assert lost.last_refusal == (
        "handshake refused: host 'elsewhere' was dialled, 'parent' answered"
    )
    service.goes_on()


MADNESS = {
    "an endless frame": encode(link_header.DATA, 0, 7, 0, 0, 0xFFFFFFC0),
    "a zero-length frame": encode(link_header.DATA, 0, 7, 0, 0, 0),
    "an endless control message": encode(link_header.CONTROL, 0, 0, 0, 1, 0xFFFFFFFF),
    "no frame": b"GET / HTTP/1.1\r\n" * 2,
    "data to a parent": encode(link_header.DATA, 0, 7, 0, 0, 64) + bytes(64),
    "another's stream": encode(link_header.SUBSCRIBE, 0, 7, 0, 64, detail=16),
    "a grant for nothing": encode(link_header.GRANT, 0, 7, 64, 64),
    "a gap": encode(link_header.HEARTBEAT, 9),
    "too many subscriptions": b"".join(
        encode(link_header.SUBSCRIBE, n, n + 100, 0, 64, detail=16) for n in range(EARLY_MAX + 1)
    ),
}


@pytest.mark.parametrize("content", MADNESS.values(), ids=MADNESS)
def test_an_authenticated_peer_that_sends_invalid_messages_loses_its_link(hosts, service, content):
    madman = Stranger(hosts)
    madman.introduce()
    rest = content
    while rest:
        madman.send(rest[:32_000])
        rest = rest[32_000:]
        hosts.poll()
    madman.until_ended()
    (line,) = (one for one in service.parent.statistics() if one.host == "child-2")
    assert not line.up
    assert sum(line.failures.values()) == 1
    service.goes_on()


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_at_all_do_no_harm(data):
    """Whatever an authenticated peer sends, in whatever pieces: it is served or cut off."""
    hosts = Hosts(silence_timeout_ms=600_000)
    service = Service(hosts)
    madman = Stranger(hosts)
    madman.introduce()
    good = [
        encode(link_header.SUBSCRIBE, 0, 8, 0, 4096, detail=16),
        encode(link_header.HEARTBEAT, 1, 0, 5, 0),
        encode(link_header.CONTROL, 2, 0, 0, 77, 3) + b"abc",
    ]
    content = bytearray(b"".join(good) + data.draw(st.binary(max_size=200)))
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=5)
    ):
        content[place] = byte
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5)))
    for start, stop in zip([0, *cuts], [*cuts, len(content)], strict=True):
        madman.send(bytes(content[start:stop]))
        hosts.poll(2)
        madman.hear()
    assert len(service.parent._manager.handshaking) <= 1
    madman.sock.close()
    hosts.until(lambda: all(line.host != "child-2" or not line.up for line in _lines(service)))
    service.goes_on()
    hosts.close()


def _lines(service: Service):
    return service.parent.statistics()


def test_a_parent_that_sends_invalid_messages_is_dialled_again_with_back_off(hosts):
    """A server that takes every connection and answers rubbish."""
    target = Target()
    child = hosts.add("child", listens=False)
    child.subscribe(7, target.mirror, "parent")
    answers = (b"", b"rubbish" * 100, random.Random(2).randbytes(HELLO_BYTES))
    with socket.create_server((ADDRESS, 0)) as server:
        server.setblocking(False)
        child.dial("parent", server.getsockname())
        met = 0

        def answer() -> None:
            nonlocal met
            with contextlib.suppress(BlockingIOError):
                sock, _ = server.accept()
                sock.send(answers[met % len(answers)])
                met += 1
                sock.close()

        hosts.until(lambda: met >= 30, answer)
    assert not hosts.up("child")
    assert len(tuple(child._descriptors)) <= 1
    failures = child.statistics()[0].failures
    assert failures["foreign"] >= 5
    assert set(failures) <= {"foreign", "truncated", "ECONNRESET"}
