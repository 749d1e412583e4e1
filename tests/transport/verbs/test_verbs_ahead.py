"""How much is under way ahead of its turn: bounded, and asked for in bursts.

Over pretended devices that are slow: requests stay under way for many polls.
"""

from __future__ import annotations

import pytest

from tests.transport.links import Source
from tests.transport.test_tcp_endpoint import star
from tests.transport.verbs.conftest import machine_of
from whale_ray.transport.links.link import Link
from whale_ray.transport.links.messages import FRAME_ALIGNMENT
from whale_ray.transport.verbs import fetching, payload_sender
from whale_ray.transport.verbs.fetching import Fetcher
from whale_ray.transport.verbs.frames import LETTER_HEADER_BYTES, PLACED
from whale_ray.transport.verbs.payload_sender import Decision, PayloadSender
from whale_ray.transport.verbs.send_queue import SendQueue

AHEAD_BYTES = 16 << 10
FRAME_BYTES_MAX = 5000
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX + 2 * FRAME_ALIGNMENT
pytestmark = pytest.mark.usefixtures("no_leaks")


def carry(data: str) -> None:
    """Let streams pass whose messages are of a few frames each: several of them take turns."""
    hosts = machine_of("slow").hosts(verbs_data=data)
    star(hosts, "child")
    sources = [Source(200, lambda number: number * 37 % FRAME_BYTES_MAX) for _ in range(3)]
    targets = [
        hosts.stream(source, "parent", ["child"], number)[0]
        for number, source in enumerate(sources)
    ]
    steps = [one.step for one in (*sources, *targets)]
    hosts.until(lambda: all(target.over for target in targets), *steps)
    assert [target.received for target in targets] == [source.all for source in sources]
    while hosts.poll(20):
        pass
    hosts.close()


def test_reads_are_asked_for_in_bursts_and_bounded(monkeypatch):
    bursts: list[tuple[int, int]] = []
    fetch_ahead = Fetcher.fetch_ahead

    def watched(fetcher: Fetcher, link: Link) -> bool:
        before = fetcher._bytes
        asked = fetch_ahead(fetcher, link)
        if asked:
            bursts.append((before, fetcher._bytes))
        return asked

    monkeypatch.setattr(fetching, "_AHEAD_BYTES", AHEAD_BYTES)
    monkeypatch.setattr(fetching, "_REFILL_BYTES", AHEAD_BYTES // 2)
    monkeypatch.setattr(Fetcher, "fetch_ahead", watched)
    monkeypatch.setattr("whale_ray.transport.links.turns.SLICE_BYTES", 1 << 12)
    monkeypatch.setattr("whale_ray.transport.verbs.connection.SLICE_BYTES", 1 << 12)
    carry("read")
    assert max(before for before, _ in bursts) <= AHEAD_BYTES // 2
    most = max(after for _, after in bursts)
    assert AHEAD_BYTES // 2 < most < AHEAD_BYTES + MESSAGE_BYTES_MAX
    assert any(before > 0 for before, _ in bursts), "while others were under way"


def test_writes_are_bounded_and_all_are_accounted_for(monkeypatch):
    lenders: set[PayloadSender] = set()
    before_writes: list[int] = []
    decide = PayloadSender.decide

    def watched(
        lender: PayloadSender, link: Link, stream: int, start: int, nbytes: int, number: int
    ) -> Decision:
        before = lender._bytes
        decision = decide(lender, link, stream, start, nbytes, number)
        if decision == PLACED:
            lenders.add(lender)
            before_writes.append(before)
            assert lender._bytes == before + nbytes
        return decision

    monkeypatch.setattr(payload_sender, "_AHEAD_BYTES", AHEAD_BYTES)
    monkeypatch.setattr(PayloadSender, "decide", watched)
    monkeypatch.setattr("whale_ray.transport.links.turns.SLICE_BYTES", 1 << 12)
    carry("write")
    assert max(before_writes) < AHEAD_BYTES
    (lender,) = lenders
    assert lender._bytes == 0


@pytest.mark.parametrize("data", ["read", "write", "send"])
def test_no_letter_goes_off_empty_but_to_give_letters_back(monkeypatch, data):
    sizes: list[int] = []
    send, give_back = SendQueue._send, SendQueue.give_back

    def watched(postman: SendQueue) -> None:
        sizes.append(postman._at)
        send(postman)

    def given_back(postman: SendQueue) -> bool:
        before = len(sizes)
        given = give_back(postman)
        del sizes[before:]
        return given

    monkeypatch.setattr(payload_sender, "_AHEAD_BYTES", AHEAD_BYTES)
    monkeypatch.setattr(SendQueue, "_send", watched)
    monkeypatch.setattr(SendQueue, "give_back", given_back)
    monkeypatch.setattr("whale_ray.transport.links.turns.SLICE_BYTES", 1 << 12)
    carry(data)
    assert min(sizes) > LETTER_HEADER_BYTES
