"""How a relay handles messages of other relays."""

from __future__ import annotations

import pytest

from whale_ray.configs.settings import Settings
from whale_ray.plan.assignment import (
    RelayAssignment,
)
from whale_ray.plan.hosts import assign_hosts
from whale_ray.plan.streams import StreamPlan
from whale_ray.relay.relay import Relay
from whale_ray.relay.watermark_exchange import _WATERMARK, TAG
from whale_ray.transport.clock import SystemClock
from whale_ray.transport.doorbell import NO_WATERMARK_NS, DoorbellBoard
from whale_ray.worker.offers import RingOffer

SECRET = b"s" * 32
SLOT_HOSTS = (0, 1, 1)


@pytest.fixture
def relay():
    """Return host 0's relay in its first attempt, with a board of its own."""
    plan = StreamPlan(2, (), assign_hosts(2, 2, "star"))
    assignment = RelayAssignment("job", plan, SLOT_HOSTS, Settings(), SECRET)
    made = Relay(2, assignment, SystemClock(), "127.0.0.1")
    made.open(0)
    board = DoorbellBoard.create(2, len(SLOT_HOSTS), "job-0")
    made.link(0, (board.handle, None, None, None))
    nowhere = ("127.0.0.1", 1)
    made.connect(0, (*(RingOffer({}),) * 2, *(RingOffer({}, nowhere),) * 2))
    yield made
    made.close()
    board.close()


def watermarks(relay: Relay) -> list[int]:
    assert relay._board is not None
    return [relay._board.board.watermark(slot) for slot in range(len(SLOT_HOSTS))]


def take(relay: Relay, host: str, packed: bytes) -> bool:
    assert relay._loop is not None
    return relay._loop.take_message(host, packed)


def test_watermarks_of_the_hosts_own_sources_are_noted(relay: Relay) -> None:
    assert take(relay, "host-1", TAG + _WATERMARK.pack(1, 10) + _WATERMARK.pack(2, -20))
    assert watermarks(relay) == [NO_WATERMARK_NS, 10, -20]


@pytest.mark.parametrize(
    ("host", "packed"),
    [
        ("host-1", TAG + _WATERMARK.pack(0, 10)),
        ("host-0", TAG + _WATERMARK.pack(1, 10)),
        ("host-7", TAG + _WATERMARK.pack(1, 10)),
        ("host-1", TAG + _WATERMARK.pack(3, 10)),
        ("host-1", TAG + _WATERMARK.pack(1, 10)[:-1]),
        ("host-1", b"nonsense"),
        ("host-1", b"Tnonsense"),
        ("host-1", b""),
    ],
    ids=[
        "another's source",
        "not its own",
        "no host",
        "no source",
        "cut off",
        "nonsense",
        "no vertex",
        "nothing",
    ],
)
def test_messages_that_a_host_may_not_send_change_nothing(
    relay: Relay, host: str, packed: bytes
) -> None:
    assert not take(relay, host, packed)
    assert watermarks(relay) == [NO_WATERMARK_NS] * len(SLOT_HOSTS)


def test_its_secret_is_not_shown(relay: Relay) -> None:
    assert "secret" not in repr(relay._assignment)
    assert SECRET.decode() not in repr(relay._assignment)
