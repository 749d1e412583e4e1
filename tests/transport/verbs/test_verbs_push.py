"""Push channels over queue pairs: the contract, broken links, slots written from afar."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from tests.transport.frames import payload, receive, send
from tests.transport.test_push_tcp import (
    SLOT_BYTES,
    Network,
    PushBetweenHosts,
    send_while_links_break,
)
from tests.transport.verbs.conftest import PRETENDED, Machine
from tests.transport.verbs.fabric import WRITE
from whale_ray.transport.channel import Outcome
from whale_ray.transport.push.layout import PushLayout

Make_network = Callable[..., Network]


@pytest.fixture
def network(machine: Machine) -> Iterator[Make_network]:
    """Return a function that makes networks of verbs, which are closed at the end."""
    made: list[Network] = []

    def make(slots: int = 8, **options: object) -> Network:
        hosts = machine.hosts(reconnect_backoff_ms=1, reconnect_backoff_max_ms=4)
        made.append(Network(PushLayout(slots, SLOT_BYTES), hosts=hosts, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


class TestVerbsPush(PushBetweenHosts):
    """Over queue pairs."""

    @pytest.fixture(autouse=True)
    def _devices(self, machine: Machine) -> None:
        self.stride = machine.stride


@pytest.mark.parametrize("sender_dials", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_broken_links_lose_and_double_nothing(network, seed, sender_dials):
    send_while_links_break(network(sender_dials=sender_dials), random.Random(seed), 200)


@pytest.mark.parametrize("kind", PRETENDED, scope="session")
def test_slots_are_written_from_afar(network, machine):
    """Without a copy, as soon as the sender's host was told where they are.

    Not with real devices, which do not tell what they were asked for.
    """
    one = network()
    one.hosts.poll(20)
    writes = count_writes(machine)
    for number in range(20):
        assert send(one.sender, payload(number, 200)) is Outcome.SENT
        one.hosts.until(one.receiver.available)
        assert receive(one.receiver) == payload(number, 200)
    assert sum(writes) == 20


def count_writes(machine: Machine) -> list[int]:
    writes: list[int] = []
    for pair in machine.fabric.pairs.values():
        post = pair.post_send

        def counting(work, post=post):
            writes.append(work.opcode == WRITE)
            post(work)

        pair.post_send = counting
    return writes
